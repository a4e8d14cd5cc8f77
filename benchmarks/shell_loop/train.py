"""Training on several hosts with nothing but JAX and Orbax: start, restore the latest checkpoint, go on, save.

What somebody would run in a shell loop instead of Everstep. The model is ours, with the same shapes; all else is what
the manuals say: ``jax.distributed``, one ``jit`` over a mesh with sharded weights, optax, Orbax's CheckpointManager
with asynchronous saves. It restores straight onto the devices and never initialises what it then overwrites.
"""

import time

BEGAN = time.time()

import argparse  # noqa: E402 - everything that is imported counts
import json  # noqa: E402
import os  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import optax  # type: ignore[import-untyped]  # noqa: E402
import orbax.checkpoint as ocp  # type: ignore[import-untyped]  # noqa: E402
from jax._src import distributed  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec  # noqa: E402
from shared_cache import CompileCache  # noqa: E402

from orchestrator.contract.recipe import Model  # noqa: E402
from trainer.model.olmo3 import LeafArithmetic, logits, skeleton  # noqa: E402

Tree = Any


class Job:
    """The program on this launch's devices; ``settings`` as ``benchmarks.recovery_job`` writes them."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.bones = skeleton(Model(**settings["model"]))
        self.mesh = Mesh(np.array(jax.devices()), ("data",))
        self.rows = NamedSharding(self.mesh, PartitionSpec("data"))
        self.optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(3e-3, b2=0.95, weight_decay=0.1))
        abstract = jax.eval_shape(self.initial, jax.random.key(0))
        self.state = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=self.spread(a)), abstract)
        self.shape = (settings["batch"], settings["length"])
        data = np.fromfile(settings["data"], "<u4")
        self.instances = data[: len(data) // self.shape[1] * self.shape[1]].reshape(-1, self.shape[1])

    def spread(self, array: Any) -> NamedSharding:
        """Cut along the longest axis that the devices divide, like any fully sharded data parallelism."""
        fitting = [axis for axis, length in enumerate(array.shape) if length % self.mesh.size == 0]
        cut = max(fitting, key=lambda axis: array.shape[axis], default=None)
        return NamedSharding(self.mesh, PartitionSpec(*("data" if axis == cut else None for axis in range(array.ndim))))

    def initial(self, key: jax.Array) -> Tree:
        weights, shape_of = jax.tree.flatten(self.bones.weights)
        keys = jax.random.split(key, len(weights))
        drawn = [
            jnp.ones(weight.shape)
            if weight.init == "ones"
            else 0.02 * jax.random.truncated_normal(k, -3, 3, weight.shape)
            for k, weight in zip(keys, weights, strict=True)
        ]
        params = jax.tree.unflatten(shape_of, drawn)
        return {"params": params, "opt": self.optimizer.init(params)}

    def update(self, state: Tree, tokens: jax.Array) -> tuple[Tree, jax.Array]:
        def loss(params: Tree) -> jax.Array:
            ends = {name: part for name, part in params.items() if name != "layers"}
            arithmetic = LeafArithmetic()
            out = logits(self.bones, ends, params["layers"], tokens, gather=lambda part: part, arithmetic=arithmetic)
            each = optax.softmax_cross_entropy_with_integer_labels(out[:, :-1], tokens[:, 1:].astype(jnp.int32))
            return jnp.mean(each)

        value, gradient = jax.value_and_grad(loss)(state["params"])
        change, opt = self.optimizer.update(gradient, state["opt"], state["params"])
        return {"params": optax.apply_updates(state["params"], change), "opt": opt}, value

    def compile(self) -> Any:
        shardings = jax.tree.map(lambda a: a.sharding, self.state)
        step = jax.jit(
            self.update, donate_argnums=0, out_shardings=(shardings, NamedSharding(self.mesh, PartitionSpec()))
        )
        return step.lower(self.state, jax.ShapeDtypeStruct(self.shape, jnp.uint32, sharding=self.rows)).compile()

    def fresh(self) -> Tree:
        return jax.jit(self.initial, out_shardings=jax.tree.map(lambda a: a.sharding, self.state))(jax.random.key(0))

    def tokens(self, step: int) -> jax.Array:
        order = (step * self.shape[0] + np.arange(self.shape[0])) % len(self.instances)
        return jax.make_array_from_callback(self.shape, self.rows, lambda index: self.instances[order][index])


def main() -> None:
    asked = _arguments()
    settings = json.loads((asked.folder / "job.json").read_text())
    log = (asked.folder / f"steps-{asked.host}.log").open("a", buffering=1)

    def say(what: object, at: float | None = None) -> None:
        log.write(f"{asked.launch} {what} {at or time.time()}\n")

    say(f"pid-{os.getpid()}", BEGAN)
    say("imported")
    if asked.cache:
        CompileCache(asked.cache, processes=asked.hosts)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        f"127.0.0.1:{settings['port']}",
        num_processes=asked.hosts,
        process_id=asked.host,
        cluster_detection_method="deactivate",
    )
    jax.devices()
    say("initialised")
    job = Job(settings)
    step_once = job.compile()
    # gloo lets processes be 30 s apart at their first collective, which a slow compile can exceed
    assert distributed.global_state.client is not None
    distributed.global_state.client.wait_at_barrier("compiled", 600_000)
    say("compiled")
    manager = ocp.CheckpointManager(
        asked.folder / "checkpoints",
        options=ocp.CheckpointManagerOptions(save_interval_steps=settings["every"], max_to_keep=3),
    )
    done = manager.latest_step() or 0
    state = manager.restore(done, args=ocp.args.StandardRestore(job.state)) if done else job.fresh()
    jax.block_until_ready(state)
    say("restored")
    for step in range(done, asked.until or settings["steps"]):
        state, loss = step_once(state, job.tokens(step))
        value = float(loss)
        say(step)
        if step % 50 == 0:
            print(f"step {step}: loss {value:.4f}", flush=True)
        if (step + 1) % settings["every"] == 0:
            manager.save(step + 1, args=ocp.args.StandardSave(state))
    manager.wait_until_finished()
    manager.close()
    jax.distributed.shutdown()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("launch", "hosts", "host"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True, help="has a job.json; checkpoints and logs go there")
    parser.add_argument("--cache", type=Path, help="folder of a compile cache that every process writes; default: none")
    parser.add_argument("--until", type=int, help="end after this many steps")
    return parser.parse_args()


if __name__ == "__main__":
    main()
