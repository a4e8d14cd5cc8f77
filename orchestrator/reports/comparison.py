"""Two records of one step: what must be equal, and what is.

Every record after a step's first one is compared: with the first record of the same fingerprint, and if there is none,
with the first record of each other fingerprint. Under equal fingerprints every computed field must be equal as bits.
Under unequal ones the replaying attempt's spec says what was asked: ``bitwise`` is the same demand; ``bounded`` holds
the difference of the total loss to ``loss_bound``, while the tokens that were read, and whether the step was skipped or
finite, must still be equal.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from orchestrator.contract.attempt import AttemptSpec
from orchestrator.contract.ledger import Record, float_of

EQUAL_UNDER_ANY_FINGERPRINT = frozenset({"tokens", "skipped", "finite"})


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A record and the earlier one that it repeats."""

    first: Record
    replay: Record
    fields: tuple[str, ...]
    """Names of the computed fields whose bits differ."""
    held: bool
    """Nothing differs that must be equal."""

    @property
    def same_fingerprint(self) -> bool:
        return self.first.fingerprint == self.replay.fingerprint

    @property
    def delta(self) -> float | None:
        """|Δ total loss|; None when it is not a finite number."""
        return loss_delta(self.first, self.replay)

    @property
    def ranks(self) -> tuple[int, ...]:
        """Virtual ranks whose loss differs."""
        pairs = zip_longest(self.first.ce_by_rank, self.replay.ce_by_rank)
        return tuple(rank for rank, (first, replay) in enumerate(pairs) if first != replay)


def loss_delta(first: Record, replay: Record) -> float | None:
    """|Δ total loss| of two records: 0 for equal bits, None when it is not a finite number."""
    if first.total == replay.total:
        return 0.0
    delta = abs(float_of(replay.total) - float_of(first.total))
    return delta if math.isfinite(delta) else None


def compare(records: Sequence[Record], specs: Mapping[int, AttemptSpec]) -> list[Pair]:
    """The pairs of one step's records, which come in order of attempts."""
    first_of: dict[str, Record] = {}
    pairs = []
    for record in records:
        same = first_of.get(record.fingerprint)
        earlier = [same] if same else list(first_of.values())
        pairs += [_pair(first, record, specs[record.attempt]) for first in earlier]
        first_of.setdefault(record.fingerprint, record)
    return pairs


def _pair(first: Record, replay: Record, spec: AttemptSpec) -> Pair:
    fields = replay.differs_from(first)
    held = not fields
    if not held and first.fingerprint != replay.fingerprint and spec.comparison == "bounded":
        delta = loss_delta(first, replay)
        held = not EQUAL_UNDER_ANY_FINGERPRINT & set(fields) and delta is not None and delta <= spec.loss_bound
    return Pair(first=first, replay=replay, fields=fields, held=held)
