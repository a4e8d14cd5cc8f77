"""Moves from attempt to attempt, and whether replayed steps witnessed them."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from orchestrator.contract.base import Part
from orchestrator.contract.ledger import Record
from orchestrator.reports.comparison import Pair
from orchestrator.reports.facts import RunFacts

Boundary = Literal["none", "stage", "revision", "pending"]


class Move(Part):
    """From one attempt that recorded steps to the next one that did."""

    from_attempt: int
    to_attempt: int
    through: tuple[int, ...]
    """Attempts between the two that ended before they had recorded a step."""
    from_placement: str
    to_placement: str
    boundary: Boundary
    """``stage`` or ``revision``: what ended there, so that there was nothing to replay; ``pending``: the attempt has
    not recorded a step yet; else ``none``."""
    witnessed: bool
    """``to_attempt`` replayed at least one step that ``from_attempt`` had recorded."""
    steps_replayed: int
    """Steps that both recorded."""
    first_step: int | None
    """The first of them."""
    same_fingerprint: bool | None
    """Both computed all of them under equal fingerprints, so that they were held to every bit. None: no such steps."""
    steps_differing: int
    """Of these, steps at which ``to_attempt``'s record is not what it must be."""
    why_not: str
    """Why the move is not witnessed; empty when it is."""


@dataclass
class Shared:
    """Steps that two attempts both recorded."""

    steps: int = 0
    first_step: int | None = None
    unequal_fingerprints: int = 0
    differing: int = 0


@dataclass
class SharedSteps:
    """Counts, while ledgers stream by, what each pair of attempts has in common."""

    pairs: defaultdict[tuple[int, int], Shared] = field(default_factory=lambda: defaultdict(Shared))

    def add(self, records: Sequence[Record], pairs: Sequence[Pair]) -> None:
        """One step's records, and their comparisons."""
        failed = {pair.replay.attempt for pair in pairs if not pair.held}
        for index, later in enumerate(records):
            for earlier in records[:index]:
                shared = self.pairs[earlier.attempt, later.attempt]
                shared.steps += 1
                shared.first_step = later.step if shared.first_step is None else shared.first_step
                shared.unequal_fingerprints += later.fingerprint != earlier.fingerprint
                shared.differing += later.attempt in failed


def moves_of(facts: RunFacts, recorded: Mapping[int, range], shared: SharedSteps) -> tuple[Move, ...]:
    """All moves of a run; ``recorded`` has the steps of each attempt that recorded any."""
    stops = [attempt for attempt in facts.specs if attempt in recorded]
    if stops and (newest := max(facts.specs)) != stops[-1]:
        stops.append(newest)
    return tuple(_move(facts, earlier, later, recorded, shared) for earlier, later in pairwise(stops))


def _move(facts: RunFacts, earlier: int, later: int, recorded: Mapping[int, range], shared: SharedSteps) -> Move:
    common = shared.pairs.get((earlier, later), Shared())
    boundary: Boundary = "none"
    why_not = ""
    if not common.steps:
        boundary, why_not = _why_not(facts, earlier, later, recorded)
    return Move(
        from_attempt=earlier,
        to_attempt=later,
        through=tuple(attempt for attempt in facts.specs if earlier < attempt < later),
        from_placement=facts.placement_of(earlier),
        to_placement=facts.placement_of(later),
        boundary=boundary,
        witnessed=common.steps > 0,
        steps_replayed=common.steps,
        first_step=common.first_step,
        same_fingerprint=common.unequal_fingerprints == 0 if common.steps else None,
        steps_differing=common.differing,
        why_not=why_not,
    )


def _why_not(facts: RunFacts, earlier: int, later: int, recorded: Mapping[int, range]) -> tuple[Boundary, str]:
    before, after = facts.specs[earlier], facts.specs[later]
    if later not in recorded:
        return "pending", f"attempt {later} has recorded no step yet"
    if before.revision != after.revision:
        return "revision", f"revision {after.revision} begins; its bits are not those of revision {before.revision}"
    if before.stage != after.stage:
        return "stage", f"stage {after.stage} begins; attempt {earlier} had finished stage {before.stage}"
    return "none", f"attempt {earlier} recorded no step beyond the checkpoint that attempt {later} went on from"
