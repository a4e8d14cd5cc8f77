"""Written orders: the same as computed ones, read by range, and refused when they are others."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from orchestrator.cli.data import OrdersWritten
from orchestrator.cli.errors import BadInput
from orchestrator.cli.token_files import resolve
from orchestrator.contract.base import ContractError
from orchestrator.contract.recipe import Recipe, TokenFile
from orchestrator.order import global_order
from orchestrator.order.global_order import GlobalOrder
from tests.local.attempts import MODEL, stage_of, write_tokens
from tests.unit.cli_folder import document, error_line, everstep


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    stage = stage_of(write_tokens(tmp_path / "tokens.u32"), steps=40)
    return Recipe(name="small", model=MODEL, stages=(stage,))


def with_orders(recipe: Recipe, *orders: TokenFile) -> Recipe:
    stage = recipe.stages[0]
    return recipe.model_copy(
        update={"stages": (stage.model_copy(update={"data": stage.data.model_copy(update={"orders": orders})}),)}
    )


def written(recipe: Recipe, data_root: Path, *options: str) -> tuple[TokenFile, ...]:
    """As ``data index`` says that the recipe must have them."""
    (data_root / "recipe.yaml").write_text(json.dumps(recipe.model_dump(mode="json")))
    found = document(
        everstep("data", "index", str(data_root / "recipe.yaml"), "--data-root", str(data_root), "--json", *options)
    )
    assert isinstance(found, OrdersWritten)
    return found.orders["pretrain"]


def test_batches_of_written_orders_are_those_that_would_be_computed(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = written(recipe, tmp_path, "--epochs", "2")
    resolved = resolve(with_orders(recipe, *orders), data_root=tmp_path).stages[0]
    computed, read = GlobalOrder(resolved), GlobalOrder(resolved, data_root=tmp_path)
    epoch = computed.batches_an_epoch
    wanted = {index: computed.batch(index).tolist() for index in (0, 1, epoch - 1, epoch, 2 * epoch - 1, 2 * epoch)}
    asked: list[int] = []

    def permutation(instances: int, *, seed: int) -> Any:
        asked.append(seed)
        return np.arange(instances, dtype=np.uint32)

    monkeypatch.setattr(global_order, "permutation", permutation)
    found = {index: read.batch(index).tolist() for index in wanted}
    assert asked == [recipe.stages[0].data.seed + 2]
    del found[2 * epoch], wanted[2 * epoch]
    assert found == wanted


def test_what_is_printed_can_be_put_into_the_recipe(recipe: Recipe, tmp_path: Path) -> None:
    orders = written(recipe, tmp_path)
    printed = everstep("data", "index", str(tmp_path / "recipe.yaml"), "--data-root", str(tmp_path)).stdout
    assert tuple(TokenFile(**file) for file in yaml.safe_load(printed)["orders"]) == orders
    assert [path.name for path in (tmp_path / "orders").iterdir()] == ["pretrain-256-7.u32"]


def test_orders_that_the_recipe_names_already_may_be_missing_or_others(recipe: Recipe, tmp_path: Path) -> None:
    (order,) = written(recipe, tmp_path)
    (tmp_path / order.path).unlink()
    (file,) = recipe.stages[0].data.files
    (tmp_path / file.path).write_bytes(b"\0" * 4 * 16 * 8)
    (shorter,) = written(with_orders(recipe, order), tmp_path)
    assert shorter.path == "orders/pretrain-8-7.u32"


def test_another_order_is_refused(recipe: Recipe, tmp_path: Path) -> None:
    (order,) = written(recipe, tmp_path)
    path = tmp_path / order.path
    right = path.read_bytes()
    path.write_bytes(right[4:8] + right[:4] + right[8:])
    bare = TokenFile(path=order.path)
    with pytest.raises(BadInput, match=r"is not the order of epoch 0 of stage pretrain; write it again"):
        resolve(with_orders(recipe, bare), data_root=tmp_path)
    path.write_bytes(right[:-4])
    with pytest.raises(BadInput, match=r"is not the order of epoch 0"):
        resolve(with_orders(recipe, bare), data_root=tmp_path)
    path.write_bytes(right)
    frozen = resolve(with_orders(recipe, bare), data_root=tmp_path).stages[0]
    assert frozen.data.orders == (order,)
    path.write_bytes(right[:-4])
    with pytest.raises(ContractError, match=r"holds 255 tokens, the recipe says 256"):
        GlobalOrder(frozen, data_root=tmp_path)
    path.unlink()
    with pytest.raises(ContractError, match=r"pretrain-256-7\.u32: No such file or directory"):
        GlobalOrder(frozen, data_root=tmp_path)


def test_an_index_of_what_is_not_there_or_too_little(recipe: Recipe, tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe.model_dump(mode="json")))
    line = ("data", "index", str(tmp_path / "recipe.yaml"), "--data-root", str(tmp_path))
    (tmp_path / "tokens.u32").write_bytes(b"\0" * 4 * 16)
    assert "hold 1 instances of 16 tokens, and one batch takes 4" in error_line(everstep(*line))
    (tmp_path / "tokens.u32").unlink()
    assert "tokens.u32: No such file or directory" in error_line(everstep(*line))
    assert not (tmp_path / "orders").exists()
