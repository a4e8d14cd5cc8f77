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
from typing import Annotated, NamedTuple

from pydantic import Field

from orchestrator.contract.base import Part

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


class ProcessIdentity(Part):
    """One process, for as long as this machine is up."""

    pid: Annotated[int, Field(gt=0)]
    start_ticks: Annotated[int, Field(ge=0)]
    """Field 22 of ``/proc/<pid>/stat``: clock ticks from boot to its start."""


class _Stat(NamedTuple):
    identity: ProcessIdentity
    parent: int
    session: int
    alive: bool


def identity_of(pid: int) -> ProcessIdentity | None:
    """Who has this pid now; None when nobody that is alive has it. A zombie is not alive."""
    found = _read_stat(pid)
    return found.identity if found and found.alive else None


def identity_of_child(pid: int) -> ProcessIdentity:
    """A child that was not waited for, ended or not."""
    found = _read_stat(pid)
    assert found is not None, f"{pid} is no child, or was waited for"
    return found.identity


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

    The kernel gives a number to nobody else while a session has it: another process with the leader's pid means that
    the session is empty.
    """
    now = identity_of(leader.pid)
    if now is not None and now != leader:
        return []
    found = [entry for entry in map(_read_stat, _pids()) if entry is not None and entry.alive]
    members = [entry.identity for entry in found if entry.session == leader.pid]
    return sorted((who for who in members if who.start_ticks >= leader.start_ticks), key=lambda who: who != leader)


def children_of(parent: int) -> list[ProcessIdentity]:
    """The living children of a process."""
    found = map(_read_stat, _pids())
    return [entry.identity for entry in found if entry is not None and entry.alive and entry.parent == parent]


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


def _read_stat(pid: int) -> _Stat | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text.rpartition(b")")[2].split()  # the name before it may hold anything
    return _Stat(
        identity=ProcessIdentity(pid=pid, start_ticks=int(fields[19])),
        parent=int(fields[1]),
        session=int(fields[3]),
        alive=fields[0] not in (b"Z", b"X"),
    )


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
