"""What was compiled, placement by placement, and whether bits will hold between them."""

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.contract.preflight import CompileAnswer, Compiled, PlacementReport, PreflightReport, Topology
from orchestrator.contract.recipe import Recipe, Stage
from trainer.preflight.fingerprint import Fingerprint, compare
from trainer.preflight.search import Ask, Found, Settings, choose

Asked = Sequence[tuple[Topology, Stage]]
"""In order of preference."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What a report is asked for."""

    recipe: Recipe
    places: Asked
    pinned: Settings | None = None
    """A leaf plan for all; None: one is looked for, generation by generation."""


def report(wanted: Wanted, *, ask: Ask, at: float) -> PreflightReport:
    """Raises ContractError: a question cannot be asked."""
    plans: dict[str, Found] = {}
    for generation in dict.fromkeys(topology.generation for topology, _ in wanted.places):
        places = [place for place in wanted.places if place[0].generation == generation]
        pinned = {} if wanted.pinned is None else {"candidates": (wanted.pinned,)}
        plans[generation] = choose(places, ask=ask, **pinned)
    first: dict[str, CompileAnswer] = {}
    placements = []
    for topology, stage in wanted.places:
        found = plans[topology.generation]
        answer = found.answers.get((topology, stage.name))
        if answer is None:  # another placement had refused the plan before
            answer = ask(topology, stage, found.settings)
        placements.append(_placement(topology, stage, answer, reference=first.get(stage.name)))
        first.setdefault(stage.name, answer)
    return PreflightReport(
        recipe=wanted.recipe.name,
        at=at,
        settings={generation: dict(found.settings) for generation, found in plans.items()},
        placements=tuple(placements),
    )


def _placement(
    topology: Topology, stage: Stage, answer: CompileAnswer, *, reference: CompileAnswer | None
) -> PlacementReport:
    here = _units(answer)
    common = {"topology": topology, "stage": stage.name, "answer": answer, "units": here.total if here else 0}
    if reference is None:
        return PlacementReport(**common, bits="reference", equal_units=common["units"], only_here=(), only_there=())
    there = _units(reference)
    if here is None or there is None:
        return PlacementReport(**common, bits="unknown", equal_units=0, only_here=(), only_there=())
    differ = compare(here, there)
    return PlacementReport(
        **common,
        bits="bounded" if differ.only_here or differ.only_there else "equal",
        equal_units=differ.equal,
        only_here=differ.only_here,
        only_there=differ.only_there,
    )


def _units(answer: CompileAnswer) -> Fingerprint | None:
    if not isinstance(answer.outcome, Compiled):
        return None
    units = answer.outcome.units
    return Fingerprint(units={u.key: u.count for u in units}, labels={u.key: u.label for u in units})
