"""What people ask for: the request, its answer, exit codes; amend, rewind, policy."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.cli.requests import answer_to
from orchestrator.cli.run_controller import wired
from orchestrator.controller.clock import SystemClock
from tests.unit.cli_folder import CliFolder, document, error_line, everstep
from tests.unit.run_factory import RunFactory


# ---- ask
@pytest.fixture
def led(submitted: CliFolder, monkeypatch: pytest.MonkeyPatch) -> Iterator[CliFolder]:
    """Whenever a command waits, the real controller looks once; no host is ready, so it launches nothing."""
    everstep("drill", "shrink", "main", "--keep", "0")
    with wired(submitted.store, clock=SystemClock()) as controller:
        monkeypatch.setattr("orchestrator.cli.requests.time.sleep", lambda _: controller.look())
        monkeypatch.setattr("orchestrator.cli.requests.leader_of", lambda _: os.getpid())
        yield submitted


def test_a_request_waits_for_its_answer_and_shows_it(led: CliFolder) -> None:
    result = led.call("hold", "demo", "--reason", "strange loss")
    assert result.exit_code == 0, result.output
    assert "asked for hold (strange loss): only watched from now on" in result.stdout
    (name,) = led.store.request_names()
    request = led.store.request(name)
    assert request.by.count("@") == 1
    assert (request.kind, request.reason, request.attempt_seen) == ("hold", "strange loss", 0)


def test_a_refused_request_is_exit_code_1_and_one_line(led: CliFolder) -> None:
    result = led.call("resume", "demo")
    assert result.exit_code == 1
    assert "resume by" in error_line(result)
    assert "refused: it is not held, paused or stopped" in error_line(result)


def test_a_refused_request_with_json_has_the_refusal_and_exit_code_1(led: CliFolder) -> None:
    result = led.call("move", "demo", "half", "--json")
    assert result.exit_code == 1
    found = document(result).model_dump()
    assert found["answer"]["kind"] == "refused"
    assert "choose of full, quarter" in found["answer"]["message"]


@pytest.mark.parametrize(
    ("arguments", "kind", "sent"),
    [
        (["drain"], "drain", {}),
        (["move", "quarter"], "move", {"to": "quarter"}),
        (["pause"], "pause", {}),
        (["stop"], "stop", {}),
        (["stop", "--now"], "stop", {"now": "yes"}),
        (["host-gone", "main/h1"], "host-gone", {"host": "main/h1"}),
    ],
)
def test_what_each_command_asks_for(
    submitted: CliFolder, arguments: list[str], kind: str, sent: dict[str, str]
) -> None:
    command, *rest = arguments
    result = submitted.call(command, "demo", *rest, "--no-wait", "--reason", "why not")
    assert result.exit_code == 0
    assert "no controller of this machine leads run demo" in result.stderr
    (name,) = submitted.store.request_names()
    request = submitted.store.request(name)
    assert (request.kind, request.arguments, request.reason) == (kind, sent, "why not")


def test_a_request_that_nobody_answers_is_exit_code_3(submitted: CliFolder) -> None:
    result = submitted.call("hold", "demo", "--timeout", "0")
    assert result.exit_code == 3
    assert "was not answered within 0 s; it stays in the store" in result.stderr


def test_an_answer_is_found_among_later_events(moved: RunFactory) -> None:
    def answer(_: float) -> None:
        moved.event("other", request="another")
        moved.event("this one", request="mine")

    after = len(moved.store.events())
    assert answer_to(moved.store, "mine", after=after, timeout=1, sleep=answer).message == "this one"


def test_a_request_is_made_against_the_newest_attempt(moved: RunFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.cli.requests.start_detached", lambda *_, **__: 4711)
    result = everstep("resume", "demo", "--no-wait")
    assert "started a controller for run demo (process 4711)" in result.stderr
    (name,) = moved.store.request_names()
    assert moved.store.request(name).attempt_seen == 2


# ---- amend, rewind, policy
def test_amend_stores_the_new_recipe_before_it_asks(submitted: CliFolder) -> None:
    submitted.stage["schedule"]["peak"] = 5e-4
    submitted.write()
    result = submitted.call("amend", "demo", "--recipe", "recipe.yaml", "--no-wait", "--reason", "lower")
    assert result.exit_code == 0, result.stderr
    (name,) = submitted.store.request_names()
    request = submitted.store.request(name)
    assert request.arguments["step"] == ""
    recipe = submitted.store.recipe(request.arguments["recipe_sha256"])
    assert recipe.stages[0].schedule.peak == 5e-4
    assert recipe.resolved


def test_an_amendment_is_made_by_the_controller_from_the_committed_step(led: CliFolder) -> None:
    led.stage["schedule"]["peak"] = 5e-4
    led.write()
    result = led.call("amend", "demo", "--recipe", "recipe.yaml")
    assert result.exit_code == 1
    assert "there is no checkpoint at step" in error_line(result)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({}, "the recipe is the one that run demo has"),
        ({"d_ff": 20}, "model.d_ff changed, so no checkpoint of run demo fits; submit another run"),
        ({"d_f": 20}, "model.d_f: unknown field; did you mean 'd_ff'?"),
    ],
)
def test_an_amendment_that_cannot_be(submitted: CliFolder, change: dict[str, int], says: str) -> None:
    before = submitted.files()
    submitted.recipe["model"].update(change)
    submitted.write()
    result = submitted.call("amend", "demo", "--recipe", "recipe.yaml")
    assert result.exit_code == 2
    assert says in error_line(result)
    assert submitted.files() == before


def test_an_amendment_that_no_placement_can_run(submitted: CliFolder) -> None:
    submitted.run["policy"]["placements"] = submitted.run["policy"]["placements"][:1]
    assert submitted.submit("--name", "one").exit_code == 0
    submitted.stage["virtual_ranks"] = 2
    submitted.write()
    result = submitted.call("amend", "one", "--recipe", "recipe.yaml")
    assert "no placement can run stage pretrain (full: P = 4 devices is more than V = 2" in error_line(result)


def test_rewind_asks_with_the_same_recipe(submitted: CliFolder) -> None:
    submitted.call("rewind", "demo", "--to-step", "4", "--no-wait")
    (name,) = submitted.store.request_names()
    arguments = submitted.store.request(name).arguments
    assert arguments == {"step": "4", "recipe_sha256": submitted.store.run().recipe_sha256}


def test_rewind_makes_a_new_revision_on_the_earlier_checkpoint(
    moved: RunFactory, folder: CliFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.write()
    fields = json.loads(moved.store.run().to_bytes())
    Path("store/demo/run.json").write_text(json.dumps({**fields, "fleet": str(folder.path / "fleet")}))
    with wired(moved.store, clock=SystemClock()) as controller:
        monkeypatch.setattr("orchestrator.cli.requests.time.sleep", lambda _: controller.look())
        monkeypatch.setattr("orchestrator.cli.requests.leader_of", lambda _: os.getpid())
        refused = everstep("rewind", "demo", "--to-step", "5")
        assert refused.exit_code == 1
        assert "there is no checkpoint at step 5; there are 0, 4, 12" in error_line(refused)
        result = everstep("rewind", "demo", "--to-step", "4", "--reason", "spike")
    assert result.exit_code == 0, result.output
    assert "(spike): revision 2 goes on from step 4" in result.stdout
    assert [revision.from_step for revision in moved.store.revisions()] == [0, 4]
    assert moved.head.manifest == "000000000004-a0001"


def test_a_pin_counts_before_anyone_has_noted_it(moved: RunFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.cli.requests.start_detached", lambda *_, **__: 4711)
    assert everstep("pin", "demo", "--manifest", "000000000004-a0001", "--no-wait").exit_code == 0
    assert moved.store.pins() == {"000000000004-a0001"}
    (name,) = moved.store.request_names()
    assert moved.store.request(name).kind == "pin"
    assert "has no checkpoint 'none'" in error_line(everstep("pin", "demo", "--manifest", "none"))


def test_policy_is_shown_as_it_may_be_written(submitted: CliFolder) -> None:
    text = submitted.call("policy", "demo").stdout
    run_yaml = submitted.run_yaml.read_text()
    assert "every_steps: 1000" in text
    assert text.startswith("policy:\n  placements:\n")
    assert "placements" in run_yaml
    assert document(submitted.call("policy", "demo", "--json")) == submitted.store.policy().value


def test_a_policy_is_replaced_and_recorded(led: CliFolder) -> None:
    led.run["policy"]["checkpoint"] = {"every_steps": 3}
    led.write()
    result = led.call("policy", "demo", "--from", "run.yaml", "--reason", "save more often")
    assert result.exit_code == 0, result.stderr
    assert led.store.policy().value.checkpoint.every_steps == 3
    event = led.store.events()[-1]
    assert event.kind == "policy-changed"
    assert event.details["changed"] == "checkpoint.every_steps"


def test_the_same_policy_changes_nothing(submitted: CliFolder) -> None:
    result = submitted.call("policy", "demo", "--from", "run.yaml")
    assert (result.exit_code, submitted.store.request_names()) == (0, [])


def test_a_policy_that_does_not_fit_is_refused(submitted: CliFolder) -> None:
    before = submitted.files()
    for placement in submitted.run["policy"]["placements"]:
        placement["hosts"] = 3
    submitted.write()
    result = submitted.call("policy", "demo", "--from", "run.yaml")
    assert result.exit_code == 2
    assert "no placement can run stage pretrain" in error_line(result)
    assert submitted.files() == before


def test_a_policy_may_bring_a_generation_with_its_leaf_plan(submitted: CliFolder) -> None:
    submitted.fleet["pools"].append({"name": "next", "generation": "cpu2", "hosts": 4, "devices_per_host": 1})
    placements = submitted.run["policy"]["placements"]
    placements.append({**placements[0], "name": "other", "pool": "next", "generation": "cpu2"})
    submitted.run["leaf_plans"] = {"cpu2": {"remat": "none"}}
    submitted.write()
    assert "different leaf plans" in error_line(submitted.call("policy", "demo", "--from", "run.yaml"))
    submitted.run["policy"]["comparison"] = "bounded"
    submitted.write()
    assert submitted.call("policy", "demo", "--from", "run.yaml", "--no-wait").exit_code == 0
    assert submitted.store.leaf_plan("cpu2").settings == {"remat": "none"}
    submitted.run["leaf_plans"] = {"cpu2": {"remat": "layer"}}
    submitted.run["policy"]["comparison"] = "bitwise"
    submitted.write()
    assert "leaf_plans.cpu2 is not the one" in error_line(submitted.call("policy", "demo", "--from", "run.yaml"))
