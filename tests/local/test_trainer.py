"""Real trainer processes on small runs: start, death, drain, damage, refusal. The program is a stand-in."""

import os
import secrets
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestrator.contract.attempt import ExitCode
from orchestrator.contract.checksum import checksum, words
from orchestrator.contract.ledger import Record, to_lines
from orchestrator.contract.manifest import Manifest, manifest_name
from tests.local.attempts import (
    REPOSITORY,
    STAND_IN,
    VOCABULARY,
    Attempt,
    SmallRun,
    small_recipe,
    stage_of,
    write_tokens,
)
from tests.local.warm import Warm, zygote

MakeRun = Callable[..., SmallRun]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One compile cache for all runs of this file."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def warm() -> Iterator[Warm]:
    with zygote("tests.local.stand_in_trainer", preload="tests.local.stand_in", repository=REPOSITORY) as forks:
        yield forks


@pytest.fixture
def make_run(tmp_path: Path, cache: Path, warm: Warm) -> Iterator[MakeRun]:
    runs: list[SmallRun] = []

    def make(*, every_steps: int = 4, vocabulary: int = VOCABULARY, **stage: Any) -> SmallRun:
        recipe = small_recipe(stage_of(write_tokens(tmp_path / "tokens.u32", vocabulary=vocabulary), **stage))
        runs.append(SmallRun(tmp_path, recipe, every_steps=every_steps, cache=cache, warm=warm))
        return runs[-1]

    yield make
    for run in runs:
        run.stop_all()


def assert_replayed(earlier: Attempt, later: Attempt, *, at_least: int) -> None:
    """All steps that both recorded have equal bits, and there are enough of them."""
    before, after = earlier.ledger(), later.ledger()
    common = before.keys() & after.keys()
    assert len(common) >= at_least, f"{sorted(before)} {sorted(after)}"
    assert {step: after[step].differs_from(before[step]) for step in common} == dict.fromkeys(common, ())


def flip_a_byte(run: SmallRun, manifest: Manifest) -> str:
    """Damage the largest file of a checkpoint in its middle; returns its name."""
    name = max(manifest.files, key=lambda file: manifest.files[file].size)
    path = run.folder / "store" / "small" / manifest.folder / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(data)
    return name


def changed(record: Record) -> Record:
    """The record with one bit of rank 2's loss turned."""
    ranks = list(record.ce_by_rank)
    ranks[2] = f"{int(ranks[2], 16) ^ 1:08x}"
    return record.model_copy(update={"ce_by_rank": tuple(ranks)})


def test_first_attempt_commits_step_0_before_it_takes_a_step(make_run: MakeRun) -> None:
    run = make_run(steps=8)
    attempt = run.launch()
    assert attempt.wait() == [ExitCode.LAST_STEP_COMMITTED], attempt.output()
    chain = run.store.lineage(run.head.manifest)
    assert [manifest.next_step for manifest in chain] == [8, 4, 0]
    assert chain[-1].parent is None
    records = attempt.ledger()
    assert sorted(records) == list(range(8))
    assert chain[-1].at <= records[0].started
    assert {manifest.params_sha256 for manifest in chain}.__len__() == 3
    progress = attempt.progress()
    assert (progress.phase, progress.step, progress.save_failures) == ("end", 7, 0)
    assert [start.phase for start in progress.phases] == ["start", "initialise", "compile", "restore", "train", "end"]
    assert progress.first_new_step_at is not None


def test_skipped_steps_are_reported_by_every_process(make_run: MakeRun) -> None:
    attempt = make_run(steps=16, skip_sigma=0.5).launch(hosts=2)
    assert attempt.wait() == [ExitCode.LAST_STEP_COMMITTED] * 2, attempt.output()
    skipped = tuple(step for step, record in sorted(attempt.ledger().items()) if record.skipped)
    assert 0 < len(skipped) < 16
    assert [attempt.progress(process).skipped for process in range(2)] == [skipped] * 2


def test_killed_attempt_is_replayed_bit_for_bit_on_other_hosts(make_run: MakeRun) -> None:
    run = make_run(steps=400, every_steps=40)
    first = run.launch(hosts=2, devices=2)
    wanted = 41 + secrets.randbelow(60)
    # records are sure to be in the store once the save of step 40, which goes on beside the steps, has committed
    first.until(lambda progress: (progress.step or 0) >= wanted and (run.head.next_step or 0) >= 40)
    first.send(signal.SIGKILL, process=1)
    first.kill()
    committed = run.head
    assert committed.next_step is not None
    second = run.launch(until_step=max(first.ledger()) + 3)
    assert second.wait() == [ExitCode.LAST_STEP_COMMITTED], second.output()
    assert_replayed(first, second, at_least=1)
    assert run.store.proofs()[str(committed.manifest)].how == "restore"
    assert min(second.ledger()) == committed.next_step
    assert [start.phase for start in second.progress().phases][4:] == ["replay", "train", "end"]


@pytest.mark.parametrize("hosts", [1, 2])
def test_drained_attempt_leaves_at_one_step_with_two_witness_steps(make_run: MakeRun, hosts: int) -> None:
    run = make_run(steps=4000, every_steps=2000)
    first = run.launch(hosts=hosts)
    first.until(lambda progress: (progress.step or 0) >= 10)
    first.send(signal.SIGTERM, process=hosts - 1)
    assert first.wait() == [ExitCode.DRAINED] * hosts, first.output()
    saved = run.head.next_step
    assert saved is not None
    assert 10 < saved < 4000
    assert {first.progress(process).step for process in range(hosts)} == {saved + 1}
    assert max(first.ledger()) == saved + 1
    second = run.launch(until_step=saved + 4)
    assert second.wait() == [ExitCode.LAST_STEP_COMMITTED], second.output()
    assert_replayed(first, second, at_least=2)


def test_drain_before_the_first_step_has_nothing_to_save(make_run: MakeRun) -> None:
    run = make_run(steps=4000)
    attempt = run.launch(hosts=2, cold=STAND_IN)
    attempt.until(lambda _: True, process=1)
    attempt.send(signal.SIGTERM, process=1)
    assert attempt.wait() == [ExitCode.DRAINED_NOTHING_NEW] * 2, attempt.output()
    assert run.head.manifest is None


def test_drain_during_a_restart_far_from_step_0_is_heard(make_run: MakeRun) -> None:
    """JAX's service agrees on a number of calls; counting steps, it would wait for a number that never comes."""
    run = make_run(steps=4000, every_steps=40)
    assert run.launch(until_step=80).wait() == [ExitCode.LAST_STEP_COMMITTED]
    second = run.launch()
    second.until(lambda progress: progress.phase not in ("start", "initialise"))
    second.send(signal.SIGTERM)
    (code,) = second.wait()
    assert code in (ExitCode.DRAINED, ExitCode.DRAINED_NOTHING_NEW), second.output()


def test_second_start_finds_its_programs_in_the_compile_cache(make_run: MakeRun, tmp_path: Path) -> None:
    """In every process: JAX alone would write the entries of process 0 only."""
    run = make_run(steps=2)
    run.cache = tmp_path / "cache"
    for expected in ("miss", "hit"):
        attempt = run.launch(hosts=2, until_step=1 if expected == "miss" else 2)
        assert attempt.wait() == [ExitCode.LAST_STEP_COMMITTED] * 2, attempt.output()
        assert [attempt.progress(process).compile_cache for process in range(2)] == [expected] * 2


def test_hosts_that_do_not_come_are_named(make_run: MakeRun) -> None:
    code = "from trainer import peers, train; peers.INITIALISE_SECONDS = 0.2; train.main()"
    attempt = make_run().launch(hosts=3, absent=2, cold=("-c", code))
    assert attempt.wait() == [ExitCode.OWN_ERROR]
    assert attempt.output() == "everstep: initialise: nothing from pool/host-1, pool/host-2 within 0 s\n"


def test_devices_that_are_not_as_the_placement_says_are_refused(make_run: MakeRun) -> None:
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=1"}
    attempt = make_run().launch(devices=2, environment=flags)
    assert attempt.wait() == [ExitCode.OWN_ERROR]
    assert "host pool/host-0: JAX sees 1 devices, placement hosts-1 says 2" in attempt.output()


def test_damaged_checkpoint_is_quarantined_and_the_one_before_it_used(make_run: MakeRun) -> None:
    run = make_run(steps=12)
    first = run.launch(until_step=8)
    assert first.wait() == [ExitCode.LAST_STEP_COMMITTED]
    damaged, older, _ = run.store.lineage(run.head.manifest)
    file = flip_a_byte(run, damaged)
    second = run.launch(prior=run.prior(2, older.next_step))
    assert second.wait() == [ExitCode.LAST_STEP_COMMITTED], second.output()
    (entry,) = run.store.quarantined().values()
    assert entry.manifest == damaged.name
    assert file in entry.problem or "checksum" in entry.problem
    assert list(run.store.proofs()) == [older.name]
    assert damaged.name not in {manifest.name for manifest in run.store.lineage(run.head.manifest)}
    assert_replayed(first, second, at_least=4)


def test_nothing_is_overwritten_when_no_checkpoint_restores(make_run: MakeRun) -> None:
    run = make_run(steps=12)
    assert run.launch(until_step=8).wait() == [ExitCode.LAST_STEP_COMMITTED]
    chain = run.store.lineage(run.head.manifest)
    for manifest in chain:
        flip_a_byte(run, manifest)
    second = run.launch()
    before = run.head
    assert second.wait() == [ExitCode.OWN_ERROR]
    error = second.error()
    assert error is not None
    assert (error.type, error.frame) == ("NothingRestores", "trainer/checkpoint/restore.py:newest")
    assert run.store.quarantined().keys() == {manifest.name for manifest in chain}
    assert run.head == before
    assert second.ledger() == {}


def test_checkpoint_of_another_recipe_is_refused_and_of_an_earlier_revision_is_not(make_run: MakeRun) -> None:
    run = make_run(steps=8)
    assert run.launch(until_step=4).wait() == [ExitCode.LAST_STEP_COMMITTED]
    (stage,) = run.recipe.stages
    schedule = stage.schedule.model_copy(update={"peak": 2e-3})
    run.amend(small_recipe(stage.model_copy(update={"schedule": schedule})))
    refused = run.launch(revision=1, prior=())
    assert refused.wait() == [ExitCode.OWN_ERROR]
    assert "both say revision 1" in refused.output()
    assert "Traceback" not in refused.output()
    accepted = run.launch(prior=())
    assert accepted.wait() == [ExitCode.LAST_STEP_COMMITTED], accepted.output()


def test_step_that_is_not_finite_is_recorded_and_not_committed(make_run: MakeRun) -> None:
    run = make_run(steps=8, every_steps=1, peak=1e38)
    attempt = run.launch()
    assert attempt.wait() == [ExitCode.NOT_FINITE], attempt.output()
    bad = [record.step for record in attempt.ledger().values() if not record.finite]
    assert bad == [max(attempt.ledger())]
    assert (run.head.next_step or 0) <= bad[0]
    assert f"step {bad[0]}" in attempt.output()
    assert attempt.progress().step == bad[0], "what the exit document will say"


def test_replay_that_differs_ends_both_processes_and_commits_nothing(make_run: MakeRun) -> None:
    run = make_run(steps=12, every_steps=8)
    first = run.launch(until_step=7)
    assert first.wait() == [ExitCode.LAST_STEP_COMMITTED]
    (name,) = run.store.segment_names(1)
    records = [changed(record) if record.step == 5 else record for record in run.store.ledger(1)]
    (run.folder / "store" / "small" / name).write_bytes(to_lines(records))
    start = manifest_name(0, 1)
    second = run.launch(hosts=2, resume=start, prior=run.prior(2, 0))
    before = run.head
    assert second.wait() == [ExitCode.REPLAY_DIFFERS] * 2, second.output()
    line = "step 5: attempt 2 against attempt 1: ce_by_rank differ; CE of virtual ranks 2"
    assert line in second.output(0)
    assert line in second.output(1)
    assert max(second.ledger()) == 5
    assert second.progress().step == 5, "what the exit document will say"
    assert run.head == before


def test_fenced_attempt_commits_nothing_and_leaves(make_run: MakeRun) -> None:
    run = make_run(steps=100_000, every_steps=20)
    attempt = run.launch(hosts=2)
    attempt.until(lambda progress: (progress.step or 0) >= 25)
    run.fence()
    fenced_at = run.head
    assert attempt.wait() == [ExitCode.DRAINED_NOTHING_NEW] * 2, attempt.output()
    assert "fenced by attempt 2" in attempt.output()
    assert run.head == fenced_at


def test_attempt_that_is_fenced_before_it_starts_leaves_at_once(make_run: MakeRun) -> None:
    run = make_run(steps=8)
    number = run.fence()
    attempt = run.launch(attempt=number)
    assert attempt.wait() == [ExitCode.DRAINED_NOTHING_NEW]
    assert "fenced by attempt 2" in attempt.output()
    assert run.head.manifest is None


@pytest.mark.parametrize("hosts", [1, 2])
def test_failed_save_is_reported_and_the_next_interval_saves(make_run: MakeRun, hosts: int) -> None:
    run = make_run(steps=12)
    in_the_way = run.folder / "store" / "small" / "checkpoints" / manifest_name(4, 1)
    in_the_way.parent.mkdir(parents=True)
    in_the_way.write_text("a file where the checkpoint's folder must go")
    attempt = run.launch(hosts=hosts)
    assert attempt.wait() == [ExitCode.LAST_STEP_COMMITTED] * hosts, attempt.output()
    assert [manifest.next_step for manifest in run.store.lineage(run.head.manifest)] == [12, 8, 0]
    assert attempt.progress().save_failures == 1
    assert "the save of step 4 failed: FileExistsError" in attempt.output()


FULL_DISK_AT_STEP_4 = """
import os, resource
from tests.local import stand_in_trainer
from trainer import train

def limit(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

def load():
    story = stand_in_trainer.load_story()
    from trainer.checkpoint import orbax_files
    save, wait = orbax_files.save, orbax_files.PendingSave.wait

    def save_with_little_room(folder, state, **how):
        if "00004" in folder and os.environ["EVERSTEP_PROCESS"] == "1":
            limit(1000)
        return save(folder, state, **how)

    def wait_and_make_room(pending):
        try:
            wait(pending)
        finally:
            limit(resource.RLIM_INFINITY)

    orbax_files.save, orbax_files.PendingSave.wait = save_with_little_room, wait_and_make_room
    return story

train.main(load)
"""


def test_host_that_cannot_write_its_part_does_not_keep_the_others_waiting(make_run: MakeRun) -> None:
    run = make_run(steps=12)
    attempt = run.launch(hosts=2, cold=("-c", FULL_DISK_AT_STEP_4))
    assert attempt.wait() == [ExitCode.LAST_STEP_COMMITTED] * 2, attempt.output() + attempt.output(1)
    assert [manifest.next_step for manifest in run.store.lineage(run.head.manifest)] == [12, 8, 0]
    assert "the save of step 4 failed: PeersMissing: pool/host-1 gave up" in attempt.output()


WITNESSES_TOLD = """
from tests.local import stand_in_trainer
from trainer import train

def load():
    story = stand_in_trainer.load_story()
    from trainer.checkpoint.saver import Saver
    start = Saver.start

    def told(saver, next_step, *rest, witness=None):
        print(f"save {next_step} witness {witness}", flush=True)
        start(saver, next_step, *rest, witness=witness)

    Saver.start = told
    return story

train.main(load)
"""


def test_save_at_an_interval_waits_for_the_step_beyond_it_and_the_first_and_last_for_none(make_run: MakeRun) -> None:
    attempt = make_run(steps=12).launch(cold=("-c", WITNESSES_TOLD))
    assert attempt.wait() == [ExitCode.LAST_STEP_COMMITTED], attempt.output()
    said = [line for line in attempt.output().splitlines() if line.startswith("save ")]
    assert said == ["save 0 witness None", "save 4 witness 4", "save 8 witness 8", "save 12 witness None"]


def test_last_checkpoint_that_cannot_be_saved_is_an_error_of_its_own(make_run: MakeRun) -> None:
    run = make_run(steps=4)
    in_the_way = run.folder / "store" / "small" / "checkpoints" / manifest_name(4, 1)
    in_the_way.parent.mkdir(parents=True)
    in_the_way.write_text("")
    attempt = run.launch()
    assert attempt.wait() == [ExitCode.OWN_ERROR]
    error = attempt.error()
    assert error is not None
    assert (error.type, error.frame, error.step) == ("SaveFailed", "trainer/loop.py:save_now", 3)
    assert sorted(attempt.ledger()) == [0, 1, 2, 3]


def test_next_stage_starts_from_the_weights_with_a_fresh_optimizer(make_run: MakeRun) -> None:
    run = make_run(steps=4)
    (stage,) = run.recipe.stages
    optimizer = stage.optimizer.model_copy(update={"skip_window": 6})
    run.amend(small_recipe(stage, stage.model_copy(update={"name": "anneal", "optimizer": optimizer})))
    assert run.launch().wait() == [ExitCode.LAST_STEP_COMMITTED]
    second = run.launch(hosts=2)
    assert second.wait() == [ExitCode.LAST_STEP_COMMITTED] * 2, second.output()
    boundary, last = run.store.manifest(manifest_name(4, 1)), run.store.manifest(manifest_name(8, 2))
    assert (boundary.stage, last.stage, last.parent) == ("pretrain", "anneal", boundary.name)
    assert last.arrays["opt/applied"].checksum == words(checksum(np.array(4, np.int32)))
    tokens = {step: record.tokens for step, record in {**run.attempts[0].ledger(), **second.ledger()}.items()}
    assert [tokens[step] for step in range(4, 8)] == [tokens[step] for step in range(4)], "same data, same order"


def test_bad_token_files_are_refused_in_one_line(make_run: MakeRun) -> None:
    run = make_run(steps=4)
    path = run.folder / "tokens.u32"
    whole = path.read_bytes()
    os.truncate(path, 4093)
    torn = run.launch()
    assert torn.wait() == [ExitCode.OWN_ERROR]
    assert "tokens.u32: 4,093 bytes is not a whole, positive number of uint32 tokens" in torn.output()
    assert "Traceback" not in torn.output()
    path.write_bytes(whole[:-4] + whole[:4] if whole[-4:] != whole[:4] else whole[:-4] + b"\1\0\0\0")
    other = run.launch()
    assert other.wait() == [ExitCode.OWN_ERROR]
    assert "its SHA-256 is" in other.output()
    error = other.error()
    assert error is not None
    assert error.frame == "trainer/data/token_files.py:verify_hashes"


def test_token_beyond_the_vocabulary_is_refused_in_one_line(make_run: MakeRun) -> None:
    attempt = make_run(vocabulary=VOCABULARY + 1).launch()
    assert attempt.wait() == [ExitCode.OWN_ERROR]
    assert f"is {VOCABULARY}, but the model's vocab_size is {VOCABULARY}" in attempt.output()
    assert "Traceback" not in attempt.output()
