"""The leaf, one virtual rank's forward and backward pass, and all leaves of a step summed by the fixed tree.

Everything that enters or leaves a leaf passes a barrier, so that the compiler builds the same computation whether it
stands in a loop over micro-steps or alone. Gradients here are of *sums* over targets; the caller scales them.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from trainer.model.layers import Weight
from trainer.model.losses import losses
from trainer.model.olmo3 import LeafArithmetic, Skeleton, logits
from trainer.parallel.gather import Travel, gather, in_turn, reduce_once
from trainer.parallel.packing import Pack, Packed
from trainer.parallel.reduction import after, barrier, sum_over_micro_steps
from trainer.parallel.scopes import SHARD

Tree = Any
ENDS, LAYERS = "ends", "layers"
"""The two packs: weights outside the layers, and those of one layer."""
PackedModel = dict[str, Packed]
"""Both packs; that of the layers is stacked, [n_layers, blocks, …]."""
LEAD = {ENDS: 0, LAYERS: 1}
"""Axes before that of the blocks."""


@dataclass(frozen=True, kw_only=True)
class Leaf:
    """What one virtual rank computes, and how its weights and gradients travel."""

    bones: Skeleton
    packs: dict[str, Pack]
    arithmetic: LeafArithmetic
    travel: Travel
    z_loss: float

    def pack(self, params: Tree) -> PackedModel:
        """Shards of all parameters → what travels."""
        ends = {name: tree for name, tree in params.items() if name != LAYERS}
        return {
            ENDS: self.packs[ENDS].pack(ends, dtypes=self.travel.sent),
            LAYERS: self.packs[LAYERS].pack(params[LAYERS], dtypes=self.travel.sent),
        }

    def unpack(self, packed: PackedModel) -> Tree:
        """Blocks → shards, of the shape of the parameters."""
        layers = self.packs[LAYERS].unpack(packed[LAYERS])
        return {**self.packs[ENDS].unpack(packed[ENDS]), LAYERS: layers}


def by_block(packed: PackedModel) -> list[Array]:
    """The values of each block in a row, [blocks, size], parcel by parcel."""
    moved = [
        jnp.moveaxis(array, LEAD[name], 0) for name, parcels in sorted(packed.items()) for array in parcels.values()
    ]
    return [array.reshape(array.shape[0], -1) for array in moved]


class Sums(NamedTuple):
    """Over the leaves of a step."""

    gradient: PackedModel
    """fp32, this device's blocks of the sum over all virtual ranks."""
    losses: Array
    """fp32 [micro_steps, 2]: cross entropy and z-loss of this device's leaves."""


def packs_of(bones: Skeleton, *, blocks: int, together: bool) -> dict[str, Pack]:
    """The packs of a model, cut into V = ``blocks``."""

    def entries(tree: Tree, prefix: str = "") -> list[tuple[str, Weight]]:
        found: list[tuple[str, Weight]] = []
        for name, node in sorted(tree.items()):
            found += [(prefix + name, node)] if isinstance(node, Weight) else entries(node, f"{prefix}{name}/")
        return found

    ends = entries({name: tree for name, tree in bones.weights.items() if name != LAYERS})
    layers = [(path, weight.of_one_layer) for path, weight in entries(bones.weights[LAYERS])]
    return {
        name: Pack(entries=tuple(some), blocks=blocks, together=together)
        for name, some in ((ENDS, ends), (LAYERS, layers))
    }


def loss_of(leaf: Leaf, wire: PackedModel, sink: PackedModel, tokens: Array) -> tuple[Array, Array]:
    """Total loss and its parts [2], summed over the targets of tokens [sequences, length]."""
    ends = gather(leaf.travel, leaf.packs[ENDS], wire[ENDS], sink[ENDS])
    if leaf.travel.ordered:
        ends, tokens = in_turn(ends, tokens)
    scores = logits(
        leaf.bones,
        ends,
        (wire[LAYERS], sink[LAYERS]),
        tokens,
        gather=lambda stored: gather(leaf.travel, leaf.packs[LAYERS], *stored),
        arithmetic=leaf.arithmetic,
    )
    parts = losses(scores, tokens, leaf.z_loss)
    return parts[0] + parts[1], parts


def sum_of_leaves(leaf: Leaf, params: Tree, tokens: Array) -> Sums:
    """All leaves of this device, inside ``shard_map``; tokens [micro_steps, sequences, length]."""
    guard = barrier if leaf.travel.barriers else lambda value: value
    with jax.named_scope(SHARD):
        packed = leaf.pack(params)
    times = leaf.travel.devices if leaf.travel.reduction == "native-once" else 1

    def like(blocks: Array, lead: int) -> Array:
        shape = list(blocks.shape)
        shape[lead] *= times
        return jnp.zeros(shape, jnp.float32)

    zeros = {name: jax.tree.map(lambda b, name=name: like(b, LEAD[name]), packed[name]) for name in packed}

    def one(index: Array) -> tuple[PackedModel, Array]:
        rows = lax.dynamic_index_in_dim(tokens, index, axis=0, keepdims=False)
        wire, rows = guard((packed, rows))
        gradient_of = jax.value_and_grad(lambda sink: loss_of(leaf, wire, sink, rows), has_aux=True)
        (_, parts), gradient = gradient_of(zeros)
        gradient, parts = guard((gradient, parts))
        return gradient, after(parts, gradient) if leaf.travel.ordered else parts

    ordered = leaf.travel.reduction in ("a2a", "tree")
    gradient, parts = sum_over_micro_steps(one, micro_steps=tokens.shape[0], like=zeros, ordered=ordered)
    if leaf.travel.reduction == "native-once":
        gradient = {name: reduce_once(sums, lead=LEAD[name]) for name, sums in gradient.items()}
    return Sums(gradient, parts)
