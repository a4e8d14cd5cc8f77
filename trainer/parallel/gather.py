"""Whole weights from their shards, with the exact reduction as the backward pass.

The forward pass of ``gather_weight`` sends a shard in its wire dtype and joins the parts; its backward pass takes one
virtual rank's gradient of the whole weight, the *gradient leaf*, and returns this device's fp32 part of the sum over
devices. Barriers on both sides of the reduction keep it apart from the leaf, so that the leaf is the same
computation for every P.
"""

import functools
from dataclasses import dataclass
from typing import Any, Literal

import jax
from jax import Array, lax

from trainer.model.layers import Weight
from trainer.parallel.mesh import AXIS
from trainer.parallel.reduction import Reduction, barrier, reduce

Tree = Any
LeafDtype = Literal["compute", "float32"]


@dataclass(frozen=True, kw_only=True)
class GatherPlan:
    """How weights travel, and gradients back."""

    devices: int
    compute_dtype: str
    leaf_dtype: LeafDtype = "compute"
    """Dtype of gradient leaves: that of the computation, or fp32 also where it computes in bf16 (weights still travel
    in the compute dtype). Leaves of the embedding and of norms are fp32 always."""
    reduction: Reduction = "a2a"
    barriers: bool = True

    def sent(self, weight: Weight) -> str:
        return "float32" if weight.wire == "float32" else self.compute_dtype

    def leaf(self, weight: Weight) -> str:
        return "float32" if self.leaf_dtype == "float32" else self.sent(weight)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def gather_weight(plan: GatherPlan, weight: Weight, shard: Array) -> Array:
    """The whole weight, in the dtype of its gradient leaf."""
    cut = weight.cut % shard.ndim
    sent = shard.astype(plan.sent(weight))
    return lax.all_gather(sent, AXIS, axis=cut, tiled=True).astype(plan.leaf(weight))


def _forward(plan: GatherPlan, weight: Weight, shard: Array) -> tuple[Array, None]:
    return gather_weight(plan, weight, shard), None


def _backward(plan: GatherPlan, weight: Weight, _: None, leaf: Array) -> tuple[Array]:
    if not plan.barriers:
        return (reduce(leaf, cut=weight.cut, devices=plan.devices, how=plan.reduction),)
    return (barrier(reduce(barrier(leaf), cut=weight.cut, devices=plan.devices, how=plan.reduction)),)


gather_weight.defvjp(_forward, _backward)


def gather_tree(plan: GatherPlan, shards: Tree, weights: Tree) -> Tree:
    """``gather_weight`` for each entry of a nested dict."""
    return jax.tree.map(lambda weight, shard: gather_weight(plan, weight, shard), weights, shards)


