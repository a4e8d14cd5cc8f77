"""The gradient's global norm, from sums over blocks that do not depend on the mesh.

A device holds V / P of the V canonical blocks of each packed gradient. The squares of a block are summed one block at a
time, always over the same shape, and the block sums are added by the fixed tree.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from trainer.parallel.mesh import AXIS
from trainer.parallel.reduction import barrier, padded_pairwise_sum, pairwise_sum

Tree = Any


def global_norm(packed: Tree) -> Array:
    """sqrt of the sum of squares, replicated, of a tree of blocks [*lead, V/P, size]."""
    groups = jax.tree.leaves(packed)
    blocks = groups[0].shape[-2]

    def block_squares(index: Array) -> Array:
        squares: Array = barrier(jnp.stack([_squares(group, index) for group in groups]))
        return squares

    mine = lax.map(block_squares, jnp.arange(blocks))
    # device d holds the canonical blocks d · V/P …
    every = lax.all_gather(mine, AXIS, axis=0).reshape(-1, len(groups))
    return jnp.sqrt(padded_pairwise_sum(pairwise_sum(every)))


def _squares(group: Array, index: Array) -> Array:
    block = barrier(lax.dynamic_index_in_dim(group, index, axis=group.ndim - 2, keepdims=False))
    total: Array = barrier(jnp.sum(barrier(block * block)))
    return total
