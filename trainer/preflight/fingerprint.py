"""The leaf fingerprint: what of a compiled step decides bits and must not depend on the placement.

A *unit* is an instruction as the compiler scheduled it (a fusion, a product, a kernel) with all that it encloses.
Counted are units with float arithmetic, by what they compute; names, memory spaces, moves and where a unit came from
are left out. How much else counts depends on what could change a bit:

- where numbers are added up (products, sums, kernels): operations with the shapes and layouts of what they take and
  give, and the windows in which the unit is cut;
- element by element: operations and dtypes, since no shape, layout or tile changes the result of an element, and not
  how often, since computing it twice does not either;
- element by element over the part that a device holds (``scopes.SHARD``): each operation for itself, since how many
  arrays the compiler takes together depends on their size;
- adds of the reduction tree (``scopes.REDUCTION``): not at all, since the tree fixes their order.

Two programs whose counts are equal compute the same leaf by the same operations in the same tiles.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from trainer.parallel.scopes import REDUCTION, SHARD
from trainer.preflight.cost import KINDS
from trainer.preflight.hlo import RUNS_OTHERS, Instruction, Program, arrays

ADDING_UP = frozenset({"dot", "convolution", "reduce", "reduce-window", "scatter", "custom-call"})
ELEMENTWISE = frozenset({"add", "subtract", "multiply", "divide", "power", "negate", "maximum", "minimum"}) | {
    *("exponential", "exponential-minus-one", "log", "log-plus-one", "logistic", "tanh", "erf", "sine", "cosine"),
    *("sqrt", "rsqrt", "cbrt", "convert"),
}
MOVES = ("concatenate", "all_gather", "pad", "dynamic_update_slice")
"""What the source calls an operation that the compiler makes a maximum of padded arrays."""
NO_UNITS = frozenset({*RUNS_OTHERS, *KINDS})
"""What runs other units, or only moves their results."""
KERNEL = 'custom_call_target="tpu_custom_call"'
_FLOAT = re.compile(r"\b(?:bf16|f16|f32|f64)\[")
_MEMORY_SPACE = re.compile(r"S\(\d+\)")
_LEFT_OUT = re.compile(r"(, )?(metadata|backend_config|frontend_attributes)=\{.*$")
_NAME = re.compile(r"%[\w.\-]+")
_REDUCED = re.compile(r"\bdimensions=\{([\d,]*)\}")
_DTYPE = re.compile(r"\b(\w+)\[")
_BOUNDS = re.compile(r'"(?:kernel_window_bounds|output_window_bounds|input_window_bounds|iteration_bounds)":\[[^\]]*\]')


@dataclass(frozen=True, kw_only=True)
class Fingerprint:
    """Of a compiled step."""

    units: Mapping[str, int]
    """How often each key occurs in the program's text."""
    labels: Mapping[str, str]
    """For a person: where a unit comes from, and its shape."""

    @property
    def sha256(self) -> str:
        lines = "\n".join(f"{count} {key}" for key, count in sorted(self.units.items()))
        return hashlib.sha256(lines.encode()).hexdigest()

    @property
    def total(self) -> int:
        return sum(self.units.values())


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Between two programs."""

    equal: int
    only_here: tuple[str, ...]
    only_there: tuple[str, ...]
    """Labels of units, each as often as it occurs more."""


def compare(here: Fingerprint, there: Fingerprint) -> Difference:
    one, other = Counter(here.units), Counter(there.units)

    def labels(extra: Counter[str], of: Fingerprint) -> tuple[str, ...]:
        return tuple(sorted(of.labels[key] for key in extra.elements()))

    return Difference(
        equal=(one & other).total(), only_here=labels(one - other, here), only_there=labels(other - one, there)
    )


def fingerprint(program: Program, *, kernels: Iterable[str] = ()) -> Fingerprint:
    """``kernels`` are the sources of kernels, which a compiled program names but does not show."""
    units: Counter[str] = Counter()
    labels: dict[str, str] = {}
    for name, instructions in program.computations.items():
        if name not in program.scheduled:
            continue
        shapes = {one.name: one.shape for one in instructions}
        for one in instructions:
            for text, counted in _computed(program, one, shapes):
                key = hashlib.sha256(text.encode()).hexdigest()
                units[key] = units[key] + 1 if counted else 1
                labels[key] = f"{one.op_name or one.opcode} {one.shape}"
    for source in kernels:
        key = hashlib.sha256(source.encode()).hexdigest()
        units[key] += 1
        labels[key] = "a kernel's source"
    return Fingerprint(units=units, labels=labels)


def _computed(program: Program, one: Instruction, shapes: Mapping[str, str]) -> list[tuple[str, bool]]:
    """What a unit computes, and whether it counts how often that occurs; nothing, if it only moves numbers."""
    if one.opcode.removesuffix("-start").removesuffix("-done") in NO_UNITS:
        return []
    computing = [(line, at) for line, at in _enclosed(program, one, shapes) if _computes(line)]
    lines = [(line, at) for line, at in computing if REDUCTION not in (line.op_name or one.op_name)]
    if all(line.opcode == "convert" for line, _ in lines):
        return []
    described = [_described(line, at) for line, at in lines]
    if any(line.opcode in ADDING_UP for line, _ in lines):
        return [("\n".join([*described, *_BOUNDS.findall(one.attributes)]), True)]
    if any(SHARD in (line.op_name or one.op_name) for line, _ in lines):
        return [(text, False) for text in described]
    return [("\n".join(sorted(described)), False)]


def _enclosed(
    program: Program, one: Instruction, shapes: Mapping[str, str]
) -> Iterator[tuple[Instruction, Mapping[str, str]]]:
    """The instruction and all that it calls, each with the shapes of what stands beside it."""
    if _drops_axes(one, shapes):
        return
    yield one, shapes
    for name in one.called:
        lines = program.computations.get(name, ())
        beside = {line.name: line.shape for line in lines}
        for line in lines:
            yield from _enclosed(program, line, beside)


def _drops_axes(line: Instruction, shapes: Mapping[str, str]) -> bool:
    """A sum over axes of one element, which is how the compiler may write a reshape."""
    over = _REDUCED.search(line.attributes) if line.opcode == "reduce" else None
    if over is None:
        return False
    (_, lengths), *_ = arrays(shapes[line.operands[0]])
    return all(lengths[int(axis)] == 1 for axis in over[1].split(",") if axis)


def _computes(line: Instruction) -> bool:
    if not _FLOAT.search(line.shape) or line.op_name.rpartition("/")[2] in MOVES:
        return False
    if line.opcode == "custom-call":
        return KERNEL in line.attributes
    return line.opcode in ADDING_UP or line.opcode in ELEMENTWISE


def _described(line: Instruction, shapes: Mapping[str, str]) -> str:
    """An operation and what decides its result."""
    taken = [shapes.get(operand, "") for operand in line.operands]
    if line.opcode not in ADDING_UP:
        return f"{line.opcode} {_dtypes(line.shape)} of {' '.join(map(_dtypes, taken))}"
    attributes = _NAME.sub("%", _LEFT_OUT.sub("", line.attributes))
    return _MEMORY_SPACE.sub("", f"{line.shape} {line.opcode}({', '.join(taken)}){attributes}")


def _dtypes(shape: str) -> str:
    return ",".join(_DTYPE.findall(shape))
