"""Initial parameters: a function of the recipe's seed alone.

Each matrix of each layer is drawn in blocks along the axis that is cut over devices, and each block has a generator of
its own, seeded by (seed, path, layer, block). So a host draws what it holds and nothing else, and the bits are the
same on any mesh, with any number of processes.
"""

import hashlib
import itertools

import numpy as np
from numpy.typing import NDArray

from trainer.model.layers import Weight

MAX_BLOCKS = 512
"""Blocks an axis is drawn in: the largest power of two up to this that divides it. Bounds P for large models."""


def blocks_of(length: int) -> int:
    """How many blocks an axis of this length is drawn in."""
    return min(MAX_BLOCKS, length & -length)


def draw(weight: Weight, index: tuple[slice, ...], *, path: str, seed: int, std: float) -> NDArray[np.float32]:
    """The part ``index`` of one initial parameter: ones, or normal with ``std`` cut off at three of it.

    Matrices are the last two axes. ``index`` must take whole blocks along the cut axis, as a shard of
    P ≤ ``blocks_of`` devices does, and everything along the other.
    """
    ranges = [range(*part.indices(length)) for part, length in zip(index, weight.shape, strict=True)]
    out = np.ones([len(part) for part in ranges], np.float32)
    if weight.init == "ones":
        return out
    size = weight.cut_length // blocks_of(weight.cut_length)
    wanted = ranges[weight.cut]
    if wanted.start % size or wanted.stop % size:
        raise ValueError(f"{path}: cannot draw {wanted} of the cut axis; its blocks have {size} entries")
    other = weight.shape[-1 if weight.cut == -2 else -2]
    cut_first = np.moveaxis(out, weight.cut, -2)
    for layer in itertools.product(*ranges[:-2]):
        matrix = cut_first[tuple(n - part.start for n, part in zip(layer, ranges, strict=False))]
        for block in range(wanted.start // size, wanted.stop // size):
            first = block * size - wanted.start
            values = _truncated_normal(_generator(seed, path, layer, block), (size, other))
            matrix[first : first + size] = values * std
    return out


def _generator(seed: int, path: str, layer: tuple[int, ...], block: int) -> np.random.Generator:
    digest = hashlib.sha256(f"{seed}:{path}:{layer}:{block}".encode()).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest[:16], "little")))


def _truncated_normal(generator: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Standard normal, drawn again wherever it is beyond three standard deviations."""
    values = generator.standard_normal(shape)
    while (far := np.abs(values) > 3.0).any():
        values[far] = generator.standard_normal(int(far.sum()))
    return values
