"""Operating-system processes by identity: a pid alone names another process sooner or later.

An identity is a pid and the kernel's start time of it, in clock ticks since boot. Signals go through a pidfd that was
opened *before* the identity was compared, so a pid that is used again between look and signal is never hit.
"""

import ctypes
import os
import select
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

from pydantic import Field

from orchestrator.contract.base import Part

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


class ProcessIdentity(Part):
    """One process, for as long as this machine is up."""

    pid: Annotated[int, Field(gt=0)]
    start_ticks: Annotated[int, Field(ge=0)]
    """Field 22 of ``/proc/<pid>/stat``: clock ticks from boot to its start."""


def identity_of(pid: int) -> ProcessIdentity | None:
    """Who has this pid now; None when nobody that is alive has it. A zombie is not alive."""
    found = _read_stat(pid)
    return found[0] if found else None


def is_alive(identity: ProcessIdentity) -> bool:
    return identity_of(identity.pid) == identity


def send_signal(identity: ProcessIdentity, number: signal.Signals) -> bool:
    """Signal exactly this process; False when it is gone.

    Raises:
        PermissionError: it belongs to another user.
    """
    handle = _open(identity)
    if handle is None:
        return False
    try:
        signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)
    return True


def kill_and_wait(identities: Iterable[ProcessIdentity], *, timeout: float) -> bool:
    """SIGKILL all of them, then wait up to ``timeout`` seconds for the ends; True when all are gone."""
    handles = [handle for handle in map(_open, identities) if handle is not None]
    try:
        for handle in handles:
            try:
                signal.pidfd_send_signal(handle, signal.SIGKILL)
            except ProcessLookupError:
                continue
        return all(_ended(handle, timeout) for handle in handles)
    finally:
        for handle in handles:
            os.close(handle)


def wait_for_end(identity: ProcessIdentity, *, timeout: float) -> bool:
    """True when the process ended within ``timeout`` seconds."""
    handle = _open(identity)
    if handle is None:
        return True
    try:
        return _ended(handle, timeout)
    finally:
        os.close(handle)


def session_members(leader: ProcessIdentity) -> list[ProcessIdentity]:
    """The living processes of the session that ``leader`` opened, the leader itself first.

    Whoever started before the leader is of an older session that had the same number.
    """
    found = [entry for entry in map(_read_stat, _pids()) if entry is not None]
    members = [who for who, session in found if session == leader.pid and who.start_ticks >= leader.start_ticks]
    return sorted(members, key=lambda who: who != leader)


def die_with_parent(parent: int) -> None:
    """Have the kernel send SIGKILL to this process when ``parent`` ends; for a child, right after its fork."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the request was made
        os.kill(os.getpid(), signal.SIGKILL)


def adopt_orphans() -> None:
    """Become the parent of all descendants whose own parent ends, so that each can be reaped here."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _read_stat(pid: int) -> tuple[ProcessIdentity, int] | None:
    """Identity and session of a living process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text.rpartition(b")")[2].split()  # the name before it may hold anything
    if fields[0] in (b"Z", b"X"):
        return None
    return ProcessIdentity(pid=pid, start_ticks=int(fields[19])), int(fields[3])


def _open(identity: ProcessIdentity) -> int | None:
    """A pidfd of exactly this process; None when it is gone."""
    try:
        handle = os.pidfd_open(identity.pid)
    except ProcessLookupError:
        return None
    if is_alive(identity):
        return handle
    os.close(handle)
    return None


def _ended(handle: int, timeout: float) -> bool:
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    return bool(poll.poll(max(0.0, timeout) * 1000))
