"""Comparing each step with what earlier attempts recorded of it, bit for bit.

Records that were computed under one fingerprint must agree in every computed field. Under different fingerprints the
losses are held to the run's declared bound where it has one (``bounded``); otherwise the controller has refused the
move before it came here.
"""

from collections import defaultdict
from itertools import combinations

from orchestrator.contract.attempt import AttemptSpec
from orchestrator.contract.ledger import Record, float_of
from orchestrator.store.run_store import RunStore

SHOWN_RANKS = 8
"""Virtual ranks that a message names before it only counts them."""


class Replay:
    """The records of earlier attempts at and beyond the resume point.

    Raises:
        ContractError: a segment that is not as it was frozen when its attempt was fenced.
    """

    def __init__(self, store: RunStore, spec: AttemptSpec) -> None:
        self._bound = spec.loss_bound if spec.comparison == "bounded" else None
        self._records: defaultdict[int, list[Record]] = defaultdict(list)
        for segment in spec.prior:
            for record in store.read_prior(segment):
                self._records[record.step].append(record)
        resumed = store.manifest(spec.resume).next_step if spec.resume else 0
        self._reached = max([resumed - 1, *self._records])

    def is_new(self, step: int) -> bool:
        """No earlier attempt came this far. (What lies before a checkpoint that had to be passed over is not new.)"""
        return step > self._reached

    def difference(self, record: Record) -> str | None:
        """What differs between this record and the earlier ones of its step, in one line; None: nothing.

        Earlier attempts that disagree among themselves are a difference too: one of them was wrong, and nobody knows
        which. A step's records are dropped once it was compared.
        """
        earlier = self._records.pop(record.step, [])
        pairs = [(record, other) for other in earlier] + list(combinations(earlier, 2))
        found = (self._between(one, other) for one, other in pairs)
        return next((text for text in found if text is not None), None)

    def _between(self, one: Record, other: Record) -> str | None:
        who = f"step {one.step}: attempt {one.attempt} against attempt {other.attempt}"
        if one.fingerprint == other.fingerprint:
            fields = one.differs_from(other)
            return f"{who}: {', '.join(fields)} differ{_ranks(one, other)}" if fields else None
        if self._bound is None:
            return None
        delta = abs(float_of(one.total) - float_of(other.total))
        if delta <= self._bound:  # false for a NaN
            return None
        return f"{who}: total loss differs by {delta:.3g}, more than loss_bound {self._bound:.3g}"


def _ranks(one: Record, other: Record) -> str:
    pairs = enumerate(zip(one.ce_by_rank, other.ce_by_rank, strict=False))
    ranks = [str(rank) for rank, (left, right) in pairs if left != right]
    if not ranks:
        return ""
    more = f" and {len(ranks) - SHOWN_RANKS} more" if len(ranks) > SHOWN_RANKS else ""
    return f"; CE of virtual ranks {', '.join(ranks[:SHOWN_RANKS])}{more}"
