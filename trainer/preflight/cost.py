"""What a compiled step costs, from its text: products, collectives, the compiler's own cycles."""

import re
from collections import defaultdict
from dataclasses import dataclass
from math import prod

from trainer.preflight.hlo import Instruction, Program, arrays, size

KINDS = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute", "collective-broadcast")
_LABELS = re.compile(r"dim_labels=(\w+)_(\w+)->(\w+)")
_WINDOW = re.compile(r"window=\{([^}]*)\}")
_CONTRACTED = re.compile(r"lhs_contracting_dims=\{([\d,]*)\}")
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
UNKNOWN_CYCLES = 2**62
"""What the compiler prints where it has no estimate is larger."""
FORWARD, BACKWARD = "splash_mha_fwd", "splash_mha_dkv"
"""What the names of the kernels of attention begin with."""


@dataclass(frozen=True, kw_only=True)
class Collective:
    """All collectives of a kind and dtype in one step of one device."""

    kind: str
    dtype: str
    asynchronous: bool
    """Started and awaited apart, so that something else can be computed meanwhile."""
    count: int
    bytes: int
    """Of their results."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Of one step on one device."""

    matmul_flops: int
    """Of matrix products outside kernels."""
    attention_passes: tuple[int, int]
    """How often a step runs the forward and the backward kernel of attention."""
    cycles: int
    """The compiler's estimates for what it fused, added up; kernels and collectives have none."""
    collectives: tuple[Collective, ...]


def cost(program: Program) -> Cost:
    flops = cycles = 0
    passes = {FORWARD: 0, BACKWARD: 0}
    for name, instructions in program.computations.items():
        shapes = {one.name: one.shape for one in instructions}
        times = program.times[name]
        for one in instructions:
            if one.opcode in ("convolution", "dot"):
                flops += times * _product_flops(one, shapes)
            if name in program.scheduled:
                cycles += times * _cycles(one)
            for kernel in passes:
                passes[kernel] += times * (one.opcode == "custom-call" and one.name.startswith(kernel))
    return Cost(
        matmul_flops=flops,
        attention_passes=(passes[FORWARD], passes[BACKWARD]),
        cycles=cycles,
        collectives=_collectives(program),
    )


def _product_flops(one: Instruction, shapes: dict[str, str]) -> int:
    """Two for each pair that is multiplied and added."""
    (_, result), *_ = arrays(one.shape)
    left, right = (arrays(shapes[operand])[0][1] for operand in one.operands[:2])
    contracted = _CONTRACTED.search(one.attributes)
    if one.opcode == "dot" and contracted:
        return 2 * prod(result) * prod(left[int(axis)] for axis in contracted[1].split(",") if axis)
    labels = _LABELS.search(one.attributes)
    if labels is None:
        raise ValueError(f"a product whose axes are not named: {one.line:.200}")
    taps = prod(
        _pairs(axis, left[labels[1].index(str(number))], result[labels[3].index(str(number))])
        for number, axis in enumerate(_window(one.attributes))
    )
    spatial = prod(result[labels[3].index(digit)] for digit in labels[3] if digit.isdigit())
    return 2 * prod(result) // spatial * taps * right[labels[2].index("i")]


def _window(attributes: str) -> list[dict[str, str]]:
    """What is said of each spatial axis: ``size=2x3 pad=0_0x1_1`` → size, pad, stride, dilations."""
    found = _WINDOW.search(attributes)
    fields = dict(field.split("=") for field in found[1].split()) if found else {}
    columns = {name: value.split("x") for name, value in fields.items()}
    return [{name: values[axis] for name, values in columns.items()} for axis in range(len(columns.get("size", ())))]


def _pairs(axis: dict[str, str], length: int, positions: int) -> int:
    """Pairs of an output position and a tap that meet an element, and not padding or a hole."""
    low = int(axis.get("pad", "0_0").split("_")[0])
    stride, spread, holes = (int(axis.get(name, "1")) for name in ("stride", "rhs_dilate", "lhs_dilate"))
    places = (
        position * stride + tap * spread - low for position in range(positions) for tap in range(int(axis["size"]))
    )
    return sum(0 <= place <= (length - 1) * holes and place % holes == 0 for place in places)


def _cycles(one: Instruction) -> int:
    found = _CYCLES.search(one.attributes)
    return int(found[1]) if found and int(found[1]) < UNKNOWN_CYCLES else 0


def _collectives(program: Program) -> tuple[Collective, ...]:
    found: dict[tuple[str, str, bool], list[int]] = defaultdict(lambda: [0, 0])
    awaited = _awaited(program)
    for name, instructions in program.computations.items():
        for one in instructions:
            kind = one.opcode.removesuffix("-start")
            if kind not in KINDS or not program.times[name]:
                continue
            apart = one.opcode.endswith("-start")
            # a start's result holds its operand beside what it produces
            bytes_ = size(one.shape) - (_operand_bytes(one, program, name) if apart else 0)
            entry = found[kind, arrays(one.shape)[0][0], apart or name in awaited]
            entry[0] += program.times[name]
            entry[1] += program.times[name] * bytes_
    return tuple(
        Collective(kind=kind, dtype=dtype, asynchronous=apart, count=count, bytes=bytes_)
        for (kind, dtype, apart), (count, bytes_) in sorted(found.items())
    )


def _operand_bytes(one: Instruction, program: Program, computation: str) -> int:
    shapes = {other.name: other.shape for other in program.computations[computation]}
    return sum(size(shapes[operand]) for operand in one.operands if operand in shapes)


def _awaited(program: Program) -> set[str]:
    """Computations that are started and awaited apart: what ``…-start`` calls, and all that those call."""
    found: set[str] = set()

    def add(name: str) -> None:
        if name in program.computations and name not in found:
            found.add(name)
            for one in program.computations[name]:
                for called in one.called:
                    add(called)

    for instructions in program.computations.values():
        for one in instructions:
            if one.opcode.endswith("-start"):
                for called in one.called:
                    add(called)
    return found
