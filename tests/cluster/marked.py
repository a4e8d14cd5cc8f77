"""All processes of a container or host, found by the mark in their environment and ended together."""

import os
from pathlib import Path

from orchestrator.agent.process import ProcessIdentity, identity_of, kill_and_wait

_SECONDS = 20.0


def kill_marked(name: str, folder: Path) -> None:
    """SIGKILL every process whose environment has ``name`` = ``folder`` or something in it, and wait for the ends.

    Again until none is left: one of them may be starting another at this moment.
    """
    while found := _marked(f"{name}={folder}".encode()):
        if not kill_and_wait(found, timeout=_SECONDS):
            raise TimeoutError(f"processes of {folder} did not end: {found}")


def _marked(mark: bytes) -> list[ProcessIdentity]:
    found = []
    for pid in (int(entry) for entry in os.listdir("/proc") if entry.isdigit()):
        identity = identity_of(pid)
        if identity is not None and _has(mark, pid):
            found.append(identity)
    return found


def _has(mark: bytes, pid: int) -> bool:
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError):  # ended, or another user's
        return False
    return any(variable == mark or variable.startswith(mark + b"/") for variable in variables)
