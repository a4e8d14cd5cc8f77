"""The ledger's writer: order is kept, nothing is lost while the process lives, and the step never waits."""

import threading
import time
from collections.abc import Iterator
from itertools import chain

import pytest

from orchestrator.store.memory import MemoryStore
from orchestrator.store.objects import AlreadyExists, StoreUnavailable
from orchestrator.store.run_store import RunStore
from tests.unit.records import record_of
from trainer.ledger import LedgerWriter

LONG = 60.0


class FaultyStore(MemoryStore):
    """Does not answer while ``down`` is set; ``tried`` is set by each create that is refused."""

    def __init__(self) -> None:
        super().__init__()
        self.down = threading.Event()
        self.tried = threading.Event()

    def create(self, name: str, data: bytes) -> str:
        if self.down.is_set():
            self.tried.set()
            raise StoreUnavailable(f"{name}: no route to the store")
        return super().create(name, data)


@pytest.fixture
def objects() -> FaultyStore:
    return FaultyStore()


@pytest.fixture
def store(objects: FaultyStore) -> RunStore:
    return RunStore(objects, "run")


@pytest.fixture
def patient(store: RunStore, objects: FaultyStore) -> Iterator[LedgerWriter]:
    """Closes a segment only when asked, or with ten records; tries again at once."""
    writer = LedgerWriter(store, attempt=1, close_after=LONG, close_at=10, try_again_after=0.001)
    yield writer
    objects.down.clear()
    writer.close(seconds=LONG)


def steps_in(store: RunStore) -> list[list[int]]:
    return [[record.step for record in store.read_segment(name)[1]] for name in store.segment_names(1)]


def test_flush_closes_what_was_taken(patient: LedgerWriter, store: RunStore) -> None:
    for step in range(3):
        patient.add(record_of(step))
    assert steps_in(store) == []
    patient.flush(seconds=LONG)
    assert steps_in(store) == [[0, 1, 2]]
    patient.add(record_of(3))
    patient.flush(seconds=LONG)
    patient.flush(seconds=LONG)
    assert steps_in(store) == [[0, 1, 2], [3]]


def test_flush_waits_for_the_record_of_a_witness(patient: LedgerWriter, store: RunStore) -> None:
    patient.add(record_of(3))
    flush = threading.Thread(target=lambda: patient.flush(seconds=LONG, witness=4))
    flush.start()
    flush.join(timeout=0.2)
    assert (flush.is_alive(), steps_in(store)) == (True, [])
    patient.add(record_of(4))
    flush.join(timeout=LONG)
    assert steps_in(store) == [[3, 4]]


def test_flush_goes_on_without_a_witness_that_does_not_come(store: RunStore) -> None:
    writer = LedgerWriter(store, attempt=1, close_after=LONG, witness_seconds=0.01)
    writer.add(record_of(3))
    before = time.monotonic()
    writer.flush(seconds=LONG, witness=4)
    assert time.monotonic() - before < LONG, "it waited as long as for the store"
    assert steps_in(store) == [[3]]
    writer.close(seconds=LONG)


def test_full_segment_is_closed_without_being_asked(patient: LedgerWriter, store: RunStore) -> None:
    for step in range(25):
        patient.add(record_of(step))
    patient.flush(seconds=LONG)
    found = steps_in(store)
    assert list(chain(*found)) == list(range(25))
    assert max(len(segment) for segment in found) <= 10


def test_record_that_has_waited_long_enough_is_closed(store: RunStore) -> None:
    writer = LedgerWriter(store, attempt=1, close_after=0.0)
    writer.add(record_of(0))
    writer.flush(seconds=LONG)
    writer.close(seconds=LONG)
    assert steps_in(store) == [[0]]


def test_outage_of_the_store_loses_nothing_and_changes_no_order(
    patient: LedgerWriter, store: RunStore, objects: FaultyStore
) -> None:
    objects.down.set()
    for step in range(12):
        patient.add(record_of(step))
    assert objects.tried.wait(LONG)
    for step in range(12, 40):
        patient.add(record_of(step))
    with pytest.raises(StoreUnavailable, match="ledger: 40 records wait"):
        patient.flush(seconds=0.01)
    assert "no route to the store" in str(patient.problem)
    objects.down.clear()
    patient.flush(seconds=LONG)
    assert patient.problem is None
    assert list(chain(*steps_in(store))) == list(range(40))


def test_lost_response_is_no_second_segment(patient: LedgerWriter, store: RunStore, objects: FaultyStore) -> None:
    """The store took the segment and the answer was lost: the same bytes under the same name are a success."""
    objects.down.set()
    patient.add(record_of(0))
    with pytest.raises(StoreUnavailable):
        patient.flush(seconds=0.01)
    objects.down.clear()
    RunStore(objects, "run").create_segment(1, 0, [record_of(0)])
    patient.flush(seconds=LONG)
    assert steps_in(store) == [[0]]


def test_name_that_is_taken_by_another_ledger_is_an_error(store: RunStore) -> None:
    store.create_segment(1, 0, [record_of(7)])
    writer = LedgerWriter(store, attempt=1)
    writer.add(record_of(0))
    with pytest.raises(AlreadyExists):
        writer.flush(seconds=LONG)
    with pytest.raises(AlreadyExists):
        writer.add(record_of(1))


def test_close_writes_what_is_left(store: RunStore) -> None:
    writer = LedgerWriter(store, attempt=1, close_after=LONG)
    writer.add(record_of(0))
    writer.close(seconds=LONG)
    assert steps_in(store) == [[0]]
