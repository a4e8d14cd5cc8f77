"""Weights that travel together: arrays of V canonical blocks.

Every weight has an axis that V divides. A *pack* cuts the weights of one tree (those of a layer, or those outside the
layers) along these axes into V blocks and lays them into *parcels*, of which device d of P holds blocks d · V/P …, so
that a parcel is gathered, and its gradient reduced, in one collective.

``together`` makes one parcel for each wire dtype, [V, size], with the v-th blocks of all its weights side by side:
few collectives, and one loop over canonical blocks for everything that sums over a gradient, which is what CPUs want.
On a TPU that would move every weight between a flat layout and the tiles of a matrix, many times a step; there
(``together=False``) each matrix is a parcel of its own, [V, rows, columns], whose tiles stay as they are.
"""

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, get_args

import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from trainer.model.layers import Weight, Wire

Tree = Any
"""A nested dict with string keys."""
Packed = dict[str, Array]
"""By parcel: [*lead, blocks, …], where lead is [n_layers] for stacked layers and else empty."""

WIRES: tuple[Wire, ...] = get_args(Wire)


@dataclass(frozen=True, kw_only=True)
class Parcel:
    """What travels as one array."""

    name: str
    wire: Wire
    entries: tuple[tuple[str, Weight], ...]
    flat: bool
    """[V, size]; else the one weight's blocks, with their axes in its order but the one that is cut first."""


@dataclass(frozen=True, kw_only=True)
class Pack:
    """How the weights of one tree are packed; ``entries`` are (path, weight), without the axis of layers."""

    entries: tuple[tuple[str, Weight], ...]
    blocks: int
    """V."""
    together: bool = True

    @cached_property
    def parcels(self) -> tuple[Parcel, ...]:
        alone = () if self.together else tuple(entry for entry in self.entries if len(entry[1].shape) > 1)
        rest = {wire: tuple(e for e in self.entries if e[1].wire == wire and e not in alone) for wire in WIRES}
        flat = [Parcel(name=wire, wire=wire, entries=some, flat=True) for wire, some in rest.items() if some]
        own = [Parcel(name=e[0].replace("/", "."), wire=e[1].wire, entries=(e,), flat=False) for e in alone]
        return (*flat, *own)

    def pack(self, tree: Tree, *, dtypes: dict[str, DTypeLike]) -> Packed:
        """Arrays of the tree (whole or shards of P devices, stacked or not) → blocks of the wires' dtypes."""

        def array(parcel: Parcel) -> Array:
            blocks = [self._blocks(_at(tree, path), weight) for path, weight in parcel.entries]
            blocks = [block.astype(dtypes[parcel.wire]) for block in blocks]
            if not parcel.flat:
                return blocks[0]
            lead = _at(tree, parcel.entries[0][0]).ndim - len(parcel.entries[0][1].shape)
            return jnp.concatenate([block.reshape(*block.shape[: lead + 1], -1) for block in blocks], axis=-1)

        return {parcel.name: array(parcel) for parcel in self.parcels}

    def unpack(self, packed: Packed) -> Tree:
        """The inverse: a nested dict; cut axes have the length that the number of blocks in ``packed`` gives them."""
        tree: Tree = {}
        for parcel in self.parcels:
            array, start = packed[parcel.name], 0
            for path, weight in parcel.entries:
                part = array
                if parcel.flat:
                    stop = start + prod(weight.shape) // self.blocks
                    part, start = array[..., start:stop], stop
                    part = part.reshape(*part.shape[:-1], *self._block_shape(weight))
                _put(tree, path, self._shaped(part, weight))
        return tree

    def _block_shape(self, weight: Weight) -> tuple[int, ...]:
        cut = weight.cut % len(weight.shape)
        return (weight.cut_length // self.blocks, *weight.shape[:cut], *weight.shape[cut + 1 :])

    def _blocks(self, array: Array, weight: Weight) -> Array:
        """[*lead, blocks here, …]."""
        lead = array.ndim - len(weight.shape)
        cut_first = jnp.moveaxis(array, weight.cut, lead)
        return cut_first.reshape(*array.shape[:lead], -1, *self._block_shape(weight))

    def _shaped(self, blocks: Array, weight: Weight) -> Array:
        lead = blocks.ndim - len(weight.shape) - 1
        joined = blocks.reshape(*blocks.shape[:lead], -1, *blocks.shape[lead + 2 :])
        return jnp.moveaxis(joined, lead, weight.cut)


def _at(tree: Tree, path: str) -> Array:
    for key in path.split("/"):
        tree = tree[key]
    return jnp.asarray(tree)


def _put(tree: Tree, path: str, array: Array) -> None:
    *parents, name = path.split("/")
    for key in parents:
        tree = tree.setdefault(key, {})
    tree[name] = array
