"""Olmo 3: reordered norms, QK-norm, SwiGLU, and a global layer after every few sliding ones.

The weights of all layers are stacked, [n_layers, …] in the order of the layers, and the program scans over them, so
that its size does not grow with depth; whether a layer is global is a value of the scan, so that both kinds share one
body. Weights arrive through ``gather``, a layer at a time, right where they are used.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array, lax

from orchestrator.contract.recipe import Model
from trainer.model.attention import MASKED, Attention, Core, core
from trainer.model.layers import PRODUCTS, Embedding, Head, RMSNorm, SwiGLU, Weight, metadata_of
from trainer.model.rope import IsGlobal
from trainer.model.variant import Remat, Scan, Variant

Tree = Any
"""A nested dict with string keys; its leaves are arrays, or a ``Weight`` each."""
Gather = Callable[[Tree], Tree]
"""What is stored of one layer → its whole weights, a nested dict."""


class Block(nnx.Module):
    """h = x + norm(attention(x)); y = h + norm(mlp(h)); x: [batch, length, d_model]."""

    def __init__(self, model: Model) -> None:
        self.attention = Attention(model)
        self.attention_norm = RMSNorm(model.d_model, eps=model.norm_eps)
        self.mlp = SwiGLU(model.d_model, model.d_ff)
        self.mlp_norm = RMSNorm(model.d_model, eps=model.norm_eps)

    def __call__(self, x: Array, is_global: IsGlobal, *, attend: Core) -> Array:
        x = x + self.attention_norm(self.attention(x, is_global, attend=attend))
        return x + self.mlp_norm(self.mlp(x))


class Olmo3(nnx.Module):
    """All weights of the model; ``layers`` is one block whose weights have a leading axis of n_layers."""

    def __init__(self, model: Model) -> None:
        self.embedding = Embedding(model.vocab_rows, model.d_model)
        self.layers = nnx.vmap(lambda: Block(model), axis_size=model.n_layers)()
        self.norm = RMSNorm(model.d_model, eps=model.norm_eps)
        self.head = Head(model.vocab_rows, model.d_model)


@dataclass(frozen=True, kw_only=True)
class Skeleton:
    """The model without values: module graphs to merge weights into, and what each weight is."""

    model: Model
    embedding: nnx.GraphDef[Embedding]
    block: nnx.GraphDef[Block]
    norm: nnx.GraphDef[RMSNorm]
    head: nnx.GraphDef[Head]
    weights: Tree
    """Nested dict of ``Weight``, of the shape of the parameters."""


def skeleton(model: Model) -> Skeleton:
    """Trace the modules once, abstractly."""
    whole = nnx.eval_shape(lambda: Olmo3(model))
    described = {path: metadata_of(variable) for path, variable in nnx.to_flat_state(nnx.state(whole))}
    return Skeleton(
        model=model,
        embedding=nnx.graphdef(whole.embedding),
        block=nnx.graphdef(whole.layers),
        norm=nnx.graphdef(whole.norm),
        head=nnx.graphdef(whole.head),
        weights=_nested(described),
    )


def _nested(flat: dict[tuple[Any, ...], Weight]) -> Tree:
    tree: Tree = {}
    for path, weight in flat.items():
        node = tree
        for key in path[:-1]:
            node = node.setdefault(str(key), {})
        node[str(path[-1])] = weight
    return tree


@dataclass(frozen=True, kw_only=True)
class LeafArithmetic:
    """How a leaf computes the model: what of a leaf plan the model itself sees."""

    attention: Variant = "dense"
    attention_chunk: int = 0
    """Queries a block of ``chunked`` attention; divides the sequence length."""
    remat: Remat = "layer"
    scan: Scan = "layer"
    interpret: bool = False
    """Run kernels of TPUs as ordinary operations."""


def logits(
    bones: Skeleton, ends: Tree, layers: Tree, tokens: Array, *, gather: Gather, arithmetic: LeafArithmetic
) -> Array:
    """fp32 logits [batch, length, vocab_rows] of tokens [batch, length]; those of padding count as the model says.

    ``ends`` are the whole weights outside the layers; ``layers`` is scanned over its leading axis, and ``gather``
    makes the whole weights of a layer from one slice of it.
    """
    x = nnx.merge(bones.embedding, ends["embedding"])(tokens, dtype=jnp.dtype(bones.model.compute_dtype))
    x = _layers(bones, layers, x, gather=gather, arithmetic=arithmetic)
    x = nnx.merge(bones.norm, ends["norm"])(x)
    scores: Array = nnx.merge(bones.head, ends["head"])(x)
    if bones.model.padding_in_softmax or bones.model.vocab_rows == bones.model.vocab_size:
        return scores
    return jnp.where(jnp.arange(bones.model.vocab_rows) < bones.model.vocab_size, scores, MASKED)


def _layers(bones: Skeleton, stacked: Tree, x: Array, *, gather: Gather, arithmetic: LeafArithmetic) -> Array:
    model = bones.model
    attend = core(
        arithmetic.attention,
        sliding_window=model.sliding_window,
        length=x.shape[1],
        chunk=arithmetic.attention_chunk,
        interpret=arithmetic.interpret,
    )

    def layer(x: Array, stored: Tree, is_global: IsGlobal) -> Array:
        y: Array = nnx.merge(bones.block, gather(stored))(x, is_global, attend=attend)
        return y

    if arithmetic.scan == "layer":
        kinds = (jnp.arange(model.n_layers) + 1) % model.global_every == 0
        recomputed = _recomputed(layer, arithmetic.remat)
        return lax.scan(lambda x, one: (recomputed(x, *one), None), x, (stacked, kinds))[0]

    def of_kind(is_global: bool) -> Callable[[Array, Tree], tuple[Array, None]]:
        one = _recomputed(functools.partial(layer, is_global=is_global), arithmetic.remat)
        return lambda x, stored: (one(x, stored), None)

    def block(x: Array, stored: Tree) -> tuple[Array, None]:
        sliding, last = (jax.tree.map(lambda array, part=part: array[part], stored) for part in (slice(-1), -1))
        if model.global_every > 1:
            x, _ = lax.scan(of_kind(False), x, sliding)
        return of_kind(True)(x, last)

    blocks = jax.tree.map(lambda array: array.reshape(-1, model.global_every, *array.shape[1:]), stacked)
    return lax.scan(block, x, blocks)[0]


def _recomputed(layer: Callable[..., Array], remat: Remat) -> Callable[..., Array]:
    """The layer with a backward pass that computes again what ``remat`` says."""
    if remat == "none":
        return layer
    policy = jax.checkpoint_policies.save_only_these_names(*PRODUCTS) if remat == "elementwise" else None
    # inside a scan the loop itself keeps the recomputation from being merged with the first computation
    return jax.checkpoint(layer, prevent_cse=False, policy=policy)
