"""Sums over virtual ranks in one fixed order: pairwise, (0+1) + (2+3), and so on up.

All of it runs inside ``shard_map``. The gradient of a gathered weight is a whole array on every device;
``reduce_over_devices`` gives each device its own part of the sum over devices. Two implementations have the same bits
and check each other: ``a2a`` (all-to-all of the leaves in their own dtype, then the tree on the owner) and ``tree``
(recursive halving by neighbour exchange). ``native`` leaves the order to the backend: a negative control.
``native-once`` does not reduce here, but in ``gather.reduce_once`` after all micro-steps.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from trainer.parallel.mesh import AXIS
from trainer.parallel.plan import Reduction
from trainer.parallel.scopes import REDUCTION

Tree = Any

barrier: Callable[[Any], Any] = lax.optimization_barrier
"""What it encloses is compiled as it would be alone: nothing fuses or moves across. On CPU that takes
``compiler_options``."""


DROPS_BARRIERS_EARLY = jax.__version_info__ < (0, 11)
"""XLA's CPU pipeline of JAX 0.10 needs ``PASSES_OFF``; that of JAX 0.12 needs them not, and cannot compile then."""
PASSES_OFF = (
    "cse_barrier_expander",
    "small-while-loop-hoisting",
    "while-loop-expensive-invariant-code-motion",
    "while-loop-invariant-code-motion",
)
"""Passes of XLA's CPU compiler, by their own names; see ``compiler_options``."""


OVERLAPPED = {
    "xla_tpu_prefer_async_allgather_to_allreduce": "true",
    "xla_tpu_enable_sparse_core_collective_offload_all_gather": "true",
    "xla_tpu_enable_sparse_core_collective_offload_dense_all_to_all": "true",
}
"""Collectives run on the SparseCore, beside the matrix products; and on a full torus gathers of weights stay gathers,
where the compiler else makes them all-reduces of padded shards, of twice the bytes."""
TPU_OPTIONS: dict[str, dict[str, str | bool]] = {"TPU7x": {**OVERLAPPED}, "TPU v5": {**OVERLAPPED}}
"""By the kind of device, as JAX names it (v5p is ``TPU v5``)."""


def compiler_options(platform: str, kind: str = "") -> dict[str, str | bool]:
    """Options under which every exact program is compiled for devices of this platform and kind.

    XLA's CPU pipeline of JAX 0.10 drops barriers before it fuses, so that a sum at the end of a leaf is fused with
    whatever takes it; it moves constants of a leaf out of the loop over micro-steps, if there is one; and it compiles
    a loop that is small as a whole in another way. Each changes the order of sums with P. Without these passes
    barriers hold to the end, and a leaf is the same in a loop and alone.
    """
    if platform == "tpu":
        return TPU_OPTIONS.get(kind, {})
    if platform != "cpu" or not DROPS_BARRIERS_EARLY:
        return {}
    return {"xla_disable_hlo_passes": ",".join(PASSES_OFF)}


def rounding() -> Callable[[Array], Array]:
    """A function that returns an fp32 array as it is, but only after it was rounded to fp32.

    Its bits pass an XOR with a zero that the compiler cannot see, so a product cannot be contracted with an addition
    that follows. What remains are IEEE operations one by one, whose results do not depend on the shape of a loop.
    """
    zero = barrier(jnp.uint32(0))

    def rounded(x: Array) -> Array:
        bits = lax.bitcast_convert_type(x, jnp.uint32) ^ zero
        return lax.bitcast_convert_type(bits, jnp.float32)

    return rounded


def after(value: Tree, *earlier: Tree) -> Tree:
    """``value`` bit for bit, but computed from ``earlier`` too, so that it cannot be there before.

    That orders collectives. A barrier does not: it is gone when the program runs. It is needed on CPU, where a program
    out of the compile cache keeps in order only collectives of one loop body (XLA gives each loop that it reads a lock
    of its own): two processes may else begin a collective inside a loop and one beside it in different orders.
    """
    mark = zero = barrier(jnp.uint32(0))
    for array in jax.tree.leaves(earlier):
        first = lax.bitcast_convert_type(array.reshape(-1)[0], _WORDS[array.dtype.itemsize])
        mark = mark | (first.astype(jnp.uint32) & zero)

    def marked(array: Array) -> Array:
        word = _WORDS[array.dtype.itemsize]
        bits = lax.bitcast_convert_type(array, word) ^ mark.astype(word)
        return lax.bitcast_convert_type(bits, array.dtype)

    return jax.tree.map(marked, value)


_WORDS: dict[int, Any] = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}
"""By size in bytes."""


def pairwise_sum(values: Array) -> Array:
    """Sum over the first axis, whose length is a power of two, by the fixed tree."""
    with jax.named_scope(REDUCTION):
        while values.shape[0] > 1:
            pairs = values.reshape(values.shape[0] // 2, 2, *values.shape[1:])
            values = pairs[:, 0] + pairs[:, 1]
    return values[0]


def by_rank(values: Array) -> Array:
    """[micro_steps, …] of each device → [V, …] in the order of the virtual ranks, replicated."""
    gathered = lax.all_gather(values, AXIS, axis=1)
    return jnp.asarray(gathered.reshape(-1, *values.shape[1:]))


def reduce_over_devices(whole: Array, *, devices: int, how: Reduction, slices: int = 1) -> Array:
    """This device's rows of the fp32 sum over devices of ``whole`` [V, …]; device d owns rows d · V/P …."""
    if how == "native-once":
        return whole.astype(jnp.float32)
    if how == "native":
        return jnp.asarray(lax.psum_scatter(whole.astype(jnp.float32), AXIS, scatter_dimension=0, tiled=True))
    parts = whole.reshape(devices, -1, *whole.shape[1:])
    with jax.named_scope(REDUCTION):
        if how == "tree":
            return _halving(parts, devices)
        return _all_to_all(parts) if slices == 1 else _all_to_all_by_slice(parts, slices)


def _all_to_all(parts: Array, *, groups: list[list[int]] | None = None) -> Array:
    """[devices of a group, …], a part for each → the sum of the parts for this device."""
    leaves = lax.all_to_all(parts, AXIS, split_axis=0, concat_axis=0, axis_index_groups=groups)
    return pairwise_sum(leaves.astype(jnp.float32))


def _all_to_all_by_slice(parts: Array, slices: int) -> Array:
    """Inside each slice first, by its fast network; what goes between slices is one sum a slice."""
    inside = parts.shape[0] // slices
    neighbours = [[s * inside + i for i in range(inside)] for s in range(slices)]
    counterparts = [[s * inside + i for s in range(slices)] for i in range(inside)]
    by_owner = jnp.swapaxes(parts.reshape(slices, inside, *parts.shape[1:]), 0, 1)
    return _all_to_all(_all_to_all(by_owner, groups=neighbours), groups=counterparts)


def _halving(parts: Array, devices: int) -> Array:
    here = lax.axis_index(AXIS)
    for level in range(devices.bit_length() - 1):
        bit = (here >> level) & 1
        pairs = parts.reshape(-1, 2, *parts.shape[1:])
        mine = lax.dynamic_index_in_dim(pairs, bit, axis=1, keepdims=False)
        theirs = lax.dynamic_index_in_dim(pairs, 1 - bit, axis=1, keepdims=False)
        exchange = [(device, device ^ (1 << level)) for device in range(devices)]
        received = lax.ppermute(theirs, AXIS, exchange)
        # addition commutes bit for bit, so it does not matter which of the two is the lower rank
        parts = mine.astype(jnp.float32) + received.astype(jnp.float32)
    return parts[0].astype(jnp.float32)


def sum_over_micro_steps(
    leaf: Callable[[Array], tuple[Tree, Tree]], *, micro_steps: int, like: Tree, ordered: bool = True
) -> tuple[Tree, Tree]:
    """Run ``leaf(i)`` for each micro-step i; sum its first result by the fixed tree and stack its second.

    ``like`` has the shapes of the first result, whose leaves are fp32.

    The leaf is compiled once: the tree is log2(n) nested loops over (left, right). Sums start at -0.0, the one number
    that leaves every float as it is when added, so a sum over one micro-step and over many have the same bits.
    ``ordered=False`` adds in sequence instead: the order depends on P, a negative control.
    """

    def add(total: Tree, term: Tree) -> Tree:
        with jax.named_scope(REDUCTION):
            return jax.tree.map(jnp.add, total, term)

    start = jax.tree.map(lambda a: jnp.full(a.shape, -0.0, jnp.float32), like)

    def loop(level_steps: int, body: Callable[[Array], tuple[Tree, Tree]]) -> tuple[Tree, Tree]:
        def advance(total: Tree, index: Array) -> tuple[Tree, Tree]:
            term, stacked = body(index)
            return add(total, term), stacked

        return lax.scan(advance, start, jnp.arange(level_steps))

    def subtree(steps: int, first: Array) -> tuple[Tree, Tree]:
        if steps == 1:
            return leaf(first)
        half = steps // 2
        total, stacked = loop(2, lambda side: subtree(half, first + side * half))
        return total, jax.tree.map(lambda a: a.reshape(steps, *a.shape[2:]) if half > 1 else a, stacked)

    if ordered or micro_steps == 1:
        total, stacked = subtree(micro_steps, jnp.int32(0))
    else:
        total, stacked = loop(micro_steps, leaf)
    if micro_steps == 1:
        stacked = jax.tree.map(lambda a: a[None], stacked)
    return total, stacked
