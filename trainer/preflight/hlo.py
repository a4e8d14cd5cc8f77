"""An optimised program's text, as XLA prints it, read into computations and instructions.

Only what preflight asks is read: shapes, operations, who calls whom and how often, and where in the source an
instruction came from (its ``op_name``, which carries the scopes of ``trainer.parallel.scopes``).
"""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

BYTES = {"pred": 1, "s8": 1, "u8": 1, "s16": 2, "u16": 2, "bf16": 2, "f16": 2, "s32": 4, "u32": 4, "f32": 4}
BYTES |= {"s64": 8, "u64": 8, "f64": 8}
RUNS_OTHERS = frozenset({"while", "conditional", "call"})
_ARRAY = re.compile(r"\b(pred|bf16|f16|f32|f64|[su](?:8|16|32|64))\[([\d,]*)\]")
_COMPUTATION = re.compile(r"(ENTRY )?%?([\w.\-]+) \(.*\{\s*$")
_CALLED = re.compile(
    r"\b(?:calls|to_apply|body|condition|true_computation|false_computation)=%?([\w.\-]+)|\bbranch_computations=\{([^}]*)\}"
)
_BEGINNING = re.compile(r"  (ROOT )?%[\w.\-]+ = ")
_NUMBER = re.compile(r"constant\((\d+)\)")
_OP_NAME = re.compile(r'op_name="([^"]*)"')


@dataclass(frozen=True, kw_only=True)
class Instruction:
    """``name = shape opcode(operands), attributes``."""

    name: str
    shape: str
    """Of its result, with layout; of several results in parentheses."""
    opcode: str
    operands: tuple[str, ...]
    attributes: str
    """All that follows the operands."""
    line: str

    @cached_property
    def op_name(self) -> str:
        found = _OP_NAME.search(self.attributes)
        return found[1] if found else ""

    @cached_property
    def called(self) -> tuple[str, ...]:
        """Names of the computations that it runs."""
        names: list[str] = []
        for one, several in _CALLED.findall(self.attributes):
            names += [one] if one else [name.strip(" %") for name in several.split(",")]
        return tuple(names)


@dataclass(frozen=True, kw_only=True)
class Program:
    """All computations of a program, by name."""

    computations: Mapping[str, tuple[Instruction, ...]]
    entry: str

    @cached_property
    def times(self) -> Counter[str]:
        """How often each computation runs in one run of the program."""
        counted: Counter[str] = Counter()

        def count(name: str, times: int) -> None:
            counted[name] += times
            for instruction in self.computations[name]:
                trips = self._trips(instruction)
                for called in instruction.called:
                    if called in self.computations:
                        count(called, times * trips)

        count(self.entry, 1)
        return counted

    def _trips(self, one: Instruction) -> int:
        """How often a loop runs its body: loops here count from 0 to a constant. 1 for all that is no loop.

        Raises ValueError: it does not.
        """
        if one.opcode != "while":
            return 1
        condition = next(name for name in one.called if f"condition=%{name}" in one.attributes)
        limits = [found[1] for line in self.computations[condition] if (found := _NUMBER.search(line.line))]
        if len(limits) != 1:
            raise ValueError(f"a loop whose end is not one constant: {one.line:.200}")
        return int(limits[0])

    @cached_property
    def scheduled(self) -> frozenset[str]:
        """Computations whose instructions run one after the other: neither the inside of a fusion nor what a sum adds
        with."""
        found: set[str] = set()

        def add(name: str) -> None:
            if name in found or name not in self.computations:
                return
            found.add(name)
            for instruction in self.computations[name]:
                if instruction.opcode in RUNS_OTHERS or instruction.opcode.endswith("-start"):
                    for called in instruction.called:
                        add(called)

        add(self.entry)
        return frozenset(found)


def parse(text: str) -> Program:
    """Raises ValueError: it is no program's text."""
    lines: dict[str, list[str]] = {}
    entry, current = "", None
    for line in text.splitlines():
        opening = _COMPUTATION.match(line) if current is None else None
        if opening:
            current = lines.setdefault(opening[2], [])
            entry = opening[2] if opening[1] else entry
        elif line == "}" or line.startswith("}, execution_thread="):
            current = None
        elif current is not None and _BEGINNING.match(line):
            current.append(line.strip().removeprefix("ROOT "))
        elif current:  # what a kernel says of itself may have several lines
            current[-1] += line
    if not entry:
        raise ValueError("no ENTRY computation: this is not the text of a compiled program")
    return Program(
        computations={name: tuple(_instruction(line) for line in body) for name, body in lines.items()}, entry=entry
    )


def _instruction(line: str) -> Instruction:
    name, _, rest = line.partition(" = ")
    end = _closing(rest) + 1 if rest.startswith("(") else rest.index(" ")
    shape, call = rest[:end], rest[end:].lstrip()
    opcode, _, arguments = call.partition("(")
    closing = _closing("(" + arguments) - 1
    operands = tuple(re.findall(r"%([\w.\-]+)", arguments[:closing]))
    return Instruction(
        name=name.lstrip("%"),
        shape=shape,
        opcode=opcode,
        operands=operands,
        attributes=arguments[closing + 1 :],
        line=line,
    )


def _closing(text: str) -> int:
    """Where the parenthesis closes that ``text`` begins with."""
    depth = 0
    for position, character in enumerate(text):
        depth += {"(": 1, ")": -1}.get(character, 0)
        if depth == 0:
            return position
    raise ValueError(f"a parenthesis that never closes: {text:.80}")


def arrays(shape: str) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Dtype and dimensions of each array in a shape."""
    return tuple((dtype, tuple(int(n) for n in dims.split(",") if n)) for dtype, dims in _ARRAY.findall(shape))


def size(shape: str) -> int:
    """Bytes of all arrays in a shape, padding left out."""
    return sum(BYTES[dtype] * prod(dims) for dtype, dims in arrays(shape))
