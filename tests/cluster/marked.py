"""All processes of a container or host, found by the mark in their environment and ended together."""

import contextlib
import os
import select
import signal
from pathlib import Path

_SECONDS = 20.0


def kill_marked(name: str, folder: Path) -> None:
    """SIGKILL every process whose environment has ``name`` = ``folder`` or something in it, and wait for the ends.

    Again until none is left: one of them may be starting another at this moment.
    """
    while handles := _marked(f"{name}={folder}".encode()):
        try:
            for handle in handles:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
            for handle in handles:
                if not select.select([handle], [], [], _SECONDS)[0]:
                    raise TimeoutError(f"a process of {folder} did not end within {_SECONDS:.0f} s of its SIGKILL")
        finally:
            for handle in handles:
                os.close(handle)


def _marked(mark: bytes) -> list[int]:
    """Handles (pidfd), opened before their processes' environment is read: a pid that is used again is never hit."""
    found = []
    for pid in (int(entry) for entry in os.listdir("/proc") if entry.isdigit()):
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        if _has(mark, pid):
            found.append(handle)
        else:
            os.close(handle)
    return found


def _has(mark: bytes, pid: int) -> bool:
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError):  # ended, or another user's
        return False
    return any(variable == mark or variable.startswith(mark + b"/") for variable in variables)
