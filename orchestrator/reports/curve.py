"""The merged loss curve: each step once, by the record that counts, however often it was computed.

For a committed step that is the record of the attempt whose state was committed; beyond head, of the newest attempt
that computed it. Steps that a rewind or an amendment gave up are not in the curve.
"""

import math
from collections.abc import Iterator, Sequence

from orchestrator.contract.base import Part
from orchestrator.contract.ledger import Record, float_of
from orchestrator.reports.facts import RunFacts, read_facts
from orchestrator.reports.steps import by_step, frozen_segments
from orchestrator.store.run_store import RunStore


class Point(Part):
    """One step of the curve; a number that is not finite is None, its bits say which it was."""

    step: int
    revision: int
    stage: str
    attempt: int
    placement: str
    loss: float | None
    """Total: cross entropy + z-loss."""
    loss_bits: str
    ce: float | None
    z_loss: float | None
    grad_norm: float | None
    """Before clipping."""
    learning_rate: float | None
    skipped: bool
    replays: int
    """Records of this step besides the first one, in this revision."""
    committed: bool
    """On the committed lineage, and this is the record of its attempt."""
    started: float
    """Seconds since the epoch."""
    seconds: float


def curve(run_store: RunStore) -> Iterator[Point]:
    """The steps of a run in order, one at a time; a step without any record is left out.

    Raises:
        NotFound: the run is not in the store.
        ContractError: a ledger segment was changed after it was written.
    """
    facts = read_facts(run_store)
    frozen = frozen_segments(facts.specs.values())
    for revision in facts.revisions:
        for step, records in by_step(run_store, facts.attempts_of(revision), frozen=frozen):
            span = facts.span_of(step)
            if (span.revision if span else facts.head.revision) == revision:
                yield _point(facts, records, committed_by=span.attempt if span else None)


def _point(facts: RunFacts, records: Sequence[Record], *, committed_by: int | None) -> Point:
    record = next((record for record in records if record.attempt == committed_by), records[-1])
    spec = facts.specs[record.attempt]
    return Point(
        step=record.step,
        revision=spec.revision,
        stage=spec.stage,
        attempt=record.attempt,
        placement=spec.placement.name,
        loss=_finite(record.total),
        loss_bits=record.total,
        ce=_finite(record.ce),
        z_loss=_finite(record.z_loss),
        grad_norm=_finite(record.grad_norm),
        learning_rate=_finite(record.learning_rate),
        skipped=record.skipped,
        replays=len(records) - 1,
        committed=record.attempt == committed_by,
        started=record.started,
        seconds=record.seconds,
    )


def _finite(bits: str) -> float | None:
    value = float_of(bits)
    return value if math.isfinite(value) else None
