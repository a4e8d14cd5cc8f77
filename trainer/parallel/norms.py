"""The gradient as V canonical rows, and its global norm, from sums that do not depend on the mesh."""

from collections.abc import Sequence

import jax.numpy as jnp
from jax import Array, lax

from trainer.parallel.mesh import AXIS
from trainer.parallel.reduction import barrier, pairwise_sum


def canonical_rows(parts: Sequence[Array]) -> Array:
    """What each block has of every parcel, side by side: [V/P, N/V], rows d · V/P … of [V, N/V] on device d."""
    return jnp.concatenate(list(parts), axis=1)


def global_norm(rows: Array) -> Array:
    """sqrt of the sum of squares of all V rows, replicated.

    The squares of a row are summed one row at a time, always over the same shape; the rows' sums by the fixed tree.
    """

    def row_squares(row: Array) -> Array:
        row = barrier(row)
        return jnp.asarray(barrier(jnp.sum(barrier(row * row))))

    mine = jnp.asarray(lax.map(row_squares, rows))
    every = jnp.asarray(lax.all_gather(mine, AXIS, axis=0, tiled=True))
    return jnp.sqrt(pairwise_sum(every))
