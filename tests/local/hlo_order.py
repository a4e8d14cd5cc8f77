"""Which collectives of a compiled program data alone puts in order; read from its text."""

import re
from dataclasses import dataclass, field

TALKS = re.compile(r" (all-gather|all-reduce|all-to-all|reduce-scatter|collective-permute)(-start)?\(")
NAME = re.compile(r"%[\w.-]+")


@dataclass
class Computation:
    """Instructions in their order, each with the names that its line mentions."""

    instructions: dict[str, set[str]] = field(default_factory=dict)
    collectives: set[str] = field(default_factory=set)


def computations(text: str) -> dict[str, Computation]:
    """All of a module, by name."""
    found: dict[str, Computation] = {}
    here = Computation()
    for line in text.splitlines():
        names = NAME.findall(line)
        if line.endswith("{") and names:
            here = found[names[0]] = Computation()
        elif " = " in line and names:
            here.instructions[names[0]] = set(names[1:])
            if TALKS.search(line):
                here.collectives.add(names[0])
    return found


def unordered(text: str) -> list[tuple[str, str]]:
    """Pairs of a collective and a loop or call with collectives, or of two of the latter, that no data orders.

    An executable from the compile cache runs such pairs in any order: XLA's CPU runtime, when it reads one, keeps in
    order only the collectives of one and the same computation.
    """
    every = computations(text)
    talking: set[str] = set()
    while more := {
        name for name, one in every.items() if name not in talking and (one.collectives or _calls(one, talking))
    }:
        talking |= more
    return [pair for one in every.values() for pair in _unordered(one, talking)]


def collectives(text: str) -> int:
    return sum(len(one.collectives) for one in computations(text).values())


def _calls(one: Computation, talking: set[str]) -> set[str]:
    """Instructions that run a computation with collectives."""
    return {name for name, mentioned in one.instructions.items() if mentioned & talking}


def _unordered(one: Computation, talking: set[str]) -> list[tuple[str, str]]:
    nested = _calls(one, talking)
    before: dict[str, set[str]] = {}
    for name, mentioned in one.instructions.items():
        operands = mentioned & before.keys()
        before[name] = operands.union(*(before[operand] for operand in operands))
    talkers = [name for name in one.instructions if name in nested or name in one.collectives]
    return [
        (first, second)
        for index, second in enumerate(talkers)
        for first in talkers[:index]
        if (first in nested or second in nested) and first not in before[second]
    ]
