"""Episodes: what each disturbance cost, from the moment it happened to the first new step after it.

Where the seconds of an episode are counted from and to:

=============== ====================================================================================================
detect          it happened → the controller's first event about it
decide          that event → the stop order
stop            the stop order → all processes of the old attempt ended (drain or kill)
wait            the old attempt ended → the decision to launch
retries         the first launch → the last one, when launches failed in between
start           the last launch decision → the last process left its phase ``start``
initialise,     the phase's start → the next phase's start, of the process that took longest
compile,
restore, replay
first_new_step  the last process began phase ``train`` → the last process finished its first new step
=============== ====================================================================================================

A part is None when one of its two ends is not known: that is not the same as 0. Clocks of hosts and controller are
compared as they are; a difference that skew makes negative is 0.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Literal

from orchestrator.contract.attempt import AttemptSpec, Phase, Progress
from orchestrator.contract.base import Document, Part
from orchestrator.contract.event import Drain, Event, Fence, Launch
from orchestrator.reports.facts import RunFacts, read_facts
from orchestrator.reports.logs import first_failure
from orchestrator.reports.steps import step_range
from orchestrator.store.run_store import RunStore

How = Literal["drain", "kill", "ended"]
HAPPENED = ("happened_at", "seen_at")
"""Event details that say when a disturbance really happened, best first."""


class EpisodePhases(Part):
    """Seconds of an episode's parts, as the module describes them; None: not known."""

    detect: float | None = None
    decide: float | None = None
    stop: float | None = None
    wait: float | None = None
    retries: float | None = None
    start: float | None = None
    initialise: float | None = None
    compile: float | None = None
    restore: float | None = None
    replay: float | None = None
    first_new_step: float | None = None


class Episode(Document):
    """One disturbance and what followed."""

    KIND: ClassVar[str] = "episode"

    number: int
    cause: str
    message: str
    """What the controller said first."""
    began_at: float
    """When it happened, or when the controller first spoke of it if that is not known."""
    how: How | None
    """How the old attempt ended: by a drain, by a kill, or by itself; None: there was none."""
    from_attempt: int | None
    """None: no attempt ran before, as at submit."""
    from_placement: str | None
    to_attempt: int | None
    """The last attempt launched in it; None: none yet."""
    to_placement: str | None
    attempts: tuple[int, ...]
    """All that were launched in it."""
    phases: EpisodePhases
    total_seconds: float | None
    """From ``began_at`` to the first new step; None while there is none."""
    compile_cache: Literal["hit", "miss", "off"] | None
    """``miss`` when any process missed."""
    steps_lost: int | None
    """Steps that were recorded beyond the checkpoint that ``to_attempt`` was told to go on from."""
    steps_replayed: int | None
    """Of these, steps that ``to_attempt`` has computed again."""


@dataclass(frozen=True, kw_only=True)
class Moments:
    """When the turns of an episode came, in seconds since the epoch."""

    happened: float | None
    noticed: float
    stop_ordered: float | None
    ended: float | None
    first_launch: float | None
    last_launch: float | None


def episodes(run_store: RunStore) -> list[Episode]:
    """All episodes of a run, in order."""
    facts = read_facts(run_store)
    recorded = {attempt: step_range(run_store, attempt) for attempt in facts.specs}
    return [_episode(run_store, facts, recorded, events) for events in grouped(facts.events).values()]


def grouped(events: Iterable[Event]) -> dict[int, list[Event]]:
    """The events of each episode."""
    groups: defaultdict[int, list[Event]] = defaultdict(list)
    for event in events:
        if event.episode:
            groups[event.episode].append(event)
    return dict(sorted(groups.items()))


def moments_of(run_store: RunStore, events: Sequence[Event]) -> Moments:
    """The turns of one episode; ``events`` are all of its events."""
    old = ended_attempt(events)
    turns = [event for event in events if event.kind in ("decision", "ended")]
    orders = [order.at for how in ("drain", "kill") if old and (order := run_store.stop_order(old, how))]
    ends = [event.at for event in events if event.kind == "ended" and event.attempt == old]
    launches = [event.at for event in events if isinstance(event.action, Launch)]
    first = (turns or events)[0]
    return Moments(
        happened=_happened_at(run_store, events, first, old),
        noticed=first.at,
        stop_ordered=min(orders, default=None),
        ended=min(ends, default=None),
        first_launch=launches[0] if launches else None,
        last_launch=launches[-1] if launches else None,
    )


def ended_attempt(events: Sequence[Event]) -> int | None:
    """The attempt that an episode ended; None when it began with a launch."""
    for event in events:
        if isinstance(event.action, Drain | Fence):
            return event.action.attempt
        if isinstance(event.action, Launch):
            return None
        if event.kind == "ended":
            return event.attempt
    return None


def _finished_before(launched: Sequence[int]) -> int | None:
    """The attempt that had done all that it was launched for, as at the end of a stage; no disturbance ended it."""
    return launched[0] - 1 if launched and launched[0] > 1 else None


def _happened_at(run_store: RunStore, events: Sequence[Event], first: Event, old: int | None) -> float | None:
    """By the controller's word; else when a person asked; else when the first process died, by its host's clock."""
    said = [at for key in HAPPENED for event in events if (at := _seconds(event.details.get(key))) is not None]
    if said:
        return said[0]
    if first.request is not None:
        return run_store.request(first.request).at
    died = [at for event in events if (at := _seconds(event.details.get("first_death_at"))) is not None]
    if died:
        return died[0]
    failure = first_failure(run_store.exits(old).values()) if old else None
    return failure.at if failure else None


def _seconds(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _episode(run_store: RunStore, facts: RunFacts, recorded: Mapping[int, range], events: Sequence[Event]) -> Episode:
    moments = moments_of(run_store, events)
    attempts = tuple(event.action.attempt for event in events if isinstance(event.action, Launch))
    old = ended_attempt(events) or _finished_before(attempts)
    new = attempts[-1] if attempts else None
    progress = list(run_store.progress(new).values()) if new else []
    began_at = moments.noticed if moments.happened is None else min(moments.happened, moments.noticed)
    spec = facts.specs.get(new) if new else None
    lost, replayed = _steps(run_store, facts, recorded, spec) if spec else (None, None)
    return Episode(
        number=events[0].episode,
        cause=next((event.cause for event in events if event.cause), ""),
        message=events[0].message,
        began_at=began_at,
        how=_how(run_store, old),
        from_attempt=old,
        from_placement=facts.placement_of(old) if old else None,
        to_attempt=new,
        to_placement=facts.placement_of(new) if new else None,
        attempts=attempts,
        phases=_phases(moments, progress),
        total_seconds=_between(began_at, first_new_step_at(progress, events)),
        compile_cache=_compile_cache(progress),
        steps_lost=lost,
        steps_replayed=replayed,
    )


def first_new_step_at(progress: Sequence[Progress], events: Sequence[Event]) -> float | None:
    """When the last process finished its first new step: by the trainers, else by the controller's event."""
    times = [entry.first_new_step_at for entry in progress if entry.first_new_step_at is not None]
    return max(times, default=next((event.at for event in events if event.kind == "first-new-step"), None))


def phase_starts(progress: Iterable[Progress], phase: Phase) -> list[float]:
    """When each process that has begun a phase began it."""
    return [start.at for entry in progress for start in entry.phases if start.phase == phase]


def _phases(moments: Moments, progress: Sequence[Progress]) -> EpisodePhases:
    trained = phase_starts(progress, "train")
    new_steps = [entry.first_new_step_at for entry in progress if entry.first_new_step_at is not None]
    retried = moments.first_launch != moments.last_launch
    return EpisodePhases(
        detect=_between(moments.happened, moments.noticed),
        decide=_between(moments.noticed, moments.stop_ordered),
        stop=_between(moments.stop_ordered, moments.ended),
        wait=_between(moments.ended, moments.first_launch),
        retries=_between(moments.first_launch, moments.last_launch) if retried else None,
        start=_between(moments.last_launch, _left_start(progress)),
        initialise=_longest(progress, "initialise"),
        compile=_longest(progress, "compile"),
        restore=_longest(progress, "restore"),
        replay=_longest(progress, "replay"),
        first_new_step=_between(max(trained, default=None), max(new_steps, default=None)),
    )


def _left_start(progress: Sequence[Progress]) -> float | None:
    """When the last process went on from its phase ``start``; None until all have."""
    left = [next((start.at for start in entry.phases if start.phase != "start"), None) for entry in progress]
    known = [at for at in left if at is not None]
    return max(known) if known and len(known) == len(left) else None


def _longest(progress: Sequence[Progress], phase: Phase) -> float | None:
    """Seconds of a phase that has ended, of the process that took longest; None when no process ended it."""
    spent = [
        max(after.at - start.at, 0.0)
        for entry in progress
        for start, after in pairwise(entry.phases)
        if start.phase == phase
    ]
    return max(spent, default=None)


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else max(end - start, 0.0)


def _how(run_store: RunStore, old: int | None) -> How | None:
    if old is None:
        return None
    if run_store.stop_order(old, "kill"):
        return "kill"
    return "drain" if run_store.stop_order(old, "drain") else "ended"


def _compile_cache(progress: Sequence[Progress]) -> Literal["hit", "miss", "off"] | None:
    seen = {entry.compile_cache for entry in progress}
    worst_first: tuple[Literal["miss", "off", "hit"], ...] = ("miss", "off", "hit")
    return next((state for state in worst_first if state in seen), None)


def _steps(run_store: RunStore, facts: RunFacts, recorded: Mapping[int, range], spec: AttemptSpec) -> tuple[int, int]:
    """Steps recorded beyond the checkpoint that an attempt was told to go on from, and how many it replayed."""
    resume = run_store.manifest(spec.resume).next_step if spec.resume else 0
    earlier = [recorded[number].stop for number in facts.attempts_of(spec.revision) if number < spec.attempt]
    recorded_end = max(earlier, default=0)
    own = recorded[spec.attempt]
    return max(recorded_end - resume, 0), len(range(own.start, min(own.stop, recorded_end)))
