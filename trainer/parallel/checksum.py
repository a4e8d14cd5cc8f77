"""The checksum of ``orchestrator.contract.checksum`` on the devices, of arrays that are cut over them.

Inside ``shard_map`` each device sums over its own part, with the coordinates that its elements have in the whole array,
and the sums are added over devices as integers, which has no order.
"""

from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from orchestrator.contract.checksum import BITS, MIX, SEEDS, STRIDE
from trainer.parallel.mesh import AXIS
from trainer.parallel.reduction import barrier

Tree = Any


def mix32(x: Array) -> Array:
    """Murmur3's finaliser on uint32."""
    x = (x ^ (x >> 16)) * jnp.uint32(MIX[0])
    x = (x ^ (x >> 13)) * jnp.uint32(MIX[1])
    return x ^ (x >> 16)


def local_words(part: Array, coordinates: dict[int, Array]) -> Array:
    """This device's contribution, uint32 [2].

    ``coordinates`` gives, for axes of which this is a part, the coordinate in the whole array of each entry along it.
    """
    bits = part if part.dtype == jnp.uint32 else lax.bitcast_convert_type(part, BITS[part.dtype.name])
    # both words at once, along a new first axis: half the program
    places = jnp.array(SEEDS, jnp.uint32).reshape(-1, *(1,) * part.ndim)
    for axis, length in enumerate(part.shape):
        along = coordinates.get(axis, jnp.arange(length)).astype(jnp.uint32)
        column = mix32(along + jnp.uint32(STRIDE)).reshape((-1,) + (1,) * (part.ndim - axis - 1))
        places = mix32(places ^ column)
    mixed = mix32(bits.astype(jnp.uint32) ^ places)
    # along the last axis only at the end: then CPUs add vectors of neighbours, in less than half the time
    columns = barrier(jnp.sum(mixed, axis=tuple(range(1, part.ndim)), dtype=jnp.uint32))
    return jnp.sum(columns.reshape(len(SEEDS), -1), axis=1, dtype=jnp.uint32)


def array_words(part: Array, *, cut: int | None) -> Array:
    """The words of a whole array, uint32 [2], replicated, from the part on each device (``cut`` None: replicated)."""
    return over_devices(share_of_words(part, cut=cut))


def share_of_words(part: Array, *, cut: int | None) -> Array:
    """This device's contribution to the words of a whole array, uint32 [2]; of a replicated one, all is device 0's."""
    if cut is None:
        return jnp.where(lax.axis_index(AXIS) == 0, local_words(part, {}), jnp.uint32(0))
    axis = cut % part.ndim
    along = lax.axis_index(AXIS) * part.shape[axis] + jnp.arange(part.shape[axis])
    return local_words(part, {axis: along})


def token_words(tokens: Array, *, devices: int) -> Array:
    """The words of the batch as [V, sequences, length], from tokens [micro_steps, sequences, length] of each device."""
    ranks = jnp.arange(tokens.shape[0]) * devices + lax.axis_index(AXIS)
    return over_devices(local_words(tokens, {0: ranks}))


def over_devices(words: Array) -> Array:
    """Sum of uint32 words over devices, modulo 2^32."""
    return lax.bitcast_convert_type(lax.psum(lax.bitcast_convert_type(words, jnp.int32), AXIS), jnp.uint32)
