"""The leaf, one virtual rank's forward and backward pass, and all leaves of a step summed by the fixed tree.

Everything that enters or leaves a leaf passes a barrier, so that the compiler builds the same computation whether it
stands in a loop over micro-steps or alone. Gradients here are of *sums* over targets; the caller scales them.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from trainer.model.olmo3 import LeafArithmetic, Skeleton, logits, losses
from trainer.parallel.gather import GatherPlan, gather_tree
from trainer.parallel.reduction import barrier, sum_over_micro_steps

Tree = Any


@dataclass(frozen=True, kw_only=True)
class Leaf:
    """What one virtual rank computes, and how its weights and gradients travel."""

    bones: Skeleton
    arithmetic: LeafArithmetic
    travel: GatherPlan
    z_loss: float


class Sums(NamedTuple):
    """Over the leaves of a step."""

    gradient: Tree
    """fp32, this device's shards of the sum over all virtual ranks."""
    cross_entropy: Array
    """fp32 [micro_steps]: sums of this device's leaves."""
    z_loss: Array
    """fp32 [micro_steps]."""


def loss_of(leaf: Leaf, params: Tree, tokens: Array) -> tuple[Array, tuple[Array, Array]]:
    """Total loss and its two parts, summed over the targets of tokens [sequences, length]."""

    def gather(shards: Tree, weights: Tree) -> Tree:
        return gather_tree(leaf.travel, shards, weights)

    scores = logits(leaf.bones, params, tokens, gather=gather, arithmetic=leaf.arithmetic)
    cross_entropy, z_loss = losses(scores, tokens, z_loss=leaf.z_loss)
    return cross_entropy + z_loss, (cross_entropy, z_loss)


def sum_of_leaves(leaf: Leaf, params: Tree, tokens: Array) -> Sums:
    """All leaves of this device, inside ``shard_map``; tokens [micro_steps, sequences, length]."""
    guard = barrier if leaf.travel.barriers else lambda value: value

    def one(index: Array) -> tuple[Tree, tuple[Array, Array]]:
        rows = lax.dynamic_index_in_dim(tokens, index, axis=0, keepdims=False)
        shards, rows = guard((params, rows))
        gradient_of = jax.value_and_grad(lambda p: loss_of(leaf, p, rows), has_aux=True)
        (_, parts), gradient = gradient_of(shards)
        return guard((gradient, parts))  # type: ignore[no-any-return]

    total, parts = sum_over_micro_steps(
        one, micro_steps=tokens.shape[0], like=params, ordered=leaf.travel.reduction != "native"
    )
    return Sums(total, *(jnp.asarray(part) for part in parts))
