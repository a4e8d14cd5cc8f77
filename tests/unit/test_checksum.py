"""Checksums: the reference, the devices on every mesh, and the damages that they exist to catch."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import NamedSharding
from numpy.typing import NDArray

from orchestrator.contract.checksum import VECTORS, checksum, line, params_sha256, words
from trainer.parallel.checksum import array_words, token_words
from trainer.parallel.mesh import Ranks, cut_spec, make_mesh

Damage = Callable[[NDArray[Any]], NDArray[Any]]

MESHES = (1, 2, 4, 8)
SHAPE = (3, 8, 5)
"""Layers, the cut axis, another."""


def numpy_dtype(name: str) -> Any:
    return ml_dtypes.bfloat16 if name == "bfloat16" else np.dtype(name)


def sample(dtype: str) -> NDArray[Any]:
    """Distinct values, so that every swap is a change; element 0 is not zero."""
    values = np.random.default_rng(5).permutation(np.arange(1, np.prod(SHAPE) + 1)).reshape(SHAPE)
    return (values if dtype in ("int32", "uint32") else values / 64 - 0.5).astype(numpy_dtype(dtype))


def on_devices(array: NDArray[Any], *, cut: int | None, devices: int) -> tuple[int, int]:
    """The words that a mesh computes."""
    mesh = make_mesh(jax.devices()[:devices])
    spec = cut_spec(array.ndim, cut)
    placed = jax.device_put(array, NamedSharding(mesh, spec))
    mapped = jax.shard_map(
        lambda part: array_words(part, cut=cut), mesh=mesh, in_specs=spec, out_specs=cut_spec(1, None), check_vma=False
    )
    first, second = np.asarray(jax.jit(mapped)(placed))
    return int(first), int(second)


def changed(array: NDArray[Any], index: Any, value: Any) -> NDArray[Any]:
    damaged = array.copy()
    damaged[index] = value
    return damaged


def swapped(array: NDArray[Any], one: Any, other: Any) -> NDArray[Any]:
    damaged = array.copy()
    damaged[one], damaged[other] = array[other].copy(), array[one].copy()
    return damaged


DAMAGES: dict[str, Damage] = {
    "sign of one element": lambda a: changed(a, (1, 3, 2), -a[1, 3, 2]),
    "x and -x swapped": lambda a: swapped(a, (0, 0, 1), (2, 7, 4)),
    "everything negated": lambda a: -a,
    "element 0": lambda a: changed(a, (0, 0, 0), 0),
    "column 0 zeroed": lambda a: changed(a, (Ellipsis, 0), 0),
    "two layers swapped": lambda a: swapped(a, 0, 2),
    "two rows swapped": lambda a: swapped(a, (1, 0), (1, 6)),
    "two axes' order": lambda a: np.ascontiguousarray(a.transpose(0, 2, 1)).reshape(a.shape),
}


@pytest.mark.parametrize(("dtype", "values", "expected"), VECTORS)
def test_the_reference_has_the_words_of_the_contract(dtype: str, values: Any, expected: str) -> None:
    assert words(checksum(np.array(values, numpy_dtype(dtype)))) == expected


@pytest.mark.parametrize(("dtype", "values", "expected"), VECTORS)
def test_a_device_has_the_words_of_the_contract(dtype: str, values: Any, expected: str) -> None:
    assert words(on_devices(np.array(values, numpy_dtype(dtype)), cut=None, devices=1)) == expected


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "uint32"])
@pytest.mark.parametrize("devices", MESHES)
def test_every_mesh_has_the_words_of_the_reference(devices: int, dtype: str) -> None:
    array = sample(dtype)
    assert on_devices(array, cut=-2, devices=devices) == checksum(array)


@pytest.mark.parametrize("shape", [(2, 8, 5), (8, 43), (40,), (8, 0)])
def test_words_do_not_depend_on_the_blocks_in_which_elements_are_added(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of rows or of columns, with a rest."""
    monkeypatch.setattr("trainer.parallel.checksum.BLOCK", 16)
    array = np.random.default_rng(3).normal(size=shape).astype(np.float32)
    assert on_devices(array, cut=-min(2, array.ndim), devices=2) == checksum(array)


@pytest.mark.parametrize("devices", MESHES)
def test_every_mesh_sees_every_damage_and_agrees_with_the_reference(devices: int) -> None:
    whole = sample("float32")
    whole = changed(whole, (2, 7, 4), -whole[0, 0, 1])
    seen = {on_devices(whole, cut=-2, devices=devices)}
    for name, damage in DAMAGES.items():
        damaged = damage(whole)
        found = on_devices(damaged, cut=-2, devices=devices)
        assert found == checksum(damaged), name
        assert found not in seen, f"{name} is not seen on {devices} devices"
        seen.add(found)


def test_thousands_of_sign_flips_and_opposite_swaps_all_change_both_words() -> None:
    numbers = np.random.default_rng(9)
    whole = numbers.normal(size=(64, 32)).astype(np.float32)
    before = checksum(whole)
    for row, column, other in numbers.integers(0, 32, (1000, 3)):
        flipped = changed(whole, (row, column), -whole[row, column])
        opposite = changed(whole, (row + 32, other), -whole[row, column])
        swap = swapped(opposite, (row, column), (row + 32, other))
        assert not set(checksum(flipped)) & set(before), f"sign flip at {row}, {column}"
        assert not set(checksum(swap)) & set(checksum(opposite)), f"swap of {row}, {column} and {row + 32}, {other}"


def test_the_same_bits_in_another_dtype_or_shape_make_another_line() -> None:
    bits = np.arange(8, dtype=np.uint32)
    lines = {
        line("params/w", dtype=array.dtype.name, shape=array.shape, checksum=checksum(array))
        for array in (bits, bits.view(np.int32), bits.view(np.float32), bits.reshape(8, 1), bits.reshape(1, 8))
    }
    assert len(lines) == 5


def test_the_parameters_hash_has_no_order_and_sees_a_renamed_path() -> None:
    lines = [line(f"params/{name}", dtype="float32", shape=(2,), checksum=(1, 2)) for name in "ab"]
    assert params_sha256(lines) == params_sha256(reversed(lines))
    assert params_sha256(lines) != params_sha256([lines[0], lines[1].replace("params/b", "params/c")])


def test_a_dtype_without_a_checksum_is_refused() -> None:
    with pytest.raises(ValueError, match="float64"):
        checksum(np.zeros(3))


@pytest.mark.parametrize("devices", [1, 4])
def test_token_words_are_those_of_the_batch_by_rank_row_and_position(devices: int) -> None:
    """Ranks are dealt to devices like cards: v = i · P + d; a swap of two ranks' rows is seen."""
    ranks, rows, length = 8, 2, 6
    batch = np.random.default_rng(1).integers(0, 99, (ranks, rows, length)).astype(np.uint32)
    dealt = Ranks(virtual=ranks, devices=devices)
    mesh = make_mesh(jax.devices()[:devices])

    def found(tokens: NDArray[np.uint32]) -> tuple[int, ...]:
        by_step = tokens.reshape(dealt.micro_steps, devices * rows, length)
        spec = cut_spec(3, -2)
        mapped = jax.shard_map(
            lambda part: token_words(part, devices=devices),
            mesh=mesh,
            in_specs=spec,
            out_specs=cut_spec(1, None),
            check_vma=False,
        )
        placed = jax.device_put(jnp.asarray(by_step), NamedSharding(mesh, spec))
        return tuple(int(word) for word in np.asarray(jax.jit(mapped)(placed)))

    assert found(batch) == checksum(batch)
    assert found(swapped(batch, 1, 5)) != checksum(batch)
    assert found(swapped(batch, (3, 0), (3, 1))) != checksum(batch)
