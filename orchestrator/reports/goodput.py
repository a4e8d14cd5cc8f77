"""Where the wall time of a run went: steps that stand, and by name everything else, to the last nanosecond.

A step that stands (it is on the committed lineage, or the live attempt has computed it beyond head) counts once, when
it was first computed. Computing it again is REPLAY; computing one that does not stand, or being inside one when the
attempt dies, is WASTED_PROGRESS_FROM_DISRUPTION. The cost of a disruption is thus booked after it, as in its episode.

Upper-case names without a note are those of google's ``ml-goodput-measurement`` (``BadputType``); where ours differ:

=============================================== ===================================================================
PRODUCTIVE                                      its ``GoodputType.TOTAL``
WASTED_PROGRESS_FROM_DISRUPTION                 it books lost and repeated steps where they were first computed, we
                                                book what was repeated under REPLAY, where it is computed again
TRAINING_PREP                                   our phase ``start``: the process reads its spec and imports
TPU_INITIALIZATION                              phase ``initialise``
PROGRAM_STARTUP                                 phase ``compile``
UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME            phase ``restore``
UNPRODUCTIVE_CHECKPOINT_SAVE_TIME               what a save kept the next step waiting, the phase ``drain``
DATA_LOADING_SYNC                               the part of a step that stands in which it waited for its batch
INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION         ending the old attempt, and from there to the new one's processes
REPLAY                                          (ours) phase ``replay`` and repeated steps
DETECTION_AND_DECISION                          (ours) it happened → it was decided
HELD, PAUSED, WAITING                           (ours) no attempt, because a person or the controller said so, because
                                                a person paused or stopped it, or because there is no place to run
OTHER                                           the rest: gaps between steps, ends of attempts, skew between clocks
=============================================== ===================================================================

Bookings overlap and are laid over one another as ``_layers`` has them: what was recorded step by step wins over phases,
phases over what the controller saw, and that over the state of the run. A phase that processes leave at different times
lasts until the last one leaves it.
"""

from typing import ClassVar

from orchestrator.contract.base import Document, Part
from orchestrator.reports.bookings import Bookings
from orchestrator.reports.checkpoints import read_manifests
from orchestrator.reports.facts import RunFacts, read_facts
from orchestrator.reports.steps import StepTimes
from orchestrator.reports.timeline import NANOSECONDS, Interval, Layer, allocate, hundredths, interval
from orchestrator.store.run_store import RunStore

PRODUCTIVE = "PRODUCTIVE"
OTHER = "OTHER"
BUCKETS = (
    PRODUCTIVE,
    "WASTED_PROGRESS_FROM_DISRUPTION",
    "REPLAY",
    "TRAINING_PREP",
    "TPU_INITIALIZATION",
    "PROGRAM_STARTUP",
    "UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME",
    "UNPRODUCTIVE_CHECKPOINT_SAVE_TIME",
    "DATA_LOADING_SYNC",
    "DETECTION_AND_DECISION",
    "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION",
    "HELD",
    "PAUSED",
    "WAITING",
    OTHER,
)
"""In the order in which they are reported."""


class Bucket(Part):
    """A share of the wall time."""

    name: str
    nanoseconds: int
    seconds: float
    hundredths: int
    """Hundredths of a percent; those of all buckets sum to 10,000, or to 0 when no time has passed."""
    percent: float


class Goodput(Document):
    """The wall time of a run by bucket; the nanoseconds of all buckets sum to the wall time."""

    KIND: ClassVar[str] = "goodput"

    run: str
    from_at: float
    """When the run was submitted, in seconds since the epoch."""
    to_at: float
    """When it was complete or stopped, else the moment that was asked for."""
    wall_nanoseconds: int
    wall_seconds: float
    goodput_percent: float
    """Of the bucket PRODUCTIVE."""
    buckets: tuple[Bucket, ...]
    """All of them, also those with nothing in them."""


def goodput(run_store: RunStore, *, now: float | None, times: StepTimes | None = None) -> Goodput:
    """Split a run's wall time.

    ``now``, in seconds since the epoch, ends the wall time of a run that is not over; None: its last event does. A
    caller that asks again and again passes the same ``times``, and only new ledger segments are read.
    """
    facts = read_facts(run_store)
    window = _window(facts, now)
    end = window.end / NANOSECONDS
    bookings = Bookings(run_store=run_store, facts=facts, times=times or StepTimes(run_store), end=end)
    totals = allocate(window, _layers(bookings), rest=OTHER)
    nanoseconds = [totals.get(name, 0) for name in BUCKETS]
    shares = dict(zip(BUCKETS, hundredths(nanoseconds), strict=True))
    return Goodput(
        run=run_store.name,
        from_at=facts.run.submitted_at,
        to_at=end,
        wall_nanoseconds=window.end - window.start,
        wall_seconds=(window.end - window.start) / NANOSECONDS,
        goodput_percent=shares[PRODUCTIVE] / 100,
        buckets=tuple(
            Bucket(
                name=name,
                nanoseconds=spent,
                seconds=spent / NANOSECONDS,
                hundredths=shares[name],
                percent=shares[name] / 100,
            )
            for name, spent in zip(BUCKETS, nanoseconds, strict=True)
        ),
    )


def _window(facts: RunFacts, now: float | None) -> Interval:
    start = facts.run.submitted_at
    if facts.over_at is not None:
        end = facts.over_at
    elif now is not None:
        end = now
    else:
        end = max((event.at for event in facts.events), default=start)
    return interval(start, max(start, end))


def _layers(bookings: Bookings) -> list[Layer]:
    """Bookings by bucket, the strongest first. Of phases the earlier one is stronger: the slowest process decides."""
    layers = [
        ("DATA_LOADING_SYNC", bookings.steps.data),
        (PRODUCTIVE, bookings.steps.productive),
        ("REPLAY", bookings.steps.replayed),
        ("WASTED_PROGRESS_FROM_DISRUPTION", bookings.steps.wasted),
        ("UNPRODUCTIVE_CHECKPOINT_SAVE_TIME", bookings.saves(read_manifests(bookings.run_store))),
        ("TRAINING_PREP", bookings.phase("start")),
        ("TPU_INITIALIZATION", bookings.phase("initialise")),
        ("PROGRAM_STARTUP", bookings.phase("compile")),
        ("UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME", bookings.phase("restore")),
        ("REPLAY", bookings.phase("replay")),
        ("UNPRODUCTIVE_CHECKPOINT_SAVE_TIME", bookings.phase("drain")),
        ("DETECTION_AND_DECISION", bookings.decisions()),
        ("WASTED_PROGRESS_FROM_DISRUPTION", bookings.in_flight()),
        ("INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION", bookings.stops()),
        ("TRAINING_PREP", bookings.launch(first=True)),
        ("INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION", bookings.launch(first=False)),
        ("HELD", bookings.in_states("held")),
        ("PAUSED", bookings.in_states("paused", "stopped", "complete")),
        ("WAITING", bookings.in_states("waiting")),
        ("INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION", bookings.in_states("draining", "killing", "relaunching")),
    ]
    return [Layer(bucket, list(intervals)) for bucket, intervals in layers]
