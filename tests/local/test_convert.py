"""A real trainer that starts from Hugging Face's weights, and what is exported of its checkpoints."""

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file

from orchestrator.cli.token_files import resolve
from orchestrator.contract.attempt import ExitCode
from orchestrator.contract.base import ContractError
from orchestrator.contract.recipe import InitialWeights, Model
from tests.local.attempts import MODEL, REAL, VOCABULARY, SmallRun, small_recipe, stage_of, write_tokens
from tests.unit.test_convert import hugging_face
from trainer.convert.export import export

PADDED: Model = MODEL.model_copy(update={"n_kv_heads": 2, "padded_vocab_size": VOCABULARY + 8})


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> SmallRun:
    """Of two steps, on two devices."""
    folder = tmp_path_factory.mktemp("run")
    hugging_face(folder / "weights", files=2, model=PADDED)
    recipe = small_recipe(stage_of(write_tokens(folder / "tokens.u32"), steps=2)).model_copy(
        update={"model": PADDED, "initial": InitialWeights(folder="weights")}
    )
    run = SmallRun(folder, resolve(recipe, data_root=folder))
    attempt = run.launch(devices=2, cold=REAL)
    assert attempt.wait() == [ExitCode.LAST_STEP_COMMITTED], attempt.output()
    return run


@pytest.mark.parametrize("file_bytes", [1 << 30, 2000])
def test_weights_come_out_of_the_first_checkpoint_as_they_went_in(
    run: SmallRun, tmp_path: Path, file_bytes: int
) -> None:
    last, first = run.store.lineage(run.head.manifest)
    counts: list[int] = []
    names = export(run.store, first, tmp_path / "out", file_bytes=file_bytes, progress=counts.append)
    assert (len(names) > 3) == (file_bytes == 2000)
    came_out = {key: value for name in names for key, value in load_file(tmp_path / "out" / name).items()}
    went_in = {
        key: value for file in (run.folder / "weights").glob("*.safetensors") for key, value in load_file(file).items()
    }
    assert came_out.keys() == went_in.keys()
    for key, value in went_in.items():
        assert came_out[key].dtype == value.dtype == ml_dtypes.bfloat16
        assert came_out[key].tobytes() == value.tobytes(), key
    assert sum(counts) == sum(value.nbytes for value in went_in.values())
    assert last.next_step == 2


def test_what_was_trained_is_exported_in_fp32_too(run: SmallRun, tmp_path: Path) -> None:
    last, first = run.store.lineage(run.head.manifest)
    for manifest, dtype in ((first, "float32"), (last, "float32")):
        export(run.store, manifest, tmp_path / manifest.name, dtype=dtype)  # type: ignore[arg-type]
    before, after = (load_file(tmp_path / manifest.name / "model.safetensors") for manifest in (first, last))
    assert all(value.dtype == np.float32 for value in after.values())
    assert all((before[key] != value).any() for key, value in after.items())


def test_nothing_is_written_over_and_nothing_is_left_of_what_fails(
    run: SmallRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = run.store.lineage(run.head.manifest)[0]
    with pytest.raises(ContractError, match="exists; name a new folder"):
        export(run.store, last, tmp_path)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("trainer.convert.export.save_file", full)
    with pytest.raises(OSError, match="No space left"):
        export(run.store, last, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_that_is_damaged_is_not_exported(run: SmallRun, tmp_path: Path) -> None:
    last = run.store.lineage(run.head.manifest)[0]
    name = max(last.files, key=lambda name: last.files[name].size)
    path = Path(run.store.checkpoint_address(last.folder), name)
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    try:
        with pytest.raises(ContractError, match="is not whole: "):
            export(run.store, last, tmp_path / "out")
    finally:
        path.write_bytes(data)
