"""What a loader read is computed again from recipe and token files: the same steps for everybody, no fault passes."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from orchestrator.cli.render import verification_lines
from orchestrator.contract.base import ContractError
from orchestrator.contract.checksum import checksum, words
from orchestrator.contract.recipe import Stage
from orchestrator.order.global_order import GlobalOrder
from orchestrator.reports.tokens import SAMPLE, TokenCheck, TokenFiles
from orchestrator.reports.verify import Verification, verify
from tests.double_shard import Again, OrderedTwice
from tests.unit.run_documents import TrueTokens, recipe_of, true_record
from tests.unit.run_factory import RunFactory

WORDS = np.arange(4096, dtype="<u4")


def killed_and_finished(*, steps: int = 12, name: str = "demo") -> RunFactory:
    """Attempt 1 records steps 0 … 6 and commits 4, then dies; attempt 2 replays 4 … 6 and finishes."""
    run = RunFactory(steps=steps, name=name)
    run.launch("full").train(4).commit().train(7).die()
    run.launch("quarter").train(steps).commit(proven=True).finish()
    return run.complete()


# ---- which steps
def asked(run: RunFactory, *, sample: int) -> list[int]:
    source = TrueTokens()
    found = verify(run.store, tokens=TokenCheck(source=source, sample=sample))
    assert (found.tokens_recomputed, found.tokens_differing, found.verdict) == (len(source.asked), (), "equal")
    return source.asked


def test_first_and_last_step_of_each_attempt_are_read_again() -> None:
    assert asked(killed_and_finished(), sample=0) == [0, 4, 6, 11]


def test_the_sample_is_of_each_attempt_and_the_same_for_everybody() -> None:
    run = killed_and_finished(steps=100)
    steps = asked(run, sample=3)
    assert asked(run, sample=3) == steps
    assert steps == sorted(set(steps))  # a file's order is made once an epoch
    further = set(steps) - {0, 4, 6, 99}
    assert 3 <= len(further) <= 6
    assert set(steps) <= set(asked(run, sample=8))  # a larger sample reads at least the same
    assert steps != asked(killed_and_finished(steps=100, name="other"), sample=3)


def test_a_sample_as_large_as_the_run_reads_everything() -> None:
    assert asked(killed_and_finished(), sample=SAMPLE) == list(range(12))


# ---- what is said
def test_tokens_that_the_files_do_not_give_are_a_difference_with_what_should_have_been_read() -> None:
    found = verify(killed_and_finished().store, tokens=TokenCheck(source=TrueTokens(wrong={5, 6})))
    assert (found.tokens_differing, found.verdict) == ((5, 6), "differs")
    assert [(entry.step, entry.attempt) for entry in found.token_differences] == [(5, 1), (5, 2)]
    assert found.sentence.endswith(
        "but 2 steps read other tokens than the recipe says, the first at step 5 by the loader of attempt 1"
    )
    assert (
        "step 5: the loader of a1 read other tokens than recipe and token files give; virtual rank 0 should have read "
        "pretrain.u32 from token 40 on (--json has every rank)"
    ) in verification_lines(found)
    assert Verification.from_bytes(found.to_bytes(), where="here") == found


@pytest.mark.parametrize("offset", [-1, 1, 2])
def test_a_loader_that_is_off_by_a_batch_after_a_resume_is_told_from_other_faults(offset: int) -> None:
    run = RunFactory(steps=12)
    run.launch().train(4).commit().drain(witness=0)
    shifted = {step: {"tokens": true_record(step + offset).tokens} for step in range(4, 12)}
    run.launch().train(12, change=shifted).commit()
    found = verify(run.store, tokens=TokenCheck(source=TrueTokens()))
    (only,) = found.token_differences
    assert (only.step, only.attempt, only.batch_of_step) == (4, 2, 4 + offset)
    assert any(f"(it read the batch of step {4 + offset})" in line for line in verification_lines(found))


# ---- token files
def test_token_files_give_the_words_that_devices_gave(tmp_path: Path) -> None:
    recipe = recipe_of({"pretrain": 3, "anneal": 2})
    tokens = {stage.name: WORDS + index for index, stage in enumerate(recipe.stages)}
    for name, ids in tokens.items():
        ids.tofile(tmp_path / f"{name}.u32")
    files = TokenFiles(tmp_path)
    for step, stage, batch in ((0, "pretrain", 0), (2, "pretrain", 2), (3, "anneal", 0)):
        order = GlobalOrder(recipe.stage_named(stage))
        starts = [order.place(int(instance)).token for instance in order.batch(batch)]
        rows = [[tokens[stage][start : start + 8]] for start in starts]
        assert files.checksum_of(recipe, step) == words(checksum(np.array(rows, np.uint32))), step
        readings = files.readings_of(recipe, step)
        assert [(entry.virtual_rank, entry.token) for entry in readings] == list(enumerate(starts)), step
        assert {entry.file for entry in readings} == {f"{stage}.u32"}
    with pytest.raises(ValueError, match="step 5 is beyond the recipe's last step 5"):
        files.readings_of(recipe, 5)


def test_other_tokens_in_a_file_show(tmp_path: Path) -> None:
    recipe = recipe_of({"pretrain": 128})  # every instance of the file
    ids = WORDS.copy()
    ids.tofile(tmp_path / "pretrain.u32")
    before = [TokenFiles(tmp_path).checksum_of(recipe, step) for step in range(128)]
    ids[[100, 101]] = ids[[101, 100]]
    ids.tofile(tmp_path / "pretrain.u32")
    after = [TokenFiles(tmp_path).checksum_of(recipe, step) for step in range(128)]
    assert sum(one != other for one, other in zip(before, after, strict=True)) == 1


def test_a_token_file_of_another_length_is_refused(tmp_path: Path) -> None:
    np.arange(4095, dtype="<u4").tofile(tmp_path / "pretrain.u32")
    with pytest.raises(ContractError, match=r"pretrain\.u32: holds 4,095 tokens, the recipe says 4,096"):
        TokenFiles(tmp_path).checksum_of(recipe_of({"pretrain": 3}), 0)
    with pytest.raises(ContractError, match=r"nowhere/pretrain\.u32: .*; correct data_root"):
        TokenFiles(tmp_path / "nowhere").checksum_of(recipe_of({"pretrain": 3}), 0)


# ---- a loader that shards twice
def words_read(order: GlobalOrder, stage: Stage, *, batch: int) -> str:
    """What a trainer records whose loader goes by ``order``: the checksum over its ranks' tokens."""
    starts = [order.place(int(instance)).token for instance in order.batch(batch)]
    rows = np.stack([WORDS[start : start + stage.sequence_length] for start in starts])
    return words(checksum(rows.reshape(stage.virtual_ranks, stage.sequences_per_rank, stage.sequence_length)))


def trained_by(loader: Callable[[Stage], GlobalOrder], folder: Path) -> RunFactory:
    """A run of one epoch on 8 virtual ranks."""
    WORDS.tofile(folder / "pretrain.u32")
    run = RunFactory(steps=64, ranks=8)
    (stage,) = run.recipe.stages
    order = loader(stage)
    read = {step: {"tokens": words_read(order, stage, batch=step)} for step in range(64)}
    run.launch().train(64, change=read).commit(proven=True).finish()
    return run.complete()


@pytest.mark.parametrize("again", get_args(Again))
@pytest.mark.parametrize("hosts", [2, 4, 8])
def test_a_loader_that_shards_twice_is_caught_at_the_first_step(hosts: int, again: Again, tmp_path: Path) -> None:
    run = trained_by(partial(OrderedTwice, hosts=hosts, again=again), tmp_path)
    found = verify(run.store, tokens=TokenCheck(source=TokenFiles(tmp_path), sample=0))
    assert (found.verdict, found.tokens_differing) == ("differs", (0, 63))
    (only,) = found.token_differences
    assert (only.step, only.attempt, only.batch_of_step) == (0, 1, None)
    assert only.should_have_read == TokenFiles(tmp_path).readings_of(run.recipe, 0)
    assert len(only.should_have_read) == 8
    everything = verify(run.store, tokens=TokenCheck(source=TokenFiles(tmp_path), sample=64))
    assert len(everything.tokens_differing) >= 62  # a permutation may leave a batch in its place


def test_an_honest_loader_of_the_same_run_passes(tmp_path: Path) -> None:
    run = trained_by(GlobalOrder, tmp_path)
    found = verify(run.store, tokens=TokenCheck(source=TokenFiles(tmp_path), sample=64))
    assert (found.tokens_recomputed, found.tokens_differing) == (64, ())


def test_the_loader_that_samples_again_sees_a_quarter_of_the_corpus_twice_or_more() -> None:
    (stage,) = recipe_of({"pretrain": 64}, ranks=8).stages
    seen = np.bincount(OrderedTwice(stage, hosts=8, again="drawn").epoch.reshape(-1), minlength=512)
    assert 0.2 < np.mean(seen >= 2) < 0.32  # 1 - 2 / e
    assert np.all(np.bincount(OrderedTwice(stage, hosts=8, again="permuted").epoch.reshape(-1)) == 1)
