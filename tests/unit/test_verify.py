"""verify: any bit of any replayed record that differs is found, and nothing else is."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.contract.base import ContractError
from orchestrator.contract.ledger import COMPUTED, Record, bits_of, float_of
from orchestrator.contract.run import Policy
from orchestrator.reports.verify import Verification, verify
from tests.unit.run_documents import PLACEMENTS, RANKS, flipped, true_record
from tests.unit.run_factory import RunFactory

BOUNDED = Policy(placements=tuple(PLACEMENTS.values()), comparison="bounded", loss_bound=0.25)


def killed_and_finished(change: dict[int, dict[str, Any]] | None = None) -> RunFactory:
    """Attempt 1 records steps 0 … 6 and commits 4, then dies; attempt 2 replays 4 … 6 and finishes at 12."""
    run = RunFactory(steps=12)
    run.launch("full").train(4).commit().train(7).die()
    run.launch("quarter").train(12, change=change).commit(proven=True).finish()
    return run.complete()


def test_an_undisturbed_run_proves_nothing_about_replays() -> None:
    run = RunFactory(steps=4)
    run.launch().train(4).commit().finish()
    found = verify(run.store)
    assert found.verdict == "nothing-replayed"
    assert found.replayed_steps == 0
    assert found.max_abs_delta_loss is None
    assert "nothing is shown" in found.sentence


def test_replayed_steps_that_are_equal_are_counted_and_said() -> None:
    found = verify(killed_and_finished().store)
    assert found.verdict == "equal"
    assert (found.attempts, found.replayed_steps, found.comparisons, found.steps_differing) == (2, 3, 3, 0)
    assert found.max_abs_delta_loss == 0.0
    assert found.next_step == 12
    assert found.sentence == (
        "3 steps were computed more than once, and every bit of every record of them is equal (Δ = 0)"
    )


@st.composite
def one_flipped_bit(draw: st.DrawFn) -> tuple[int, str, Any]:
    """A replayed step, one computed field of its record, and that field with one bit changed."""
    step = draw(st.integers(4, 6))
    field = draw(st.sampled_from(COMPUTED))
    value = getattr(true_record(step), field)
    if isinstance(value, bool):
        return step, field, not value
    if isinstance(value, tuple):
        rank = draw(st.integers(0, RANKS - 1))
        bit = draw(st.integers(0, 31))
        return step, field, tuple(flipped(word, bit) if index == rank else word for index, word in enumerate(value))
    return step, field, flipped(value, draw(st.integers(0, 4 * len(value) - 1)))


@given(one_flipped_bit())
def test_a_single_flipped_bit_in_any_field_of_a_replayed_record_is_found(case: tuple[int, str, Any]) -> None:
    step, field, value = case
    found = verify(killed_and_finished({step: {field: value}}).store)
    assert found.verdict == "differs"
    assert found.steps_differing == 1
    first = found.first_difference
    assert first is not None
    assert (first.step, first.attempt, first.first_attempt, first.fields) == (step, 2, 1, (field,))
    ranks = [
        rank for rank in range(RANKS) if field == "ce_by_rank" and value[rank] != true_record(step).ce_by_rank[rank]
    ]
    assert list(first.virtual_ranks) == ranks


@given(
    step=st.integers(4, 6),
    started=st.floats(0, 2e9),
    seconds=st.floats(0, 1e6),
    data_seconds=st.floats(0, 1e6),
)
def test_times_are_not_compared(step: int, started: float, seconds: float, data_seconds: float) -> None:
    times = {"started": started, "seconds": seconds, "data_seconds": data_seconds}
    run = RunFactory(steps=7)
    run.launch("full").train(4).commit().train(7).die()
    records = [Record.model_validate(true_record(4).model_dump() | {"attempt": 2})]
    second = run.launch("quarter")
    changed = [record.model_copy(update=times) for record in records]
    run.store.create_segment(second.number, 9, changed)
    found = verify(run.store)
    assert (found.replayed_steps, found.steps_differing) == (1, 0), step


def test_a_flip_in_a_step_that_nobody_replayed_is_not_a_difference() -> None:
    found = verify(killed_and_finished({9: {"ce": bits_of(1.0)}}).store)
    assert found.verdict == "equal"


def test_the_first_of_several_differences_is_shown() -> None:
    found = verify(killed_and_finished({5: {"ce": "0" * 8}, 6: {"gradient": "0" * 16}}).store)
    assert found.steps_differing == 2
    assert found.first_difference is not None
    assert (found.first_difference.step, found.first_difference.fields) == (5, ("ce",))


def test_minus_zero_is_not_zero() -> None:
    run = RunFactory(steps=2)
    run.launch().train(1, change={0: {"z_loss": bits_of(0.0)}}).die()
    run.launch().train(1, change={0: {"z_loss": bits_of(-0.0)}})
    assert verify(run.store).steps_differing == 1


def test_the_largest_delta_is_of_the_total_loss_and_survives_a_loss_that_is_not_a_number() -> None:
    near, far = bits_of(4.0), "7fc00000"
    found = verify(killed_and_finished({4: {"total": near}, 5: {"total": far}}).store)
    assert found.max_abs_delta_loss == abs(float_of(near) - float_of(true_record(4).total))
    assert found.steps_differing == 2
    assert verify(killed_and_finished({5: {"total": far}}).store).first_difference.delta_loss is None  # type: ignore[union-attr]


def test_the_third_record_of_a_step_is_compared_too() -> None:
    run = RunFactory(steps=4)
    run.launch().train(2).die()
    run.launch().train(2).die()
    run.launch("quarter").train(4, change={1: {"gradient": "0" * 16}}).commit().finish()
    found = verify(run.store)
    assert (found.replayed_steps, found.comparisons, found.steps_differing) == (2, 4, 1)
    assert found.first_difference is not None
    assert found.first_difference.attempt == 3


def test_records_beyond_a_fence_are_witnesses() -> None:
    run = RunFactory(steps=6)
    first = run.launch().train(2).commit().train(3)
    first.die()
    second = run.launch("quarter")
    first.train(4, change={3: {"ce": "0" * 8}})  # a segment that the fenced attempt closed after attempt 2 was launched
    second.train(6).commit()
    found = verify(run.store)
    assert found.verdict == "differs"
    assert found.first_difference is not None
    assert (found.first_difference.step, found.first_difference.fields) == (3, ("ce",))


# ---- fingerprints
def moved_across_generations(policy: Policy | None, change: dict[int, dict[str, Any]]) -> Verification:
    run = RunFactory(steps=8, policy=policy)
    run.launch("full", label="a").train(2).commit().train(4).die()
    run.launch("other", label="b").train(8, change=change).commit()
    return verify(run.store)


def test_under_unequal_fingerprints_a_bounded_run_is_held_to_its_bound() -> None:
    found = moved_across_generations(BOUNDED, {3: {"total": bits_of(4.0), "ce": bits_of(3.9)}})
    assert found.verdict == "bounded"
    assert (found.steps_bounded, found.steps_differing, found.replayed_steps) == (1, 0, 2)
    assert found.moves[0].same_fingerprint is False
    assert "within the bound" in found.sentence


def test_beyond_the_bound_it_differs() -> None:
    found = moved_across_generations(BOUNDED, {3: {"total": bits_of(4.5)}})
    assert (found.verdict, found.steps_differing) == ("differs", 1)


@pytest.mark.parametrize("change", [{"tokens": "0" * 16}, {"skipped": True}, {"finite": False}, {"total": "7fc00000"}])
def test_a_bound_excuses_no_other_tokens_skips_or_numbers(change: dict[str, Any]) -> None:
    assert moved_across_generations(BOUNDED, {3: change}).verdict == "differs"


def test_a_bound_is_no_excuse_under_equal_fingerprints() -> None:
    run = RunFactory(steps=8, policy=BOUNDED)
    run.launch("full").train(4).die()
    run.launch("other").train(8, change={3: {"total": bits_of(4.1)}}).commit()
    assert verify(run.store).verdict == "differs"


def test_a_bitwise_run_is_held_to_every_bit_under_any_fingerprint() -> None:
    assert moved_across_generations(None, {}).verdict == "equal"
    assert moved_across_generations(None, {3: {"total": flipped(true_record(3).total, 0)}}).verdict == "differs"


def test_back_on_the_first_fingerprint_bits_are_compared_with_its_own_records() -> None:
    run = RunFactory(steps=4, policy=BOUNDED)
    other = {1: {"total": bits_of(4.0)}}
    run.launch("full", label="a").train(2).die()
    run.launch("other", label="b").train(2, change=other).die()
    run.launch("full", label="a").train(2).die()
    assert verify(run.store).verdict == "bounded"
    run.launch("full", label="a").train(2, change=other)
    found = verify(run.store)
    assert found.verdict == "differs"
    assert found.first_difference is not None
    assert (found.first_difference.first_attempt, found.first_difference.same_fingerprint) == (1, True)


def test_of_three_fingerprints_each_pair_is_held_to_the_bound() -> None:
    run = RunFactory(steps=4, policy=BOUNDED)
    for label, total in (("a", 4.0), ("b", 4.2), ("c", 3.9)):
        run.launch("other", label=label).train(1, change={0: {"total": bits_of(total)}}).die()
    found = verify(run.store)
    assert (found.comparisons, found.steps_differing, found.steps_bounded) == (3, 1, 0)
    assert found.first_difference is not None
    assert (found.first_difference.first_attempt, found.first_difference.attempt) == (2, 3)


# ---- moves
def test_a_drained_attempt_is_witnessed_by_the_steps_it_ran_beyond_its_checkpoint() -> None:
    run = RunFactory(steps=10)
    run.launch("full").train(4).drain(witness=2)
    run.launch("quarter").train(10).commit()
    move = verify(run.store).moves[0]
    assert (move.from_attempt, move.to_attempt, move.witnessed, move.steps_replayed, move.first_step) == (
        1,
        2,
        True,
        2,
        4,
    )
    assert (move.from_placement, move.to_placement, move.why_not) == ("full", "quarter", "")


def test_a_move_without_replayed_steps_is_not_witnessed_and_says_why() -> None:
    run = RunFactory(steps=10)
    run.launch("full").train(4).drain(witness=0)
    run.launch("quarter").train(10).commit()
    found = verify(run.store)
    assert (found.moves_witnessed, found.moves[0].witnessed, found.moves[0].boundary) == (0, False, "none")
    assert found.moves[0].why_not == "attempt 1 recorded no step beyond the checkpoint that attempt 2 went on from"


def test_a_move_leads_through_attempts_that_died_before_their_first_step() -> None:
    run = RunFactory(steps=10)
    run.launch("full").train(4).commit().train(6).die()
    run.launch("full").die()
    run.launch("quarter").train(10).commit()
    moves = verify(run.store).moves
    assert [(move.from_attempt, move.through, move.to_attempt, move.witnessed) for move in moves] == [
        (1, (2,), 3, True)
    ]


def test_a_launched_attempt_without_a_step_is_a_pending_move() -> None:
    run = RunFactory(steps=10)
    run.launch("full").train(4).commit().train(6).die()
    run.launch("quarter")
    move = verify(run.store).moves[-1]
    assert (move.boundary, move.witnessed, move.why_not) == ("pending", False, "attempt 2 has recorded no step yet")


def test_nothing_is_replayed_where_a_stage_ends() -> None:
    run = RunFactory(stages={"pretrain": 4, "anneal": 2})
    run.launch("full").train(4).commit().finish()
    run.launch("quarter").train(6).commit().finish()
    found = verify(run.store)
    assert found.moves[0].boundary == "stage"
    assert found.missing_steps == ()


def test_revisions_are_not_compared_with_one_another() -> None:
    run = RunFactory(steps=8)
    run.launch("full").train(4).drain(witness=2, then="amend")
    run.amend(seed=5)
    run.launch("full").train(8).commit()
    found = verify(run.store)
    assert (found.verdict, found.replayed_steps) == ("nothing-replayed", 0)
    assert found.moves[0].boundary == "revision"
    assert [(entry.number, entry.from_step) for entry in found.revisions] == [(1, 0), (2, 4)]
    assert found.recipe_sha256 == found.revisions[1].recipe_sha256
    assert found.missing_steps == ()


# ---- checkpoints
def test_checkpoints_say_what_they_are() -> None:
    found = verify(killed_and_finished().store)
    entries = [(entry.next_step, entry.attempt, entry.committed, entry.proven) for entry in found.checkpoints]
    assert entries == [(0, 1, True, False), (4, 1, True, False), (12, 2, True, True)]
    assert len({entry.params_sha256 for entry in found.checkpoints}) == 3


def two_checkpoints_of_step_6(**change: Any) -> Verification:
    run = RunFactory(steps=8)
    first = run.launch("full").train(4).commit().train(6)
    first.witness()  # written, then fenced before the swap
    first.die()
    run.launch("quarter").train(6).commit(**change)
    return verify(run.store)


def test_a_checkpoint_that_head_never_reached_is_a_witness() -> None:
    found = two_checkpoints_of_step_6()
    assert [(entry.next_step, entry.committed) for entry in found.checkpoints][-2:] == [(6, False), (6, True)]
    assert [(entry.next_step, entry.equal) for entry in found.witnesses] == [(6, True)]
    assert found.verdict == "equal"


def test_unequal_witnesses_differ_even_when_only_optimizer_state_does() -> None:
    moments = {"opt/m": {"dtype": "float32", "shape": (8,), "checksum": "0" * 16}}
    for change in ({"params_sha256": "0" * 64}, {"arrays": moments}):
        found = two_checkpoints_of_step_6(**change)
        assert (found.verdict, found.witnesses[0].equal) == ("differs", False)
        assert "checkpoint differs from a witness" in found.sentence
    assert found.witnesses[0].arrays_differing == ("opt/m", "params/w")


# ---- the lineage
def test_a_committed_step_without_a_record_of_its_attempt_makes_the_proof_incomplete() -> None:
    run = RunFactory(steps=8)
    run.launch("full").train(6).die()  # nothing committed beyond 0
    second = run.launch("quarter").train(3)
    second.next_step = 5  # steps 3 and 4 leave no record, though attempt 1 has them
    second.train(8).commit()
    found = verify(run.store)
    assert [(gap.first, gap.last) for gap in found.missing_steps] == [(3, 4)]
    assert found.verdict == "incomplete"
    assert "2 committed steps have no record" in found.sentence


def test_steps_missing_at_the_end_are_missing() -> None:
    run = RunFactory(steps=8)
    first = run.launch().train(6)
    first.next_step = 8
    first.commit()
    assert [(gap.first, gap.last) for gap in verify(run.store).missing_steps] == [(6, 7)]


def test_another_recipe_hash_in_a_checkpoint_is_a_difference() -> None:
    run = RunFactory(steps=8)
    run.launch().train(8).commit(recipe_sha256="0" * 64)
    found = verify(run.store)
    assert found.verdict == "differs"
    assert found.recipe_problems[0].startswith("checkpoint 000000000008-a0001 carries recipe 000000000000")


@pytest.mark.parametrize("change", [(b'"skipped": false', b'"skipped": true'), (b'"step": 6', b'"step": 7')])
def test_a_segment_that_was_changed_after_the_fence_is_refused(change: tuple[bytes, bytes]) -> None:
    run = killed_and_finished()
    name = run.store.segment_names(1)[1]
    data = run.store.objects.read(f"demo/{name}").data
    assert change[0] in data
    run.store.objects.overwrite(f"demo/{name}", data.replace(*change))
    with pytest.raises(ContractError, match=f"{name}: the ledger segment was changed after attempt 1 was fenced"):
        verify(run.store)


def test_a_ledger_whose_steps_do_not_rise_is_refused() -> None:
    run = RunFactory(steps=8)
    attempt = run.launch().train(3)
    attempt.next_step = 2
    attempt.train(4)
    with pytest.raises(ContractError, match="step 2 comes after step 2"):
        verify(run.store)


def test_a_record_in_another_attempts_ledger_is_refused() -> None:
    run = RunFactory(steps=8)
    run.launch()
    run.store.create_segment(1, 1, [true_record(0, attempt=7)])
    with pytest.raises(ContractError, match="step 0 is a record of attempt 7"):
        verify(run.store)


def test_changed_recipe_bytes_are_refused() -> None:
    run = killed_and_finished()
    name = f"demo/recipes/{run.recipe_sha256}.json"
    run.store.objects.overwrite(name, run.store.objects.read(name).data.replace(b'"seed": 0', b'"seed": 1'))
    with pytest.raises(ContractError, match="the recipe's bytes were changed"):
        verify(run.store)


def test_a_verification_survives_its_own_json() -> None:
    found = verify(killed_and_finished({5: {"ce": "0" * 8}}).store)
    assert Verification.from_bytes(found.to_bytes(), where="here") == found
