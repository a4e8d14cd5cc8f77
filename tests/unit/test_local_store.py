"""A folder as a store: the contract, and what disks, kills and other processes do to it."""

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from orchestrator.store.local import LocalStore
from orchestrator.store.objects import AlreadyExists, NotFound, StoreUnavailable
from tests.unit.store_conformance import StoreConformance


class TestLocalStore(StoreConformance):
    @pytest.fixture
    def store(self, tmp_path: Path) -> LocalStore:
        return LocalStore(tmp_path / "store")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def store(root: Path) -> LocalStore:
    return LocalStore(root)


def leftovers(root: Path) -> list[str]:
    """Temporary files; lock files are kept on purpose."""
    return [path.name for path in (root / ".tmp").iterdir() if path.suffix != ".lock"]


def failing(number: int) -> Callable[..., NoReturn]:
    def fail(*_arguments: object, **_options: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    return fail


def test_the_address_is_absolute_in_any_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert LocalStore(Path("store")).address == str(tmp_path / "store")


def test_a_root_below_a_file_is_unavailable_and_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreUnavailable, match="file"):
        LocalStore(tmp_path / "file" / "store")


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS])
def test_a_root_that_cannot_be_written_is_unavailable(root: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(os, "mkdir", failing(number))
    with pytest.raises(StoreUnavailable, match=os.strerror(number)):
        LocalStore(root)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_leaves_everything_as_it_was_and_says_what_to_do(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    generation = store.create("run/there", b"old")
    monkeypatch.setattr(os, "fsync", failing(number))
    with pytest.raises(StoreUnavailable, match="free some space"):
        store.create("run/new", b"new")
    with pytest.raises(StoreUnavailable, match="free some space"):
        store.swap("run/there", b"new", generation=generation)
    monkeypatch.undo()
    assert store.read("run/there").data == b"old"
    with pytest.raises(NotFound):
        store.read("run/new")
    assert leftovers(root) == []


def test_a_disk_that_fills_up_at_the_rename_or_link_leaves_nothing_half_done(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generation = store.create("run/there", b"old")
    monkeypatch.setattr(os, "link", failing(errno.ENOSPC))
    monkeypatch.setattr(os, "replace", failing(errno.ENOSPC))
    with pytest.raises(StoreUnavailable, match="run/new"):
        store.create("run/new", b"new")
    with pytest.raises(StoreUnavailable, match="run/there"):
        store.swap("run/there", b"new", generation=generation)
    with pytest.raises(StoreUnavailable, match="run/there"):
        store.overwrite("run/there", b"new")
    monkeypatch.undo()
    assert store.names("run/") == ["run/there"]
    assert store.read("run/there").data == b"old"
    assert leftovers(root) == []


def test_data_is_on_the_disk_before_its_name_is_and_the_name_before_the_answer(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []

    def noted(name: str, call: Callable[..., None]) -> Callable[..., None]:
        def note(*arguments: object) -> None:
            order.append(name)
            call(*arguments)

        return note

    for name in ("fsync", "link", "replace"):
        monkeypatch.setattr(os, name, noted(name, getattr(os, name)))
    generation = store.create("run/a", b"1")
    store.swap("run/a", b"2", generation=generation)
    assert order == ["fsync", "link", "fsync", "fsync", "replace", "fsync"]


def test_an_unreadable_object_is_not_a_missing_one(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.create("run/a", b"x")
    monkeypatch.setattr(Path, "read_bytes", failing(errno.EIO))
    with pytest.raises(StoreUnavailable, match="run/a"):
        store.read("run/a")


@pytest.mark.parametrize("operation", ["read", "create", "swap", "overwrite", "children"])
def test_a_root_that_went_away_is_unavailable_and_never_an_empty_store(
    store: LocalStore, root: Path, operation: str
) -> None:
    generation = store.create("run/a", b"x")
    root.rename(root.with_name("away"))
    operations: dict[str, Callable[[], object]] = {
        "read": lambda: store.read("run/a"),
        "create": lambda: store.create("run/b", b"x"),
        "swap": lambda: store.swap("run/a", b"y", generation=generation),
        "overwrite": lambda: store.overwrite("run/a", b"y"),
        "children": lambda: store.children("run/"),
    }
    with pytest.raises(StoreUnavailable):
        operations[operation]()
    assert not root.exists()


def test_what_a_killed_writer_leaves_is_never_read_and_stops_nobody(store: LocalStore, root: Path) -> None:
    program = (
        "import os, sys; from pathlib import Path; from orchestrator.store.local import LocalStore\n"
        "os.link = lambda *names: os.kill(os.getpid(), 9)\n"
        "LocalStore(Path(sys.argv[1])).create('run/a', b'half')\n"
    )
    killed = subprocess.run([sys.executable, "-c", program, str(root)], timeout=60, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert len(leftovers(root)) == 1, "the writer was killed in the middle"
    assert store.names("run/") == []
    assert store.children("run/") == []
    store.create("run/a", b"whole")
    assert store.read("run/a").data == b"whole"


def test_listing_the_whole_store_shows_objects_only(store: LocalStore) -> None:
    generation = store.create("run/a", b"1")
    store.swap("run/a", b"2", generation=generation)  # leaves a lock file
    assert store.children("") == ["run"]
    assert store.names("") == ["run/a"]


def test_processes_that_create_one_name_see_exactly_one_winner(store: LocalStore, root: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from orchestrator.store.local import LocalStore\n"
        "from orchestrator.store.objects import AlreadyExists\n"
        "store, me = LocalStore(Path(sys.argv[1])), sys.argv[2].encode()\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "won = 0\n"
        "for number in range(50):\n"
        "    try: store.create(f'run/{number}', me); won += 1\n"
        "    except AlreadyExists: pass\n"
        "print(won)\n"
    )
    counts = [int(text) for text in together(program, root, workers=3)]
    assert sum(counts) == 50, counts
    with pytest.raises(AlreadyExists):
        store.create("run/0", b"nobody")


def test_processes_that_swap_one_object_lose_no_update(store: LocalStore, root: Path) -> None:
    store.create("run/counter", b"0")
    program = (
        "import sys; from pathlib import Path; from orchestrator.store.local import LocalStore\n"
        "from orchestrator.store.objects import Conflict\n"
        "store, conflicts, done = LocalStore(Path(sys.argv[1])), 0, 0\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "while done < 40:\n"
        "    seen = store.read('run/counter')\n"
        "    try: store.swap('run/counter', str(int(seen.data) + 1).encode(), generation=seen.generation); done += 1\n"
        "    except Conflict: conflicts += 1\n"
        "print(conflicts)\n"
    )
    conflicts = together(program, root, workers=3)
    assert store.read("run/counter").data == b"120", f"conflicts seen: {conflicts}"


def together(program: str, root: Path, *, workers: int) -> list[str]:
    """What each of several processes prints that start their work at one moment."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(root), f"worker {number}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(workers)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    answers = [process.communicate(timeout=60)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * workers
    return answers
