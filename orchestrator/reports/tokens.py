"""A step's token checksum, computed again from the recipe and the token files, without a device.

The trainer sums over the token ids as they lie on its devices; the same words come from the batch as an array
[virtual ranks, sequences of a rank, sequence length], because the checksum does not depend on where parts are.

Which steps are read again is the same for everybody: the first and last record of each attempt, and those whose hash
of run, attempt and step is smallest. A loader that goes its own way does so from its first batch on, so the first
record shows it; the sample is for what begins later.
"""

import hashlib
import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from orchestrator.contract.base import Part
from orchestrator.contract.checksum import checksum, words
from orchestrator.contract.ledger import Record
from orchestrator.contract.recipe import Recipe, Stage
from orchestrator.order.global_order import GlobalOrder
from orchestrator.order.token_files import DataRoot, Tokens, opened, read_rows

SAMPLE = 16
"""Steps of each attempt that are read again besides its first and last."""
NEARBY = (-1, 1, -2, 2)
"""A loader that is off by one or two batches, as after a resume that counts wrong, is told from other faults."""


class Reading(Part):
    """What one row of a batch is read from."""

    virtual_rank: int
    file: str
    """As the recipe names it."""
    token: int
    """The row's first token in this file, counted from 0."""


class TokenDifference(Part):
    """A step whose recorded tokens are not those of the recipe."""

    step: int
    attempt: int
    batch_of_step: int | None
    """A step close by whose batch was read instead; None: it was none of these."""
    should_have_read: tuple[Reading, ...]
    """Every row of the step's batch, in order; a record's two words do not say which of them was read otherwise."""


class TokenSource(Protocol):
    """What recipe and token files say of a step."""

    def checksum_of(self, recipe: Recipe, step: int) -> str:
        """The words of its tokens, as the ledger has them."""
        ...

    def readings_of(self, recipe: Recipe, step: int) -> tuple[Reading, ...]:
        """Where its rows are."""
        ...


@dataclass(frozen=True, kw_only=True)
class TokenCheck:
    """How to compute tokens again, and of how many steps of each attempt besides the first and the last."""

    source: TokenSource
    sample: int = SAMPLE


@dataclass(frozen=True)
class StepSample:
    """Of each attempt the ``size`` records whose hash of run, attempt and step is smallest, in one pass over them."""

    run: str
    size: int
    _kept: dict[int, list[tuple[int, int, Record]]] = field(default_factory=dict)
    """Heaps by attempt: the hash, negated, the step, its record."""

    def add(self, record: Record) -> None:
        digest = hashlib.sha256(f"{self.run} {record.attempt} {record.step}".encode()).digest()
        entry = (-int.from_bytes(digest[:8]), record.step, record)
        kept = self._kept.setdefault(record.attempt, [])
        if len(kept) < self.size:
            heapq.heappush(kept, entry)
        else:
            heapq.heappushpop(kept, entry)

    @property
    def records(self) -> list[Record]:
        return [record for kept in self._kept.values() for _, _, record in kept]


@dataclass(frozen=True, kw_only=True)
class TokenAudit:
    """What came of reading steps again."""

    recomputed: int = 0
    differing: tuple[int, ...] = ()
    """Steps, rising."""
    differences: tuple[TokenDifference, ...] = ()
    """The first of each attempt that has any, in order of steps."""


def audit(
    records: Iterable[Record], source: TokenSource, *, revision_of: Mapping[int, int], recipes: Mapping[int, Recipe]
) -> TokenAudit:
    """Compare these records with recipe and token files.

    ``revision_of`` is by attempt, ``recipes`` by revision.
    """
    steps: dict[tuple[int, int], dict[int, str]] = {}
    for record in records:
        steps.setdefault((revision_of[record.attempt], record.step), {})[record.attempt] = record.tokens
    wrong: set[int] = set()
    first: dict[int, TokenDifference] = {}
    for (revision, step), recorded in sorted(steps.items()):  # steps rise, so that an epoch's order is made once
        expected = source.checksum_of(recipes[revision], step)
        for attempt, found in recorded.items():
            if found != expected:
                wrong.add(step)
                if attempt not in first:
                    first[attempt] = _difference(found, source, recipes[revision], step=step, attempt=attempt)
    differences = sorted(first.values(), key=lambda difference: (difference.step, difference.attempt))
    return TokenAudit(recomputed=len(steps), differing=tuple(sorted(wrong)), differences=tuple(differences))


def _difference(found: str, source: TokenSource, recipe: Recipe, *, step: int, attempt: int) -> TokenDifference:
    nearby = [step + offset for offset in NEARBY if 0 <= step + offset < recipe.last_step]
    return TokenDifference(
        step=step,
        attempt=attempt,
        batch_of_step=next((other for other in nearby if source.checksum_of(recipe, other) == found), None),
        should_have_read=source.readings_of(recipe, step),
    )


@dataclass(frozen=True)
class TokenFiles:
    """The token files below a ``data_root``.

    Raises:
        ContractError: (all methods) a token file is missing, or is not as the recipe says.
        StoreUnavailable: (all methods) it is in a bucket that cannot be asked.
        ValueError: (all methods) the recipe has no such step.
    """

    data_root: DataRoot
    _stages: dict[Stage, tuple[GlobalOrder, list[Tokens]]] = field(default_factory=dict)

    def checksum_of(self, recipe: Recipe, step: int) -> str:
        """The words of step ``step``."""
        stage = _stage_at(recipe, step)
        order, files = self._opened(stage)
        places = [order.place(int(instance)) for instance in order.batch(step - recipe.first_step_of(stage))]
        rows = read_rows([(files[place.file], place.token) for place in places], length=stage.sequence_length)
        shape = (stage.virtual_ranks, stage.sequences_per_rank, stage.sequence_length)
        return words(checksum(np.stack(rows).astype(np.uint32).reshape(shape)))

    def readings_of(self, recipe: Recipe, step: int) -> tuple[Reading, ...]:
        """Where the rows of step ``step`` are."""
        stage = _stage_at(recipe, step)
        order, _ = self._opened(stage)
        places = [order.place(int(instance)) for instance in order.batch(step - recipe.first_step_of(stage))]
        return tuple(
            Reading(
                virtual_rank=row // stage.sequences_per_rank,
                file=stage.data.files[place.file].path,
                token=place.token,
            )
            for row, place in enumerate(places)
        )

    def _opened(self, stage: Stage) -> tuple[GlobalOrder, list[Tokens]]:
        if stage not in self._stages:
            self._stages[stage] = GlobalOrder(stage), opened(stage.data.files, data_root=self.data_root)
        return self._stages[stage]


def _stage_at(recipe: Recipe, step: int) -> Stage:
    stage = recipe.stage_at(step)
    if stage is None:
        raise ValueError(f"step {step} is beyond the recipe's last step {recipe.last_step}")
    return stage
