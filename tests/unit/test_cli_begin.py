"""Before a run and its controller: plan, init, schemas, controller."""

import json
import os
import signal
from pathlib import Path

import pytest

from orchestrator.cli import controllers
from orchestrator.cli.errors import Unreachable
from orchestrator.cli.run_controller import certify
from orchestrator.controller.clock import SystemClock
from orchestrator.store.local import LocalStore
from tests.unit.cli_folder import CliFolder, document, error_line, everstep, outcome
from tests.unit.run_factory import RunFactory


# ---- begin
def test_plan_says_which_placement_can_run_what(folder: CliFolder) -> None:
    folder.run["policy"]["placements"].append({**folder.run["policy"]["placements"][0], "name": "odd", "hosts": 3})
    folder.write()
    code, lines = outcome(everstep("plan", "run.yaml"))
    assert code == 0
    assert "pretrain 4 full 4 1" in lines
    assert "pretrain 4 quarter 1 4" in lines
    assert "pretrain 4 odd 3 - not legal: P = 3 devices is not a power of two, so they do not divide V = 4" in lines
    found = document(everstep("plan", "run.yaml", "--json")).model_dump()
    assert found["tokens"] == 12 * 4 * 8
    assert found["checkpoint_bytes"] == 12 * found["parameters"]


def test_plan_is_exit_code_1_when_a_stage_has_no_placement(folder: CliFolder) -> None:
    for placement in folder.run["policy"]["placements"]:
        placement["hosts"] = 3
    folder.write()
    assert everstep("plan", "run.yaml").exit_code == 1


def test_plan_advises_how_often_to_save(folder: CliFolder) -> None:
    folder.write()
    times = ["--save-seconds", "12", "--mtbf-hours", "9", "--step-seconds", "1.6"]
    _, lines = outcome(everstep("plan", "run.yaml", *times))
    assert lines[-1].startswith("save every 546 steps (874 s)")
    assert "needs all of" in error_line(everstep("plan", "run.yaml", "--save-seconds", "12"))


def test_init_writes_an_example_that_can_be_submitted(folder: CliFolder) -> None:
    result = everstep("init", "example")
    assert result.exit_code == 0, result.output
    assert everstep("plan", "example/run.yaml").exit_code == 0
    result = everstep("submit", "example", "--no-controller")
    assert result.exit_code == 0, result.output
    assert "stage pretrain: full, half, quarter" in result.stdout
    assert everstep("status", "example", "--store", "example/store").exit_code == 0


def test_init_overwrites_nothing(folder: CliFolder) -> None:
    folder.write()
    before = folder.run_yaml.read_text()
    result = everstep("init", ".", "--name", "demo")
    assert result.exit_code == 2
    assert "exists already" in error_line(result)
    assert folder.run_yaml.read_text() == before


def test_init_needs_a_name_that_a_run_may_have(folder: CliFolder) -> None:
    result = everstep("init", "Some_Folder")
    assert result.exit_code == 2
    assert "use lower-case letters" in error_line(result)
    assert not Path("Some_Folder").exists()
    assert everstep("init", "Some_Folder", "--name", "fine", "--json").exit_code == 0


def test_schemas_are_written_and_checked(folder: CliFolder) -> None:
    assert everstep("schemas", "--out", "schemas").exit_code == 0
    described = json.loads(Path("schemas/run.yaml.json").read_text())
    assert "schema" not in described["properties"]
    assert described["properties"]["data_root"]["description"].startswith("Folder that the recipe's token files")
    Path("schemas/run.json").write_text("{}")
    Path("schemas/old.json").write_text("{}")
    result = everstep("schemas", "--out", "schemas", "--check")
    assert result.exit_code == 1
    assert "old.json, run.json" in error_line(result)


# ---- the controller
def test_a_controller_leads_until_the_run_needs_none(submitted: CliFolder) -> None:
    submitted.call("stop", "demo", "--no-wait", "--reason", "enough")
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    code, lines = outcome(submitted.call("controller", "demo"))
    assert code == 0
    assert "leading run demo in" in lines[0]
    assert lines[-1].endswith("run demo is stopped; it needs no controller any more")
    assert any("asked for stop (enough): stopped" in line for line in lines)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_ends_the_controller_and_says_how_to_start_another(
    submitted: CliFolder, monkeypatch: pytest.MonkeyPatch, number: int, code: int
) -> None:
    everstep("drill", "shrink", "main", "--keep", "0")

    wait = SystemClock.wait

    def ended(self: SystemClock, seconds: float) -> bool:
        os.kill(os.getpid(), number)
        return wait(self, 30)

    monkeypatch.setattr(SystemClock, "wait", ended)
    result = submitted.call("controller", "demo")
    assert result.exit_code == code
    assert "stopped; run demo goes on without a controller. Start one: everstep controller demo" in result.stdout
    assert "waiting: no placement for stage pretrain" in result.stdout


def test_a_detached_controller_leads_and_is_found(submitted: CliFolder) -> None:
    submitted.call("hold", "demo", "--no-wait")
    run = submitted.store.run()
    assert controllers.leader_of(run) is None
    answer = json.loads(everstep("submit", "run.yaml", "--json").stdout)
    try:
        assert controllers.leader_of(run) == answer["controller"]
        assert submitted.call("hold", "demo").exit_code in (0, 1)
        again = json.loads(everstep("submit", "run.yaml", "--json").stdout)
        assert again["controller"] == answer["controller"]
    finally:
        os.kill(answer["controller"], signal.SIGTERM)
        os.waitpid(answer["controller"], 0)
    assert controllers.leader_of(run) is None
    assert "goes on without a controller" in controllers.log_of(run).read_text()


def test_a_controller_that_cannot_start_names_its_log(submitted: CliFolder) -> None:
    (submitted.path / "fleet" / "fleet.yaml").unlink()
    submitted.path.joinpath("fleet", "controllers").mkdir()
    with pytest.raises(Unreachable, match=r"ended at once with exit code 2; see .*/demo\.log"):
        controllers.start_detached(submitted.store.run(), store_address=str(submitted.path / "store"))


def test_a_complete_run_is_certified_once(folder: CliFolder) -> None:
    run = RunFactory(steps=12, objects=LocalStore(Path("store")))
    run.launch("full").train(12).commit(proven=True).finish()
    run.complete()
    said: list[str] = []
    certify(run.store, say=said.append)
    certify(run.store, say=said.append)
    assert [line.split()[:3] for line in said] == [["token", "files", "are"], ["Run", "demo", "committed"]]
    assert run.store.has_certificate("000000000012-a0001")
