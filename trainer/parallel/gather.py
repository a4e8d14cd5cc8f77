"""Whole weights from their shards, with the exact reduction as the backward pass.

The forward pass sends a pack's blocks in their wire dtype; the backward pass takes one virtual rank's gradients of the
whole weights, the *gradient leaves*, and returns this device's blocks of their fp32 sum over devices. Barriers on both
sides of the reduction keep it apart from the leaf, so that the leaf is the same computation for every P.
"""

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from trainer.parallel.mesh import AXIS
from trainer.parallel.packing import WIRES, Pack, Packed
from trainer.parallel.plan import LeafDtype, Reduction
from trainer.parallel.reduction import after, barrier, reduce_over_devices

Tree = Any


@dataclass(frozen=True, kw_only=True)
class Travel:
    """How weights travel, and gradients back."""

    devices: int
    slices: int = 1
    compute_dtype: str
    leaf_dtype: LeafDtype = "compute"
    """Dtype of gradient leaves: that of the computation, or fp32 also where it computes in bf16 (weights still travel
    in the compute dtype). Leaves of the embedding and of norms are fp32 always."""
    reduction: Reduction = "a2a"
    barriers: bool = True
    ordered: bool = True
    """Data orders a step's collectives, see ``reduction.after``: needed on CPU; elsewhere it would cost overlap."""

    @property
    def sent(self) -> dict[str, Any]:
        """Dtype on the wire of weights."""
        return {"compute": jnp.dtype(self.compute_dtype), "float32": jnp.dtype("float32")}

    @property
    def leaf(self) -> dict[str, Any]:
        """Dtype on the wire of gradient leaves."""
        return self.sent if self.leaf_dtype == "compute" else dict.fromkeys(WIRES, jnp.dtype("float32"))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def gather(travel: Travel, pack: Pack, wire: Packed, sink: Packed) -> Tree:
    """Whole weights from this device's blocks ``wire`` [V/P, …], each in the dtype of its gradient leaf.

    The gradient leaves through ``sink``, fp32 of the same shapes (of the whole weights if it is reduced once), whose
    values do not matter: a gradient must have the dtype of what it belongs to, and what travels is narrower.
    """
    whole = {one.name: _all_gather(wire[one.name]).astype(travel.leaf[one.wire]) for one in pack.parcels}
    return pack.unpack(whole)


def _all_gather(blocks: Array) -> Array:
    return jnp.asarray(lax.all_gather(blocks, AXIS, axis=0, tiled=True))


def _forward(travel: Travel, pack: Pack, wire: Packed, sink: Packed) -> tuple[Tree, None]:
    return gather(travel, pack, wire, sink), None


def _backward(travel: Travel, pack: Pack, _: None, leaves: Tree) -> tuple[None, Packed]:
    leaves = barrier(leaves) if travel.barriers else leaves
    packed = pack.pack(leaves, dtypes=travel.leaf)
    sums = {
        name: reduce_over_devices(blocks, devices=travel.devices, slices=travel.slices, how=travel.reduction)
        for name, blocks in packed.items()
    }
    return None, barrier(sums) if travel.barriers else sums


def reduce_once(sums: Packed, *, lead: int = 0) -> Packed:
    """This device's blocks [*lead, V/P, …] of the sum over devices of whole ones [*lead, V, …]; fp32."""

    def scatter(whole: Array) -> Array:
        return jnp.asarray(lax.psum_scatter(whole, AXIS, scatter_dimension=lead, tiled=True))

    return {name: scatter(whole) for name, whole in sums.items()}


gather.defvjp(_forward, _backward)


@jax.custom_vjp
def in_turn(ends: Tree, tokens: Array) -> tuple[Tree, Array]:
    """Both as they are: tokens once all of ``ends`` is there; in the backward pass, any gradient once all are there.

    So the collectives of the weights outside the layers come before those of the layers' loop, and after it.
    """
    return ends, barrier(after(tokens, ends))


def _in_turn_forward(ends: Tree, tokens: Array) -> tuple[tuple[Tree, Array], None]:
    return in_turn(ends, tokens), None


def _in_turn_backward(_: None, cotangents: tuple[Tree, Array]) -> tuple[Tree, None]:
    leaves = barrier(cotangents[0])
    return jax.tree.map(lambda leaf: after(leaf, leaves), leaves), None


in_turn.defvjp(_in_turn_forward, _in_turn_backward)
