"""What verify counts while the ledgers stream by, one step at a time."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from orchestrator.contract.base import Part
from orchestrator.contract.ledger import Record
from orchestrator.reports.comparison import Pair, compare
from orchestrator.reports.facts import RunFacts
from orchestrator.reports.moves import SharedSteps
from orchestrator.reports.tokens import StepSample


class Difference(Part):
    """A record that is not what it must be."""

    step: int
    revision: int
    first_attempt: int
    """Whose record it was compared with."""
    attempt: int
    fields: tuple[str, ...]
    """Computed fields whose bits differ."""
    virtual_ranks: tuple[int, ...]
    """Virtual ranks whose own loss differs."""
    delta_loss: float | None
    """|Δ total loss|; None when it is not a finite number."""
    same_fingerprint: bool


@dataclass
class Tally:
    """Counts over all steps of all revisions; call ``add`` for each step, revision after revision, steps rising."""

    facts: RunFacts
    sample: StepSample
    """Whose records are kept."""
    replayed_steps: int = 0
    comparisons: int = 0
    steps_differing: int = 0
    steps_bounded: int = 0
    max_delta: float | None = None
    first_difference: Difference | None = None
    ends: dict[int, tuple[Record, Record]] = field(default_factory=dict)
    """First and last record of each attempt."""
    fingerprints: dict[int, dict[str, None]] = field(default_factory=dict)
    """Of each attempt, in the order in which they first computed a step."""
    shared: SharedSteps = field(default_factory=SharedSteps)
    _covered: list[range] = field(default_factory=list)

    def add(self, records: Sequence[Record]) -> None:
        """One step: its records in order of attempts, all of one revision."""
        pairs = compare(records, self.facts.specs)
        self.shared.add(records, pairs)
        for record in records:
            self.ends[record.attempt] = (self.ends.get(record.attempt, (record, record))[0], record)
            self.fingerprints.setdefault(record.attempt, {})[record.fingerprint] = None
            self.sample.add(record)
        self._cover(records)
        self._count(pairs)

    @property
    def recorded(self) -> Mapping[int, range]:
        """The steps from first to last record, of each attempt that has any."""
        return {attempt: range(first.step, last.step + 1) for attempt, (first, last) in self.ends.items()}

    def missing(self) -> Iterator[range]:
        """Committed steps that the attempt whose state was committed did not record."""
        next_step = 0
        for covered in self._covered:
            if covered.start > next_step:
                yield range(next_step, covered.start)
            next_step = covered.stop
        committed = self.facts.head.next_step or 0
        if next_step < committed:
            yield range(next_step, committed)

    def _count(self, pairs: Sequence[Pair]) -> None:
        self.replayed_steps += bool(pairs)
        self.comparisons += len(pairs)
        for delta in (pair.delta for pair in pairs):
            if delta is not None:
                self.max_delta = max(delta, self.max_delta or 0.0)
        failed = [pair for pair in pairs if not pair.held]
        self.steps_differing += bool(failed)
        self.steps_bounded += not failed and any(pair.fields for pair in pairs)
        if failed and self.first_difference is None:
            self.first_difference = self._difference(failed[0])

    def _difference(self, pair: Pair) -> Difference:
        return Difference(
            step=pair.replay.step,
            revision=self.facts.specs[pair.replay.attempt].revision,
            first_attempt=pair.first.attempt,
            attempt=pair.replay.attempt,
            fields=pair.fields,
            virtual_ranks=pair.ranks,
            delta_loss=pair.delta,
            same_fingerprint=pair.same_fingerprint,
        )

    def _cover(self, records: Sequence[Record]) -> None:
        step = records[0].step
        span = self.facts.span_of(step)
        if span is None or all(record.attempt != span.attempt for record in records):
            return
        if self._covered and self._covered[-1].stop == step:
            self._covered[-1] = range(self._covered[-1].start, step + 1)
        else:
            self._covered.append(range(step, step + 1))
