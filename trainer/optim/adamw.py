"""AdamW's arithmetic: what it does to one tensor, given numbers that are the same for all.

The scalars of a step are computed once (``coefficients``) and multiplied in, never divided by, and a step that is not
applied is chosen away element by element, so that the old bits come back even from a gradient full of NaN.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from orchestrator.contract.recipe import Optimizer

Rounded = Callable[[Array], Array]
"""Keeps a product from being fused with the addition that takes it: compilers do so in one loop and not in the next, by
the length of a shard, and the two differ in the last bit."""


class Coefficients(NamedTuple):
    """Scalars of one step, fp32."""

    scale: Array
    """From the gradient's sum over targets to its clipped mean: min(1, clip_norm / norm) / targets."""
    step_size: Array
    """learning rate / (1 - beta1^t), t = this update's number among the applied ones."""
    second: Array
    """1 / sqrt(1 - beta2^t)."""
    decay: Array
    """learning rate · weight decay."""


def coefficients(
    optimizer: Optimizer, *, learning_rate: Array, grad_norm: Array, per_target: float, applied: Array
) -> Coefficients:
    """``grad_norm`` is that of the mean gradient; ``applied`` counts the updates before this one (int32)."""
    number = (applied + 1).astype(jnp.float32)
    return Coefficients(
        # PyTorch's clip_grad_norm_, which OLMo-core uses, has the same 1e-6
        scale=per_target * jnp.minimum(1.0, optimizer.clip_norm * (1.0 / (grad_norm + 1e-6))),
        step_size=learning_rate * (1.0 / _bias(optimizer.beta1, number)),
        second=1.0 / jnp.sqrt(_bias(optimizer.beta2, number)),
        decay=learning_rate * optimizer.weight_decay,
    )


def _bias(beta: float, number: Array) -> Array:
    """1 - beta^number, without the cancellation of large beta."""
    return -jnp.expm1(number * np.float32(np.log(beta))) if beta > 0 else jnp.float32(1.0)


def moments(
    first: Array,
    second: Array,
    grad: Array,
    *,
    optimizer: Optimizer,
    scalars: Coefficients,
    apply: Array,
    rounded: Rounded,
) -> tuple[Array, Array]:
    """New first and second moment; the old ones, bit for bit, where ``apply`` is false."""
    grad = rounded(grad * scalars.scale)
    new_first = first + rounded((1.0 - optimizer.beta1) * (grad - first))
    new_second = rounded(optimizer.beta2 * second) + rounded((1.0 - optimizer.beta2) * (grad * grad))
    return jnp.where(apply, new_first, first), jnp.where(apply, new_second, second)


def parameter(
    param: Array,
    first: Array,
    second: Array,
    *,
    optimizer: Optimizer,
    scalars: Coefficients,
    apply: Array,
    decay: bool,
    rounded: Rounded,
) -> Array:
    """New parameter from the new moments; the old one, bit for bit, where ``apply`` is false."""
    kept = rounded(param * (1.0 - scalars.decay)) if decay else param
    root = rounded(jnp.sqrt(second) * scalars.second)
    return jnp.where(apply, kept - rounded(scalars.step_size * (first / (root + optimizer.eps))), param)
