"""What orders a step's collectives, and what reads their order: ``train`` of exact_program asks it of every step."""

import jax
import jax.numpy as jnp
import pytest
from jax import Array, lax
from jax.sharding import PartitionSpec

from tests.local.hlo_order import collectives, unordered
from trainer.parallel.mesh import AXIS, make_mesh
from trainer.parallel.reduction import after


@pytest.mark.parametrize("ordered", [True, False])
def test_a_sum_beside_a_loop_of_sums_is_ordered_by_data_alone(ordered: bool) -> None:
    def sums(looped: Array, beside: Array) -> tuple[Array, Array]:
        total = lax.fori_loop(0, 3, lambda _, value: lax.psum(value, AXIS), looped)
        return total, lax.psum(after(beside, total) if ordered else beside, AXIS)

    part = PartitionSpec(AXIS)
    mesh = make_mesh(jax.devices()[:2])
    mapped = jax.shard_map(sums, mesh=mesh, in_specs=(part, part), out_specs=part, check_vma=False)
    one = jnp.arange(4, dtype=jnp.float32)
    text = jax.jit(mapped).lower(one, one).compile().as_text()
    assert text is not None
    assert collectives(text) == 2
    assert len(unordered(text)) == (0 if ordered else 1)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "uint8"])
def test_what_comes_after_something_keeps_its_bits(dtype: str) -> None:
    words = jnp.arange(256, dtype=jnp.uint32) * 16777619
    narrow = words.astype({1: "uint8", 2: "uint16", 4: "uint32"}[jnp.dtype(dtype).itemsize])
    value = lax.bitcast_convert_type(narrow, dtype)  # NaNs and subnormal numbers among them
    kept = jax.jit(lambda value: after(value, {"a": jnp.float32(3), "b": jnp.ones(2, jnp.bfloat16)}))(value)
    assert lax.bitcast_convert_type(kept, narrow.dtype).tolist() == narrow.tolist()
