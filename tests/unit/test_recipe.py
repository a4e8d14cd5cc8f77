"""Recipes that come with Everstep, what their pages say, and mixes."""

from pathlib import Path

import pytest

from orchestrator.cli.errors import BadInput
from orchestrator.cli.recipe import RecipePage, page_of
from orchestrator.cli.token_files import resolve, with_mixes
from orchestrator.contract.base import ContractError
from orchestrator.contract.flops import flops_a_token
from orchestrator.contract.recipe import Data, Model, Recipe
from orchestrator.contract.shipped import shipped
from tests.local.attempts import MODEL, stage_of, write_tokens
from tests.unit.cli_folder import document, error_line, everstep
from tests.unit.run_documents import recipe_of

SMALL = Model(
    vocab_size=8, d_model=4, n_layers=2, global_every=2, n_heads=2, n_kv_heads=1, head_dim=2, d_ff=6, sliding_window=3
)


# ---- pages
@pytest.mark.parametrize("name", sorted(shipped()))
def test_a_shipped_recipe_is_read_and_has_a_page(name: str) -> None:
    found = document(everstep("recipe", name, "--json"))
    assert isinstance(found, RecipePage)
    assert found.recipe == name
    assert shipped()[name].is_file()
    printed = everstep("recipe", name)
    assert printed.exit_code == 0
    assert f"{found.parameters:,} parameters" in printed.stdout


def test_the_published_run() -> None:
    found = document(everstep("recipe", "olmo3-7b", "--at", "300000", "--json"))
    assert isinstance(found, RecipePage)
    pretrain, midtrain = found.stages
    assert found.parameters == 7_298_617_344
    assert (pretrain.steps, pretrain.tokens) == (1_413_814, 5_929_965_715_456)
    assert (midtrain.steps, midtrain.tokens) == (47_684, 100_000_595_968)
    assert [rate.update for rate in pretrain.rates] == [1, 2000, 300_000, 597_046, 1_413_814]
    assert pretrain.rates[-1].learning_rate == pytest.approx(3.93e-5, rel=1e-3)


def test_sixteen_heads_of_256_have_the_parameters_of_thirty_two_of_128() -> None:
    one, other = (document(everstep("recipe", name, "--json")) for name in ("olmo3-7b", "olmo3-7b-16x256"))
    assert isinstance(one, RecipePage)
    assert isinstance(other, RecipePage)
    assert (one.parameters, one.flops) == (other.parameters, other.flops)


def test_flops_count_every_product_and_what_each_layer_sees() -> None:
    """By hand: the products of one token with matrices, and with every key and value that it sees."""
    length = 5
    products = sum(2 * rows * columns for rows, columns in [(4, 4), (4, 2), (4, 2), (4, 4), (4, 6), (4, 6), (6, 4)])
    seen = [sum(min(position + 1, window) for position in range(length)) / length for window in (3, length)]
    attention = sum(2 * 2 * 4 * positions for positions in seen)
    forward = SMALL.n_layers * products + attention + 2 * SMALL.d_model * SMALL.vocab_size
    assert flops_a_token(SMALL, length=length) == pytest.approx(3 * forward)
    assert flops_a_token(SMALL.model_copy(update={"sliding_window": 99}), length=2) < 3 * forward


def test_a_page_of_a_file_and_of_nothing(tmp_path: Path) -> None:
    assert everstep("recipe").stdout.splitlines()[0].split()[0] in shipped()
    copy = tmp_path / "recipe.yaml"
    copy.write_text(everstep("recipe", "tiny", "--yaml").stdout)
    assert everstep("recipe", str(copy)).stdout == everstep("recipe", "tiny").stdout
    assert "tyni: neither a file nor one of olmo3-" in error_line(everstep("recipe", "tyni"))


def test_updates_beyond_a_stage_have_no_rate() -> None:
    page = page_of(recipe_of({"pretrain": 10, "anneal": 4}), at=(7,))
    assert [[rate.update for rate in stage.rates] for stage in page.stages] == [[1, 7, 10], [1, 4]]


# ---- mixes
def mixed(folder: Path, lines: str, *, tokenizer: str = "") -> Recipe:
    """A recipe whose files are those of a mix."""
    (folder / "some.mix").write_text(lines)
    stage = stage_of(write_tokens(folder / "a.u32"))
    stage = stage.model_copy(update={"data": Data(mix="some.mix", tokenizer=tokenizer)})
    return Recipe(name="mixed", model=MODEL, stages=(stage,))


def test_a_mix_becomes_files_in_its_order(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / "dolma2" / name).mkdir(parents=True)
        write_tokens(tmp_path / "dolma2" / name / "0.npy")
    recipe = mixed(tmp_path, "# two\nweb,{TOKENIZER}/b/0.npy\n\ncode,{TOKENIZER}/a/0.npy\n", tokenizer="dolma2")
    resolved = resolve(recipe, data_root=tmp_path)
    assert [file.path for file in resolved.stages[0].data.files] == ["dolma2/b/0.npy", "dolma2/a/0.npy"]
    assert resolved.resolved
    assert not recipe.resolved
    assert resolve(resolved, data_root=tmp_path) == resolved


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ("web", "some.mix, line 1: 'web' is not label,path"),
        ("web,../a.u32", "line 1: 'web,../a.u32' is not label,path with a path below data_root"),
        ("web,a.u32\nweb,{TOKENIZER}/a.u32", "line 2: "),
        ("web,{TOKENIZER}/a.u32", "; name the recipe's tokenizer"),
        ("web," + "a" * 1025, "line 1: 'web,aaa"),
        ("", "names no token file"),
        ("web,gone.u32", "gone.u32: "),
    ],
)
def test_a_wrong_line_of_a_mix_is_named(tmp_path: Path, lines: str, says: str) -> None:
    with pytest.raises((BadInput, ContractError)) as caught:
        resolve(mixed(tmp_path, lines), data_root=tmp_path)
    assert says in str(caught.value)


def test_a_mix_that_is_missing_or_no_text_is_named(tmp_path: Path) -> None:
    recipe = mixed(tmp_path, "")
    (tmp_path / "some.mix").write_bytes(b"\xff\xfe")
    with pytest.raises(BadInput, match=r"some\.mix: not a text file"):
        with_mixes(recipe, data_root=tmp_path)
    (tmp_path / "some.mix").unlink()
    with pytest.raises(BadInput, match=r"some\.mix: No such file or directory; correct data_root"):
        with_mixes(recipe, data_root=tmp_path)


def test_data_names_files_or_a_mix() -> None:
    with pytest.raises(ValueError, match="name at least one token file, or a mix"):
        Data()
