"""What every object store must do; each store's tests inherit it."""

import pytest

from orchestrator.contract.manifest import FileEntry, Head
from orchestrator.store.objects import AlreadyExists, Conflict, NotFound, ObjectStore, Stored, StoreUnavailable
from orchestrator.store.run_store import RunStore

HOSTILE_NAMES = [
    "",
    "/",
    "/etc/passwd",
    "..",
    "../outside",
    "a/../../outside",
    "a//b",
    "a/",
    ".tmp/secret",
    "a/.hidden",
    "-rf",
    "a b",
    "a\x00b",
    "a\\b",
    "ä",
    "a;b",
]


def head(attempt: int, write_id: str) -> Head:
    return Head(attempt=attempt, manifest=None, next_step=None, revision=1, write_id=write_id)


class LostResponses:
    """A store whose conditional writes arrive, but whose next answer does not."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.lose = True

    @property
    def address(self) -> str:
        return self._store.address

    @property
    def at_once(self) -> int:
        return self._store.at_once

    def read(self, name: str) -> Stored:
        return self._store.read(name)

    def create(self, name: str, data: bytes) -> str:
        return self._answered(self._store.create(name, data))

    def swap(self, name: str, data: bytes, *, generation: str) -> str:
        return self._answered(self._store.swap(name, data, generation=generation))

    def overwrite(self, name: str, data: bytes) -> None:
        self._store.overwrite(name, data)

    def names(self, prefix: str) -> list[str]:
        return self._store.names(prefix)

    def children(self, prefix: str) -> list[str]:
        return self._store.children(prefix)

    def sizes(self, prefix: str) -> dict[str, int]:
        return self._store.sizes(prefix)

    def files(self, prefix: str) -> dict[str, FileEntry]:
        return self._store.files(prefix)

    def delete(self, prefix: str) -> None:
        self._store.delete(prefix)

    def _answered(self, generation: str) -> str:
        if self.lose:
            self.lose = False
            raise StoreUnavailable("the response was lost")
        return generation


class StoreConformance:
    """Subclasses give the fixture ``store``: an empty one."""

    def test_what_was_created_is_read_back_with_its_generation(self, store: ObjectStore) -> None:
        generation = store.create("run/a.json", b"\x00\xff")
        assert store.read("run/a.json") == Stored(data=b"\x00\xff", generation=generation)

    def test_an_empty_object_is_an_object(self, store: ObjectStore) -> None:
        store.create("run/empty", b"")
        assert store.read("run/empty").data == b""

    def test_reading_nothing_is_not_found(self, store: ObjectStore) -> None:
        with pytest.raises(NotFound, match=r"run/a\.json"):
            store.read("run/a.json")

    def test_create_never_replaces(self, store: ObjectStore) -> None:
        store.create("run/a", b"first")
        with pytest.raises(AlreadyExists, match="run/a"):
            store.create("run/a", b"second")
        assert store.read("run/a").data == b"first"

    def test_create_with_equal_bytes_is_success_and_writes_nothing(self, store: ObjectStore) -> None:
        generation = store.create("run/a", b"same")
        assert store.create("run/a", b"same") == generation
        assert store.read("run/a").generation == generation

    def test_swap_replaces_at_the_generation_that_was_read(self, store: ObjectStore) -> None:
        store.create("run/head", b"1")
        generation = store.swap("run/head", b"2", generation=store.read("run/head").generation)
        assert store.read("run/head") == Stored(data=b"2", generation=generation)

    def test_swap_at_an_old_generation_is_a_conflict_and_changes_nothing(self, store: ObjectStore) -> None:
        old = store.create("run/head", b"1")
        store.swap("run/head", b"2", generation=old)
        with pytest.raises(Conflict, match="run/head"):
            store.swap("run/head", b"3", generation=old)
        assert store.read("run/head").data == b"2"

    def test_swap_of_nothing_is_not_found(self, store: ObjectStore) -> None:
        with pytest.raises(NotFound, match="run/head"):
            store.swap("run/head", b"1", generation="any")

    def test_overwriting_changes_the_generation(self, store: ObjectStore) -> None:
        store.overwrite("run/progress", b"1")
        before = store.read("run/progress").generation
        store.overwrite("run/progress", b"2")
        assert store.read("run/progress").data == b"2"
        assert store.read("run/progress").generation != before

    def test_names_are_listed_in_order_and_by_whole_parts(self, store: ObjectStore) -> None:
        for name in ("run/b", "run/a/2", "run/a/1", "run2/c"):
            store.create(name, b"x")
        assert store.names("run/") == ["run/a/1", "run/a/2", "run/b"]
        assert store.names("run/a/") == ["run/a/1", "run/a/2"]
        assert store.names("nothing/") == []

    def test_children_are_the_next_parts_each_once(self, store: ObjectStore) -> None:
        for name in ("run/b", "run/a/2", "run/a/1", "run2/c"):
            store.create(name, b"x")
        assert store.children("run/") == ["a", "b"]
        assert store.children("nothing/") == []

    def test_sizes_and_hashes_of_files_are_by_the_path_below_a_prefix(self, store: ObjectStore) -> None:
        for name, data in (("run/a/x", b"123"), ("run/a/d/y", b""), ("run/ab", b"1")):
            store.create(name, data)
        assert store.sizes("run/a/") == {"x": 3, "d/y": 0}
        assert store.sizes("nothing/") == {}
        before = store.files("run/a/")
        assert {name: entry.size for name, entry in before.items()} == {"x": 3, "d/y": 0}
        store.overwrite("run/a/x", b"124")
        after = store.files("run/a/")
        assert after["x"].differs(before["x"])
        assert not after["d/y"].differs(before["d/y"])

    def test_a_fresh_store_holds_nothing(self, store: ObjectStore) -> None:
        store.create("run/a", b"x")
        store.delete("run/a")
        assert store.names("run/") == []

    def test_delete_takes_an_object_or_all_below_a_name_and_no_neighbour(self, store: ObjectStore) -> None:
        for name in ("run/ck/1", "run/ck/2/x", "run/ck2/1", "run/one"):
            store.create(name, b"x")
        store.delete("run/ck")
        store.delete("run/one")
        assert store.names("run/") == ["run/ck2/1"]

    def test_deleting_nothing_is_no_error(self, store: ObjectStore) -> None:
        store.delete("run/nothing")

    def test_a_name_can_be_created_again_after_its_deletion(self, store: ObjectStore) -> None:
        store.create("run/a", b"1")
        store.delete("run/a")
        store.create("run/a", b"2")
        assert store.read("run/a").data == b"2"

    @pytest.mark.parametrize("name", HOSTILE_NAMES)
    def test_a_hostile_name_is_refused_by_every_operation(self, store: ObjectStore, name: str) -> None:
        with pytest.raises(ValueError, match="object name"):
            store.read(name)
        with pytest.raises(ValueError, match="object name"):
            store.create(name, b"x")
        with pytest.raises(ValueError, match="object name"):
            store.swap(name, b"x", generation="any")
        with pytest.raises(ValueError, match="object name"):
            store.overwrite(name, b"x")

    @pytest.mark.parametrize("name", HOSTILE_NAMES)
    def test_nothing_is_deleted_by_a_hostile_name(self, store: ObjectStore, name: str) -> None:
        with pytest.raises(ValueError, match="object name"):
            store.delete(name)

    @pytest.mark.parametrize("prefix", ["../", "/", "a/../../", ".tmp/"])
    def test_nothing_is_listed_below_a_hostile_prefix(self, store: ObjectStore, prefix: str) -> None:
        with pytest.raises(ValueError, match="object name"):
            store.names(prefix)
        with pytest.raises(ValueError, match="object name"):
            store.children(prefix)

    def test_a_name_that_ends_with_a_line_break_is_refused(self, store: ObjectStore) -> None:
        with pytest.raises(ValueError, match="object name"):
            store.create("run/a\n", b"x")

    def test_a_lost_response_of_a_create_does_not_fence_its_writer(self, store: ObjectStore) -> None:
        flaky = LostResponses(store)
        with pytest.raises(StoreUnavailable):
            flaky.create("run/a", b"mine")
        assert flaky.create("run/a", b"mine") == store.read("run/a").generation

    def test_a_lost_response_of_a_swap_is_recognised_by_its_write_id(self, store: ObjectStore) -> None:
        before = head(1, "aaaaaaaa")
        after = head(2, "bbbbbbbb")
        RunStore(store, "run").create_head(before)
        generation = RunStore(store, "run").head().generation
        run = RunStore(LostResponses(store), "run")
        with pytest.raises(StoreUnavailable):
            run.swap_head(after, generation=generation)
        assert run.swap_head(after, generation=generation) == run.head().generation
        assert run.head().value == after

    def test_another_writers_swap_is_a_conflict_even_with_equal_content_but_for_the_write_id(
        self, store: ObjectStore
    ) -> None:
        run = RunStore(store, "run")
        run.create_head(head(1, "aaaaaaaa"))
        generation = run.head().generation
        run.swap_head(head(2, "bbbbbbbb"), generation=generation)
        with pytest.raises(Conflict):
            run.swap_head(head(2, "cccccccc"), generation=generation)
