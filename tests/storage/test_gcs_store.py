"""A bucket as a store: the contract of every store, on healthy and on bad networks, and what only a bucket has."""

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from unittest.mock import Mock

import pytest
from click.testing import CliRunner
from google.cloud import storage  # type: ignore[import-untyped]
from google.cloud.storage import Bucket

from orchestrator.cli.main import main as cli
from orchestrator.store.gcs import GcsStore, Patience
from orchestrator.store.objects import (
    AlreadyExists,
    Conflict,
    NotFound,
    ObjectStore,
    Stored,
    StoreUnavailable,
)
from orchestrator.store.opening import open_objects
from tests.storage.fault_proxy import FAULTS, Fault, first, now_and_then
from tests.storage.gcs_server import GcsServer
from tests.unit.store_conformance import StoreConformance

QUICK = Patience(connect=2.0, answer=0.3, total=20.0, longest_pause=0.02)
"""Short stalls and pauses."""
SEED = 20261130


class TestGcsStore(StoreConformance):
    @pytest.fixture
    def store(self, address: str) -> GcsStore:
        return GcsStore(address)


class TestGcsStoreOnABadNetwork(StoreConformance):
    """Every third request fails, in all ways that there are."""

    @pytest.fixture
    def store(self, server: GcsServer, address: str) -> GcsStore:
        server.proxy.choose = now_and_then(SEED, share=0.3)
        return GcsStore(address, patience=QUICK)


@pytest.fixture
def store(address: str) -> GcsStore:
    return GcsStore(address, patience=QUICK)


@pytest.mark.parametrize("fault", FAULTS)
def test_each_operation_outlives_each_fault(server: GcsServer, store: GcsStore, fault: Fault) -> None:
    def after_faults(operation: Callable[[], object]) -> object:
        server.proxy.choose = first(fault, times=2)
        before = len(server.proxy.faults())
        result = operation()
        assert server.proxy.faults()[before:] == [fault, fault]
        return result

    generation = after_faults(lambda: store.create("run/head", b"1"))
    assert after_faults(lambda: store.read("run/head")) == Stored(data=b"1", generation=str(generation))
    swapped = after_faults(lambda: store.swap("run/head", b"2", generation=str(generation)))
    assert store.read("run/head") == Stored(data=b"2", generation=str(swapped))
    after_faults(lambda: store.overwrite("run/progress", b"3"))
    assert after_faults(lambda: store.names("run/")) == ["run/head", "run/progress"]
    assert after_faults(lambda: store.children("")) == ["run"]
    assert after_faults(lambda: store.sizes("run/")) == {"head": 1, "progress": 1}
    after_faults(lambda: store.delete("run/progress"))
    assert store.names("run/") == ["run/head"]


@pytest.mark.parametrize("fault", ["lost", "cut"])
def test_a_write_that_was_done_without_an_answer_does_not_fence_its_writer(
    server: GcsServer, store: GcsStore, fault: Fault
) -> None:
    generation = store.create("run/head", b"1")
    server.proxy.choose = first(fault, times=1, method="POST")
    assert store.swap("run/head", b"mine", generation=generation) == store.read("run/head").generation


def test_a_lost_answer_does_not_hide_that_another_writer_was_first(server: GcsServer, store: GcsStore) -> None:
    old = store.create("run/head", b"1")
    store.swap("run/head", b"other", generation=old)
    server.proxy.choose = first("503", times=1, method="POST")
    with pytest.raises(Conflict, match="run/head"):
        store.swap("run/head", b"mine", generation=old)
    assert store.read("run/head").data == b"other"


def test_equal_bytes_of_another_writer_are_no_success_of_a_swap_that_was_answered(store: GcsStore) -> None:
    old = store.create("run/head", b"1")
    store.swap("run/head", b"same", generation=old)
    with pytest.raises(Conflict):
        store.swap("run/head", b"same", generation=old)


def test_a_service_that_stays_away_is_unavailable_in_one_line_and_nothing_is_done(
    server: GcsServer, store: GcsStore, address: str
) -> None:
    store.create("run/a", b"1")
    impatient = GcsStore(address, patience=Patience(connect=1.0, answer=0.2, total=0.3, longest_pause=0.02))
    server.proxy.choose = now_and_then(SEED, share=1.0, kinds=("503", "429", "refused", "stall"))
    operations: list[Callable[[], object]] = [
        lambda: impatient.read("run/a"),
        lambda: impatient.create("run/b", b"2"),
        lambda: impatient.overwrite("run/a", b"2"),
        lambda: impatient.names("run/"),
        lambda: impatient.children("run/"),
        lambda: impatient.delete("run/a"),
    ]
    for operation in operations:
        with pytest.raises(StoreUnavailable) as caught:
            operation()
        assert "\n" not in str(caught.value)
        assert address in str(caught.value)
    server.proxy.choose = first("429", times=0)
    assert store.names("run/") == ["run/a"]
    assert store.read("run/a").data == b"1"


def test_a_bucket_that_is_not_there_is_unavailable_and_never_an_empty_store(server: GcsServer) -> None:
    store = GcsStore("gs://everstep-nowhere/runs", patience=QUICK)
    operations: list[Callable[[], object]] = [
        store.check,
        lambda: store.read("run/a"),
        lambda: store.create("run/b", b"2"),
        lambda: store.overwrite("run/a", b"2"),
        lambda: store.names("run/"),
        lambda: store.children(""),
        lambda: store.delete("run/a"),
    ]
    for operation in operations:
        with pytest.raises(StoreUnavailable, match="gcloud storage buckets create gs://everstep-nowhere"):
            operation()


@pytest.mark.parametrize("address", ["gs://", "gs:///x", "gs://B", "gs://bucket/../x", "gs://bucket//x", "gs://a b/c"])
def test_an_address_that_is_no_buckets_is_refused(server: GcsServer, address: str) -> None:
    with pytest.raises(ValueError, match=r"gs://bucket|object name"):
        open_objects(address)


@pytest.mark.parametrize("address", ["s3://bucket/x", "http://host/x", "memory:/x"])
def test_another_kind_of_store_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="folders and gs:// buckets"):
        open_objects(address)


STRAYS = (".DS_Store", "a\nb/x", "run/copy of x.json", "run/x.json~", "run/\n")
"""Names that a bucket takes and no object of a store has: a person, or another program, made them."""


def test_strays_are_no_children(store: GcsStore, address: str) -> None:
    bucket, _, folder = address.removeprefix("gs://").partition("/")
    for name in STRAYS:
        storage.Client(project=None).bucket(bucket).blob(f"{folder}/{name}").upload_from_string("x", retry=None)
    assert len(store.names("run/")) == 3, "they are not there"
    assert store.children("run/") == []
    store.create("run/head", b"1")
    store.create("run/events/1", b"1")
    assert store.children("run/") == ["events", "head"]
    assert store.children("") == ["run"]


class Listing(list[Mock]):
    """An answer to a listing with a delimiter, for names that the server takes for paths of files."""

    def __init__(self, objects: Sequence[str], prefixes: Sequence[str]) -> None:
        super().__init__(Mock() for _ in objects)
        for blob, name in zip(self, objects, strict=True):
            blob.name = name
        self.prefixes = set(prefixes)


def test_paths_out_of_the_store_are_no_children(store: GcsStore, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    base = f"{address.removeprefix('gs://').partition('/')[2]}/run/"
    objects = [f"{base}{name}" for name in ("", ".", "..", "head")]
    prefixes = [f"{base}{name}/" for name in ("", ".", "..", "events")]  # of run//x, run/./x, run/../x, run/events/1
    monkeypatch.setattr(storage.Client, "list_blobs", lambda *_, **__: Listing(objects, prefixes))
    assert store.children("run/") == ["events", "head"]


def test_the_files_of_a_checkpoint_have_the_services_hash_and_generation(store: GcsStore) -> None:
    generation = store.create("run/checkpoints/a/d/1", b"123456789")
    store.create("run/checkpoints/b/x", b"")
    (entry,) = store.files("run/checkpoints/a/").items()
    assert entry[0] == "d/1"
    assert (entry[1].size, entry[1].sha256, entry[1].generation) == (9, None, generation)
    assert entry[1].crc32c == "4waSgw=="  # CRC-32C of the digits 1 to 9: 0xe3069283, its published check value


def race(store: ObjectStore, write: Callable[[ObjectStore, bytes], object], writers: int) -> list[bytes]:
    """The writers whose write succeeded, all begun at one moment."""
    start = Barrier(writers)

    def one(number: int) -> bytes | None:
        mine = GcsStore(store.address, patience=QUICK)
        start.wait()
        try:
            write(mine, b"%d" % number)
        except (AlreadyExists, Conflict):
            return None
        return b"%d" % number

    with ThreadPoolExecutor(writers) as pool:
        return [winner for winner in pool.map(one, range(writers)) if winner is not None]


@pytest.mark.parametrize("share", [0.0, 0.3])
def test_of_writers_that_race_exactly_one_wins_and_its_bytes_are_there(
    server: GcsServer, store: GcsStore, share: float
) -> None:
    server.proxy.choose = now_and_then(SEED, share=share)
    for number in range(2):
        name = f"run/{number}"
        (winner,) = race(store, lambda mine, data, name=name: mine.create(name, data), 6)
        assert store.read(name).data == winner
        generation = store.read(name).generation
        (winner,) = race(store, lambda mine, data, name=name, at=generation: mine.swap(name, data, generation=at), 6)
        assert store.read(name).data == winner


def test_a_name_that_never_was_is_not_found_even_by_a_swap(store: GcsStore) -> None:
    with pytest.raises(NotFound):
        store.swap("run/never", b"x", generation="17")


@pytest.mark.parametrize(
    ("property_", "value", "expected"),
    [
        (None, None, ("warning", "neither versioning nor soft delete is on: what is deleted is gone")),
        ("versioning_enabled", True, ("ok", "versioning is on")),
        (
            "soft_delete_policy",
            Mock(retention_duration_seconds="604800"),
            ("ok", "soft delete keeps objects for 7 days"),
        ),
    ],
)
def test_doctor_says_whether_a_bucket_keeps_what_is_deleted_and_leaves_nothing_there(
    address: str, monkeypatch: pytest.MonkeyPatch, property_: str | None, value: object, expected: tuple[str, str]
) -> None:
    if property_ is not None:  # the server knows neither
        monkeypatch.setattr(Bucket, property_, value)
    result = CliRunner().invoke(cli, ["doctor", "--store", address, "--json"])
    findings = {finding["check"]: finding for finding in json.loads(result.stdout)["findings"]}
    assert findings["store writes"]["outcome"] == "ok", findings
    found = findings["bucket protection"]
    assert (found["outcome"], found["found"]) == expected
    assert GcsStore(address).names("") == []
