"""Hashes of files: in parallel, remembered for as long as a file is the same, and never of half of one."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from threading import Barrier, Event

import numpy as np
import pytest

from orchestrator.cli import hashes, token_files
from orchestrator.cli.errors import BadInput
from orchestrator.cli.hashes import SETTLED_NS, Hashing, Job, Remembered
from orchestrator.contract.base import sha256_of
from tests.unit.cli_folder import CliFolder, error_line


@dataclass
class Seen:
    """What a bar would show."""

    totals: list[int] = field(default_factory=list)
    read: dict[str, int] = field(default_factory=dict)

    def begin(self, total: int) -> None:
        self.totals.append(total)

    def advance(self, path: Path, count: int) -> None:
        self.read[path.name] = self.read.get(path.name, 0) + count


def tokens(path: Path, *ids: int) -> Path:
    np.array(ids, "<u4").tofile(path)
    return path


def later(*paths: Path) -> int:
    """When these files have been as they are for long enough."""
    return max(path.stat().st_ctime_ns for path in paths) + SETTLED_NS


class Person:
    """Who submits the same files again and again."""

    def __init__(self, folder: Path, *paths: Path) -> None:
        self.paths, self.cache = paths, folder / "cache"

    def hashes(self, *, vocabulary: int = 100, use: bool = True, delay: int = 0) -> tuple[dict[Path, str], Seen]:
        """The hashes, and what was read for them."""
        seen = Seen()
        remembered = Remembered(self.cache, use=use, now=lambda: later(*self.paths) + delay)
        jobs = [Job(path, vocabulary) for path in self.paths]
        return Hashing(remembered=remembered, progress=seen).hashes(jobs), seen


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tokens(tmp_path / "a.u32", 1, 2, 3)


# ---- remembered
def test_what_was_found_is_not_computed_again(tmp_path: Path, file: Path) -> None:
    more = tokens(tmp_path / "b.u32", 4)
    person = Person(tmp_path, file, more)
    wanted = {path: sha256_of(path.read_bytes()) for path in (file, more)}
    found, seen = person.hashes()
    assert (found, seen.totals, seen.read) == (wanted, [16], {"a.u32": 12, "b.u32": 4})
    found, seen = person.hashes()
    assert (found, seen.totals, seen.read) == (wanted, [0], {})
    tokens(more, 5)
    found, seen = person.hashes()
    assert found == {file: wanted[file], more: sha256_of(more.read_bytes())}
    assert (seen.totals, seen.read) == ([4], {"b.u32": 4})


def test_bytes_that_changed_under_the_same_size_and_time_are_seen(tmp_path: Path, file: Path) -> None:
    person = Person(tmp_path, file)
    person.hashes()
    before = file.stat()
    with file.open("r+b") as out:
        out.write(b"\7")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = file.stat()
    assert (after.st_ino, after.st_size, after.st_mtime_ns) == (before.st_ino, before.st_size, before.st_mtime_ns)
    found, _ = person.hashes()
    assert found == {file: sha256_of(file.read_bytes())}


def test_another_file_in_its_place_is_seen(tmp_path: Path, file: Path) -> None:
    person = Person(tmp_path, file)
    person.hashes()
    os.replace(tokens(tmp_path / "new", 9, 9, 9), file)
    assert person.hashes()[0] == {file: sha256_of(file.read_bytes())}


def test_a_smaller_vocabulary_looks_at_the_ids_again_and_a_larger_one_does_not(tmp_path: Path, file: Path) -> None:
    person = Person(tmp_path, file)
    person.hashes(vocabulary=4)
    assert person.hashes(vocabulary=5)[1].read == {}
    with pytest.raises(BadInput, match=r"a\.u32: token 2 is 3, but the recipe's vocab_size is 3"):
        person.hashes(vocabulary=3)


def test_a_rehash_reads_everything_and_is_remembered(tmp_path: Path, file: Path) -> None:
    person = Person(tmp_path, file)
    person.hashes()
    assert person.hashes(use=False)[1].read == {"a.u32": 12}
    (only,) = person.cache.iterdir()
    only.unlink()
    person.hashes(use=False)
    assert person.hashes()[1].read == {}


def test_a_file_that_was_just_written_is_not_remembered(tmp_path: Path, file: Path) -> None:
    person = Person(tmp_path, file)
    person.hashes(delay=-1)
    assert not person.cache.exists()
    person.hashes(delay=0)
    assert person.hashes()[1].read == {}


@pytest.mark.parametrize("damaged", [b"", b"{", b'{"sha256": "x"}', b"\xff"])
def test_a_damaged_memory_is_none(tmp_path: Path, file: Path, damaged: bytes) -> None:
    person = Person(tmp_path, file)
    person.hashes()
    (only,) = person.cache.iterdir()
    only.write_bytes(damaged)
    assert person.hashes()[0] == {file: sha256_of(file.read_bytes())}


# ---- read
def test_files_are_read_at_the_same_time(tmp_path: Path, file: Path) -> None:
    class Together(Seen):
        barrier = Barrier(2)

        def advance(self, path: Path, count: int) -> None:
            self.barrier.wait(timeout=30)

    jobs = [Job(file), Job(tokens(tmp_path / "b.u32", 4))]
    assert len(Hashing(progress=Together(), workers=2).hashes(jobs)) == 2


def test_a_wrong_file_is_named_at_once_and_what_was_half_read_is_not_remembered(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    endless, real, begun = tokens(tmp_path / "endless.u32", 1), hashes._blocks, Event()

    def blocks(path: Path, stop: Event) -> Iterator[bytes]:
        if path == file:
            assert begun.wait(30)
            yield from real(path, stop)
        while path == endless and not stop.is_set():
            yield b"\1\0\0\0"
            begun.set()

    monkeypatch.setattr(hashes, "_blocks", blocks)
    remembered = Remembered(tmp_path / "cache", now=lambda: later(file, endless))
    with pytest.raises(BadInput, match=r"a\.u32: token 2 is 3"):
        Hashing(remembered=remembered, workers=2).hashes([Job(endless, 3), Job(file, 3)])
    assert not (tmp_path / "cache").exists()


def test_a_file_that_grows_while_it_is_read_is_refused(file: Path) -> None:
    class Growing(Seen):
        def advance(self, path: Path, count: int) -> None:
            if path.stat().st_size == 12:
                with path.open("ab") as out:
                    out.write(b"more")

    with pytest.raises(BadInput, match=r"a\.u32: changed while it was read"):
        Hashing(progress=Growing(), workers=1).hashes([Job(file)])


# ---- submit
def test_a_submit_says_what_needs_no_reading_before_it_reads(
    folder: CliFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def blocks(path: Path, stop: Event) -> Iterator[bytes]:
        raise AssertionError(f"{path} was read")

    monkeypatch.setattr(hashes, "_blocks", blocks)
    folder.stage["data"]["files"].append({"path": "more.u32"})
    assert "more.u32: No such file" in error_line(folder.submit())
    folder.tokens([1], name="more.u32", torn=b"x")
    assert "more.u32: 5 bytes is not a whole" in error_line(folder.submit())
    folder.tokens([1], name="more.u32")
    folder.stage["data"]["files"][0]["tokens"] = 5
    assert "holds 512 tokens, the recipe says 5" in error_line(folder.submit())
    folder.tokens([1] * 20)
    folder.stage["data"]["files"][0].pop("tokens")
    assert "hold 2 instances of 8 tokens" in error_line(folder.submit())


def test_a_second_submit_reads_nothing_unless_it_is_asked_to(
    folder: CliFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    real = hashes._blocks
    monkeypatch.setattr(hashes, "_blocks", lambda path, stop: read.append(path.name) or real(path, stop))
    monkeypatch.setattr(hashes, "SETTLED_NS", 0)
    for options, wanted in (((), 1), ((), 1), (("--rehash",), 2)):
        assert folder.submit(*options).exit_code == 0
        assert read == ["text.u32"] * wanted


def test_a_mix_is_read_once(folder: CliFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    mixes: list[str] = []
    real = token_files._paths_of

    def paths_of(mix: str, *, tokenizer: str) -> list[str]:
        mixes.append(mix)
        return real(mix, tokenizer=tokenizer)

    monkeypatch.setattr(token_files, "_paths_of", paths_of)
    folder.stage["data"] = {"mix": "all.mix"}
    (folder.path / "data" / "all.mix").write_text("web,text.u32\n")
    assert folder.submit().exit_code == 0
    assert len(mixes) == 1


def test_what_cannot_be_remembered_is_said_and_the_submit_goes_on(
    folder: CliFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder.path / "no-folder").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder.path / "no-folder"))
    monkeypatch.setattr(hashes, "SETTLED_NS", 0)
    result = folder.submit()
    assert result.exit_code == 0
    assert "hashes of files are not remembered: " in error_line(result)
