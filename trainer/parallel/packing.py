"""Weights that travel together: one flat array of V canonical blocks for each wire dtype.

Every weight has an axis that V divides. A *pack* cuts the weights of one tree (those of a layer, or those outside the
layers) along these axes into V blocks and lays the v-th blocks of all of them side by side: an array [V, size], of
which device d of P holds rows d · V/P …. So a layer is gathered, and its gradient reduced, in one collective for each
wire dtype instead of one a weight, and everything that sums over a gradient has one loop over canonical blocks.
"""

from dataclasses import dataclass
from math import prod
from typing import Any, get_args

import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from trainer.model.layers import Weight, Wire

Tree = Any
"""A nested dict with string keys."""
Packed = dict[str, Array]
"""By ``Wire``: [*lead, blocks, size], where lead is [n_layers] for stacked layers and else empty."""

WIRES: tuple[Wire, ...] = get_args(Wire)


@dataclass(frozen=True, kw_only=True)
class Pack:
    """How the weights of one tree are packed; ``entries`` are (path, weight), without the axis of layers."""

    entries: tuple[tuple[str, Weight], ...]
    blocks: int
    """V."""

    def pack(self, tree: Tree, *, dtypes: dict[str, DTypeLike]) -> Packed:
        """Arrays of the tree (whole or shards of P devices, stacked or not) → blocks of the wires' dtypes."""
        return {
            wire: jnp.concatenate(
                [
                    self._flat(_at(tree, path), weight).astype(dtypes[wire])
                    for path, weight in self.entries
                    if weight.wire == wire
                ],
                axis=-1,
            )
            for wire in WIRES
        }

    def unpack(self, packed: Packed) -> Tree:
        """The inverse: a nested dict; cut axes have the length that the number of blocks in ``packed`` gives them."""
        tree: Tree = {}
        offsets = dict.fromkeys(packed, 0)
        for path, weight in self.entries:
            start = offsets[weight.wire]
            offsets[weight.wire] += prod(weight.shape) // self.blocks
            flat = packed[weight.wire][..., start : offsets[weight.wire]]
            _put(tree, path, self._shaped(flat, weight))
        return tree

    def _flat(self, array: Array, weight: Weight) -> Array:
        lead = array.ndim - len(weight.shape)
        cut_first = jnp.moveaxis(array, weight.cut, lead)
        rows_a_block = weight.cut_length // self.blocks
        return cut_first.reshape(*array.shape[:lead], cut_first.shape[lead] // rows_a_block, -1)

    def _shaped(self, flat: Array, weight: Weight) -> Array:
        *lead, blocks, _ = flat.shape
        cut = weight.cut % len(weight.shape)
        others = (*weight.shape[:cut], *weight.shape[cut + 1 :])
        cut_first = flat.reshape(*lead, blocks * (weight.cut_length // self.blocks), *others)
        return jnp.moveaxis(cut_first, len(lead), weight.cut)


def _at(tree: Tree, path: str) -> Array:
    for key in path.split("/"):
        tree = tree[key]
    return jnp.asarray(tree)


def _put(tree: Tree, path: str, array: Array) -> None:
    *parents, name = path.split("/")
    for key in parents:
        tree = tree.setdefault(key, {})
    tree[name] = array
