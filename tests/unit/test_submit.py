"""Submit checks everything before a run exists, says in one line what is wrong, and can be repeated."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli import submission
from orchestrator.cli.run_file import read_run
from orchestrator.cli.submission import Submission, differences
from orchestrator.contract.base import sha256_of
from orchestrator.contract.event import Event
from orchestrator.contract.recipe import Recipe
from orchestrator.store.local import LocalStore
from orchestrator.store.objects import NotFound
from tests.unit.cli_folder import PLACEMENTS, RECIPE, CliFolder, error_line, everstep, outcome


# ---- what a submit makes
def test_a_submitted_run_has_every_document_and_its_first_event(folder: CliFolder) -> None:
    result = folder.submit()
    assert result.exit_code == 0, result.output
    store = folder.store
    run = store.run()
    assert run.name == "demo"
    assert run.trainer == ("trainer",)
    assert run.fleet == str(folder.path / "fleet")
    assert run.data_root == str(folder.path / "data")
    head = store.head().value
    assert (head.attempt, head.manifest, head.revision) == (0, None, 1)
    assert [revision.recipe_sha256 for revision in store.revisions()] == [run.recipe_sha256]
    assert [placement.name for placement in store.policy().value.placements] == ["full", "quarter"]
    assert store.leaf_plan("cpu").settings == {}
    (event,) = store.events()
    assert (event.kind, event.cause) == ("submitted", "submit")


def test_the_stored_recipe_is_resolved_and_hashes_to_what_the_run_says(folder: CliFolder) -> None:
    folder.submit()
    run = folder.store.run()
    recipe = folder.store.recipe(run.recipe_sha256)
    file = recipe.stages[0].data.files[0]
    assert file.tokens == 512
    assert file.sha256 == sha256_of((folder.path / "data" / "text.u32").read_bytes())
    assert sha256_of(recipe.to_bytes()) == run.recipe_sha256


def test_the_json_answer_names_the_legal_placements_of_each_stage(folder: CliFolder) -> None:
    answer = json.loads(folder.submit("--json").stdout)
    assert answer["created"] is True
    assert answer["placements"] == {"pretrain": ["full", "quarter"]}
    assert answer["controller"] is None


def test_default_commands_are_everstep_s_own(folder: CliFolder) -> None:
    del folder.run["trainer"], folder.run["scrub"]
    folder.submit()
    run = folder.store.run()
    assert run.trainer[1:] == ("-P", "-m", "trainer.train")
    assert run.scrub[1:] == ("-P", "-m", "trainer.checkpoint.scrub")


def test_numbers_are_read_as_yaml_1_2_has_them(folder: CliFolder) -> None:
    text = folder.write().path.joinpath("recipe.yaml").read_text()
    (folder.path / "recipe.yaml").write_text(text.replace("peak: 0.001", "peak: 3e-4"))
    assert everstep("submit", str(folder.run_yaml), "--no-controller").exit_code == 0
    recipe = folder.store.recipe(folder.store.run().recipe_sha256)
    assert recipe.stages[0].schedule.peak == 3e-4


# ---- repeating it
def test_an_identical_submit_changes_nothing_and_says_so(folder: CliFolder) -> None:
    folder.submit()
    before = folder.files()
    code, lines = outcome(folder.submit())
    assert code == 0
    assert lines[0].startswith("run demo was submitted before, just so")
    assert folder.files() == before


def test_a_changed_recipe_is_refused_with_the_remedy_and_the_run_is_whole(folder: CliFolder) -> None:
    folder.submit()
    before = folder.files()
    folder.stage["steps"] = 13
    result = folder.submit()
    assert result.exit_code == 2
    assert "another recipe (changed: stages.0.steps)" in error_line(result)
    assert "everstep amend demo --recipe FILE" in error_line(result)
    assert folder.files() == before


def test_changed_data_are_a_changed_recipe(folder: CliFolder) -> None:
    folder.submit()
    folder.tokens([1] * 512)
    assert "changed: stages.0.data.files.0.sha256" in error_line(folder.submit())


def test_a_changed_trainer_is_refused(folder: CliFolder) -> None:
    folder.submit()
    folder.run["trainer"] = ["another"]
    assert "another trainer, which cannot change" in error_line(folder.submit())


def test_a_changed_leaf_plan_is_refused(folder: CliFolder) -> None:
    folder.submit()
    folder.run["leaf_plans"] = {"cpu": {"remat": "none"}}
    assert "another leaf_plans.cpu" in error_line(folder.submit())


def test_a_changed_policy_names_the_command_that_changes_it(folder: CliFolder) -> None:
    folder.submit()
    folder.run["policy"]["checkpoint"] = {"every_steps": 3}
    assert "everstep policy demo --from run.yaml" in error_line(folder.submit())


class DiesAfter(LocalStore):
    """A folder whose writer is killed after so many creations."""

    def __init__(self, root: Path, writes: int) -> None:
        super().__init__(root)
        self.writes = writes

    def create(self, name: str, data: bytes) -> str:
        if self.writes == 0:
            raise KeyboardInterrupt
        self.writes -= 1
        return super().create(name, data)


def checked(folder: CliFolder, *, now: float = 1000.0) -> Submission:
    return submission.check(read_run(folder.write().run_yaml), by="ada@here", now=now)


WRITES = 7
"""Recipe, revision, leaf plan, policy, head, run, event."""


@pytest.mark.parametrize("writes", range(WRITES))
def test_a_submit_that_died_anywhere_is_finished_by_the_same_command(folder: CliFolder, writes: int) -> None:
    store = LocalStore(folder.path / "store")
    with pytest.raises(KeyboardInterrupt):
        submission.create(checked(folder), DiesAfter(folder.path / "store", writes))
    if writes < WRITES - 1:
        with pytest.raises(NotFound):
            folder.store.run()
    assert submission.create(checked(folder, now=2000.0), store)
    assert folder.store.run().name == "demo"
    assert [event.kind for event in folder.store.events()] == ["submitted"]
    assert not submission.create(checked(folder, now=3000.0), store)


def test_what_an_unfinished_submit_of_another_recipe_left_is_not_mixed_in(folder: CliFolder) -> None:
    with pytest.raises(KeyboardInterrupt):
        submission.create(checked(folder), DiesAfter(folder.path / "store", 4))
    folder.stage["steps"] = 13
    result = folder.submit()
    assert result.exit_code == 2
    assert "left by an unfinished submit of something else" in error_line(result)


def test_an_event_of_another_writer_is_not_replaced(folder: CliFolder) -> None:
    folder.submit()
    event = folder.store.events()[0]
    assert not folder.store.create_event(Event(number=1, at=event.at, kind="alert", message="other"))


# ---- bad input: field by field
@pytest.mark.parametrize(
    ("where", "change", "says"),
    [
        ("run", {"polcy": 1}, "run.yaml: polcy: unknown field; did you mean 'policy'?"),
        ("run", {"name": "Demo_1"}, "run.yaml: name: use lower-case letters, digits and '-' inside"),
        ("run", {"name": "../x"}, "run.yaml: name: use lower-case letters"),
        ("run", {"name": 7}, "run.yaml: name: must be text; put it in quotes (found 7)"),
        ("run", {"trainer": "python"}, "run.yaml: trainer: must be a list (found 'python')"),
        ("run", {"trainer": []}, "run.yaml: trainer: needs at least one entry"),
        ("run", {"store": ""}, "run.yaml: store: must not be empty (found '')"),
        ("run", {"store": "s3://bucket/runs"}, "there are folders and gs:// buckets, no s3:"),
        ("run", {"recipe": "none.yaml"}, "none.yaml: no such file; `everstep init FOLDER` writes an example"),
        ("run", {"policy": {"placements": []}}, "run.yaml: policy.placements: needs at least one entry"),
        ("run", {"leaf_plans": {"tpu7x": {}}}, "leaf_plans.tpu7x: no generation 'tpu7x'; there are cpu"),
        ("recipe", {"seeed": 1}, "recipe.yaml: seeed: unknown field; did you mean 'seed'?"),
        ("recipe", {"seed": "one"}, "recipe.yaml: seed: must be a whole number (found 'one')"),
        ("recipe", {"seed": "1"}, "recipe.yaml: seed: must be a whole number (found '1')"),
        ("recipe", {"seed": 1.0}, "recipe.yaml: seed: must be a whole number (found 1.0)"),
        ("recipe", {"stages": []}, "recipe.yaml: stages: needs at least one entry"),
        ("stage", {"steps": 0}, "recipe.yaml: stages.0.steps: should be greater than 0 (found 0); correct it there"),
        ("stage", {"virtual_ranks": 3}, "virtual_ranks 3 is not a power of two"),
        ("stage", {"schedule": {"peak": True}}, "stages.0.schedule.peak: must be a number (found True)"),
        ("stage", {"schedule": {"peak": 1, "knd": 1}}, "stages.0.schedule.knd: unknown field; did you mean 'kind'?"),
        (
            "stage",
            {"schedule": {"peak": 1, "kind": "sine"}},
            "kind: must be 'cosine', 'half-cosine', 'linear' or 'constant'",
        ),
        ("fleet", {"pools": []}, "fleet.yaml: pools: needs at least one entry"),
        ("fleet", {"pool": []}, "fleet.yaml: pool: unknown field; did you mean 'pools'?"),
    ],
)
def test_a_wrong_field_is_one_line_that_names_it_and_the_remedy(
    folder: CliFolder, where: str, change: dict[str, Any], says: str
) -> None:
    target = {"run": folder.run, "recipe": folder.recipe, "stage": folder.stage, "fleet": folder.fleet}[where]
    target.update(change)
    result = folder.submit()
    assert result.exit_code == 2
    assert says in error_line(result)
    assert not folder.files()


def test_a_missing_field_is_named(folder: CliFolder) -> None:
    del folder.run["recipe"]
    assert error_line(folder.submit()) == f"{folder.run_yaml}: recipe: is missing; add it"


def test_further_problems_are_counted(folder: CliFolder) -> None:
    folder.recipe["model"].update(d_ff="many", norm_eps="small")
    assert error_line(folder.submit()).endswith("(found 'many') (and 1 more)")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("name: demo\nname: other\n", "run.yaml:2: field 'name' comes twice; remove one; correct it there"),
        ("name: [demo\n", "run.yaml:2: "),
        ("", "expected fields such as name, store, fleet"),
        ("- a\n- b\n", "expected fields such as name, store, fleet, data_root"),
    ],
)
def test_a_file_that_is_no_mapping_is_named_with_its_line(folder: CliFolder, text: str, says: str) -> None:
    folder.write()
    folder.run_yaml.write_text(text)
    assert says in error_line(everstep("submit", str(folder.run_yaml)))


def test_a_run_yaml_that_is_not_there(folder: CliFolder) -> None:
    assert "nowhere.yaml: no such file" in error_line(everstep("submit", "nowhere.yaml"))


# ---- bad input: token files
def test_a_token_file_of_odd_length(folder: CliFolder) -> None:
    folder.tokens([1] * 512, torn=b"x")
    result = folder.submit()
    assert result.exit_code == 2
    assert "text.u32: 2,049 bytes is not a whole, positive number of uint32 tokens" in error_line(result)
    assert not folder.files()


def test_an_empty_token_file(folder: CliFolder) -> None:
    folder.tokens([])
    assert "0 bytes is not a whole, positive number" in error_line(folder.submit())


def test_an_id_out_of_the_vocabulary_is_named_with_its_place(folder: CliFolder) -> None:
    folder.tokens([1] * 300 + [32] + [2] * 300)
    line = error_line(folder.submit())
    assert "text.u32: token 300 is 32, but the recipe's vocab_size is 32" in line
    assert "tokenize again with that vocabulary, or correct model.vocab_size" in line
    assert not folder.files()


def test_an_id_beyond_the_first_block_is_found(folder: CliFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.cli.hashes.CHUNK", 64)
    folder.tokens([1] * 300 + [99] + [2] * 300)
    assert "token 300 is 99" in error_line(folder.submit())


def test_a_token_file_that_is_missing(folder: CliFolder) -> None:
    folder.stage["data"]["files"].append({"path": "more.u32"})
    assert "more.u32: No such file or directory; correct data_root" in error_line(folder.submit())


def test_a_token_file_too_short_for_one_batch(folder: CliFolder) -> None:
    folder.tokens([1] * 31)
    line = error_line(folder.submit())
    assert "hold 3 instances of 8 tokens, and one batch takes 4" in line


def test_a_token_file_other_than_the_recipe_says(folder: CliFolder) -> None:
    folder.stage["data"]["files"][0]["sha256"] = "0" * 64
    assert "the recipe says 000000000000…; restore the file" in error_line(folder.submit())
    folder.stage["data"]["files"][0] = {"path": "text.u32", "tokens": 5}
    assert "holds 512 tokens, the recipe says 5" in error_line(folder.submit())


@pytest.mark.parametrize("path", ["../text.u32", "/data/text.u32"])
def test_a_token_file_outside_data_root(folder: CliFolder, path: str) -> None:
    folder.stage["data"]["files"][0]["path"] = path
    assert "must be below data_root" in error_line(folder.submit())


# ---- bad input: placements and fleet
def placed(folder: CliFolder, **change: Any) -> CliFolder:
    folder.run["policy"]["placements"] = [{**PLACEMENTS[0], **change}]
    return folder


def test_virtual_ranks_that_no_placement_divides_are_explained(folder: CliFolder) -> None:
    placed(folder, hosts=3)
    result = folder.submit()
    assert result.exit_code == 2
    line = error_line(result)
    assert (
        "no placement can run stage pretrain (full: P = 3 devices is not a power of two, so they do not divide" in line
    )
    assert "change hosts x devices_per_host to a power of two of at most 4, or the stage's virtual_ranks" in line
    assert not folder.files()


def test_a_placement_that_no_stage_can_use_is_refused_beside_one_that_can(folder: CliFolder) -> None:
    folder.run["policy"]["placements"] = [{**PLACEMENTS[0], "hosts": 3}, {**PLACEMENTS[0], "name": "other", "hosts": 2}]
    line = error_line(folder.submit())
    assert "placement full can run no stage (stage pretrain: P = 3 devices is not a power of two" in line
    assert not folder.files()


def test_more_devices_than_virtual_ranks_are_explained(folder: CliFolder) -> None:
    folder.stage["virtual_ranks"] = 2
    line = error_line(placed(folder).submit())
    assert "P = 4 devices is more than V = 2 virtual ranks" in line


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"pool": "man"}, "placement full: no pool 'man'; did you mean 'main'?"),
        ({"generation": "tpu7x"}, "placement full: generation tpu7x, but pool main is cpu; make them equal"),
        ({"hosts": 8}, "placement full: 8 hosts, but pool main has 4; ask for fewer"),
        ({"devices_per_host": 2, "hosts": 2}, "2 devices a host, but hosts of pool main have 1; make them equal"),
        ({"slices": 3}, "4 hosts are not 3 equal slices"),
        ({"stages": ["pretrian"]}, "placement full: no stage 'pretrian'; did you mean 'pretrain'?"),
    ],
)
def test_a_placement_that_does_not_fit_the_fleet(folder: CliFolder, change: dict[str, Any], says: str) -> None:
    assert says in error_line(placed(folder, **change).submit())


def test_a_fleet_that_is_not_there(folder: CliFolder) -> None:
    folder.run["fleet"] = "elsewhere"
    line = error_line(folder.submit())
    assert "elsewhere/fleet.yaml: no such file" in line


def test_a_fleet_with_no_hosts(folder: CliFolder) -> None:
    folder.fleet["pools"][0]["hosts"] = 0
    assert "fleet.yaml: pools.0.hosts: should be greater than 0 (found 0)" in error_line(folder.submit())


def two_generations(folder: CliFolder) -> CliFolder:
    folder.fleet["pools"].append({"name": "next", "generation": "cpu2", "hosts": 4, "devices_per_host": 1})
    other = {**PLACEMENTS[0], "name": "other", "pool": "next", "generation": "cpu2"}
    folder.run["policy"]["placements"].append(other)
    return folder


def test_bitwise_between_different_leaf_plans_is_refused_naming_both(folder: CliFolder) -> None:
    two_generations(folder).run["leaf_plans"] = {"cpu2": {"attention": "chunked"}}
    result = folder.submit()
    assert result.exit_code == 2
    assert "placements full and other cannot give equal bits: generations cpu and cpu2 have different leaf plans" in (
        error_line(result)
    )


@pytest.mark.parametrize("remedy", ["bounded", "stages", "equal plans"])
def test_each_remedy_for_different_leaf_plans_works(folder: CliFolder, remedy: str) -> None:
    two_generations(folder).run["leaf_plans"] = {"cpu2": {"attention": "chunked"}}
    if remedy == "bounded":
        folder.run["policy"]["comparison"] = "bounded"
    elif remedy == "stages":
        folder.recipe["stages"].append({**folder.stage, "name": "anneal"})
        for placement in folder.run["policy"]["placements"]:
            placement["stages"] = ["anneal" if placement["name"] == "other" else "pretrain"]
    else:
        folder.run["leaf_plans"]["cpu"] = {"attention": "chunked"}
    assert folder.submit().exit_code == 0


def test_bitwise_between_different_thread_counts_is_refused(folder: CliFolder) -> None:
    two_generations(folder).fleet["pools"][1]["threads_per_host"] = 1
    assert "pools main and next have threads_per_host None and 1" in error_line(folder.submit())


# ---- bad input: the store
def test_a_store_that_cannot_be_written(folder: CliFolder) -> None:
    (folder.path / "file").write_text("not a folder")
    folder.run["store"] = "file/store"
    result = folder.submit()
    assert result.exit_code == 3
    assert "is not a folder; name another store" in error_line(result)


def test_wrong_input_makes_no_store(folder: CliFolder) -> None:
    folder.run["policy"]["placements"][0]["pool"] = "none"
    folder.submit()
    assert not (folder.path / "store").exists()


def test_a_probe_leaves_nothing(folder: CliFolder) -> None:
    folder.submit()
    assert {name.split("/")[0] for name in folder.files()} == {"demo"}


def test_differences_name_fields() -> None:
    recipe = Recipe.model_validate(RECIPE)
    assert differences(recipe, recipe) == []
    other = recipe.model_copy(update={"seed": 5, "name": "other"})
    assert differences(recipe, other) == ["name", "seed"]


def test_a_width_that_virtual_ranks_do_not_divide(folder: CliFolder) -> None:
    folder.recipe["model"]["d_model"] = 9
    assert "virtual_ranks 4 does not divide d_model = 9; every parameter is cut" in error_line(folder.submit())


# ---- leaf plans, which only the trainer understands
@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"attention": "magic"}, "run.yaml: leaf_plans.cpu: attention must be dense or chunked or splash, not 'magic'"),
        ({"tiles": 4}, "run.yaml: leaf_plans.cpu: unknown setting 'tiles'; known: remat, scan, attention"),
        ({"attention": "chunked", "attention_chunk": 3}, "run.yaml: leaf_plans.cpu: attention_chunk 3 does not"),
    ],
)
def test_a_leaf_plan_that_the_trainer_does_not_take_is_refused(
    folder: CliFolder, settings: dict[str, Any], line: str
) -> None:
    folder.run |= {"leaf_plans": {"cpu": settings}, "check": [sys.executable, "-m", "trainer.check"]}
    assert line in error_line(folder.submit())
    assert not folder.files()


@pytest.mark.parametrize(
    ("check", "line"),
    [
        (["/no/such/command"], "the trainer cannot be asked: [Errno 2] No such file or directory"),
        ([sys.executable, "-c", "raise SystemExit('out of order')"], "ended with 1: out of order; correct `check`"),
    ],
)
def test_a_check_that_does_not_answer_is_named_with_the_way_out(folder: CliFolder, check: list[str], line: str) -> None:
    folder.run |= {"leaf_plans": {"cpu": {"remat": "none"}}, "check": check}
    assert line in error_line(folder.submit())
    folder.run["check"] = []
    assert folder.submit().exit_code == 0
