"""The bits of a step do not depend on the placement, and would without our rules.

bf16 leaves have so few bits that their sums are often exact in any order, and losses stay equal for a while when
parameters do not: so parameters and gradients are compared, with fp32 leaves too, and a negative control must differ.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from tests.local.exact_program import SMALL, TINY, Outcome, Size, train, train_in_processes
from trainer.model.attention import core
from trainer.model.variant import Variant
from trainer.parallel.mesh import cut_spec, make_mesh
from trainer.parallel.reduction import barrier, compiler_options


@pytest.fixture(scope="module")
def steps(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("--exact-steps"))


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def dtype(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def reference(dtype: str, steps: int) -> Outcome:
    """Eight devices, one leaf each."""
    return train(jax.devices()[:8], dtype=dtype, steps=steps)


@pytest.mark.parametrize("devices", [4, 2, 1])
def test_any_number_of_devices_gives_the_same_bits(reference: Outcome, dtype: str, devices: int, steps: int) -> None:
    assert train(jax.devices()[:devices], dtype=dtype, steps=steps) == reference


@pytest.mark.parametrize(("processes", "devices"), [(4, 2), (2, 2), (1, 1)])
def test_any_number_of_processes_gives_the_same_bits(
    reference: Outcome, dtype: str, processes: int, devices: int, steps: int
) -> None:
    assert train_in_processes(processes, devices, dtype=dtype, steps=steps) == reference


def test_the_recursive_halving_has_the_bits_of_the_all_to_all() -> None:
    halved = train(jax.devices()[:4], dtype="float32", steps=3, reduction="tree")
    assert halved == train(jax.devices()[:4], dtype="float32", steps=3)


@pytest.mark.parametrize(
    "plan",
    [
        {"scan": "block", "remat": "elementwise"},
        {"scan": "block", "remat": "none", "attention": "splash", "attention_chunk": 128},
    ],
    ids=["elementwise", "splash"],
)
def test_a_leaf_plan_for_tpus_has_the_same_bits_on_one_device_and_on_two(plan: dict[str, str | int]) -> None:
    """JAX's kernels are interpreted here: that they may stand in a step is shown, not what a TPU computes."""
    size = Size(model=TINY.model, length=128)
    one, other = (train(jax.devices()[:count], dtype="float32", steps=3, size=size, **plan) for count in (2, 1))
    assert one == other


def test_a_larger_model_has_the_same_bits_too_and_would_not_without_barriers() -> None:
    """The losses of the first steps are equal either way, so losses alone would not tell."""

    def outcomes(counts: tuple[int, ...], *, barriers: bool) -> list[Outcome]:
        return [
            train(jax.devices()[:count], dtype="float32", steps=4, size=SMALL, barriers=barriers) for count in counts
        ]

    exact, *others = outcomes((8, 2, 1), barriers=True)
    assert others == [exact, exact]
    one, other = outcomes((8, 2), barriers=False)
    assert one.tokens == other.tokens
    assert one.losses[:2] == other.losses[:2]
    assert one.params_sha256 != other.params_sha256


@pytest.mark.parametrize(("variant", "holds"), [("dense", True), ("library", False)])
def test_a_division_by_a_broadcast_value_changes_the_gradient_on_one_device_only(variant: Variant, holds: bool) -> None:
    """What the softmax of JAX's own attention does, and ours must not; the forward pass alone does not show it."""
    results = {count: attention_of_eight_ranks(variant, devices=count) for count in (8, 2, 1)}
    forward, backward = zip(*results.values(), strict=True)
    assert forward[0] == forward[1] == forward[2]
    assert backward[0] == backward[1]
    assert (backward[0] == backward[2]) is holds


def attention_of_eight_ranks(variant: Variant, *, devices: int) -> tuple[bytes, bytes]:
    """Bits of an attention core's result and of its gradient, one rank after the other on each device."""
    attend = core(variant, sliding_window=5, length=16, chunk=16)
    keys = np.random.default_rng(0).normal(size=(8, 1, 16, 2, 4)).astype(np.float32)

    def rank(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        key = barrier(key)
        queries = jnp.stack([key, -key], axis=3)
        mixed, pull = jax.vjp(lambda queries: attend.mix(queries, key, key, jnp.bool_(True)), queries)
        (grad,) = pull(jnp.sin(mixed))
        return barrier((mixed, grad))

    mesh = make_mesh(jax.devices()[:devices])
    cut = cut_spec(keys.ndim, -keys.ndim)
    mapped = jax.shard_map(
        lambda mine: jax.lax.map(rank, mine), mesh=mesh, in_specs=cut, out_specs=PartitionSpec("d"), check_vma=False
    )
    compiled = jax.jit(mapped).lower(keys).compile(compiler_options("cpu"))
    return tuple(np.asarray(array).tobytes() for array in compiled(keys))


def test_a_sum_in_the_runtime_s_own_order_depends_on_the_placement() -> None:
    one, other = (train(jax.devices()[:count], dtype="float32", steps=20, reduction="native") for count in (8, 2))
    assert one.tokens == other.tokens
    assert one.params_sha256 != other.params_sha256
