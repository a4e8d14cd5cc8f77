"""Cross entropy and z-loss of next-token prediction, as sums over targets."""

import functools

import jax
import jax.numpy as jnp
from jax import Array


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def losses(logits: Array, tokens: Array, z_loss: float) -> Array:
    """fp32 [2]: the sums of cross entropy and of ``z_loss`` · log(Z)², Z the softmax's denominator.

    logits: fp32 [batch, length, vocab]; tokens: [batch, length]. Position t predicts token t + 1; the last position
    has no target and counts for nothing.
    """
    return _forward(logits, tokens, z_loss)[0]


def _forward(logits: Array, tokens: Array, z_loss: float) -> tuple[Array, tuple[Array, Array, Array]]:
    top = jnp.max(logits, axis=-1)
    log_z = jnp.log(jnp.sum(jnp.exp(logits - top[..., None]), axis=-1)) + top
    picked = jnp.sum(jnp.where(_is_target(logits, tokens), logits, 0.0), axis=-1)
    terms = jnp.stack([log_z - picked, z_loss * (log_z * log_z)])
    return jnp.sum(jnp.where(_counts(tokens), terms, 0.0), axis=(1, 2)), (logits, tokens, log_z)


def _backward(z_loss: float, saved: tuple[Array, Array, Array], grad: Array) -> tuple[Array, None]:
    logits, tokens, log_z = saved
    probability = jnp.exp(logits - log_z[..., None])
    weight = grad[0] + grad[1] * (2.0 * z_loss) * log_z
    logits_grad = probability * weight[..., None] - jnp.where(_is_target(logits, tokens), grad[0], 0.0)
    return jnp.where(_counts(tokens)[..., None], logits_grad, 0.0), None


losses.defvjp(_forward, _backward)


def _is_target(logits: Array, tokens: Array) -> Array:
    """One-hot targets, bool of the shape of logits, without gathers or scatters."""
    targets = jnp.roll(tokens, -1, axis=1).astype(jnp.int32)
    return targets[..., None] == jnp.arange(logits.shape[-1])


def _counts(tokens: Array) -> Array:
    """Which positions have a target, [1, length]."""
    return (jnp.arange(tokens.shape[1]) < tokens.shape[1] - 1)[None]
