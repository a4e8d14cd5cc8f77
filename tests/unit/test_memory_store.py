"""The store in memory keeps the contract of every store."""

import pytest

from orchestrator.store.memory import MemoryStore
from orchestrator.store.objects import ObjectStore
from tests.unit.store_conformance import HOSTILE_NAMES, StoreConformance


class TestMemoryStore(StoreConformance):
    @pytest.fixture
    def store(self) -> MemoryStore:
        return MemoryStore()

    @pytest.mark.parametrize("name", HOSTILE_NAMES)
    def test_nothing_is_deleted_by_a_hostile_name(self, store: ObjectStore, name: str) -> None:
        super().test_nothing_is_deleted_by_a_hostile_name(store, name)

    @pytest.mark.parametrize("prefix", ["../", "/", "a/../../", ".tmp/"])
    def test_nothing_is_listed_below_a_hostile_prefix(self, store: ObjectStore, prefix: str) -> None:
        super().test_nothing_is_listed_below_a_hostile_prefix(store, prefix)

    def test_writing_equal_bytes_again_is_a_new_generation(self, store: MemoryStore) -> None:
        store.overwrite("run/a", b"x")
        before = store.read("run/a").generation
        store.overwrite("run/a", b"x")
        assert store.read("run/a").generation != before
