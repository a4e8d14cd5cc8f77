"""Trains a tiny Olmo 3 on synthetic tokens and says what came out; in one process, or as one of several.

python -m tests.local.exact_program PROCESSES DEVICES_PER_PROCESS STEPS DTYPE
"""

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from orchestrator.contract import checksum
from orchestrator.contract.recipe import Data, Model, Schedule, Stage, TokenFile
from tests.local.hlo_order import collectives, unordered

RANKS = 8
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Outcome:
    """What a training run came to."""

    params_sha256: tuple[str, ...]
    """After each step."""
    losses: tuple[str, ...]
    """fp32 bits of the total loss of each step."""
    gradients: tuple[str, ...]
    """Checksum of each step's reduced gradient."""
    tokens: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Size:
    """Shapes of a model and of its batch; every width is a multiple of V."""

    model: dict[str, int]
    length: int


TINY = Size(
    model={
        "vocab_size": 64,
        "d_model": 16,
        "n_layers": 2,
        "global_every": 2,
        "n_heads": 4,
        "n_kv_heads": 2,
        "head_dim": 4,
        "d_ff": 24,
        "sliding_window": 5,
    },
    length=16,
)
"""Both kinds of attention, grouped-query heads."""
SMALL = Size(
    model={
        "vocab_size": 320,
        "d_model": 64,
        "n_layers": 4,
        "global_every": 4,
        "n_heads": 4,
        "n_kv_heads": 2,
        "head_dim": 16,
        "d_ff": 176,
        "sliding_window": 32,
    },
    length=128,
)
"""Large enough for the compiler to treat a leaf in a loop and a leaf alone in different ways, where it may."""


def recipe(size: Size, dtype: str) -> tuple[Model, Stage]:
    model = Model(compute_dtype=dtype, **size.model)  # type: ignore[arg-type]
    stage = Stage(
        name="only",
        steps=1000,
        virtual_ranks=RANKS,
        sequence_length=size.length,
        data=Data(files=(TokenFile(path="none"),)),
        schedule=Schedule(peak=1e-2, warmup_steps=3),
    )
    return model, stage


def batch(size: Size, step: int, rows: np.ndarray) -> np.ndarray:
    """Rows of the global batch of a step; half of each repeats, so that there is something to learn."""
    half = np.random.default_rng(1000 + step).integers(0, size.model["vocab_size"], (RANKS, size.length // 2))
    return np.concatenate([half, half], axis=1).astype(np.uint32)[rows]


def train(devices: Sequence[Any], *, dtype: str, steps: int, size: Size = TINY, **plan: Any) -> Outcome:
    """Train on these devices; ``plan`` changes the step plan, for negative controls."""
    from trainer.checkpoint.verify import hash_of_params
    from trainer.optim.schedule import learning_rate
    from trainer.step import StepPlan, build_program

    model, stage = recipe(size, dtype)
    program = build_program(StepPlan(model=model, stage=stage, **plan), devices)
    program.compile()
    if plan.get("scan") != "block":  # which several CPU processes refuse, since it has collectives in two loops
        assert collectives(program.program_text()) >= 9
        assert unordered(program.program_text()) == []
    state = program.init_state(7)
    queued, losses, gradients, tokens = [], [], [], []
    for step in range(steps):
        rows = program.tokens_array(lambda rows, step=step: batch(size, step, rows))
        state, metrics = program.step(state, rows, learning_rate(stage, update=step + 1))
        result = metrics.read()
        losses.append(np.float32(result.total).tobytes().hex())
        gradients.append(checksum.words(result.grad_checksum))
        tokens.append(checksum.words(result.token_checksum))
        queued.append(program.checksums(state))  # read at the end: they meet steps on the devices, as a save's do
    params = tuple(hash_of_params(read()) for read in queued)
    return Outcome(params, tuple(losses), tuple(gradients), tuple(tokens))


def train_in_processes(processes: int, devices: int, *, dtype: str, steps: int) -> Outcome:
    """The same in several processes of one ``jax.distributed`` job; their outcomes must agree."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    command = [sys.executable, "-m", "tests.local.exact_program", str(processes), str(devices), str(steps), dtype]
    environment = {
        **os.environ,
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        "JAX_PLATFORMS": "cpu",
        "EXACT_PORT": str(port),
    }
    children = [
        subprocess.Popen(
            command,
            env={**environment, "EXACT_PROCESS": str(index)},
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(processes)
    ]
    try:
        said = [child.communicate(timeout=400) for child in children]
    finally:
        for child in children:
            child.kill()
    for child, (_, err) in zip(children, said, strict=True):
        assert child.returncode == 0, err[-2000:]
    outcomes = {out.strip().splitlines()[-1] for out, _ in said}
    assert len(outcomes) == 1, f"processes of one job disagree: {outcomes}"
    return Outcome(*(tuple(field.split(",")) for field in outcomes.pop().split(" ")))


def main() -> None:
    processes, steps, dtype = int(sys.argv[1]), int(sys.argv[3]), sys.argv[4]
    import jax

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        f"127.0.0.1:{os.environ['EXACT_PORT']}",
        processes,
        int(os.environ["EXACT_PROCESS"]),
        cluster_detection_method="deactivate",
    )
    found = train(jax.devices(), dtype=dtype, steps=steps)
    columns = (found.params_sha256, found.losses, found.gradients, found.tokens)
    print(*(",".join(column) for column in columns), flush=True)


if __name__ == "__main__":
    main()
