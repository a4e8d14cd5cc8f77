"""Hugging Face in and out: configurations, any part of any array, and every wrong folder by name."""

import itertools
import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file, save_file

from orchestrator.cli.errors import BadInput
from orchestrator.cli.token_files import resolve
from orchestrator.contract.base import ContractError
from orchestrator.contract.recipe import InitialWeights, Model, Recipe, WeightFile, Yarn
from orchestrator.contract.run import LeafPlanCheck
from orchestrator.store.local import LocalStore
from tests.local.attempts import stage_of, write_tokens
from tests.reference.weights import weights
from tests.unit.cli_folder import error_line, everstep
from tests.unit.run_factory import RunFactory
from trainer.check import problems
from trainer.convert.config import config_of, model_of, read_config
from trainer.convert.layout import pieces
from trainer.convert.weights import HuggingFaceWeights, verify_files
from trainer.model.olmo3 import skeleton
from trainer.parallel.state_checksums import by_path

MODEL = Model(
    vocab_size=20,
    padded_vocab_size=24,
    d_model=8,
    n_layers=4,
    global_every=2,
    n_heads=4,
    n_kv_heads=2,
    head_dim=4,
    d_ff=12,
    sliding_window=3,
)
YARN = Yarn(factor=4, original_length=64)


def hugging_face(folder: Path, *, files: int = 1, model: Model = MODEL, **config: Any) -> Path:
    """A folder as Hugging Face writes one, in bf16."""
    described = {**config_of(model, context=64, dtype="bfloat16"), **config}
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(described))
    values = {name: value.astype(ml_dtypes.bfloat16) for name, value in weights(described).items()}
    if files == 1:
        save_file(values, folder / "model.safetensors")
        return folder
    names = sorted(values)
    where = {name: f"model-{index % files + 1:05d}-of-{files:05d}.safetensors" for index, name in enumerate(names)}
    for file in sorted(set(where.values())):
        save_file({name: values[name] for name in names if where[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    return folder


# ---- configurations
@pytest.mark.parametrize("scaling", [None, YARN, YARN.model_copy(update={"layers": "all", "attention_factor": 1.5})])
def test_a_model_is_the_same_after_it_was_a_configuration(scaling: Yarn | None) -> None:
    model = MODEL.model_copy(update={"rope_scaling": scaling, "padded_vocab_size": None})
    assert model_of(config_of(model, context=64, dtype="float32"), where="config.json") == model


def test_a_configuration_from_before_parameters_of_each_kind_of_layer() -> None:
    config = config_of(MODEL, context=64, dtype="bfloat16")
    del config["rope_parameters"], config["layer_types"], config["head_dim"]
    stretched = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    old = {**config, "hidden_size": 16, "rope_theta": 10_000, "rope_scaling": stretched}
    found = model_of(old, where="config.json")
    assert (found.rope_theta, found.rope_scaling, found.global_every, found.head_dim) == (10_000.0, YARN, 4, 4)
    flat = {**config, "hidden_size": 16, "rope_parameters": {**stretched, "rope_theta": 10_000}}
    assert model_of(flat, where="config.json") == found


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"model_type": "llama"}, "model_type is 'llama'; an Olmo 3 has 'olmo3'"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings is True; an Olmo 3 has False"),
        ({"layer_types": ["full_attention", "sliding_attention"] * 2}, "layer_types is not every n-th layer"),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 2.0}}},
            "rope_type linear and default",
        ),
        ({"hidden_size": 0}, "d_model: Input should be greater than 0"),
        (
            {"rope_parameters": {"full_attention": {"rope_theta": 1.0}, "sliding_attention": {"rope_theta": 2.0}}},
            "diff",
        ),
    ],
)
def test_a_configuration_of_something_else_is_refused(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    folder = hugging_face(tmp_path / "hf", **change) if "hidden_size" not in change else hugging_face(tmp_path / "hf")
    described = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**described, **change}))
    with pytest.raises(ContractError, match=r"hf/config\.json: ") as caught:
        read_config(folder)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"), [("{", "no JSON"), ("[]", "not a configuration"), ("{}", "vocab_size is missing")]
)
def test_a_configuration_that_is_none(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ContractError, match=says):
        read_config(tmp_path)


# ---- weights
def test_every_tensor_has_one_place_and_what_is_left_is_padding() -> None:
    arrays = {path: np.zeros(weight.shape, int) for path, weight in by_path(skeleton(MODEL).weights).items()}
    for piece in pieces(MODEL):
        piece.out_of(arrays[piece.path])[...] += 1
    assert {path: sorted(set(array.ravel())) for path, array in arrays.items()} == {
        path: [0, 1] if path in ("embedding/table", "head/kernel") else [1] for path in arrays
    }
    assert arrays["embedding/table"][MODEL.vocab_size :].max() == 0
    assert arrays["head/kernel"][:, MODEL.vocab_size :].max() == 0


@pytest.mark.parametrize("files", [1, 3])
def test_any_part_of_an_array_is_that_part_of_the_whole(tmp_path: Path, files: int) -> None:
    folder = hugging_face(tmp_path / "hf", files=files)
    values = weights(json.loads((folder / "config.json").read_text()))
    with HuggingFaceWeights(folder, MODEL) as opened:
        for path, weight in by_path(skeleton(MODEL).weights).items():
            whole = opened.read(path, tuple(slice(None) for _ in weight.shape), weight.shape)
            assert whole.shape == weight.shape
            cuts = [[slice(0, n // 2), slice(n // 2, n), slice(1, max(2, n - 1))] for n in weight.shape]
            for index in itertools.product(*cuts):
                assert np.array_equal(opened.read(path, index, weight.shape), whole[index]), (path, index)
            for piece in (piece for piece in pieces(MODEL) if piece.path == path):
                stored = values[piece.tensor].astype(ml_dtypes.bfloat16).astype(np.float32)
                assert np.array_equal(piece.out_of(whole), stored), piece.tensor


def damage(folder: Path, what: str) -> None:
    file = folder / "model.safetensors"
    values = load_file(file)
    if what == "missing tensor":
        del values["model.layers.2.mlp.up_proj.weight"]
    elif what == "another shape":
        values["lm_head.weight"] = values["lm_head.weight"][1:].copy()
    elif what == "one too many":
        values["model.layers.0.self_attn.q_proj.bias"] = np.zeros(16, np.float32)
    elif what == "integers":
        values["model.norm.weight"] = np.ones(8, np.int32)
    save_file(values, file)
    if what == "cut off":
        file.write_bytes(file.read_bytes()[:-10])
    elif what == "no file":
        file.unlink()
    elif what == "missing part":
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "model-1.safetensors"}}))
    elif what == "elsewhere":
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../m.safetensors"}}))
    elif what == "no index":
        (folder / "model.safetensors.index.json").write_text("[1]")


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("missing tensor", "tensor model.layers.2.mlp.up_proj.weight is missing"),
        ("another shape", "tensor lm_head.weight is [19, 8]; the recipe's model has [20, 8]"),
        ("one too many", "tensor model.layers.0.self_attn.q_proj.bias is no part of an Olmo 3"),
        ("integers", "tensor model.norm.weight is I32; known are BF16, F16, F32"),
        ("cut off", "model.safetensors: not a whole safetensors file"),
        ("no file", "neither model.safetensors nor model.safetensors.index.json is there"),
        ("missing part", "model-1.safetensors is missing, which model.safetensors.index.json names"),
        ("elsewhere", "../m.safetensors is missing"),
        ("no index", "model.safetensors.index.json: no list of weight files"),
    ],
)
def test_a_wrong_or_incomplete_folder_is_named(tmp_path: Path, what: str, says: str) -> None:
    folder = hugging_face(tmp_path / "hf")
    damage(folder, what)
    with pytest.raises(ContractError) as caught:
        HuggingFaceWeights(folder, MODEL)
    assert str(caught.value).startswith(str(folder))
    assert says in str(caught.value)


def test_weights_that_were_changed_since_the_submit_are_named(tmp_path: Path) -> None:
    folder = hugging_face(tmp_path / "hf")
    with pytest.raises(
        ContractError, match=r"config\.json: its SHA-256 is [0-9a-f]{12}…, the recipe says 111111111111…"
    ):
        verify_files(folder, [WeightFile(name="config.json", sha256="1" * 64)])
    with pytest.raises(ContractError, match=r"gone: No such file or directory; restore the file"):
        verify_files(folder, [WeightFile(name="gone", sha256="1" * 64)])


# ---- commands
def test_a_folder_s_model_is_printed_as_a_recipe_says_it(tmp_path: Path) -> None:
    folder = hugging_face(tmp_path / "hf")
    result = everstep("convert", "model", str(folder))
    assert result.exit_code == 0, result.stderr
    printed = Model(**yaml.safe_load(result.stdout)["model"])
    assert printed == MODEL.model_copy(update={"padded_vocab_size": None})
    damage(folder, "missing tensor")
    assert "is missing; the download is incomplete" in error_line(everstep("convert", "model", str(folder)))


def test_what_cannot_be_exported_is_named(tmp_path: Path) -> None:
    run = RunFactory(steps=12, objects=LocalStore(tmp_path / "store"))
    store, out = ["--store", str(tmp_path / "store")], str(tmp_path / "out")
    assert error_line(everstep("convert", "export", "demo", out, *store)) == "run demo has no checkpoint yet"
    run.launch("full").train(4).commit()
    wrong_step = everstep("convert", "export", "demo", out, "--step", "3", *store)
    assert error_line(wrong_step) == "run demo has no checkpoint of step 3; there are 4, 0"
    assert "no fp32 array params/" in error_line(everstep("convert", "export", "demo", out, *store))
    assert "no run other in" in error_line(everstep("convert", "export", "other", out, *store))
    assert not Path(out).exists()


def starting_from(folder: str, data_root: Path) -> Recipe:
    """A recipe with these initial weights, and its token file."""
    stage = stage_of(write_tokens(data_root / "tokens.u32", vocabulary=MODEL.vocab_size))
    return Recipe(name="small", model=MODEL, stages=(stage,), initial=InitialWeights(folder=folder))


def test_a_submit_with_weights_freezes_the_hashes_of_all_its_files(tmp_path: Path) -> None:
    folder = hugging_face(tmp_path / "hf")
    recipe = starting_from("hf", tmp_path)
    initial = resolve(recipe, data_root=tmp_path).initial
    assert initial is not None
    assert [file.name for file in initial.files] == ["config.json", "model.safetensors"]
    verify_files(folder, initial.files)
    frozen = recipe.model_copy(update={"initial": initial})
    assert resolve(frozen, data_root=tmp_path).initial == initial
    (folder / "config.json").write_text("{}")
    with pytest.raises(BadInput, match=r"hf/config\.json: not as the recipe says"):
        resolve(frozen, data_root=tmp_path)
    (folder / "config.json").unlink()
    (folder / "model.safetensors").unlink()
    (folder / "a\nb").touch()
    with pytest.raises(BadInput, match="take it out of the folder"):
        resolve(recipe, data_root=tmp_path)
    (folder / "a\nb").unlink()
    with pytest.raises(BadInput, match="no files are there; correct the recipe"):
        resolve(recipe, data_root=tmp_path)


def test_the_trainer_says_at_submit_what_is_wrong_with_weights(tmp_path: Path) -> None:
    hugging_face(tmp_path / "hf")
    recipe = starting_from("hf", tmp_path)
    question = LeafPlanCheck(recipe=recipe, plans=(), stages={}, data_root=str(tmp_path))
    assert problems(question) == []
    for change in ({"n_heads": 8, "n_kv_heads": 4, "head_dim": 2}, {"sliding_window": 4}, {"rope_theta": 1e4}):
        model = MODEL.model_copy(update=change)
        other = question.model_copy(update={"recipe": recipe.model_copy(update={"model": model})})
        fields = [line.partition("config.json has ")[2].split()[0] for line in problems(other)]
        assert fields == [field for field in change if field != "rope_theta"]
    damage(tmp_path / "hf", "another shape")
    assert [line.partition(": ")[0] for line in problems(question)] == ["initial"]
    damage(tmp_path / "hf", "no file")
    assert "neither model.safetensors nor" in problems(question)[0]
