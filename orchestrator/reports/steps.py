"""Reading ledgers: one segment of each attempt in memory, whatever the length of the run."""

import heapq
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from orchestrator.contract.attempt import AttemptSpec
from orchestrator.contract.base import ContractError, sha256_of
from orchestrator.contract.ledger import Record
from orchestrator.store.run_store import RunStore

FrozenSegments = Mapping[str, frozenset[tuple[int, str]]]
"""Length and SHA-256 of segments as AttemptSpecs froze them, by name."""


def frozen_segments(specs: Iterable[AttemptSpec]) -> FrozenSegments:
    """What later attempts were told of the ledgers of earlier ones."""
    found: dict[str, frozenset[tuple[int, str]]] = {}
    for segment in (segment for spec in specs for segment in spec.prior):
        found[segment.name] = found.get(segment.name, frozenset()) | {(segment.length, segment.sha256)}
    return found


def lost_segments(run_store: RunStore, frozen: FrozenSegments) -> tuple[str, ...]:
    """Names of segments that were frozen and are not in the store any more."""
    folders = {name.rpartition("/")[0] + "/" for name in frozen}
    there = {folder + child for folder in folders for child in run_store.objects.children(f"{run_store.name}/{folder}")}
    return tuple(sorted(frozen.keys() - there))


def records_of(run_store: RunStore, attempt: int, *, frozen: FrozenSegments) -> Iterator[Record]:
    """An attempt's records in order of steps.

    Raises:
        ContractError: a segment is damaged, was changed after it was frozen, holds another attempt's records, or steps
            do not rise.
    """
    last = -1
    for name in run_store.segment_names(attempt):
        data, records = run_store.read_segment(name)
        for length, sha256 in frozen.get(name, frozenset()):
            if (length, sha256) != (len(data), sha256_of(data)):
                raise ContractError(
                    f"{name}: the ledger segment was changed after attempt {attempt} was fenced; "
                    "restore the file from a copy"
                )
        for record in records:
            if record.attempt != attempt:
                raise ContractError(
                    f"{name}: step {record.step} is a record of attempt {record.attempt}; it is misplaced"
                )
            if record.step <= last:
                raise ContractError(f"{name}: step {record.step} comes after step {last}; the ledger is damaged")
            last = record.step
            yield record


def by_step(
    run_store: RunStore, attempts: Sequence[int], *, frozen: FrozenSegments
) -> Iterator[tuple[int, list[Record]]]:
    """All records of each step that these attempts computed: steps rise, and within a step attempts do."""
    ledgers = [records_of(run_store, attempt, frozen=frozen) for attempt in attempts]
    merged = heapq.merge(*ledgers, key=lambda record: (record.step, record.attempt))
    for step, records in itertools.groupby(merged, key=lambda record: record.step):
        yield step, list(records)


def step_range(run_store: RunStore, attempt: int) -> range:
    """The steps from an attempt's first record to its last; empty when it recorded none."""
    names = run_store.segment_names(attempt)
    ends = [run_store.read_segment(name)[1] for name in dict.fromkeys(names[:1] + names[-1:])]
    steps = [record.step for records in ends for record in records]
    return range(min(steps), max(steps) + 1) if steps else range(0)


@dataclass(frozen=True, slots=True)
class StepTime:
    """When a step was computed, by its host's clock: seconds since the epoch, and seconds."""

    step: int
    started: float
    seconds: float
    data_seconds: float

    @property
    def ended(self) -> float:
        return self.started + self.seconds


@dataclass(frozen=True)
class StepTimes:
    """The times of ledgers. Closed segments never change, so a reader that comes back reads only new ones."""

    run_store: RunStore
    _segments: dict[str, tuple[StepTime, ...]] = field(default_factory=dict)

    def of(self, attempt: int) -> list[StepTime]:
        """In order of steps."""
        return [time for name in self.run_store.segment_names(attempt) for time in self._segment(name)]

    def _segment(self, name: str) -> tuple[StepTime, ...]:
        if name not in self._segments:
            self._segments[name] = tuple(
                StepTime(record.step, record.started, record.seconds, record.data_seconds)
                for record in self.run_store.read_segment(name)[1]
            )
        return self._segments[name]
