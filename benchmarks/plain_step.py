"""A training step as one writes it without Everstep: ``jax.jit``, GSPMD shardings and optax, on the same model.

The whole batch at once, cut over the devices by the compiler; parameters and moments cut along the same axes as ours,
layers recomputed in the backward pass as ours. What it leaves out: the skip window, the checksums, the losses by rank.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from orchestrator.contract.recipe import Model, Stage
from trainer.model import init
from trainer.model.losses import losses
from trainer.model.olmo3 import LeafArithmetic, logits, skeleton
from trainer.parallel.mesh import AXIS, cut_spec, make_mesh

Tree = Any


class PlainStep:
    """``init_state``, ``tokens_array`` and ``step`` as of ``trainer.step.Program``."""

    def __init__(self, model: Model, stage: Stage, devices: Sequence[jax.Device]) -> None:
        self._bones, self._stage = skeleton(model), stage
        self._mesh: Mesh = make_mesh(devices)
        optimizer = stage.optimizer
        self._optimizer = optax.chain(
            optax.clip_by_global_norm(optimizer.clip_norm),
            optax.adamw(
                1e-3, b1=optimizer.beta1, b2=optimizer.beta2, eps=optimizer.eps, weight_decay=optimizer.weight_decay
            ),
        )
        self._step = jax.jit(self._update, donate_argnums=(0, 1))

    def init_state(self, seed: int) -> tuple[Tree, Tree]:
        """Parameters and the optimizer's state."""
        std = self._bones.model.init_std

        def one(weight: Any) -> Array:
            whole = tuple(slice(0, size) for size in weight.shape)
            value = init.draw(weight, whole, path="", seed=seed, std=std)
            return jax.device_put(value, NamedSharding(self._mesh, cut_spec(len(weight.shape), weight.cut)))

        params = jax.tree.map(one, self._bones.weights)
        return params, jax.jit(self._optimizer.init)(params)

    def tokens_array(self, read: Callable[[Any], Any]) -> Array:
        rows = read(np.arange(self._stage.global_batch))
        return jax.device_put(rows, NamedSharding(self._mesh, PartitionSpec(AXIS)))

    def step(self, state: tuple[Tree, Tree], tokens: Array, _: Any) -> tuple[tuple[Tree, Tree], "Read"]:
        params, opt, loss = self._step(*state, tokens)
        return (params, opt), Read(loss)

    def _update(self, params: Tree, opt: Tree, tokens: Array) -> tuple[Tree, Tree, Array]:
        def loss_of(params: Tree) -> Array:
            ends = {name: tree for name, tree in params.items() if name != "layers"}
            scores = logits(
                self._bones,
                ends,
                params["layers"],
                tokens,
                gather=lambda layer: layer,
                arithmetic=LeafArithmetic(),
            )
            return jnp.sum(losses(scores, tokens, self._stage.optimizer.z_loss)) / tokens.size

        loss, grads = jax.value_and_grad(loss_of)(params)
        changes, opt = self._optimizer.update(grads, opt, params)
        return optax.apply_updates(params, changes), opt, loss


class Read:
    """A step's loss; ``read`` waits for it."""

    def __init__(self, loss: Array) -> None:
        self._loss = loss

    def read(self) -> float:
        return float(self._loss)
