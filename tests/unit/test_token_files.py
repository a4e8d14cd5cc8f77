"""Token files: what is read is what the recipe names, or a line says what is wrong."""

from pathlib import Path

import numpy as np
import pytest

from orchestrator.contract.base import ContractError, sha256_of
from orchestrator.contract.recipe import Data, Schedule, Stage, TokenFile
from orchestrator.order.global_order import GlobalOrder
from trainer.data import token_files
from trainer.data.token_files import StageBatches


def stage_of(*files: TokenFile, length: int = 4) -> Stage:
    return Stage(
        name="pretrain",
        steps=10,
        virtual_ranks=2,
        sequences_per_rank=2,
        sequence_length=length,
        data=Data(files=files, seed=5),
        schedule=Schedule(peak=1e-3),
    )


def written(folder: Path, name: str, tokens: list[int]) -> TokenFile:
    np.array(tokens, "<u4").tofile(folder / name)
    return TokenFile(path=name, sha256=sha256_of((folder / name).read_bytes()), tokens=len(tokens))


def test_rows_hold_the_tokens_of_their_instances(tmp_path: Path) -> None:
    files = (written(tmp_path, "a.u32", list(range(18))), written(tmp_path, "b.u32", list(range(100, 123))))
    stage = stage_of(*files)
    batches, order = StageBatches(stage, vocab_size=128, data_root=tmp_path), GlobalOrder(stage)
    for index in range(order.batches_an_epoch + 1):
        rows = np.array([3, 0, 2])
        expected = []
        for instance in order.batch(index)[rows]:
            place = order.place(int(instance))
            start = place.token + (100 if place.file else 0)
            expected.append(list(range(start, start + 4)))
        assert batches.read(index, rows).tolist() == expected


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "0 bytes is not a whole, positive number of uint32 tokens"),
        (b"\0" * 41, "41 bytes is not a whole, positive number of uint32 tokens"),
        (b"\0" * 44, "holds 11 tokens, the recipe says 40"),
    ],
)
def test_file_of_another_length_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    file = written(tmp_path, "a.u32", [1] * 40)
    (tmp_path / "a.u32").write_bytes(content)
    with pytest.raises(ContractError, match=message) as caught:
        StageBatches(stage_of(file), vocab_size=8, data_root=tmp_path)
    assert str(tmp_path / "a.u32") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_file_is_refused(tmp_path: Path) -> None:
    file = TokenFile(path="gone.u32", tokens=40)
    with pytest.raises(ContractError, match=r"gone\.u32: No such file or directory; correct data_root"):
        StageBatches(stage_of(file), vocab_size=8, data_root=tmp_path)


def test_changed_bytes_are_found_by_their_hash(tmp_path: Path) -> None:
    file = written(tmp_path, "a.u32", [1] * 40)
    StageBatches(stage_of(file), vocab_size=8, data_root=tmp_path).verify_hashes(turn=1)
    written(tmp_path, "a.u32", [1] * 39 + [2])
    with pytest.raises(ContractError, match="its SHA-256 is"):
        StageBatches(stage_of(file), vocab_size=8, data_root=tmp_path).verify_hashes(turn=1)


def test_a_start_hashes_as_much_as_it_has_time_for_and_begins_with_another_file_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = tuple(written(tmp_path, f"{name}.u32", [1] * 40) for name in "abc")
    batches = StageBatches(stage_of(*files), vocab_size=8, data_root=tmp_path)
    written(tmp_path, "c.u32", [2] * 40)
    monkeypatch.setattr(token_files, "HASHED_IN_ALL", 2 * 40 * 4)
    batches.verify_hashes(turn=3)  # a and b
    for turn in (1, 2):
        with pytest.raises(ContractError, match=r"c\.u32: its SHA-256 is"):
            batches.verify_hashes(turn=turn)
    monkeypatch.setattr(token_files, "HASHED_BYTES", 40 * 4 - 1)
    batches.verify_hashes(turn=2)


def test_token_beyond_the_vocabulary_is_named_with_its_place(tmp_path: Path) -> None:
    order = GlobalOrder(stage_of(written(tmp_path, "a.u32", [1] * 40)))
    bad = int(order.batch(0)[2]) * 4 + 3
    file = written(tmp_path, "a.u32", [1] * bad + [8] + [1] * (39 - bad))
    batches = StageBatches(stage_of(file), vocab_size=8, data_root=tmp_path)
    batches.read(0, np.array([0, 1, 3]))
    with pytest.raises(ContractError, match=rf"a\.u32: token {bad} is 8, but the model's vocab_size is 8"):
        batches.read(0, np.array([2]))
