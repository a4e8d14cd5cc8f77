"""Host memory of a restore, from any number of processes and devices to any other.

    python benchmarks/restore_memory.py --gib 2

A state of some GiB is saved by 4 processes of 2 devices and by one process of one device, and each checkpoint is read
back by 4 x 2, 2 x 1, 1 x 2 and 1 x 1. For each reading process: what its devices hold afterwards, and how far its
resident memory rose above what it was before the restore, at its highest. On a CPU devices hold their arrays in host
memory, so the excess of the second over the first is what a restore needs besides. Exit 1 if it passes 2 GiB anywhere.
"""

import argparse
import json
import os
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

BOUND = 2 << 30
SHAPES = ((4, 2), (2, 1), (1, 2), (1, 1))
"""Processes x devices of each."""
SAVERS = ((4, 2), (1, 1))
WIDTH = 4096
ARRAYS = 8


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One process's restore, in bytes."""

    saved_by: str
    read_by: str
    process: int
    held: int
    risen: int

    @property
    def excess(self) -> int:
        return max(0, self.risen - self.held)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=2.0, help="size of the state (default 2)")
    parser.add_argument("--json", action="store_true", help="one document instead of a table")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if asked.part is not None:
        return _part(**json.loads(asked.part))
    readings = _measure(rows=int(asked.gib * (1 << 30) / (ARRAYS * WIDTH * 4)) // 8 * 8)
    worst = max(reading.excess for reading in readings)
    if asked.json:
        print(json.dumps({"bound": BOUND, "worst": worst, "readings": [asdict(one) for one in readings]}, indent=2))
    else:
        _print(readings, worst)
    return 1 if worst > BOUND else 0


def _print(readings: Sequence[Reading], worst: int) -> None:
    print(f"{'saved by':9} {'read by':8} {'process':>7} {'held MiB':>9} {'risen MiB':>10} {'excess MiB':>11}")
    for one in readings:
        held, risen, excess = (value / (1 << 20) for value in (one.held, one.risen, one.excess))
        print(f"{one.saved_by:9} {one.read_by:8} {one.process:7d} {held:9.0f} {risen:10.0f} {excess:11.0f}")
    print(f"worst excess: {worst / (1 << 20):.0f} MiB; bound: {BOUND / (1 << 20):.0f} MiB")


def _measure(*, rows: int) -> list[Reading]:
    folder = Path(tempfile.mkdtemp(prefix="everstep-restore-"))
    try:
        found = []
        for saver in SAVERS:
            target = str(folder / _name(saver))
            _together("save", saver, rows=rows, folder=target)
            for reader in SHAPES:
                print(f"{_name(saver)} -> {_name(reader)}", file=sys.stderr, flush=True)
                for process, line in enumerate(_together("restore", reader, rows=rows, folder=target)):
                    found.append(
                        Reading(saved_by=_name(saver), read_by=_name(reader), process=process, **json.loads(line))
                    )
            shutil.rmtree(target)
        return found
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _together(what: str, shape: tuple[int, int], **settings: Any) -> list[str]:
    """One process for each host; what each of them prints last."""
    processes, devices = shape
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        "PYTHONPATH": str(Path(__file__).resolve().parents[1]),
    }
    with closing(socket.socket()) as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
        children = []
        for process in range(processes):
            part = json.dumps({"what": what, "processes": processes, "process": process, "port": port, **settings})
            command = [sys.executable, __file__, "--part", part]
            children.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
        said = [child.communicate()[0] for child in children]
    if any(child.returncode for child in children):
        raise SystemExit(f"{what} by {_name(shape)} failed; the reason is above")
    return [text.splitlines()[-1] for text in said]


def _part(*, what: str, processes: int, process: int, port: int, rows: int, folder: str) -> int:
    import jax
    import numpy as np
    from jax.sharding import NamedSharding, PartitionSpec

    from trainer.checkpoint import orbax_files
    from trainer.parallel.mesh import AXIS, make_mesh

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        f"127.0.0.1:{port}", num_processes=processes, process_id=process, cluster_detection_method="deactivate"
    )
    sharding = NamedSharding(make_mesh(jax.devices()), PartitionSpec(AXIS))
    shape = (rows, WIDTH)

    def block(number: int) -> jax.Array:
        def part(index: tuple[slice, ...] | None) -> np.ndarray[Any, np.dtype[np.float32]]:
            assert index is not None
            count = len(range(*index[0].indices(rows)))
            return np.random.default_rng(number).random((count, WIDTH), np.float32)

        return jax.make_array_from_callback(shape, sharding, part)

    if what == "save":
        state = {f"a{number}": block(number) for number in range(ARRAYS)}
        orbax_files.save(folder, state, label="measure").wait()
        print("saved")
    else:
        target = jax.ShapeDtypeStruct(shape, np.float32, sharding=sharding)
        before = _resident()
        found = jax.block_until_ready(orbax_files.restore(folder, {f"a{number}": target for number in range(ARRAYS)}))
        held = sum(shard.data.nbytes for array in found.values() for shard in array.addressable_shards)
        risen = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
        print(json.dumps({"held": held, "risen": risen}))
    jax.distributed.shutdown()
    return 0


def _name(shape: tuple[int, int]) -> str:
    return f"{shape[0]}x{shape[1]}"


def _resident() -> int:
    """Bytes of this process in memory now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


if __name__ == "__main__":
    sys.exit(main())
