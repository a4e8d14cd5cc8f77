"""Controllers of this machine: which run has one, and starting one that outlives the terminal.

A controller holds a lock below the fleet's folder for as long as it lives, so that people can be told when a run has
none. Nothing depends on it: two controllers of one run are safe.
"""

import contextlib
import fcntl
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from orchestrator.cli.errors import Unreachable
from orchestrator.contract.run import Run
from orchestrator.reports.facts import read_facts
from orchestrator.store.run_store import RunStore

START_TIMEOUT = 60.0
"""Seconds until a controller that was started must lead."""
_LOCK_LAYOUT = "hhqqi"
"""``struct flock``: type, whence, start, length, pid."""


def log_of(run: Run) -> Path:
    """Where a detached controller writes."""
    return _folder(run) / f"{run.name}.log"


def leader_of(run: Run) -> int | None:
    """The process that leads a run on this machine; None when there is none, or it is this one."""
    try:
        handle = os.open(_lock(run), os.O_RDWR)
    except FileNotFoundError:
        return None
    try:
        answer = fcntl.fcntl(handle, fcntl.F_GETLK, struct.pack(_LOCK_LAYOUT, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    finally:
        os.close(handle)
    kind, _, _, _, pid = struct.unpack(_LOCK_LAYOUT, answer)
    return None if kind == fcntl.F_UNLCK else int(pid)


def without_leader(store: RunStore) -> bool:
    """The run goes on and nobody leads it, so it stands still; known only where its fleet is on this machine."""
    facts = read_facts(store)
    last = facts.changes[-1]
    over = last.state in ("complete", "stopped") and not last.live
    return not over and os.path.isdir(facts.run.fleet) and leader_of(facts.run) is None


@contextlib.contextmanager
def leading(run: Run) -> Iterator[None]:
    """Hold the run's lock if it is free; a second controller goes on without it."""
    _folder(run).mkdir(parents=True, exist_ok=True)
    handle = os.open(_lock(run), os.O_RDWR | os.O_CREAT, 0o644)
    try:
        with contextlib.suppress(BlockingIOError, PermissionError):
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)


def start_detached(run: Run, *, store_address: str) -> int:
    """Start ``everstep controller`` in a session of its own and see it lead; returns its process id.

    Raises:
        Unreachable: it ended at once, or does not lead in time; names its log.
    """
    log = log_of(run)
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-P", "-m", "orchestrator.cli.main", "controller", run.name, "--store", store_address]
    with log.open("ab") as stream:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, start_new_session=True
        )
    for _ in range(int(START_TIMEOUT / 0.05)):
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = child.wait(timeout=0.05)
            if code:
                raise Unreachable(f"the controller of {run.name} ended at once with exit code {code}; see {log}")
            return child.pid
        if leader_of(run) is not None:
            child.returncode = 0  # it outlives this process, which must not wait for it
            return child.pid
    raise Unreachable(f"the controller of {run.name} does not lead after {START_TIMEOUT:.0f} s; see {log}")


def how_to_start(run: str, store_address: str) -> str:
    return f"everstep controller {run} --store {store_address}"


def _folder(run: Run) -> Path:
    return Path(run.fleet) / "controllers"


def _lock(run: Run) -> Path:
    return _folder(run) / f"{run.name}.lock"
