"""Host memory of a conversion to Hugging Face's files and back, of a model of some GB.

    python benchmarks/convert_memory.py --layers 8

A checkpoint of an Olmo 3 (parameters only, on one CPU device) is exported, and each of our arrays is read back from
the exported files, one after the other. For both: how far resident memory rose above what it was before, at its
highest, each in a process of its own. Bar: our largest array, as it is stacked over layers in fp32, and 2 GiB. Exit 1
if it is passed.
"""

import argparse
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

BESIDES = 2 << 30
STEPS = ("save", "export", "read")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=8, help="of width 2,048; 50 million parameters each (default 8)")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if asked.part is not None:
        print(json.dumps({"save": _save, "export": _export, "read": _read}[asked.part](asked.folder, asked.layers)))
        return 0
    with tempfile.TemporaryDirectory(prefix="everstep-convert-") as folder:
        found = {part: _apart(part, Path(folder), asked.layers) for part in STEPS}
    size, largest = (found["save"][what] for what in ("bytes", "largest"))
    bar = largest + BESIDES
    print(f"{size / 2**20:,.0f} MiB of parameters, largest array {largest / 2**20:,.0f}")
    for part in ("export", "read"):
        risen, seconds = found[part]["risen"], found[part]["seconds"]
        print(f"{part:7} memory rose by {risen / 2**20:7,.0f} MiB (bar {bar / 2**20:,.0f}) in {seconds:.1f} s")
    return 1 if max(found[part]["risen"] for part in ("export", "read")) > bar else 0


def _apart(part: str, folder: Path, layers: int) -> dict[str, Any]:
    """In a process of its own; what it prints last."""
    command = [sys.executable, __file__, "--part", part, "--folder", str(folder), "--layers", str(layers)]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(Path(__file__).resolve().parents[1])}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _run(folder: Path, layers: int) -> Any:
    from orchestrator.contract.recipe import Model
    from tests.local.attempts import SmallRun, small_recipe, stage_of, write_tokens

    model = Model(vocab_size=32_768, d_model=2048, n_layers=layers, n_heads=16, n_kv_heads=16, head_dim=128, d_ff=5504)
    recipe = small_recipe(stage_of(write_tokens(folder / "tokens.u32"))).model_copy(update={"model": model})
    return SmallRun(folder, recipe)


def _save(folder: Path, layers: int) -> dict[str, Any]:
    import jax
    import numpy as np

    from orchestrator.contract.checksum import checksum
    from orchestrator.contract.ledger import Fingerprint
    from trainer.checkpoint import orbax_files
    from trainer.checkpoint.commit import Committer, Origin, Written, own_head
    from trainer.model.olmo3 import skeleton
    from trainer.parallel.state_checksums import by_path

    run, sha256 = _run(folder, layers), "1" * 64
    spec = run.spec(run.fence(), hosts=1, devices=1)
    described = skeleton(run.recipe.model).weights
    random = np.random.default_rng(0)
    values = {path: random.random(weight.shape, np.float32) for path, weight in by_path(described).items()}
    checksums = {f"params/{path}": ("float32", value.shape, checksum(value)) for path, value in values.items()}
    params = jax.tree.unflatten(jax.tree.structure(described), [jax.device_put(value) for value in values.values()])
    committer = Committer(
        run.store,
        origin=Origin(
            spec=spec, fingerprint=Fingerprint(numerics=sha256, leaf=sha256), versions={}, data_sha256=sha256
        ),
        head=own_head(run.store, spec),
        parent=None,
        close_ledger=lambda _: None,
    )
    address = run.store.checkpoint_address("checkpoints/000000000000-a0001")
    orbax_files.prepare(address)
    orbax_files.save(address, {"params": params}, label="measure").wait()
    committer.commit(Written(next_step=0, checksums=checksums, save_started=time.time()))
    sizes = [value.nbytes for value in values.values()]
    return {"bytes": sum(sizes), "largest": max(sizes)}


def _export(folder: Path, _: int) -> dict[str, Any]:
    from orchestrator.store.local import LocalStore
    from orchestrator.store.run_store import RunStore
    from trainer.convert.export import export

    store = RunStore(LocalStore(folder / "store"), "small")
    before, began = _resident(), time.perf_counter()
    export(store, store.manifest(str(store.head().value.manifest)), folder / "out")
    return _risen(before, began)


def _read(folder: Path, _: int) -> dict[str, Any]:
    from trainer.convert.config import read_config
    from trainer.convert.weights import HuggingFaceWeights
    from trainer.model.olmo3 import skeleton
    from trainer.parallel.state_checksums import by_path

    model = read_config(folder / "out")
    shapes = {path: weight.shape for path, weight in by_path(skeleton(model).weights).items()}
    before, began = _resident(), time.perf_counter()
    with HuggingFaceWeights(folder / "out", model) as opened:
        for path, shape in shapes.items():
            found = opened.read(path, tuple(slice(None) for _ in shape), shape)
            assert found.size == math.prod(shape)
    return _risen(before, began)


def _risen(before: int, began: float) -> dict[str, Any]:
    seconds = time.perf_counter() - began
    return {"risen": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before, "seconds": seconds}


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


if __name__ == "__main__":
    sys.exit(main())
