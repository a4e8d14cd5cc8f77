"""``everstep doctor``: each check is made to fail once, and says what to do."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from orchestrator.agent.host_folder import HostFolder
from orchestrator.cli.doctor import Diagnosis
from orchestrator.cli.doctor_finding import Finding, Machine
from orchestrator.contract.attempt import HostRef
from orchestrator.store.local import LocalStore
from orchestrator.store.objects import StoreUnavailable
from tests.unit.cli_folder import CliFolder, document, everstep
from tests.unit.run_factory import RunFactory

NEEDS = ("numpy>=2.0", "rich>=13.7", "jax>=0.10.2; extra == 'trainer'", "mypy>=1.15; extra == 'dev'")
HAS = {"numpy": "2.4.6", "rich": "13.7", "jax": "0.10.2"}


@dataclass(frozen=True)
class SoundMachine(Machine):
    """One on which nothing is wrong, except for what a test changes."""

    version: str = "3.11.9"
    needs: Sequence[str] | None = NEEDS
    has: Mapping[str, str] | None = field(default_factory=lambda: HAS)
    processors: int = 64
    files: int = 4096
    free: int = 1 << 40
    ahead: float = 0.0
    """Of the store's clock, in seconds."""

    def python(self) -> str:
        return self.version

    def requirements(self) -> Sequence[str]:
        if self.needs is None:
            raise metadata.PackageNotFoundError("everstep")
        return self.needs

    def installed(self, interpreter: str) -> Mapping[str, str]:
        if self.has is None:
            raise subprocess.TimeoutExpired([interpreter], 60)
        return self.has

    def cpus(self) -> int:
        return self.processors

    def open_files(self) -> int:
        return self.files

    def free_bytes(self, folder: str) -> int:
        return self.free

    def now(self) -> float:
        return time.time() + self.ahead


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch, folder: CliFolder) -> Callable[..., dict[str, Finding]]:
    """Findings by check of a doctor's visit to ./store and ./fleet on a machine with these facts."""
    folder.write()

    def visit(*arguments: str, **facts: Any) -> dict[str, Finding]:
        monkeypatch.setattr("orchestrator.cli.doctor.Machine", lambda: SoundMachine(**facts))
        result = everstep("doctor", *arguments, "--json")
        found = document(result)
        assert isinstance(found, Diagnosis)
        problems = [finding for finding in found.findings if finding.outcome == "problem"]
        assert (found.sound, result.exit_code) == (not problems, 1 if problems else 0)
        for finding in found.findings:
            assert (finding.outcome == "ok") == (finding.remedy == ""), finding
        return {finding.check: finding for finding in found.findings}

    return visit


def not_ok(found: dict[str, Finding]) -> dict[str, str]:
    return {check: finding.outcome for check, finding in found.items() if finding.outcome != "ok"}


@pytest.fixture
def complete(folder: CliFolder) -> RunFactory:
    """A run in ./store that needs nobody, on ./fleet."""
    run = RunFactory(steps=12, objects=LocalStore(Path("store")))
    run.launch("full").train(12).commit(proven=True).finish()
    run.complete()
    changed(run, fleet=str(folder.path / "fleet"), trainer=[sys.executable, "-m", "trainer.train"])
    return run


def changed(run: RunFactory, **fields: Any) -> None:
    """The run as if it had been submitted with these fields."""
    path = Path("store") / run.store.name / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


Visit = Callable[..., dict[str, Finding]]


def test_where_nothing_is_wrong_every_check_is_ok_and_nothing_is_left_behind(complete: RunFactory, on: Visit) -> None:
    before = CliFolder.files(CliFolder(Path.cwd()))
    found = on()
    assert not_ok(found) == {}
    assert list(found) == [
        "python",
        "open files",
        "packages",
        "trainer packages",
        "store",
        "store writes",
        "store space",
        "store clock",
        "controller",
        "fleet",
        "hosts",
        "cpus",
        "compile cache",
    ]
    assert CliFolder(Path.cwd()).files() == before
    assert list(Path("fleet/compile-cache").iterdir()) == []


def test_this_machine_s_own_answers(complete: RunFactory) -> None:
    machine = Machine()
    assert machine.installed(sys.executable)["numpy"]
    assert any(need.startswith("jax>=") for need in machine.requirements())
    assert machine.cpus() >= 1
    assert machine.open_files() >= 1
    assert machine.free_bytes(".") > 0
    assert abs(machine.now() - time.time()) < 60
    with pytest.raises(OSError, match="no-such-python"):
        machine.installed("no-such-python")


def test_a_line_a_check(complete: RunFactory, on: Visit) -> None:
    on(version="3.10.2")
    result = everstep("doctor")
    assert result.exit_code == 1
    assert result.stdout.splitlines()[0] == (
        "problem  python            3.10.2 is older than 3.11; use Python 3.11 or newer"
    )
    assert len(result.stdout.splitlines()) == 13


@pytest.mark.parametrize(
    ("facts", "wrong", "says"),
    [
        ({"version": "3.10.14"}, {"python": "problem"}, "3.10.14 is older than 3.11"),
        ({"files": 1000}, {"open files": "warning"}, "limit 1,000; 1,024 are enough"),
        ({"files": 200}, {"open files": "problem"}, "limit 200"),
        ({"needs": None}, {"packages": "warning"}, "everstep is not installed as a package here"),
        (
            {"has": {**HAS, "rich": "13.6.9"}},
            {"packages": "problem"},
            "rich 13.6.9 (needs 13.7 or newer)",
        ),
        (
            {"has": {"numpy": "2.10", "rich": "14"}},
            {"trainer packages": "problem"},
            "jax missing (needs 0.10.2 or newer)",
        ),
        ({"has": {**HAS, "jax": "0.9.99"}}, {"trainer packages": "problem"}, "jax 0.9.99 (needs 0.10.2 or newer)"),
        ({"has": None}, {"packages": "problem", "trainer packages": "problem"}, "does not say what it has"),
        ({"free": 1000}, {"store space": "problem"}, "0.0 MiB free; run demo takes 0.0 MiB a checkpoint"),
        ({"free": 40_000}, {"store space": "warning"}, "and keeps up to 2"),
        ({"ahead": 10.0}, {"store clock": "warning"}, "10.0 s from this machine's"),
        ({"ahead": -10.0}, {"store clock": "warning"}, "10.0 s from this machine's"),
        ({"ahead": 100.0}, {"store clock": "problem"}, "100.0 s from this machine's"),
        ({"processors": 3}, {"cpus": "warning"}, "3 CPUs for the 4 devices of pool main (4 hosts x 1)"),
    ],
)
def test_what_the_machine_lacks(
    facts: dict[str, Any], wrong: dict[str, str], says: str, complete: RunFactory, on: Visit
) -> None:
    found = on(**facts)
    assert not_ok(found) == wrong
    for check in wrong:
        assert says in found[check].found


def test_a_trainer_s_command_that_is_not_there_or_not_ours(complete: RunFactory, on: Visit) -> None:
    changed(complete, trainer=["no-such-trainer"])
    found = on()
    assert not_ok(found) == {"trainer": "problem"}
    assert found["trainer"].found == "no-such-trainer: no such command"
    changed(complete, trainer=[sys.executable, "mine.py"])
    found = on(has={"numpy": "2.4.6", "rich": "14"})  # it may do without JAX
    assert not_ok(found) == {}
    assert "is not Everstep's" in found["trainer"].found


# ---- the store
def test_a_store_that_is_not_there(on: Visit) -> None:
    found = on("--store", "nowhere")
    assert not_ok(found)["store"] == "problem"
    assert found["store"].remedy.startswith("check --store")
    assert "store writes" not in found
    assert not_ok(on())["store"] == "warning"  # none was named


@pytest.mark.parametrize(
    ("name", "broken", "says"),
    [
        (
            "create",
            lambda self, name, data: self.overwrite(name, data) or "first",
            "a second creation of one name was not refused",
        ),
        (
            "swap",
            lambda self, name, data, generation: self.overwrite(name, data) or "next",
            "a swap at a stale generation was not refused",
        ),
        ("swap", lambda self, name, data, generation: generation, "what was swapped in is not what is read"),
        ("delete", lambda self, prefix: None, "what was deleted is still listed"),
    ],
)
def test_a_store_that_does_not_refuse_what_it_must(
    name: str, broken: Any, says: str, complete: RunFactory, on: Visit, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "create":  # or the swap after it would fail for another reason
        monkeypatch.setattr(LocalStore, "swap", lambda self, name, data, generation: self.overwrite(name, data) or "x")
    monkeypatch.setattr(LocalStore, name, broken)
    found = on()
    assert not_ok(found) == {"store writes": "problem"}
    assert found["store writes"].found == says
    assert "this one cannot hold a run" in found["store writes"].remedy


def test_a_store_that_cannot_be_written(complete: RunFactory, on: Visit, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: Any, **__: Any) -> None:
        raise StoreUnavailable("doctor: Read-only file system; check path, mount and permissions")

    for operation in ("create", "overwrite"):
        monkeypatch.setattr(LocalStore, operation, refuses)
    found = on()
    assert not_ok(found) == {"store writes": "problem", "store clock": "problem"}
    monkeypatch.setattr(LocalStore, "delete", refuses)
    found = on()
    assert not_ok(found) == {"store writes": "problem"}
    assert "Read-only file system" in found["store writes"].found


def test_a_document_that_cannot_be_read(complete: RunFactory, on: Visit) -> None:
    Path("store/demo/head.json").write_text("{")
    found = on()
    assert not_ok(found) == {"controller": "problem"}
    assert "demo/head.json: not valid JSON" in found["controller"].found


# ---- fleet and runs
def test_a_fleet_that_is_not_described(complete: RunFactory, on: Visit) -> None:
    Path("fleet/fleet.yaml").write_text("pools: []\n")
    found = on()
    assert not_ok(found) == {"fleet": "problem"}
    Path("fleet/fleet.yaml").unlink()
    assert on()["fleet"].remedy == "name a folder with a fleet.yaml in it"


def test_a_host_whose_lock_is_held_by_something_unknown(complete: RunFactory, on: Visit) -> None:
    lock = HostFolder.of(Path("fleet"), HostRef(pool="main", host="h2")).take_lock()
    assert lock is not None
    try:
        found = on()
    finally:
        os.close(lock)
    assert not_ok(found) == {"hosts": "problem"}
    assert found["hosts"].found.startswith("main/h2: agent's lock is held, but agent.json")
    assert not_ok(on()) == {}


def test_hosts_that_were_taken_away(complete: RunFactory, on: Visit) -> None:
    everstep("drill", "shrink", "main", "--keep", "2", "--fleet", "fleet")
    found = on()
    assert not_ok(found) == {"hosts": "warning"}
    assert found["hosts"].found == "taken away: main/h2, main/h3"


def test_a_run_at_work_without_agents_and_without_a_controller(folder: CliFolder, on: Visit) -> None:
    folder.fleet["pools"][0]["name"] = "pool"
    folder.write()
    run = RunFactory(steps=12, objects=LocalStore(Path("store")))
    changed(run, fleet=str(folder.path / "fleet"), trainer=[sys.executable, "-m", "trainer.train"])
    run.launch("full").train(3)
    found = on()
    assert not_ok(found) == {"controller": "problem", "hosts": "warning"}
    assert found["controller"].found == "no controller leads run demo"
    assert found["controller"].remedy.startswith("everstep controller demo --store ")
    assert found["hosts"].found.startswith("pool/h0 has no agent, and an attempt of run demo is on it")
    assert "and 1 more" in found["hosts"].found


def test_a_compile_cache_that_cannot_be_written(complete: RunFactory, on: Visit) -> None:
    Path("fleet/compile-cache").write_text("a file")
    found = on()
    assert not_ok(found) == {"compile cache": "problem"}


def test_no_fleet_at_all(on: Visit) -> None:
    Path("fleet").rename("elsewhere")
    assert not_ok(on())["fleet"] == "warning"
    assert not_ok(on("--fleet", "elsewhere")) == {"store": "warning"}
