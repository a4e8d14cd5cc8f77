"""When a step is left out: its loss or gradient norm is far above the last ones (OLMo-core's SkipStepOptimizer).

The window holds the cross entropy and the gradient norm (before clipping) of the last ``skip_window`` steps, those of
skipped steps too. A step is compared with the mean and the standard deviation (n - 1 in the denominator) of the entries
before it. It takes part from the ``skip_after``-th step on, itself counted, and never with fewer than two entries
before it. OLMo-core keeps the window outside its state and loses it on a restart; here it is optimizer state.
"""

from typing import TypedDict

import jax.numpy as jnp
from jax import Array

from orchestrator.contract.recipe import Optimizer
from trainer.optim.adamw import Rounded


class Window(TypedDict):
    """Ring buffers; entry number e is in slot e modulo the length."""

    loss: Array
    """fp32 [skip_window]; slots that were never written hold zero."""
    grad_norm: Array
    """fp32 [skip_window]."""
    count: Array
    """int32: entries ever written."""


def is_outlier(window: Window, optimizer: Optimizer, *, loss: Array, grad_norm: Array, rounded: Rounded) -> Array:
    """Whether to skip a step with finite ``loss`` and ``grad_norm``; bool scalar.

    A product that were contracted with the sum after it would give the mean two values, of which one is subtracted from
    the entries and the other from the step.
    """
    length = optimizer.skip_window
    values = jnp.stack([window["loss"], window["grad_norm"]])
    used = jnp.arange(length) < window["count"]
    entries = jnp.minimum(window["count"], length).astype(jnp.float32)
    mean = rounded(_fixed_sum(jnp.where(used, values, 0.0)) * (1.0 / jnp.maximum(entries, 1.0)))
    apart = jnp.where(used, values - mean[:, None], 0.0)
    deviation = jnp.sqrt(_fixed_sum(rounded(apart * apart)) * (1.0 / jnp.maximum(entries - 1.0, 1.0)))
    far = jnp.stack([loss, grad_norm]) - mean > optimizer.skip_sigma * deviation
    active = (window["count"] >= 2) & (window["count"] + 1 >= optimizer.skip_after)
    return active & jnp.any(far)


def _fixed_sum(values: Array) -> Array:
    """Over the last axis, pairwise, so that the order of the sum is written down and not the compiler's."""
    length = 1 << (values.shape[-1] - 1).bit_length()
    values = jnp.pad(values, ((0, 0), (0, length - values.shape[-1])))
    while values.shape[-1] > 1:
        half = values.shape[-1] // 2
        values = values[:, :half] + values[:, half:]
    return values[:, 0]


def record(window: Window, *, loss: Array, grad_norm: Array) -> Window:
    """The window with this step's entry in it."""
    slot = window["count"] % window["loss"].shape[0]
    return Window(
        loss=window["loss"].at[slot].set(loss),
        grad_norm=window["grad_norm"].at[slot].set(grad_norm),
        count=window["count"] + 1,
    )
