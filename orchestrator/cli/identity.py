"""Who asks, as it is recorded."""

import getpass
import os
import socket


def person() -> str:
    """``user@host``; the user's number where it has no name."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"
