"""Rotary position embeddings, turning the two halves of a head against each other (the convention of Olmo 3)."""

import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray


def rotary_angles(length: int, head_dim: int, *, theta: float) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Cosines and sines, [length, head_dim / 2] each: position t and pair j turn by t · theta^(-2j / head_dim).

    Computed on the host in float64, so that they are the same on every accelerator.
    """
    inverse = theta ** -(np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    angles = np.outer(np.arange(length, dtype=np.float64), inverse)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def rotate(x: Array, cosines: NDArray[np.float32], sines: NDArray[np.float32]) -> Array:
    """Turn x: [batch, length, heads, head_dim] by its positions, in fp32; the result has x's dtype."""
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    cos, sin = cosines[:, None, :], sines[:, None, :]
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)
