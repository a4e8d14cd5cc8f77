"""Rotary position embeddings, turning the two halves of a head against each other (the convention of Olmo 3)."""

import math

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike
from numpy.typing import NDArray

from orchestrator.contract.recipe import Model, Yarn

IsGlobal = Array | bool
"""The kind of a layer: a bool scalar of the program, or known beforehand."""
Angles = tuple[ArrayLike, ArrayLike]
"""Cosines and sines, [length, head_dim / 2] each, fp32."""


def layer_angles(model: Model, *, length: int, is_global: IsGlobal) -> Angles:
    """Of a layer of this kind."""
    plain = rotary_angles(length, model.head_dim, theta=model.rope_theta)
    if model.rope_scaling is None:
        return plain
    stretched = rotary_angles(length, model.head_dim, theta=model.rope_theta, yarn=model.rope_scaling)
    if model.rope_scaling.layers == "all":
        return stretched
    if isinstance(is_global, bool):
        return stretched if is_global else plain
    cosines, sines = (jnp.where(is_global, one, other) for one, other in zip(stretched, plain, strict=True))
    return cosines, sines


def rotary_angles(
    length: int, head_dim: int, *, theta: float, yarn: Yarn | None = None
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Cosines and sines, [length, head_dim / 2] each: position t and pair j turn by t · theta^(-2j / head_dim).

    Computed on the host in float64, so that they are the same on every accelerator.
    """
    frequencies = theta ** -(np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    scale = 1.0
    if yarn is not None:
        frequencies = frequencies * _stretch(yarn, head_dim, theta=theta)
        scale = yarn.attention_factor or 0.1 * math.log(yarn.factor) + 1.0
    angles = np.outer(np.arange(length, dtype=np.float64), frequencies)
    return (scale * np.cos(angles)).astype(np.float32), (scale * np.sin(angles)).astype(np.float32)


def _stretch(yarn: Yarn, head_dim: int, *, theta: float) -> NDArray[np.float64]:
    """What each pair's frequency is multiplied by: 1 for fast ones, 1 / factor for slow ones, a ramp between."""

    def pair_that_turns(times: float) -> float:
        """Within the original length, as a fraction of a pair."""
        return head_dim * math.log(yarn.original_length / (times * 2 * math.pi)) / (2 * math.log(theta))

    low, high = pair_that_turns(yarn.beta_fast), pair_that_turns(yarn.beta_slow)
    if yarn.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    width = high - low or 0.001
    ramp = np.clip((np.arange(head_dim // 2, dtype=np.float64) - low) / width, 0.0, 1.0)
    return ramp / yarn.factor + (1.0 - ramp)


def rotate(x: Array, cosines: ArrayLike, sines: ArrayLike, *, scale: float | None = None) -> Array:
    """Turn x: [batch, length, heads, head_dim] by its positions, in fp32, and scale it; the result has x's dtype."""
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    cos, sin = jnp.asarray(cosines)[:, None, :], jnp.asarray(sines)[:, None, :]
    turned = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return (turned if scale is None else turned * scale).astype(x.dtype)
