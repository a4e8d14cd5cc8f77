"""What records, heartbeat and checksums add to a step.

    python benchmarks/step_overhead.py

Each is measured by itself, many times, as what it costs one step when steps take a second; then nothing shares its cost
with another step. Written to a local folder, with the program and the model of ``exact_step.py``:

- record: the figures of a step as a document, into the queue of the ledger
- segment: the thread that writes the ledger, one segment a step (seconds of CPU: the step does not wait for it)
- heartbeat: the progress file, one a step (CPU seconds of its thread too)
- checksums: of the whole gradient and of the tokens, on the devices, as a program of its own

Exit 1 if they pass 0.5 % of a second together.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from math import prod
from pathlib import Path

BAR = 0.005
"""Seconds a step."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=2, help="of one process (default 2)")
    parser.add_argument("--rounds", type=int, default=200, help="times that each is measured (default 200)")
    parser.add_argument("--json", action="store_true", help="one document instead of a table")
    asked = parser.parse_args(arguments)
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={asked.devices}"
    with tempfile.TemporaryDirectory(prefix="everstep-overhead-") as folder:
        costs = {**on_the_host(Path(folder), rounds=asked.rounds), **on_the_devices(rounds=asked.rounds)}
    total = sum(costs.values())
    if asked.json:
        print(json.dumps({"bar": BAR, "total": total, "seconds": costs}, indent=2))
    else:
        for name, seconds in (*costs.items(), ("together", total)):
            print(f"{name:10} {1000 * seconds:8.3f} ms a step, {100 * seconds:6.3f} % of a second")
        print(f"bar: {1000 * BAR:.0f} ms")
    return 1 if total > BAR else 0


def median_of(act: Callable[[], object], *, rounds: int, clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds of a call; the first does not count."""
    seconds = []
    for _ in range(rounds + 1):
        begin = clock()
        act()
        seconds.append(clock() - begin)
    return statistics.median(seconds[1:])


def on_the_host(folder: Path, *, rounds: int) -> dict[str, float]:
    import numpy as np

    from orchestrator.contract.ledger import Fingerprint, Record
    from orchestrator.store.local import LocalStore
    from orchestrator.store.run_store import RunStore
    from trainer.ledger import LedgerWriter
    from trainer.loop import record_of
    from trainer.progress import ProgressReport
    from trainer.step import StepResult

    one = np.float32(1.5)
    result = StepResult(
        ce_by_rank=np.full(512, one),  # as many virtual ranks as the large recipe has
        ce=one,
        z_loss=one,
        total=one,
        grad_norm=one,
        grad_checksum=(1, 2),
        token_checksum=(3, 4),
        skipped=False,
        finite=True,
    )
    fingerprint = Fingerprint(numerics="0" * 64, leaf="0" * 64)
    store = RunStore(LocalStore(folder), "overhead")
    ledger = LedgerWriter(store, attempt=1, close_after=3600.0, close_at=10**6)
    steps, segments = iter(range(10**9)), iter(range(10**9))

    def document() -> Record:
        return record_of(
            result,
            step=next(steps),
            attempt=1,
            rate=one,
            fingerprint=fingerprint,
            started=time.time(),
            seconds=1.0,
            data_seconds=0.0,
        )

    record = median_of(lambda: ledger.add(document()), rounds=rounds)
    segment = median_of(
        lambda: store.create_segment(2, next(segments), [document()]),
        rounds=rounds,
        clock=time.thread_time,
    )
    progress = ProgressReport(store, attempt=1, process=0, interval=3600.0)
    progress.enter("train")
    progress.finish_step(1, seconds=1.0, new=True)
    heartbeat = median_of(lambda: store.write_progress(progress.snapshot()), rounds=rounds, clock=time.thread_time)
    progress.stop()
    ledger.close(seconds=60)
    return {"record": record, "segment": segment - record, "heartbeat": heartbeat}


def on_the_devices(*, rounds: int) -> dict[str, float]:
    import jax
    import jax.numpy as jnp
    from exact_step import LENGTH, MODEL, RANKS
    from jax.sharding import NamedSharding, PartitionSpec

    from orchestrator.contract.recipe import Model
    from trainer.model.olmo3 import skeleton
    from trainer.parallel.checksum import array_words, token_words
    from trainer.parallel.mesh import AXIS, make_mesh

    mesh = make_mesh(jax.devices())
    size = sum(prod(weight.shape) for weight in jax.tree.leaves(skeleton(Model.model_validate(MODEL)).weights))
    print(f"a gradient of {size:,} numbers on {mesh.devices.size} devices", file=sys.stderr, flush=True)

    def words(rows: jax.Array, tokens: jax.Array) -> tuple[jax.Array, jax.Array]:
        return array_words(rows, cut=0), token_words(tokens, devices=mesh.devices.size)

    specs = (PartitionSpec(AXIS), PartitionSpec(None, AXIS))
    mapped = jax.jit(jax.shard_map(words, mesh=mesh, in_specs=specs, out_specs=PartitionSpec(), check_vma=False))
    shapes = ((RANKS, size // RANKS), (RANKS // mesh.devices.size, mesh.devices.size, LENGTH))
    arrays = [
        jax.device_put(jnp.ones(shape, dtype), NamedSharding(mesh, spec))
        for shape, dtype, spec in zip(shapes, (jnp.float32, jnp.uint32), specs, strict=True)
    ]
    return {"checksums": median_of(lambda: jax.block_until_ready(mapped(*arrays)), rounds=rounds)}


if __name__ == "__main__":
    sys.exit(main())
