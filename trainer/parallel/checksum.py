"""The checksum of ``orchestrator.contract.checksum`` on the devices, of arrays that are cut over them.

Inside ``shard_map`` each device sums over its own part, with the coordinates that its elements have in the whole array,
and the sums are added over devices as integers, which has no order.
"""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from orchestrator.contract.checksum import BITS, MIX, SEEDS, STRIDE
from trainer.parallel.mesh import AXIS

Tree = Any
BLOCK = 1 << 17
"""Elements that are added up side by side: so few that their sums stay in a processor's cache."""


def mix32(x: Array) -> Array:
    """Murmur3's finaliser on uint32."""
    x = (x ^ (x >> 16)) * jnp.uint32(MIX[0])
    x = (x ^ (x >> 13)) * jnp.uint32(MIX[1])
    return x ^ (x >> 16)


def local_words(parts: Sequence[Array], coordinates: dict[int, Array]) -> Array:
    """This device's contribution to each of n arrays of one shape and dtype, uint32 [n, 2].

    ``coordinates`` gives, for axes of which this is a part, the coordinate in the whole array of each entry along it.
    """
    shape = parts[0].shape
    if not shape:
        return _mixed(jnp.stack(parts)[:, None], jnp.array(SEEDS, jnp.uint32))
    *hashes, columns = (
        mix32(coordinates.get(axis, jnp.arange(length)).astype(jnp.uint32) + jnp.uint32(STRIDE))
        for axis, length in enumerate(shape)
    )
    # both words at once, along a new first axis: half the program
    places = jnp.array(SEEDS, jnp.uint32)[:, None]
    for along in hashes:
        places = mix32(places[:, :, None] ^ along).reshape(len(SEEDS), -1)
    return _sum_in_blocks([part.reshape(places.shape[1], shape[-1]) for part in parts], places, columns)


def _sum_in_blocks(matrices: Sequence[Array], places: Array, columns: Array) -> Array:
    """Words of n matrices [R, C], from the places of their rows, [2, R], and the hashes of their columns, [C].

    Block after block is added to an accumulator of a block's shape. Compilers for CPUs would else write out the mixes
    of all elements and add those up one by one: seven times the time, and twice the array of memory.
    """
    axis = 1 if len(columns) > BLOCK else 0
    length, other = matrices[0].shape[axis], matrices[0].shape[1 - axis]
    size = max(1, min(length, BLOCK // max(1, other * len(matrices))))

    def mixed(start: Array | int, width: int) -> Array:
        cuts = jnp.stack([lax.dynamic_slice_in_dim(matrix, start, width, axis) for matrix in matrices])
        rows = places if axis else lax.dynamic_slice_in_dim(places, start, width, 1)
        along = lax.dynamic_slice_in_dim(columns, start, width, 0) if axis else columns
        return _mixed(cuts[:, None], mix32(rows[:, :, None] ^ along))

    def total(mixes: Array) -> Array:
        return jnp.sum(mixes, axis=(2, 3), dtype=jnp.uint32)

    blocks, rest = divmod(length, size)
    if blocks <= 1 and rest == 0:
        return total(mixed(0, length))
    block = (other, size) if axis else (size, other)
    nothing = jnp.zeros((len(matrices), len(SEEDS), *block), jnp.uint32)
    words = total(lax.fori_loop(0, blocks, lambda number, sums: sums + mixed(number * size, size), nothing))
    return words + total(mixed(blocks * size, rest)) if rest else words


def _mixed(part: Array, places: Array) -> Array:
    """What elements contribute, one by one."""
    bits = part if part.dtype == jnp.uint32 else lax.bitcast_convert_type(part, BITS[part.dtype.name])
    return mix32(bits.astype(jnp.uint32) ^ places)


def array_words(part: Array, *, cut: int | None) -> Array:
    """The words of a whole array, uint32 [2], replicated, from the part on each device (``cut`` None: replicated)."""
    return over_devices(shares_of_words([part], cut=cut)[0])


def shares_of_words(parts: Sequence[Array], *, cut: int | None) -> Array:
    """This device's contribution to the words of n arrays that are alike, uint32 [n, 2].

    To those of a replicated one, all is device 0's.
    """
    if cut is None:
        return jnp.where(lax.axis_index(AXIS) == 0, local_words(parts, {}), jnp.uint32(0))
    shape = parts[0].shape
    axis = cut % len(shape)
    along = lax.axis_index(AXIS) * shape[axis] + jnp.arange(shape[axis])
    return local_words(parts, {axis: along})


def token_words(tokens: Array, *, devices: int) -> Array:
    """The words of the batch as [V, sequences, length], from tokens [micro_steps, sequences, length] of each device."""
    ranks = jnp.arange(tokens.shape[0]) * devices + lax.axis_index(AXIS)
    return over_devices(local_words([tokens], {0: ranks})[0])


def over_devices(words: Array) -> Array:
    """Sum of uint32 words over devices, modulo 2^32."""
    return lax.bitcast_convert_type(lax.psum(lax.bitcast_convert_type(words, jnp.int32), AXIS), jnp.uint32)
