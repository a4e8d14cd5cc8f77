"""Where a run is: one row."""

import math
from typing import ClassVar, get_args

from orchestrator.contract.attempt import Phase, Progress
from orchestrator.contract.base import Document
from orchestrator.contract.ledger import Record, float_of
from orchestrator.reports.facts import RunFacts, read_facts
from orchestrator.reports.goodput import goodput
from orchestrator.reports.state import State
from orchestrator.reports.steps import StepTimes
from orchestrator.store.run_store import RunStore


class Status(Document):
    """What a person sees of a run at a glance."""

    KIND: ClassVar[str] = "status"

    run: str
    state: State
    because: str
    """The message of the event that led to this state."""
    since: float
    """Seconds since the epoch."""
    stage: str | None
    """None: the recipe is finished."""
    next_step: int
    """Updates done: of a live attempt by its own word, committed or not; else committed."""
    committed_step: int
    last_step: int
    placement: str | None
    """Of the newest attempt; None: nothing was launched yet."""
    attempt: int
    """The newest; 0: nothing was launched yet."""
    live: bool
    """It has not ended."""
    phase: str | None
    """Of the process that is furthest behind; None when no attempt is live."""
    loss: float | None
    """Total loss of the newest recorded step; None when there is none or it is not finite."""
    step_seconds: float | None
    """Of the slowest process; None before it knows."""
    goodput_percent: float
    eta_seconds: float | None
    """Remaining steps at the present pace, whatever stage they belong to; None when nothing runs."""
    at: float


def status(run_store: RunStore, *, now: float, times: StepTimes | None = None) -> Status:
    """A run as it is at ``now``, in seconds since the epoch; ``times`` as for ``goodput``."""
    facts = read_facts(run_store)
    last = facts.changes[-1]
    progress = list(run_store.progress(last.attempt).values()) if last.live else []
    committed = facts.head.next_step or 0
    next_step = max([committed, *(entry.step + 1 for entry in progress if entry.step is not None)])
    recipe = run_store.recipe(facts.revisions[facts.head.revision].recipe_sha256)
    stage = recipe.stage_at(next_step)
    newest = _newest_record(run_store, facts)
    pace = _step_seconds(progress)
    return Status(
        run=run_store.name,
        state=last.state,
        because=last.because,
        since=last.at,
        stage=stage.name if stage else None,
        next_step=next_step,
        committed_step=committed,
        last_step=recipe.last_step,
        placement=facts.placement_of(last.attempt) if last.attempt else None,
        attempt=last.attempt,
        live=last.live,
        phase=_phase(progress),
        loss=_finite(float_of(newest.total)) if newest else None,
        step_seconds=pace,
        goodput_percent=goodput(run_store, now=now, times=times).goodput_percent,
        eta_seconds=pace * (recipe.last_step - next_step) if last.live and pace is not None else None,
        at=now,
    )


def _newest_record(run_store: RunStore, facts: RunFacts) -> Record | None:
    """The last record of the newest attempt that has any."""
    for attempt in sorted(facts.specs, reverse=True):
        for name in reversed(run_store.segment_names(attempt)):
            records = run_store.read_segment(name)[1]
            if records:
                return records[-1]
    return None


def _step_seconds(progress: list[Progress]) -> float | None:
    return max((entry.step_seconds for entry in progress if entry.step_seconds is not None), default=None)


def _phase(progress: list[Progress]) -> str | None:
    """The earliest phase that a process is still in."""
    order = list(get_args(Phase))
    return min((entry.phase for entry in progress), key=order.index, default=None)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
