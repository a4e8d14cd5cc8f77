"""Commands that prove something from the store alone, and drills."""

import json
import sys
from pathlib import Path

import pytest

from orchestrator.contract.base import sha256_of
from orchestrator.contract.manifest import FileEntry
from orchestrator.store.local import LocalStore
from tests.unit.cli_folder import CliFolder, document, error_line, everstep, outcome
from tests.unit.run_factory import RunFactory


# ---- prove
def test_verify_is_exit_code_0_when_every_replay_is_equal(moved: RunFactory) -> None:
    result = everstep("verify", "demo", "--checkpoints")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("demo: equal: 3 steps were computed more than once")
    assert "000000000012-a0002" in result.stdout
    found = document(everstep("verify", "demo", "--json")).model_dump()
    wanted = ("attempts", "replayed_steps", "steps_differing", "max_abs_delta_loss", "recipe_sha256", "verdict")
    assert {name: found[name] for name in wanted if name != "recipe_sha256"} == {
        "attempts": 2,
        "replayed_steps": 3,
        "steps_differing": 0,
        "max_abs_delta_loss": 0.0,
        "verdict": "equal",
    }
    assert all(entry["params_sha256"] for entry in found["checkpoints"])


def test_verify_is_exit_code_1_when_a_replayed_step_differs(folder: CliFolder) -> None:
    run = RunFactory(steps=12, objects=LocalStore(Path("store")))
    run.launch("full").train(4).commit().train(7).die()
    run.launch("quarter").train(12, change={5: {"total": "3f800000"}}).commit()
    result = everstep("verify", "demo")
    assert result.exit_code == 1
    assert "differs" in result.stdout


def test_verify_says_when_token_files_are_not_at_hand(moved: RunFactory) -> None:
    assert "--data-root says where they are" in everstep("verify", "demo").stderr
    result = everstep("verify", "demo", "--data-root", "nowhere")
    assert result.exit_code == 2
    assert "no such folder" in error_line(result)


def test_certificate_is_exit_code_0_only_if_every_claim_holds(moved: RunFactory) -> None:
    result = everstep("certificate", "demo", "--out", "certificate.json")
    assert result.exit_code == 0, result.output
    assert "demo: certified" in result.stdout
    assert Path("certificate.json").read_text() == everstep("certificate", "demo", "--json").stdout
    RunFactory(steps=12, name="young", objects=LocalStore(Path("store"))).launch().train(3)
    assert everstep("certificate", "young").exit_code == 1


def test_certificate_compares_with_a_reference(moved: RunFactory) -> None:
    other = RunFactory(steps=12, name="reference", objects=LocalStore(Path("store")))
    other.launch().train(12).commit(proven=True).finish()
    other.complete()
    found = document(everstep("certificate", "demo", "--reference", "reference", "--json")).model_dump()
    assert found["reference"]["equal"] is True
    assert "no run 'refrence'" in everstep("certificate", "demo", "--reference", "refrence").stderr


def test_goodput_and_episodes(moved: RunFactory) -> None:
    code, lines = outcome(everstep("goodput", "demo"))
    assert code == 0
    assert lines[-1].endswith("100.00 %")
    assert document(everstep("goodput", "demo", "--json")).model_dump()["run"] == "demo"
    code, lines = outcome(everstep("episodes", "demo"))
    assert code == 0
    assert lines[2].startswith("2 died a1 full a2 quarter")
    assert len(document(everstep("episodes", "demo", "--json")).model_dump()["episodes"]) == 2


def test_export_writes_csv_once(moved: RunFactory) -> None:
    result = everstep("export", "demo", "--csv", "curve.csv", "--json")
    assert document(result).model_dump()["steps"] == {"curve.csv": 12}
    assert len(Path("curve.csv").read_text().splitlines()) == 13
    result = everstep("export", "demo", "--csv", "curve.csv")
    assert result.exit_code == 2
    assert "pass --force" in error_line(result)
    assert everstep("export", "demo", "--csv", "curve.csv", "--force").exit_code == 0
    assert "export to what?" in error_line(everstep("export", "demo"))


SCRUB = """
import sys, time
from orchestrator.contract.manifest import Proof, Quarantine
from orchestrator.contract.base import sha256_of
from orchestrator.contract.manifest import FileEntry
from orchestrator.store.local import LocalStore
from orchestrator.store.run_store import RunStore
from pathlib import Path
what, _, store, _, run, _, manifest = sys.argv[1:]
store = RunStore(LocalStore(Path(store)), run)
if what == "proof":
    store.create_proof(Proof(manifest=manifest, how="scrub", attempt=None, arrays=1, at=0))
elif what == "quarantine":
    store.create_quarantine(Quarantine(manifest=manifest, problem="params/w differs", attempt=None, at=0))
    sys.exit(1)
else:
    sys.exit(3)
"""


@pytest.mark.parametrize(
    ("what", "code", "says"),
    [
        ("proof", 0, "000000000012-a0002: proven"),
        ("quarantine", 1, "000000000012-a0002: not proven: params/w differs"),
        ("fail", 1, "000000000012-a0002: not proven: the scrub ended with exit code 3"),
    ],
)
def test_scrub_runs_the_run_s_command_and_says_what_came_of_it(
    folder: CliFolder, what: str, code: int, says: str
) -> None:
    run = RunFactory(steps=12, objects=LocalStore(Path("store")))
    run.launch("full").train(4).commit().train(7).die()
    run.launch("quarter").train(12).commit()
    fields = json.loads(run.store.run().to_bytes())
    fields["scrub"] = [sys.executable, "-c", SCRUB, what]
    Path("store/demo/run.json").write_text(json.dumps(fields))
    result = everstep("scrub", "demo")
    assert (result.exit_code, says in result.stdout) == (code, True), result.output


def test_scrub_does_not_repeat_a_proof(moved: RunFactory) -> None:
    result = everstep("scrub", "demo", "--json")
    assert result.exit_code == 0
    assert document(result).model_dump()["code"] is None
    result = everstep("scrub", "demo", "--again")
    assert "was submitted without a scrub command" in error_line(result)
    result = everstep("scrub", "demo", "--manifest", "none")
    assert result.exit_code == 2
    assert "the newest are" in error_line(result)


# ---- try
def test_drills_are_listed() -> None:
    code, lines = outcome(everstep("drill", "--list"))
    assert code == 0
    on_fleets = [
        "kill-host",
        "agent-lost",
        "controller-lost",
        "stop-host",
        "slow-host",
        "shrink",
        "grow",
        "maintenance",
    ]
    on_stores = ["corrupt-checkpoint", "torn-ledger", "store-outage", "full-disk"]
    assert [line.split()[0] for line in lines] == on_fleets + on_stores
    assert "kill-host" in document(everstep("drill", "--list", "--json")).model_dump()["drills"]
    assert error_line(everstep("drill")).startswith("which drill?")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["kill-host", "main/h1"], "host main/h1: nothing runs there, nothing was killed"),
        (["stop-host", "h2"], "host main/h2: no trainer runs there, nothing was stopped"),
        (["agent-lost", "main/h1"], "host main/h1: no agent runs there, nothing was killed"),
        (["shrink", "main", "--keep", "1"], "pool main: 3 of 4 hosts taken away, 1 left"),
        (["grow", "main"], "pool main: 0 hosts given back, all 4 present"),
        (["maintenance", "main/h3", "--in", "60"], "host main/h3: maintenance announced in 60 s"),
        (["maintenance", "main/h3", "--clear"], "host main/h3: no maintenance announced"),
    ],
)
def test_a_drill_says_what_it_did(submitted: CliFolder, arguments: list[str], says: str) -> None:
    assert outcome(everstep("drill", *arguments)) == (0, [says])
    found = document(everstep("drill", *arguments, "--fleet", "fleet", "--json")).model_dump()
    assert found["drill"] == arguments[0]


def test_a_corrupted_checkpoint_differs_in_one_bit_or_lacks_a_file(moved: RunFactory) -> None:
    store, head = moved.store, moved.store.head()
    assert head.value.manifest is not None
    contents = {"small": b"12", "large": bytes(range(99))}
    files = {name: FileEntry(size=len(data), sha256=sha256_of(data)) for name, data in contents.items()}
    manifest = store.manifest(head.value.manifest).model_copy(update={"attempt": 7, "files": files})
    store.create_manifest(manifest)
    store.swap_head(head.value.model_copy(update={"manifest": manifest.name}), generation=head.generation)
    folder = Path(store.address) / manifest.folder
    folder.mkdir(parents=True)
    for name, data in contents.items():
        (folder / name).write_bytes(data)

    assert outcome(everstep("drill", "corrupt-checkpoint", "demo"))[0] == 0
    changed = bytes(one ^ other for one, other in zip(contents["large"], (folder / "large").read_bytes(), strict=True))
    assert int.from_bytes(changed, "big").bit_count() == 1
    assert outcome(everstep("drill", "corrupt-checkpoint", "demo", "--how", "missing-file"))[0] == 0
    assert [path.name for path in folder.iterdir()] == ["small"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["kill-host", "main/h9"], "'main/h9' is no host of the fleet; there are main/h0 … main/h3"),
        (["kill-host", "other/h1"], "'other/h1' is no host of the fleet"),
        (["shrink", "other", "--keep", "1"], "no pool 'other'; there are main"),
        (["shrink", "main", "--keep", "9"], "keep 9 of 4 hosts? use 0 … 4"),
        (["maintenance", "main/h3"], "say either --in SECONDS or --clear"),
        (["corrupt-checkpoint", "demo"], "run demo: no checkpoint is committed yet; nothing was damaged"),
        (["corrupt-checkpoint", "demo", "--how", "magic"], "'magic' is not one of 'flipped-byte', 'missing-file'"),
    ],
)
def test_a_drill_that_cannot_be(submitted: CliFolder, arguments: list[str], says: str) -> None:
    result = everstep("drill", *arguments)
    assert result.exit_code == 2
    assert says in error_line(result)


def test_a_drilled_host_shows_in_the_fleet(submitted: CliFolder) -> None:
    everstep("drill", "shrink", "main", "--keep", "3")
    everstep("drill", "maintenance", "h0", "--in", "7200")
    _, lines = outcome(submitted.call("fleet"))
    assert "in 2 h" in lines[1] or "in 120 min" in lines[1]
    assert lines[4] == "main/h3 cpu 1 gone - - not in the fleet's list"
