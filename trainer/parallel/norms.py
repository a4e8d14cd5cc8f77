"""The gradient's global norm, from sums over blocks that do not depend on the mesh.

Every tensor is cut along its cut axis into V canonical blocks; a device holds V / P of them. The squares of a block are
summed one block at a time, always over the same shape, and the block sums are added by the fixed tree.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from trainer.model.layers import Weight
from trainer.parallel.mesh import AXIS
from trainer.parallel.reduction import barrier, padded_pairwise_sum, pairwise_sum

Tree = Any


def global_norm(shards: Tree, weights: Tree, *, blocks: int) -> Array:
    """sqrt of the sum of squares of a cut tree, replicated; ``blocks`` is V / P, those on this device."""
    pairs = list(zip(jax.tree.leaves(shards), jax.tree.leaves(weights), strict=True))

    def block_squares(index: Array) -> Array:
        return barrier(jnp.stack([_squares(shard, weight, index, blocks) for shard, weight in pairs]))

    mine = lax.map(block_squares, jnp.arange(blocks))
    # device d holds the canonical blocks d · V/P …
    every = lax.all_gather(mine, AXIS, axis=0).reshape(-1, len(pairs))
    return jnp.sqrt(padded_pairwise_sum(pairwise_sum(every)))


def _squares(shard: Array, weight: Weight, index: Array, blocks: int) -> Array:
    size = shard.shape[weight.cut] // blocks
    block = barrier(lax.dynamic_slice_in_dim(shard, index * size, size, axis=weight.cut % shard.ndim))
    return barrier(jnp.sum(barrier(block * block)))
