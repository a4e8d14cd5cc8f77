"""What `everstep` shows of runs and fleets; it writes nothing."""

import json
from pathlib import Path

import pytest

from orchestrator.cli.watch import Watch
from orchestrator.contract.attempt import OwnError
from orchestrator.store.local import LocalStore
from tests.unit.cli_folder import CliFolder, document, error_line, everstep, outcome
from tests.unit.run_factory import RunFactory


def test_status_shows_all_runs_of_the_store(moved: RunFactory) -> None:
    RunFactory(steps=12, name="other", objects=LocalStore(Path("store"))).launch().train(3)
    code, lines = outcome(everstep("status"))
    assert code == 0
    assert lines[0] == "RUN STAGE STEP PLACEMENT ATTEMPT LOSS GOODPUT ETA STATE"
    assert lines[1].startswith("demo - 12/12 quarter a2 3.9531")
    assert lines[2].startswith("other pretrain 3/12 full a1 4.")


def test_status_of_an_empty_store(folder: CliFolder) -> None:
    Path("store").mkdir()
    code, lines = outcome(everstep("status"))
    assert (code, len(lines)) == (0, 1)
    assert lines[0].startswith("no runs in ")


def test_status_json(moved: RunFactory) -> None:
    found = document(everstep("status", "--json")).model_dump()
    assert [row["run"] for row in found["runs"]] == ["demo"]
    assert found["runs"][0]["state"] == "complete"


def test_watching_into_a_pipe_prints_every_event_and_ends_with_the_run(moved: RunFactory) -> None:
    code, lines = outcome(everstep("status", "demo", "--watch"))
    assert code == 0
    assert len([line for line in lines if "process 3 died" in line]) == 1
    assert "demo - step 12/12 on quarter a2" in lines[-1]


def test_watching_with_json_is_one_status_a_line(moved: RunFactory) -> None:
    result = everstep("status", "--watch", "--json")
    (line,) = result.stdout.splitlines()
    assert json.loads(line)["schema"] == "status/1"


def test_watching_ends_when_it_is_told_to(folder: CliFolder) -> None:
    objects = LocalStore(Path("store"))
    RunFactory(steps=12, objects=objects).launch().train(3)
    assert Watch(objects, "demo").until(lambda row: row.next_step == 3).next_step == 3


def test_watching_on_shows_only_what_is_new(moved: RunFactory, capsys: pytest.CaptureFixture[str]) -> None:
    watch = Watch(LocalStore(Path("store")), "demo")
    watch.until(lambda _: True)
    assert "process 3 died" in capsys.readouterr().out
    moved.event("something new")
    watch.until(lambda _: True)
    assert [line.split("  ", 1)[1] for line in capsys.readouterr().out.splitlines()] == ["something new"]


def test_watch_asks_which_run_when_there_are_several(moved: RunFactory) -> None:
    RunFactory(steps=12, name="other", objects=LocalStore(Path("store")))
    assert error_line(everstep("status", "--watch")) == "watch which run? name one of: demo, other"


def test_why_prints_the_newest_events_and_their_evidence(moved: RunFactory) -> None:
    moved.event("something", evidence=("because of this",))
    code, lines = outcome(everstep("why", "demo", "-n", "2", "--evidence"))
    assert code == 0
    assert [line.partition(" ")[2] for line in lines[:2]] == [
        "complete: the last step is committed and proven",
        "something",
    ]
    assert lines[2] == "because of this"
    assert document(everstep("why", "demo", "--json")).model_dump()["run"] == "demo"


def test_events_can_be_chosen_by_kind_and_number(moved: RunFactory) -> None:
    code, lines = outcome(everstep("events", "demo", "--kind", "submitted"))
    assert code == 0
    assert [line.split()[-1] for line in lines] == ["submitted"]
    assert outcome(everstep("events", "demo", "--after", "1000"))[1] == []
    found = document(everstep("events", "demo", "--json")).model_dump()
    assert [event["number"] for event in found["events"]] == list(range(1, len(moved.store.events()) + 1))


def test_logs_begin_with_the_first_failing_host(folder: CliFolder) -> None:
    run = RunFactory(steps=12, objects=LocalStore(Path("store")))
    error = OwnError(type="ValueError", frame="train.py:step", message="no", step=6)
    run.launch().train(7).die(host=2, error=error)
    code, lines = outcome(everstep("logs", "demo"))
    assert code == 0
    assert lines[0].startswith("a1 process 2 on pool/h2: cause, exit code 1")
    assert document(everstep("logs", "demo", "--json")).model_dump()["exits"][0]["role"] == "cause"


def test_logs_of_a_run_without_exits(submitted: CliFolder) -> None:
    result = submitted.call("logs", "demo")
    assert result.exit_code == 0
    assert "no process of any attempt has ended" in result.stdout
    assert "everstep logs demo --follow" in result.stderr


def test_logs_follow_the_trainers_files_until_the_run_is_over(submitted: CliFolder) -> None:
    run = RunFactory(steps=12, name="tail", objects=LocalStore(Path("store")))
    run.launch("quarter").train(3).die()
    run.state("stopped")
    fields = json.loads(run.store.run().to_bytes())
    fields["fleet"] = str(submitted.path / "fleet")
    Path("store/tail/run.json").write_text(json.dumps(fields))
    log = submitted.path / "fleet" / "hosts" / "pool" / "h0" / "attempt-0001.log"
    log.parent.mkdir(parents=True)
    log.write_bytes(b"step 1\nstep 2\nhal")
    assert outcome(everstep("logs", "tail", "--follow")) == (0, ["a1 0 pool/h0 step 1", "a1 0 pool/h0 step 2"])


def test_fleet_shows_every_host_with_its_evidence(submitted: CliFolder) -> None:
    code, lines = outcome(submitted.call("fleet"))
    assert code == 0
    assert lines[0] == "HOST GENERATION DEVICES CONDITION RUN MAINTENANCE EVIDENCE"
    assert lines[1] == "main/h0 cpu 1 ready - - listed, agent's lock is free"
    assert len(lines) == 5
    assert len(document(submitted.call("fleet", "demo", "--json")).model_dump()["hosts"]) == 4


def test_a_fleet_that_nobody_named(folder: CliFolder) -> None:
    result = everstep("fleet")
    assert result.exit_code == 2
    assert "pass --fleet FOLDER" in error_line(result)


def test_decide_needs_dry_run(submitted: CliFolder) -> None:
    result = submitted.call("decide", "demo")
    assert result.exit_code == 2
    assert "everstep decide demo --dry-run" in error_line(result)


def test_decide_dry_run_says_what_would_be_done_and_writes_nothing(submitted: CliFolder) -> None:
    before = submitted.files()
    code, lines = outcome(submitted.call("decide", "demo", "--dry-run"))
    assert code == 0
    assert lines[1] == "would decide: launch a1 on full from step 0"
    found = document(submitted.call("decide", "demo", "--dry-run", "--json")).model_dump()
    assert found["action"]["placement"]["name"] == "full"
    assert submitted.files() == before


def test_decide_dry_run_says_why_it_would_wait(submitted: CliFolder) -> None:
    everstep("drill", "shrink", "main", "--keep", "0")
    _, lines = outcome(submitted.call("decide", "demo", "--dry-run"))
    assert lines[1].startswith("would wait: no placement for stage pretrain can be had in full (main/h0: gone")
