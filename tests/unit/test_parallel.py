"""Virtual ranks, packs, and sums over ranks: which order they have, and that devices do not change it."""

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import Array, lax
from jax.sharding import NamedSharding, PartitionSpec
from numpy.typing import NDArray

from trainer.model.layers import Weight
from trainer.parallel.gather import Travel, gather, reduce_once
from trainer.parallel.mesh import AXIS, Ranks, make_mesh
from trainer.parallel.packing import Pack
from trainer.parallel.plan import Reduction
from trainer.parallel.reduction import pairwise_sum, reduce_over_devices, sum_over_micro_steps

RANKS = 8
SHARDS = (1, 2, 4, 8)

ORDER_MATTERS = np.array([2**24, 1, 1, 1, 3, 1, 1, 2], np.float32)
"""Beyond 2^24 fp32 steps by 2: ((0+1)+(2+3)) + ((4+5)+(6+7)) is 2^24 + 8, and each other order is something else."""

WEIGHTS = {
    "attention/output": Weight(shape=(16, 12), cut=-2, init="normal", wire="compute", decay=True),
    "attention/norm": Weight(shape=(8,), cut=-1, init="ones", wire="float32", decay=True),
    "embedding": Weight(shape=(5, 24), cut=-1, init="normal", wire="float32", decay=False),
    "head": Weight(shape=(8, 3), cut=-2, init="normal", wire="compute", decay=True),
}
PACK = Pack(entries=tuple(WEIGHTS.items()), blocks=RANKS)
BFLOAT16 = {"compute": np.dtype(ml_dtypes.bfloat16), "float32": np.dtype("float32")}


def bits(array: Array | NDArray[Any]) -> Any:
    return np.asarray(array, np.float32).view(np.uint32).tolist()


def by_fixed_tree(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """The definition, in numpy: the sum of the left half plus the sum of the right half."""
    if len(values) == 1:
        return np.asarray(values[0])
    half = len(values) // 2
    return np.asarray(by_fixed_tree(values[:half]) + by_fixed_tree(values[half:]))


def in_sequence(values: NDArray[np.float32]) -> NDArray[np.float32]:
    total = values[0]
    for value in values[1:]:
        total = total + value
    return np.asarray(total)


def halves_against_each_other(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Another tree of the same depth: 0+4, 1+5, …"""
    while len(values) > 1:
        values = values[: len(values) // 2] + values[len(values) // 2 :]
    return np.asarray(values[0])


def test_the_tree_is_pairs_of_neighbours_and_another_order_has_other_bits() -> None:
    v = ORDER_MATTERS
    written_out = ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]))
    assert bits(pairwise_sum(jnp.asarray(v))) == bits(written_out)
    others = [in_sequence(v), in_sequence(v[::-1]), halves_against_each_other(v)]
    assert all(bits(other) != bits(written_out) for other in others), others


@pytest.mark.parametrize("length", [1, 2, 4, 8, 64])
def test_a_sum_over_any_power_of_two_is_that_of_the_definition(length: int) -> None:
    values = np.random.default_rng(length).normal(size=(length, 3)).astype(np.float32)
    assert bits(pairwise_sum(jnp.asarray(values))) == bits(by_fixed_tree(values))


def leaves() -> NDArray[np.float32]:
    """What each rank adds, [V, V blocks, 6]: normal numbers, one column where order matters, one of -0.0."""
    values = np.random.default_rng(3).normal(size=(RANKS, RANKS, 6)).astype(np.float32)
    values[:, :, 0] = ORDER_MATTERS[:, None]
    values[:, :, 1] = -0.0
    return values


def summed_on(devices: int, *, how: Reduction, ordered: bool = True, slices: int = 1) -> tuple[Array, Array]:
    """The sum over all ranks as a step computes it, and the ranks in the order in which it met them."""
    ranks = Ranks(virtual=RANKS, devices=devices)
    whole = jnp.asarray(leaves())

    def update() -> tuple[Array, Array]:
        def leaf(step: Array) -> tuple[Array, Array]:
            rank = step * devices + lax.axis_index(AXIS)
            return reduce_over_devices(whole[rank], devices=devices, how=how, slices=slices), rank

        like = jnp.zeros((RANKS // devices, whole.shape[-1]), jnp.float32)
        total, met = sum_over_micro_steps(leaf, micro_steps=ranks.micro_steps, like=like, ordered=ordered)
        return total, met[:, None]

    mesh = make_mesh(jax.devices()[:devices])
    specs = (PartitionSpec(AXIS), PartitionSpec(None, AXIS))
    mapped = jax.shard_map(update, mesh=mesh, in_specs=(), out_specs=specs, check_vma=False)
    total, met = jax.jit(mapped)()
    return total, met


@pytest.mark.parametrize(("devices", "how"), [(8, "a2a"), (4, "a2a"), (2, "a2a"), (1, "a2a"), (8, "tree"), (2, "tree")])
def test_micro_steps_and_devices_add_up_to_the_tree_over_all_ranks(devices: int, how: Reduction) -> None:
    total, met = summed_on(devices, how=how)
    assert bits(total) == bits(by_fixed_tree(leaves()))
    assert np.asarray(met).tolist() == np.arange(RANKS).reshape(-1, devices).tolist()


@pytest.mark.parametrize(("devices", "slices"), [(8, 2), (8, 4), (4, 4), (4, 2)])
def test_sums_inside_slices_and_then_between_them_are_the_same_tree(devices: int, slices: int) -> None:
    assert bits(summed_on(devices, how="a2a", slices=slices)[0]) == bits(by_fixed_tree(leaves()))


def test_micro_steps_added_in_sequence_have_other_bits() -> None:
    assert bits(summed_on(1, how="a2a", ordered=False)[0]) != bits(by_fixed_tree(leaves()))


def test_a_device_reads_every_p_th_rank() -> None:
    rows = Ranks(virtual=8, devices=2).rows_of(1, rows_per_rank=3)
    assert rows.tolist() == [[3, 4, 5], [9, 10, 11], [15, 16, 17], [21, 22, 23]]


@pytest.mark.parametrize("devices", SHARDS)
def test_devices_read_each_row_once_and_a_micro_step_of_all_is_an_aligned_block(devices: int) -> None:
    ranks = Ranks(virtual=RANKS, devices=devices)
    rows = np.stack([ranks.rows_of(device, rows_per_rank=2) for device in range(devices)], axis=1)
    assert rows.shape == (ranks.micro_steps, devices, 2)
    assert rows.reshape(-1).tolist() == list(range(2 * RANKS))


@pytest.mark.parametrize("devices", [0, 3, 6, 16])
def test_a_number_of_devices_that_would_break_the_tree_is_refused(devices: int) -> None:
    with pytest.raises(ValueError, match=f"^{devices} devices cannot carry 8 virtual ranks"):
        Ranks(virtual=RANKS, devices=devices)


@pytest.mark.parametrize("slices", [0, 3, 8])
def test_a_number_of_slices_that_would_break_the_tree_is_refused(slices: int) -> None:
    with pytest.raises(ValueError, match=f"^4 devices cannot be {slices} slices"):
        Ranks(virtual=RANKS, devices=4, slices=slices)


def params(lead: tuple[int, ...]) -> dict[str, NDArray[np.float32]]:
    """Distinct whole numbers up to 256 in each array, which bf16 holds too."""
    return {
        path: (np.arange(np.prod(lead + weight.shape)) % 256).astype(np.float32).reshape(lead + weight.shape)
        for path, weight in WEIGHTS.items()
    }


def nested(flat: dict[str, Any]) -> dict[str, Any]:
    attention = {name: flat[f"attention/{name}"] for name in ("output", "norm")}
    return {"attention": attention, "embedding": flat["embedding"], "head": flat["head"]}


def blocks_of(whole: dict[str, NDArray[np.float32]]) -> dict[str, NDArray[np.float32]]:
    """The definition of a pack, in numpy: for each wire, v-th blocks along the cut axes side by side in row v."""

    def block(path: str, v: int) -> NDArray[np.float32]:
        weight, array = WEIGHTS[path], whole[path]
        lead = array.ndim - len(weight.shape)
        part = np.split(array, RANKS, axis=weight.cut)[v]
        return np.moveaxis(part, weight.cut, lead).reshape(*array.shape[:lead], -1)

    def row(wire: str, v: int) -> NDArray[np.float32]:
        return np.concatenate([block(path, v) for path, weight in WEIGHTS.items() if weight.wire == wire], axis=-1)

    return {wire: np.stack([row(wire, v) for v in range(RANKS)], axis=-2) for wire in BFLOAT16}


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    def described(tree: dict[str, Any]) -> Any:
        return jax.tree.map(lambda array: (array.shape, bits(array)), tree)

    assert described(found) == described(expected)


@pytest.mark.parametrize(("shards", "lead"), [(1, (3,)), (2, ()), (4, (3,)), (8, ())])
def test_a_shard_packs_its_rows_of_the_blocks_and_unpacking_undoes_it(shards: int, lead: tuple[int, ...]) -> None:
    @jax.jit
    def there_and_back(tree: Any) -> tuple[Any, Any]:
        packed = PACK.pack(tree, dtypes=BFLOAT16)
        return packed, PACK.unpack(packed)

    whole = params(lead)
    blocks = {wire: np.split(rows, shards, axis=-2) for wire, rows in blocks_of(whole).items()}
    cut = {path: np.split(whole[path], shards, axis=weight.cut) for path, weight in WEIGHTS.items()}
    for shard in range(shards):
        tree = nested({path: parts[shard] for path, parts in cut.items()})
        packed, unpacked = there_and_back(tree)
        assert {wire: array.dtype for wire, array in packed.items()} == BFLOAT16
        assert_same(packed, {wire: parts[shard] for wire, parts in blocks.items()})
        assert_same(unpacked, tree)


@pytest.mark.parametrize(("devices", "how"), [(1, "a2a"), (4, "a2a"), (4, "native"), (4, "native-once")])
def test_gathered_weights_are_whole_and_their_gradient_is_the_sum_over_devices(devices: int, how: Reduction) -> None:
    """Each device's gradient of a weight w is w · (device + 1); blocks of the embedding and of norms stay fp32."""
    travel = Travel(devices=devices, compute_dtype="bfloat16", reduction=how)
    once = how == "native-once"
    whole = nested(params(()))
    mesh = make_mesh(jax.devices()[:devices])
    blocks = {wire: rows.astype(BFLOAT16[wire]) for wire, rows in blocks_of(params(())).items()}
    packed = jax.device_put(blocks, NamedSharding(mesh, PartitionSpec(AXIS)))

    def forward_and_back(wire: dict[str, Array]) -> tuple[Any, Any]:
        sink = jax.tree.map(lambda blocks: jnp.zeros((RANKS if once else len(blocks), blocks.shape[1])), wire)
        weights, back = jax.vjp(lambda sink: gather(travel, PACK, wire, sink), sink)
        grads = jax.tree.map(lambda w: w * (lax.axis_index(AXIS) + 1).astype(w.dtype), weights)
        return weights, reduce_once(back(grads)[0]) if once else back(grads)[0]

    specs = (PartitionSpec(), PartitionSpec(AXIS))
    weights, sums = jax.jit(
        jax.shard_map(forward_and_back, mesh=mesh, in_specs=PartitionSpec(AXIS), out_specs=specs, check_vma=False)
    )(packed)
    assert_same(weights, whole)
    assert (weights["embedding"].dtype, weights["head"].dtype) == (jnp.float32, jnp.bfloat16)
    for wire, rows in blocks.items():
        scaled = [(rows * np.float32(device + 1)).astype(rows.dtype) for device in range(devices)]
        expected = by_fixed_tree(np.stack(scaled).astype(np.float32))
        assert sums[wire].dtype == jnp.float32
        assert bits(sums[wire]) == bits(expected), wire


# --- parcels of one matrix each, as on TPUs ---

APART = Pack(entries=tuple(WEIGHTS.items()), blocks=RANKS, together=False)


def test_apart_each_matrix_keeps_its_columns_and_vectors_share_a_parcel() -> None:
    packed = APART.pack(nested(params(())), dtypes=BFLOAT16)
    shapes = {name: (array.shape, array.dtype.name) for name, array in packed.items()}
    assert shapes == {
        "float32": ((RANKS, 1), "float32"),
        "attention.output": ((RANKS, 2, 12), "bfloat16"),
        "embedding": ((RANKS, 3, 5), "float32"),
        "head": ((RANKS, 1, 3), "bfloat16"),
    }


@pytest.mark.parametrize(("shards", "lead"), [(1, ()), (4, (3,)), (8, ())])
def test_apart_a_shard_has_its_blocks_and_unpacking_undoes_it(shards: int, lead: tuple[int, ...]) -> None:
    whole = params(lead)
    all_blocks = APART.pack(nested(whole), dtypes=BFLOAT16)
    cut = {path: np.split(whole[path], shards, axis=weight.cut) for path, weight in WEIGHTS.items()}
    for shard in range(shards):
        tree = nested({path: parts[shard] for path, parts in cut.items()})
        packed = APART.pack(tree, dtypes=BFLOAT16)
        mine = {name: np.split(np.asarray(rows), shards, axis=len(lead))[shard] for name, rows in all_blocks.items()}
        assert_same(packed, mine)
        assert_same(APART.unpack(packed), tree)


def test_a_gradient_has_the_same_bits_whether_weights_travel_together_or_apart() -> None:
    travel = Travel(devices=4, compute_dtype="bfloat16")
    mesh = make_mesh(jax.devices()[:4])

    def gradient(pack: Pack) -> Any:
        packed = pack.pack(nested(params(())), dtypes=BFLOAT16)

        def back(wire: dict[str, Array]) -> dict[str, Array]:
            sink = jax.tree.map(lambda blocks: jnp.zeros(blocks.shape), wire)
            weights, pull = jax.vjp(lambda sink: gather(travel, pack, wire, sink), sink)
            return pull(jax.tree.map(lambda w: w * (lax.axis_index(AXIS) + 1).astype(w.dtype), weights))[0]

        spec = PartitionSpec(AXIS)
        mapped = jax.shard_map(back, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
        return pack.unpack(jax.jit(mapped)(jax.device_put(packed, NamedSharding(mesh, spec))))

    assert_same(gradient(APART), gradient(PACK))
