"""Seconds of the exact step against the same step with the order of sums left to the backend, and against a plain one.

    python benchmarks/exact_step.py --devices 8 2

One process with that many devices trains the same model with each reduction in turn, step by step, so that what else
the machine does hits all alike:

- ``a2a``, ``tree``: exact, the same bits on any number of devices
- ``native``: a reduce-scatter after each micro-step, no barriers; what the backend likes
- ``native-once``: sums over micro-steps first and one reduce-scatter at the end, no barriers
- ``gspmd``: what one writes without Everstep, the whole batch at once under jit and optax (``plain_step.py``)

The first four clip, update and compute the same figures; the last leaves some out. The ratios are those of ``a2a``, the
default, to the better of the two native ones and to ``gspmd``, by the median over rounds. Exit 1 if either passes 1.05
for any number of devices.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

BAR = 1.05
RANKS = 16
MODEL = {
    "vocab_size": 2048,
    "d_model": 192,
    "n_layers": 4,
    "global_every": 4,
    "n_heads": 4,
    "n_kv_heads": 4,
    "head_dim": 48,
    "d_ff": 512,
    "sliding_window": 64,
}
LENGTH = 256
VARIANTS: dict[str, dict[str, Any]] = {
    "a2a": {"reduction": "a2a"},
    "tree": {"reduction": "tree"},
    "native": {"reduction": "native", "barriers": False},
    "native-once": {"reduction": "native-once", "barriers": False},
}


NATIVE = ("native", "native-once")
PLAIN = "gspmd"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, nargs="+", default=[8, 2, 1], help="numbers of devices (default 8 2 1)")
    parser.add_argument("--rounds", type=int, default=12, help="steps of each variant that count (default 12)")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="of the computation")
    parser.add_argument("--json", action="store_true", help="one document instead of a table")
    asked = parser.parse_args(arguments)
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={max(asked.devices)}"
    found = {
        count: measure(count, rounds=asked.rounds, dtype=asked.dtype) for count in sorted(asked.devices, reverse=True)
    }
    ratios = {count: {"native": to_native(seconds), PLAIN: to_plain(seconds)} for count, seconds in found.items()}
    if asked.json:
        print(json.dumps({"bar": BAR, "ratios": ratios, "seconds": found}, indent=2))
    else:
        names = [*VARIANTS, PLAIN]
        print(f"{'devices':>7}  " + "  ".join(f"{name:>11}" for name in names) + "   exact / best native, / gspmd")
        for count, seconds in found.items():
            row = "  ".join(f"{statistics.median(seconds[name]):11.3f}" for name in names)
            print(f"{count:7d}  {row}   {ratios[count]['native']:.3f}, {ratios[count][PLAIN]:.3f}")
        print(f"bar: {BAR}")
    return 1 if max(value for of in ratios.values() for value in of.values()) > BAR else 0


def to_native(seconds: dict[str, list[float]]) -> float:
    """To the better of the two."""
    return ratio(seconds, min(NATIVE, key=lambda name: statistics.median(seconds[name])))


def to_plain(seconds: dict[str, list[float]]) -> float:
    return ratio(seconds, PLAIN)


def ratio(seconds: dict[str, list[float]], other: str) -> float:
    """Median over rounds of exact / the other; both of one round ran side by side."""
    return statistics.median(one / two for one, two in zip(seconds["a2a"], seconds[other], strict=True))


def measure(count: int, *, rounds: int, dtype: str) -> dict[str, list[float]]:
    """Seconds of each step of each variant."""
    import jax
    import numpy as np

    from benchmarks.plain_step import PlainStep
    from orchestrator.contract.recipe import Data, Model, Schedule, Stage, TokenFile
    from trainer.step import StepPlan, build_program

    model = Model.model_validate({**MODEL, "compute_dtype": dtype})
    stage = Stage(
        name="only",
        steps=rounds,
        virtual_ranks=RANKS,
        sequence_length=LENGTH,
        data=Data(files=(TokenFile(path="none"),)),
        schedule=Schedule(peak=1e-3),
    )
    rows = np.random.default_rng(0).integers(0, MODEL["vocab_size"], (RANKS, LENGTH)).astype(np.uint32)
    running: dict[str, tuple[Any, Any]] = {}
    for name, plan in VARIANTS.items():
        print(f"{count} devices: compiling {name}", file=sys.stderr, flush=True)
        program = build_program(StepPlan(model=model, stage=stage, **plan), jax.devices()[:count])
        program.compile()
        running[name] = (program, program.init_state(1))
    plain = PlainStep(model, stage, jax.devices()[:count])
    running[PLAIN] = (plain, plain.init_state(1))
    seconds: dict[str, list[float]] = {name: [] for name in running}
    for turn in range(rounds + 1):
        print(f"{count} devices: round {turn} of {rounds}", file=sys.stderr, flush=True)
        names = list(running)
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            program, state = running[name]
            tokens = program.tokens_array(lambda wanted: rows[wanted])
            begin = time.perf_counter()
            state, metrics = program.step(state, tokens, np.float32(1e-3))
            metrics.read()
            jax.block_until_ready(state)
            if turn:  # the first touches memory for the first time
                seconds[name].append(time.perf_counter() - begin)
            running[name] = (program, state)
    return seconds


if __name__ == "__main__":
    sys.exit(main())
