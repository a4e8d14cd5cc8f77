"""What both sides of ``recovery.py`` have in common: the job, the moment of the kill, what a trial shows."""

import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

Found = TypeVar("Found")

CASES = {
    "trainer": "one trainer process is killed, its host stays",
    "host": "one host is killed with all that runs on it, and is back at once",
    "shrink": "all hosts but the first are taken away, and training goes on on that one",
}
PHASES = (
    "detect",
    "decide",
    "stop",
    "wait",
    "start",
    "initialise",
    "compile",
    "restore",
    "replay",
    "first new step",
)
"""As ``orchestrator.reports.episodes`` has them, each from where the one before ended to when the last process ended
it, so that they add up; ``replay`` has every step that had been computed before the kill, recorded or not."""
VOCABULARY = 64
MODEL = {
    "vocab_size": VOCABULARY,
    "d_model": 64,
    "n_layers": 2,
    "global_every": 2,
    "n_heads": 4,
    "n_kv_heads": 4,
    "head_dim": 16,
    "d_ff": 128,
    "sliding_window": 16,
    "compute_dtype": "float32",
}
RANKS, ROWS_PER_RANK, LENGTH = 8, 2, 64
DEVICES = 2
"""Of each host."""
STEPS = 1_000_000
"""More than a trial takes."""
LEEWAY = 10
"""Steps that a kill may come too late."""
PATIENCE = 1200.0
"""Seconds until a trial must have got to where it is waited for."""
LOOK_EVERY = 0.05
"""Seconds; no figure depends on it, since processes write down themselves when they did what."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """The same for all sides."""

    hosts: int
    every: int
    """Steps between two checkpoints."""
    after: int
    """The kill comes when the newest checkpoint is committed and so many steps beyond it were computed."""

    def due(self, *, committed: int, next_step: int) -> bool:
        """Now is the moment to kill. A checkpoint that is committed later is passed over and the next one waited for:
        otherwise one side would have more to replay."""
        return committed > 0 and self.after <= next_step - committed < self.after + LEEWAY

    def victims(self, case: str, trial: int) -> tuple[int, ...]:
        """Hosts to kill: another one in each trial."""
        return tuple(range(1, self.hosts)) if case == "shrink" else (trial % self.hosts,)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One kill and what followed."""

    side: str
    case: str
    trial: int
    seconds: float
    """From the kill to the end of the first step that had not been computed before it."""
    replayed: int
    """Steps that were computed again before that one."""
    launches: int
    """More than 1: the first ones failed."""
    phases: dict[str, float]


def phases_of(moments: Mapping[str, float | None], *, killed: float) -> dict[str, float]:
    """Seconds of each phase, from when each ended; one that has no end of its own took no time."""
    ends = [killed]
    for phase in PHASES:
        ends.append(max(ends[-1], moments.get(phase) or 0.0))
    return {phase: after - before for phase, (before, after) in zip(PHASES, pairwise(ends), strict=True)}


def write_tokens(path: Path) -> None:
    np.random.default_rng(7).integers(0, VOCABULARY, LENGTH * 2000).astype("<u4").tofile(path)


def until(look: Callable[[], Found | None], what: str, *, alive: Callable[[], bool] = lambda: True) -> Found:
    """The first true answer.

    Raises:
        SystemExit: none came in PATIENCE seconds, or what is looked at is not alive any more.
    """
    deadline, pause = time.monotonic() + PATIENCE, threading.Event()
    while time.monotonic() < deadline:
        found = look()
        if found:
            return found
        if not alive():
            raise SystemExit(f"{what}: ended before that; its logs are gone with the folder, keep it with --folder")
        pause.wait(LOOK_EVERY)
    raise SystemExit(f"{what}: not in {PATIENCE:.0f} s")


@contextmanager
def uninterrupted() -> Iterator[None]:
    """A second Ctrl-C does not stop what the first one has ended from being cleared away."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def settings_of(job: Job, *, data: Path, port: int) -> dict[str, Any]:
    """What ``shell_loop/train.py`` reads."""
    return {
        "model": MODEL,
        "batch": RANKS * ROWS_PER_RANK,
        "length": LENGTH,
        "data": str(data),
        "port": port,
        "every": job.every,
        "steps": STEPS,
    }


def median_phases(outcomes: Sequence[Outcome]) -> dict[str, float]:
    return {phase: float(np.median([one.phases[phase] for one in outcomes])) for phase in PHASES}
