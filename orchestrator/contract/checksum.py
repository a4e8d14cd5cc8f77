"""Checksums of arrays that do not depend on where the parts of an array are: formula, reference, test vectors.

Sums over the elements of an array; all numbers are 32-bit and unsigned, all sums modulo 2^32::

    word_k = Σ mix32( bits(x) XOR place_k(x) )                        k = 0, 1
    place_k(x) = h_r,   h_0 = SEEDS[k],   h_{a+1} = mix32( h_a XOR mix32( c_a + STRIDE ) )

x has coordinates c_0 … c_{r-1} in the global array of r axes. ``bits`` is the element's bit pattern, zero-extended
from 16 bits where it has 16. ``mix32`` is the finaliser of murmur3. Coordinates enter axis by axis, never as one flat
index, which would pass 2^32. A sum has no order, so any cutting of the array gives the same words.

The mix comes after the XOR with the place, so an element's contribution is not a product of value and weight: sums
weighted by an index or its hash miss sign flips and swaps of x with -x. Path, dtype and global shape are not in the
words; they are in the line that is hashed.
"""

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Checksum = tuple[int, int]

SEEDS = (0x243F6A88, 0x85A308D3)
STRIDE = 0x9E3779B9
MIX = (0x85EBCA6B, 0xC2B2AE35)
BITS = {
    "float32": "uint32",
    "bfloat16": "uint16",
    "float16": "uint16",
    "int32": "uint32",
    "uint32": "uint32",
}
"""Dtypes that have a checksum, and the unsigned integer of the same width."""

VECTORS: tuple[tuple[str, Any, str], ...] = (
    ("float32", 0.0, "1388a0fbede1521e"),
    ("float32", [1.0, -1.0, 0.0, -0.0], "a7c24da22dc46881"),
    ("float32", [-1.0, 1.0, 0.0, -0.0], "71217a1bdf53c011"),
    ("float32", [[1.5, 2.5], [3.5, -4.5]], "3ed8fdbd29fbab83"),
    ("bfloat16", [[1.5, 2.5], [3.5, -4.5]], "b0cd1bb1cacecd48"),
    ("int32", 7, "091a9274dbb50a8c"),
    ("int32", [[-1, 0, 1]], "256b89921a279e35"),
    ("uint32", [[[4294967295, 0], [1, 2]]], "294f6f116c42b5b6"),
)
"""(dtype, a number or nested lists, the words as 16 hexadecimal digits)."""


def mix32(x: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Murmur3's 32-bit finaliser, elementwise: a bijection whose every output bit depends on every input bit."""
    x = x ^ (x >> np.uint32(16))
    x = np.multiply(x, np.uint32(MIX[0]))  # `*` would warn that a scalar overflows, as it should here
    x = x ^ (x >> np.uint32(13))
    x = np.multiply(x, np.uint32(MIX[1]))
    return x ^ (x >> np.uint32(16))


def checksum(array: NDArray[Any]) -> Checksum:
    """The two words of a whole array.

    Raises:
        ValueError: a dtype without a checksum.
    """
    if array.dtype.name not in BITS:
        raise ValueError(f"no checksum for dtype {array.dtype.name}; known: {', '.join(BITS)}")
    bits = np.ascontiguousarray(array).view(BITS[array.dtype.name]).astype(np.uint32).reshape(array.shape)
    first, second = (int(np.sum(mix32(bits ^ _places(bits.shape, seed)), dtype=np.uint64)) for seed in SEEDS)
    return first & 0xFFFFFFFF, second & 0xFFFFFFFF


def _places(shape: tuple[int, ...], seed: int) -> NDArray[np.uint32]:
    places = np.full((1,) * len(shape), seed, np.uint32)
    for axis, length in enumerate(shape):
        along = mix32(np.arange(length, dtype=np.uint32) + np.uint32(STRIDE))
        places = mix32(places ^ along.reshape((-1,) + (1,) * (len(shape) - axis - 1)))
    return places


def words(pair: Checksum) -> str:
    """Sixteen hexadecimal digits, as the documents have them."""
    return f"{pair[0]:08x}{pair[1]:08x}"


def line(path: str, *, dtype: str, shape: Iterable[int], checksum: Checksum) -> str:
    """The line of one array that is hashed: path, dtype, global shape, words."""
    return f"{path} {dtype} [{','.join(str(length) for length in shape)}] {words(checksum)}"


def params_sha256(lines: Iterable[str]) -> str:
    """SHA-256 over the sorted lines of all parameters, each with a final newline."""
    return hashlib.sha256("".join(f"{text}\n" for text in sorted(lines)).encode()).hexdigest()
