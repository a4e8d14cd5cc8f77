"""Faults that last a while, for ``everstep drill``: put in, waited for, and taken back however the wait ends.

Each takes ``wait``, which returns after so many seconds or raises, as a signal's handler does. Only SIGKILL of the
drill itself leaves the fault behind; each docstring says what that means.

Raises, all of them: ContractError when the fault cannot be put in.
"""

import ctypes
import errno
import math
import os
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path

from orchestrator.agent.host_folder import HostFolder
from orchestrator.agent.process import send_signal
from orchestrator.backends.local.host_processes import trainer_processes
from orchestrator.contract.attempt import HostRef
from orchestrator.contract.base import ContractError

Wait = Callable[[float], None]

CYCLE = 0.5
"""Seconds of a slow trainer's stop and run; well below every limit for a trainer that is stuck."""
REFILL = 1.0
"""Seconds after which a full disk takes what was freed meanwhile."""
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


def slow_host(fleet: Path, host: HostRef, *, factor: float, seconds: float, wait: Wait) -> str:
    """Let the trainer run for 1/``factor`` of the time only, by SIGSTOP and SIGCONT in turn.

    A trainer that is left stopped is what ``stop-host`` makes: the run goes on without it.
    """
    slowed = trainer_processes(HostFolder.of(fleet, host))
    if not slowed:
        return f"host {host}: no trainer runs there, nothing was slowed"
    for cycle in range(max(1, round(seconds / CYCLE))):
        try:
            if not [who for who in slowed if send_signal(who, signal.SIGSTOP)]:
                return f"host {host}: trainer {slowed[0].pid} ended after {cycle * CYCLE:.1f} s as a slow one"
            wait(CYCLE * (1 - 1 / factor))
        finally:
            for who in slowed:
                send_signal(who, signal.SIGCONT)
        wait(CYCLE / factor)
    return f"host {host}: trainer {slowed[0].pid} was {factor:g} times slower for {seconds:g} s, and is not any more"


def store_outage(root: Path, *, seconds: float, wait: Wait) -> str:
    """Have every operation on a store fail: its folder changes places with a file, so that nobody can make another
    store, or a checkpoint, where it was.

    Left behind, the file says how to give the store back.
    """
    aside = away_from(root)
    try:
        with aside.open("x") as file:
            file.write(f"The store is away; give it back: {how_to_give_back(root)}\n")
    except FileExistsError:
        raise ContractError(f"{aside} is there: another outage lasts, or was not ended; look at it first") from None
    try:
        _exchange(aside, root)
        wait(seconds)
    finally:
        if aside.is_dir():
            _exchange(aside, root)
        aside.unlink()
    return f"store {root}: was away for {seconds:g} s, and is back"


def away_from(root: Path) -> Path:
    """Where a store is during its outage."""
    return root.with_name(f"{root.name}.away")


def how_to_give_back(root: Path) -> str:
    return f"rm '{root}' && mv '{away_from(root)}' '{root}'"


def full_disk(root: Path, *, seconds: float, wait: Wait) -> str:
    """Take all space of the store's file system, which must be one of its own; what is freed meanwhile is taken too.

    Left behind, the file ``.tmp/full-disk.drill`` has to be deleted.
    """
    for place in (Path("/"), Path.home(), Path(tempfile.gettempdir())):
        if place.stat().st_dev == root.stat().st_dev:
            raise ContractError(f"store {root} shares a file system with {place}: mount one of its own for this drill")
    filler = root / ".tmp" / "full-disk.drill"
    taken = 0
    try:
        with filler.open("wb") as file:
            for _ in range(max(1, math.ceil(seconds / REFILL))):
                taken = _take_all(file.fileno(), taken)
                wait(min(REFILL, seconds))
    finally:
        filler.unlink(missing_ok=True)
    return f"store {root}: its file system was full for {seconds:g} s ({taken:,} bytes taken), and is not any more"


def _take_all(handle: int, taken: int) -> int:
    """Allocate until nothing is left; returns the file's size."""
    chunk = 1 << 30
    while chunk >= 512:
        try:
            os.posix_fallocate(handle, taken, chunk)
            taken += chunk
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            chunk //= 2
    return taken


def _exchange(one: Path, other: Path) -> None:
    """Two names change places at once, so that at no moment one of them is free."""
    libc = ctypes.CDLL(None, use_errno=True)
    paths = os.fsencode(one), os.fsencode(other)
    if libc.renameat2(_AT_FDCWD, paths[0], _AT_FDCWD, paths[1], _RENAME_EXCHANGE) != 0:
        why = os.strerror(ctypes.get_errno())
        raise ContractError(f"{other} cannot be moved aside: {why}; a store that is itself a mount point cannot")
