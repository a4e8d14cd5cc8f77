"""The leaf plan of a generation: the cheapest of a list that fits every placement of the run.

All are compiled for the placement that holds the most on a device, and ranked by what the compiler says of them: FLOPs,
then its estimate of cycles. The best that fits the others too is chosen.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from orchestrator.contract.preflight import CompileAnswer, Compiled, Topology
from orchestrator.contract.recipe import Stage

Settings = Mapping[str, Any]
Place = tuple[Topology, str]
"""A topology, and the name of a stage."""
Ask = Callable[[Topology, Stage, Settings], CompileAnswer]

CANDIDATES: tuple[Settings, ...] = tuple(
    {"attention": "splash", "attention_chunk": 1024, "scan": "block", "remat": remat}
    for remat in ("elementwise", "none", "layer")
)
SAME_FLOPS = 0.005
"""Of two plans whose FLOPs differ by less, the one of fewer cycles is better."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """The plan that was chosen, and what the compiler said of each placement under it. Where none fits all, that of the
    least memory, and at least one refusal among the answers."""

    settings: Settings
    answers: Mapping[Place, CompileAnswer]


def choose(places: Sequence[tuple[Topology, Stage]], *, ask: Ask, candidates: Sequence[Settings] = CANDIDATES) -> Found:
    """For the placements of one generation."""
    (topology, stage), *others = sorted(places, key=lambda place: (chips(place[0]), place[1].virtual_ranks))
    first = [ask(topology, stage, settings) for settings in candidates]
    for index in _ranked(first) or [len(candidates) - 1]:
        found = {(topology, stage.name): first[index]}
        for other, of in others:
            found[other, of.name] = ask(other, of, candidates[index])
            if not isinstance(found[other, of.name].outcome, Compiled):
                break
        else:
            break
    return Found(settings=candidates[index], answers=found)


def chips(topology: Topology) -> int:
    """Of all slices."""
    return topology.slices * prod(int(side) for side in topology.chips.split("x"))


def _ranked(answers: Sequence[CompileAnswer]) -> list[int]:
    """Numbers of the plans that fit, the best first."""
    fitting = {index: answer.outcome for index, answer in enumerate(answers) if isinstance(answer.outcome, Compiled)}
    least = min((outcome.flops for outcome in fitting.values()), default=0)

    def cost(index: int) -> tuple[float, int]:
        flops = fitting[index].flops / least
        return (1.0 if flops < 1 + SAME_FLOPS else flops, fitting[index].cycles)

    return sorted(fitting, key=cost)
