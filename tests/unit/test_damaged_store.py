"""Every command that reads, on a store with one thing wrong: one line that names file and remedy, or an answer."""

import errno
import json
import os
import re
import shutil
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from orchestrator.store.local import LocalStore
from tests.unit.cli_folder import CliFolder, error_line, everstep
from tests.unit.run_factory import RunFactory

COMMANDS = {
    "status": ("status", "demo"),
    "status of all": ("status",),
    "why": ("why", "demo"),
    "events": ("events", "demo"),
    "verify": ("verify", "demo"),
    "goodput": ("goodput", "demo"),
    "episodes": ("episodes", "demo"),
    "certificate": ("certificate", "demo"),
    "logs": ("logs", "demo"),
    "export": ("export", "demo", "--csv", "curve.csv"),
    "decide": ("decide", "demo", "--dry-run"),
}
RUN = Path("store/demo")


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def newer(path: Path) -> None:
    fields = json.loads(path.read_bytes())
    kind = fields["schema"].partition("/")[0]
    path.write_text(json.dumps({**fields, "schema": f"{kind}/2", "novelty": 1}))


def segment() -> Path:
    return sorted(RUN.glob("attempts/0001/ledger/*.jsonl"))[-1]


def manifest() -> Path:
    return RUN / "manifests/000000000004-a0001.json"


DAMAGE: dict[str, tuple[Callable[[], None], str, tuple[str, ...]]] = {
    "a manifest of a newer schema": (
        lambda: newer(manifest()),
        r"manifests/000000000004-a0001\.json: schema manifest/2 is newer.*; upgrade everstep",
        ("why", "events", "logs"),
    ),
    "a truncated manifest": (
        lambda: truncated(manifest()),
        r"manifests/000000000004-a0001\.json: not valid JSON .*; restore the file from a copy",
        ("why", "events", "logs"),
    ),
    "a torn ledger segment": (
        lambda: truncated(segment()),
        r"attempts/0001/ledger/\d+\.jsonl:\d+: torn: .*; without one, move it out",
        ("why", "events", "logs", "decide"),
    ),
    "an empty ledger segment": (
        lambda: segment().write_bytes(b"") and None,
        r"attempts/0001/ledger/\d+\.jsonl: empty; .*; without one, move it out",
        ("why", "events", "logs", "decide"),
    ),
    "run.json of another run": (
        lambda: shutil.copy("store/other/run.json", RUN / "run.json") and None,
        r"demo/run\.json: it is of run other, in the folder of run demo; name the folder other, or restore",
        (),
    ),
    "a truncated event": (
        lambda: truncated(RUN / "events/00000003.json"),
        r"events/00000003\.json: not valid JSON .*; restore the file from a copy",
        ("logs",),
    ),
    "a truncated head": (
        lambda: truncated(RUN / "head.json"),
        r"head\.json: not valid JSON .*; restore the file from a copy",
        ("why", "events", "logs"),
    ),
    "a truncated exit document": (
        lambda: truncated(RUN / "attempts/0002/exits/000.json"),
        r"exits/000\.json: not valid JSON .*; restore the file from a copy",
        ("why", "events", "verify", "export", "episodes"),
    ),
    "a truncated spec": (
        lambda: truncated(RUN / "attempts/0001/attempt.json"),
        r"attempts/0001/attempt\.json: not valid JSON .*; restore",
        ("why", "events", "logs", "decide"),
    ),
    "a truncated recipe": (
        lambda: truncated(next(RUN.glob("recipes/*.json"))),
        r"the recipe's bytes were changed; restore the file as submitted",
        ("why", "events", "logs", "goodput", "episodes", "export"),
    ),
    "a lost revision": (
        lambda: (RUN / "revisions/0001.json").unlink(),
        r"head says revision 1, which is not in the store; restore revisions/0001\.json from a copy",
        ("why", "events", "logs", "decide"),
    ),
    "a circle of parents": (
        lambda: manifest().write_bytes((RUN / "manifests/000000000012-a0002.json").read_bytes()) and None,
        r"it is checkpoint 000000000012-a0002, not checkpoint 000000000004-a0001; restore",
        ("why", "events", "logs"),
    ),
    "a lost manifest": (
        lambda: manifest().unlink(),
        r"manifests/000000000004-a0001\.json is not in the store; restore it from a copy",
        ("why", "events", "logs"),
    ),
}
"""What is done, what must be said of it, and the commands that do not need what is damaged."""


@pytest.fixture
def run(folder: CliFolder) -> RunFactory:
    """A run that moved and goes on, another one beside it, and the fleet of both."""
    folder.write()
    objects = LocalStore(folder.path / "store")
    RunFactory(steps=12, name="other", objects=objects)
    run = RunFactory(steps=12, objects=objects)
    run.launch("full").train(4).commit().train(7).die(host=3)
    run.launch("quarter").train(12).commit(proven=True).finish()
    for name in ("demo", "other"):
        path = Path("store") / name / "run.json"
        path.write_text(json.dumps({**json.loads(path.read_bytes()), "fleet": str(folder.path / "fleet")}))
    return run


@pytest.mark.parametrize("what", DAMAGE)
def test_damage_is_one_line_that_names_the_file_and_the_remedy(run: RunFactory, what: str) -> None:
    damage, said, unconcerned = DAMAGE[what]
    damage()
    for name, command in COMMANDS.items():
        result = everstep(*command)
        if name in unconcerned:
            assert (result.exit_code, result.stderr.count("everstep: ")) in ((0, 0), (0, 1)), f"{name}: {result.output}"
        else:
            check_refusal(result, said, name=name)


def check_refusal(result: Result, said: str, *, name: str) -> None:
    lines = [line for line in result.stderr.splitlines() if "token files are not at" not in line]
    assert len(lines) == 1, f"{name}: {result.output}"
    assert re.search(said, lines[0]), f"{name}: {lines[0]}"
    assert result.exit_code == 2, f"{name}: {result.exit_code}"
    assert result.stdout == "", f"{name}: {result.stdout}"


def test_a_segment_that_was_moved_away_is_missed_by_verify(run: RunFactory) -> None:
    """Its steps were computed again, so every committed step has a record all the same."""
    assert everstep("verify", "demo").exit_code == 0
    name = segment().relative_to(RUN).as_posix()
    segment().rename("moved-away")
    result = everstep("verify", "demo")
    assert result.exit_code == 1
    assert "1 ledger segment is gone that a replay was held to" in result.stdout
    assert f"{name} is gone; restore it from a copy" in result.stdout


def test_files_that_are_no_objects_are_left_alone(run: RunFactory) -> None:
    """Editors and file managers leave them; none of them can be read as a document."""
    before = {
        name: everstep(*command).output for name, command in COMMANDS.items() if name in ("why", "verify", "logs")
    }
    for folder in [RUN, *(path for path in RUN.rglob("*") if path.is_dir())]:
        for stray in (".DS_Store", "copy of x.json", "x.json~", "#x.json#"):
            (folder / stray).write_bytes(b"\0")
    Path("store/.DS_Store").touch()
    (RUN / "attempts/backup").mkdir()
    (RUN / "manifests/notes.txt").touch()
    for name, command in COMMANDS.items():
        result = everstep(*command)
        assert result.exit_code in (0, 1), f"{name}: {result.output}"
        assert result.output == before.get(name, result.output)


# ---- clocks
def test_a_clock_that_is_an_hour_off_gives_no_negative_times(folder: CliFolder) -> None:
    """The controller's events, and what a host wrote, are of the next hour for whoever looks."""
    folder.write()
    run = RunFactory(steps=12, objects=LocalStore(folder.path / "store"))
    run.now = time.time() + 3600.0
    run.launch("full").train(4).commit().train(7).die(host=3)
    run.now -= 7200.0
    run.launch("quarter").train(9)
    path = RUN / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_bytes()), "fleet": str(folder.path / "fleet")}))
    for name, command in COMMANDS.items():
        result = everstep(*command)
        assert result.exit_code in (0, 1), f"{name}: {result.output}"
        assert not re.search(r"(?<![\w-])-\d", result.stdout), f"{name}: {result.stdout}"


# ---- a full store
class Full:
    """A disk that takes ``left`` more files; what it took stays whole."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, left: int) -> None:
        self.left = left
        self._fsync = os.fsync
        monkeypatch.setattr(os, "fsync", self._write)

    def _write(self, handle: int) -> None:
        if not stat.S_ISDIR(os.fstat(handle).st_mode):
            if self.left <= 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self.left -= 1
        self._fsync(handle)


def whole_files(folder: CliFolder) -> dict[str, bytes]:
    """What is in the store: every file whole, no temporary one left behind."""
    left_over = [path for path in (folder.path / "store/.tmp").iterdir() if path.suffix != ".lock"]
    assert not left_over
    found = folder.files()
    for name, data in found.items():
        if name.endswith(".json"):
            json.loads(data)
    return found


def test_a_submit_that_fills_the_store_is_finished_by_the_same_command(
    folder: CliFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for left in range(12):
        with monkeypatch.context() as patch:
            Full(patch, left=left)
            result = folder.submit()
        if result.exit_code == 0:
            break
        assert (result.exit_code, "; free some space" in error_line(result)) == (3, True), result.output
        whole_files(folder)
    assert left > 3, "the store was never full in the middle of a submit"
    assert folder.submit().exit_code == 0
    assert folder.store.events()[0].kind == "submitted"


@pytest.mark.parametrize(
    "command", [("drain",), ("pause",), ("hold",), ("stop", "--now"), ("pin",), ("rewind", "--to-step", "4")]
)
def test_a_request_that_the_store_has_no_room_for_is_not_made(
    run: RunFactory, folder: CliFolder, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    before = whole_files(folder)
    with monkeypatch.context() as patch:
        Full(patch, left=0)
        result = everstep(command[0], "demo", *command[1:], "--no-wait", "--reason", "x")
    assert result.exit_code == 3
    assert "; free some space" in error_line(result)
    assert whole_files(folder) == before
