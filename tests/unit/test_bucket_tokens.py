"""Reading a bucket's tokens: only the ranges of a step's rows, many at a time, and the next step's ahead."""

from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Barrier, Event

import numpy as np
import pytest
from numpy.typing import NDArray

from orchestrator.contract.base import ContractError
from orchestrator.contract.manifest import FileEntry
from orchestrator.contract.recipe import Data, Stage, TokenFile
from orchestrator.order import token_files
from orchestrator.order.global_order import GlobalOrder
from orchestrator.order.token_files import BucketTokens, address_of, opened, read_rows
from tests.local.attempts import stage_of
from trainer.data.ahead import ReadAhead
from trainer.data.token_files import StageBatches

FILE = TokenFile(path="a.u32", tokens=4096, crc32c="AAAAAA==", generation="7")
IDS = np.arange(4096, dtype="<u4") % 64


@dataclass
class Bucket:
    """One object, at generation 7; what is asked of it is kept."""

    asked: list[tuple[str, int, int, str]] = field(default_factory=list)
    before: Callable[[], object] = lambda: None

    def check(self) -> None: ...

    def entry(self, name: str) -> FileEntry:
        return FileEntry(size=IDS.nbytes, crc32c="AAAAAA==", generation="7")

    def read_range(self, name: str, *, start: int, size: int, generation: str) -> bytes:
        self.before()
        self.asked.append((name, start, size, generation))
        return IDS.tobytes()[start : start + size]


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Bucket:
    found = Bucket()
    monkeypatch.setattr(token_files, "open_ranges", lambda address, **options: found)
    return found


def stage(*, steps: int = 40) -> Stage:
    return stage_of(FILE, steps=steps).model_copy(update={"data": Data(files=(FILE,), seed=7)})


@pytest.mark.parametrize(
    ("path", "root", "address"),
    [
        ("a/b.npy", "/data", "/data/a/b.npy"),
        ("./a.npy", "gs://bucket/x/", "gs://bucket/x/a.npy"),
        ("gs://other/a.npy", "/data", "gs://other/a.npy"),
        ("gs://other/a.npy", "gs://bucket", "gs://other/a.npy"),
    ],
)
def test_a_file_is_below_data_root_or_where_it_says(path: str, root: str, address: str) -> None:
    assert address_of(TokenFile(path=path), data_root=root) == address


@pytest.mark.parametrize(
    "path", ["gs://bucket/../a", "gs://bucket", "gs://bucket//a", "gs:///a", "gs://B/a", "s3://b/a"]
)
def test_an_address_that_is_none_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="path"):
        TokenFile(path=path)


def test_nothing_is_asked_before_a_step_and_then_its_rows_alone(bucket: Bucket) -> None:
    batches, order = StageBatches(stage(), vocab_size=64, data_root="gs://bucket/data"), GlobalOrder(stage())
    assert bucket.asked == []
    found = batches.read(39, np.array([2, 0]))  # the last: nothing is read ahead
    starts = [order.place(int(order.batch(39)[row])).token for row in (2, 0)]
    assert found.tolist() == [IDS[start : start + 16].tolist() for start in starts]
    assert sorted(bucket.asked) == sorted(("data/a.u32", 4 * start, 64, "7") for start in starts)


def test_rows_are_read_at_the_same_time(bucket: Bucket) -> None:
    barrier = Barrier(4)
    bucket.before = lambda: barrier.wait(timeout=30)
    (tokens,) = opened([FILE], data_root="gs://bucket")
    assert len(read_rows([(tokens, first) for first in (0, 16, 32, 48)], length=16)) == 4


def test_an_id_that_the_model_does_not_have_is_named_with_its_address(bucket: Bucket) -> None:
    batches = StageBatches(stage(), vocab_size=1, data_root="gs://bucket/data")
    with pytest.raises(
        ContractError, match=r"gs://bucket/data/a\.u32: token \d+ is \d+, but the model's vocab_size is 1;"
    ):
        batches.read(0, np.arange(4))


def test_a_recipe_that_submit_has_not_seen_is_refused(bucket: Bucket) -> None:
    with pytest.raises(ContractError, match=r"gs://bucket/a\.u32: its length and generation are not in the recipe"):
        opened([TokenFile(path="a.u32", tokens=4096)], data_root="gs://bucket")


def test_a_folder_s_token_file_has_the_bytes_in_a_recipe_that_it_had_before_buckets() -> None:
    assert TokenFile(path="a.u32").model_dump() == {"path": "a.u32", "sha256": None, "tokens": None}
    assert TokenFile.model_validate(FILE.model_dump(mode="json")) == FILE
    (tokens,) = [BucketTokens(Bucket(), "gs://bucket/a.u32", "a.u32", FILE)]
    assert len(tokens) == 4096


# ---- ahead
ROWS = np.arange(2)


def rows_of(index: int) -> NDArray[np.uint32]:
    return np.full((2, 3), index, np.uint32)


def test_the_next_batch_is_read_while_this_one_is_computed() -> None:
    asked, begun = list[int](), Event()

    def read(index: int, rows: NDArray[np.int64]) -> NDArray[np.uint32]:
        asked.append(index)
        if index == 6:
            begun.set()
        return rows_of(index)

    ahead = ReadAhead(read, batches=8)
    assert ahead.read(5, ROWS).tolist() == rows_of(5).tolist()
    assert begun.wait(30)
    assert ahead.read(6, ROWS).tolist() == rows_of(6).tolist()
    assert ahead.read(7, ROWS).tolist() == rows_of(7).tolist()
    assert asked == [5, 6, 7]


def test_nothing_is_read_ahead_beyond_the_last_batch() -> None:
    asked = list[int]()

    def read(index: int, rows: NDArray[np.int64]) -> NDArray[np.uint32]:
        asked.append(index)
        return rows_of(index)

    ahead = ReadAhead(read, batches=6)
    for _ in range(2):  # one thread reads in order: what was read ahead would come between these
        ahead.read(5, ROWS)
    assert asked == [5, 5]


def test_another_batch_or_other_rows_than_were_read_ahead_are_read() -> None:
    ahead = ReadAhead(lambda index, rows: np.full((len(rows), 3), index, np.uint32), batches=8)
    assert ahead.read(1, ROWS)[0, 0] == 1
    assert ahead.read(5, ROWS)[0, 0] == 5
    assert len(ahead.read(6, np.arange(4))) == 4


def test_an_error_is_of_the_batch_that_it_was_raised_for() -> None:
    def read(index: int, rows: NDArray[np.int64]) -> NDArray[np.uint32]:
        if index == 6:
            raise ContractError("gone")
        return rows_of(index)

    ahead = ReadAhead(read, batches=8)
    assert ahead.read(5, ROWS)[0, 0] == 5
    with pytest.raises(ContractError, match="gone"):
        ahead.read(6, ROWS)
