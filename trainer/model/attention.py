"""Grouped-query attention with QK-norm, and the ways to compute its core.

A *core* maps queries [batch, length, kv_heads, group, head_dim], keys and values [batch, length, kv_heads, head_dim]
and the kind of the layer (global or sliding) to [batch, length, kv_heads, group, head_dim]. ``dense`` builds all scores
at once; ``chunked`` takes a block of queries at a time and, in a sliding layer, only the keys that the block can see;
``splash`` is a kernel for TPUs. They differ in the order of sums, so they are different leaf plans with different bits.
``library`` exists to show what happens without our rules: its softmax divides by a broadcast value.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array, lax
from jax.ad_checkpoint import checkpoint_name

from orchestrator.contract.recipe import Model
from trainer.model.layers import RMSNorm, parameter, project
from trainer.model.rope import IsGlobal, layer_angles, rotate
from trainer.model.splash import splash
from trainer.model.variant import Variant

MASKED = -1e30
"""Score of a pair that may not attend, or logit that may not count; finite, so that no difference of infinities can
arise."""


@jax.custom_vjp
def softmax(scores: Array) -> Array:
    """Over the last axis, fp32, with the reciprocal written out."""
    weights = jnp.exp(scores - jnp.max(scores, axis=-1, keepdims=True))
    return weights * (1.0 / jnp.sum(weights, axis=-1))[..., None]


def _softmax_forward(scores: Array) -> tuple[Array, Array]:
    weights = softmax(scores)
    return weights, weights


def _softmax_backward(weights: Array, grad: Array) -> tuple[Array]:
    return (weights * (grad - jnp.sum(grad * weights, axis=-1, keepdims=True)),)


softmax.defvjp(_softmax_forward, _softmax_backward)


def visible(queries: Array, keys: Array, *, window: Array | int) -> Array:
    """Which key positions each query position sees, [queries, keys]: itself and before, ``window`` of them in all."""
    distance = queries[:, None] - keys[None, :]
    return (distance >= 0) & (distance < window)


def _attend(query: Array, key: Array, value: Array, mask: Array) -> Array:
    scale = float(query.shape[-1]) ** -0.5
    scores = jnp.einsum("btkgh,bskh->bkgts", query, key, preferred_element_type=jnp.float32) * scale
    weights = softmax(jnp.where(mask, scores, MASKED)).astype(value.dtype)
    return jnp.einsum("bkgts,bskh->btkgh", weights, value, preferred_element_type=value.dtype)


def dense(query: Array, key: Array, value: Array, *, window: Array | int) -> Array:
    """All scores at once: memory grows with length squared. ``window`` may be traced."""
    positions = jnp.arange(query.shape[1])
    return _attend(query, key, value, visible(positions, positions, window=window))


def chunked(query: Array, key: Array, value: Array, *, window: int, chunk: int) -> Array:
    """``chunk`` queries at a time; the scores of a block are recomputed in the backward pass."""
    length = query.shape[1]
    span = min(length, chunk + window - 1)

    @jax.checkpoint
    def block(index: Array) -> Array:
        first = index * chunk
        start = jnp.clip(first + chunk - span, 0, length - span)
        return _attend(
            lax.dynamic_slice_in_dim(query, first, chunk, axis=1),
            lax.dynamic_slice_in_dim(key, start, span, axis=1),
            lax.dynamic_slice_in_dim(value, start, span, axis=1),
            visible(first + jnp.arange(chunk), start + jnp.arange(span), window=window),
        )

    blocks = lax.map(block, jnp.arange(length // chunk))
    return jnp.moveaxis(blocks, 0, 1).reshape(query.shape)


def library(query: Array, key: Array, value: Array, *, window: int) -> Array:
    """JAX's own attention: a negative control, never a leaf plan."""
    flat = query.reshape(*query.shape[:2], -1, query.shape[-1])
    out = jax.nn.dot_product_attention(flat, key, value, is_causal=True, local_window_size=(window - 1, 0))
    return out.reshape(query.shape)


@dataclass(frozen=True, kw_only=True)
class Core:
    """How queries, keys and values are mixed."""

    mix: Callable[[Array, Array, Array, IsGlobal], Array]
    takes_scaled_queries: bool = False
    """Of products with keys of 1 / sqrt(head_dim) already: queries are scaled in fp32, before they are rounded."""


def core(variant: Variant, *, sliding_window: int, length: int, chunk: int, interpret: bool = False) -> Core:
    """The core of that name for both kinds of layer.

    Where the kind is a value of the program, so that all layers can be one body of a loop, ``dense`` takes the window
    as a value and the others, whose shapes depend on it, branch; ``splash`` wants to know it beforehand.
    """
    if variant == "dense":

        def either(query: Array, key: Array, value: Array, is_global: IsGlobal) -> Array:
            return dense(query, key, value, window=jnp.where(is_global, length, sliding_window))

        return Core(mix=either)

    def of_window(window: int) -> Callable[[Array, Array, Array], Array]:
        if variant == "chunked":
            return functools.partial(chunked, window=window, chunk=chunk)
        if variant == "splash":
            return functools.partial(splash, window=window, block=min(chunk, length), interpret=interpret)
        return functools.partial(library, window=window)

    def branch(query: Array, key: Array, value: Array, is_global: IsGlobal) -> Array:
        if isinstance(is_global, bool):
            return of_window(length if is_global else sliding_window)(query, key, value)
        chosen = lax.cond(is_global, of_window(length), of_window(sliding_window), query, key, value)
        return jnp.asarray(chosen)

    return Core(mix=branch, takes_scaled_queries=variant == "splash")


class Attention(nnx.Module):
    """x: [batch, length, d_model]; queries and keys are normed over all their heads before they are turned.

    ``query_key_value`` holds the three matrices side by side.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        queries, keys = model.n_heads * model.head_dim, model.n_kv_heads * model.head_dim
        self.query_key_value = parameter((model.d_model, queries + 2 * keys), cut=-2)
        self.output = parameter((model.d_model, queries), cut=-2)
        self.query_norm = RMSNorm(queries, eps=model.norm_eps)
        self.key_norm = RMSNorm(keys, eps=model.norm_eps)

    def __call__(self, x: Array, is_global: IsGlobal, *, attend: Core) -> Array:
        model, (batch, length, _) = self.model, x.shape
        queries, keys = model.n_heads * model.head_dim, model.n_kv_heads * model.head_dim
        joined = checkpoint_name(project("bsd,dn->bsn", x, self.query_key_value[...], x.dtype), "joined")
        query, key, value = jnp.split(joined, [queries, queries + keys], axis=-1)
        angles = layer_angles(model, length=length, is_global=is_global)
        scale = float(model.head_dim) ** -0.5 if attend.takes_scaled_queries else None
        query = self.query_norm(query).reshape(batch, length, model.n_heads, model.head_dim)
        query = rotate(query, *angles, scale=scale)
        key = rotate(self.key_norm(key).reshape(batch, length, model.n_kv_heads, model.head_dim), *angles)
        grouped = query.reshape(batch, length, model.n_kv_heads, -1, model.head_dim)
        mixed = attend.mix(grouped, key, value.reshape(key.shape), is_global).reshape(batch, length, -1)
        mixed = checkpoint_name(mixed, "mixed")
        return jnp.asarray(checkpoint_name(project("bsn,dn->bsd", mixed, self.output[...], x.dtype), "attended"))
