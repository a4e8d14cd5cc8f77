"""The certificate claims what was measured, holds only when all of it does, and carries its own hash."""

from typing import Any

import pytest

from orchestrator.reports.certificate import Certificate, certificate
from orchestrator.reports.claims import Claim, reference_of
from orchestrator.reports.tokens import TokenCheck
from tests.unit.run_documents import TrueTokens
from tests.unit.run_factory import RunFactory


def moved(**change: Any) -> RunFactory:
    """A complete run with one witnessed move; ``change`` replaces fields of its last manifest."""
    run = RunFactory(steps=12, name="moved")
    run.launch("full").train(4).commit().train(7).die()
    run.launch("quarter").train(12).commit(proven=True, **change).finish()
    return run.complete()


def undisturbed(*, seed: int = 0, proven: bool = True) -> RunFactory:
    run = RunFactory(steps=12, name="alone", seed=seed)
    run.launch("full").train(12).commit(proven=proven).finish()
    return run.complete()


def claim(found: Certificate, start: str) -> Claim:
    (only,) = [entry for entry in found.claims if entry.claim.startswith(start)]
    return only


def test_a_moved_run_that_ends_like_an_undisturbed_one_is_certified() -> None:
    found = certificate(moved().store, reference=undisturbed().store)
    assert found.held, found.claims
    assert found.ending.params_sha256 == found.reference.ending.params_sha256  # type: ignore[union-attr]
    assert found.reference is not None
    assert (found.reference.equal, found.reference.attempts, found.reference.same_fingerprint) == (True, 1, True)
    assert found.statement == (
        f"Run moved committed 12 of 12 steps of recipe {found.ending.recipe_sha256[:12]} in 2 attempts on full and "
        "quarter; 3 steps were computed more than once, and every bit of every record of them is equal (Δ = 0); 1 of 1 "
        "move was witnessed by replayed steps; its final parameters equal those of run alone in every bit; not shown: "
        "that the recorded tokens are those of the files, which were not read again."
    )
    assert [entry.cause for entry in found.episodes] == ["submit", "died"]
    assert found.versions == ({"jax": "0.12.0"},)
    assert len(found.fingerprints) == 1


def test_what_was_not_tested_is_not_claimed() -> None:
    found = certificate(undisturbed().store)
    assert found.held
    texts = " ".join(entry.claim for entry in found.claims)
    for untested in ("replayed", "move", "different attempts", "tokens", "of run"):
        assert untested not in texts
    assert "nothing is shown about replays" in found.statement
    assert "that an undisturbed run ends with the same parameters, as none was given" in found.statement


@pytest.mark.parametrize(
    ("run", "start", "evidence"),
    [
        (moved(params_sha256="0" * 64), "the final parameters equal", f"params_sha256 {'0' * 64} here"),
        (undisturbed(proven=False), "the last checkpoint was read back", "checkpoint 000000000012-a0001"),
        (moved(recipe_sha256="0" * 64), "every attempt and checkpoint carries", "carries recipe 000000000000"),
    ],
)
def test_one_claim_that_fails_is_enough(run: RunFactory, start: str, evidence: str) -> None:
    found = certificate(run.store, reference=undisturbed().store)
    assert not found.held
    assert [entry.claim for entry in found.claims if not entry.held] == [claim(found, start).claim]
    assert evidence in claim(found, start).evidence
    assert f"what does not hold: {claim(found, start).claim}" in found.statement


def test_a_run_that_is_not_complete_does_not_hold() -> None:
    run = RunFactory(steps=12)
    run.launch().train(4).commit(proven=True)
    found = certificate(run.store)
    assert not found.held
    assert claim(found, "every step of the recipe").evidence == "4 of 12 steps"


def test_before_the_first_commit_there_is_nothing_to_certify() -> None:
    found = certificate(RunFactory(steps=12).store)
    assert (found.held, found.ending.manifest, found.ending.params_sha256) == (False, None, None)


def test_a_replay_that_differs_does_not_hold() -> None:
    run = RunFactory(steps=12)
    run.launch("full").train(4).commit().train(7).die()
    run.launch("quarter").train(12, change={5: {"grad_norm": "00000000"}}).commit(proven=True).finish()
    found = certificate(run.complete().store)
    replays = claim(found, "every replayed step is equal in every bit")
    assert not found.held
    assert not replays.held
    assert replays.evidence == "3 replayed steps, 3 comparisons, 1 differing, largest |Δ loss| 0"


def test_an_unwitnessed_move_does_not_hold_and_is_named() -> None:
    run = RunFactory(steps=12)
    run.launch("full").train(4).drain(witness=0)
    run.launch("quarter").train(12).commit(proven=True).finish()
    found = certificate(run.complete().store)
    assert not claim(found, "every move within a stage").held
    assert "not shown: the move from attempt 1 to 2 (attempt 1 recorded no step beyond" in found.statement


def test_the_end_of_a_stage_needs_no_witness_and_is_named_all_the_same() -> None:
    run = RunFactory(stages={"pretrain": 2, "anneal": 2})
    run.launch("full").train(2).commit().finish()
    run.launch("full").train(4).commit(proven=True).finish()
    found = certificate(run.complete().store)
    assert found.held
    assert "the move from attempt 1 to 2 (stage anneal begins" in found.statement


def test_unequal_witnesses_do_not_hold() -> None:
    run = RunFactory(steps=8)
    first = run.launch("full").train(6)
    first.witness(params_sha256="0" * 64)
    first.die()
    run.launch("quarter").train(6).commit().train(8).commit(proven=True).finish()
    found = certificate(run.complete().store)
    failed = claim(found, "checkpoints that different attempts wrote")
    assert not failed.held
    assert "000000000006-a0001 and 000000000006-a0002 differ" in failed.evidence


def test_a_skipped_step_does_not_hold() -> None:
    run = RunFactory(steps=8)
    attempt = run.launch().train(3)
    attempt.next_step = 5
    attempt.train(8).commit(proven=True).finish()
    failed = claim(certificate(run.complete().store), "no step was skipped")
    assert not failed.held
    assert failed.evidence == "6 of 8 committed steps; the first without a record is step 3"


def test_another_recipe_is_no_reference() -> None:
    run = undisturbed()
    found = certificate(run.store, reference=undisturbed(seed=1).store)
    assert found.reference is not None
    assert (found.reference.same_recipe, found.reference.equal, found.held) == (False, False, False)
    assert "the recipes differ" in claim(found, "the final parameters").evidence


def test_a_reference_that_is_not_complete_shows_nothing() -> None:
    half = RunFactory(steps=12, name="half")
    half.launch().train(6).commit()
    found = certificate(undisturbed().store, reference=half.store)
    assert found.reference is not None
    assert not found.reference.equal
    assert "run half has 6 of 12 steps" in claim(found, "the final parameters").evidence


def test_equal_parameters_count_only_between_complete_runs_of_one_recipe() -> None:
    own = certificate(undisturbed().store).ending
    assert reference_of(own, own, attempts=1).equal
    for change in ({"recipe_sha256": "0" * 64}, {"next_step": 6}, {"params_sha256": "0" * 64}):
        other = own.model_copy(update=change)
        assert not reference_of(own, other, attempts=1).equal, change
        assert not reference_of(other, own, attempts=1).equal, change


def test_tokens_that_were_read_again_are_a_claim() -> None:
    right = TokenCheck(source=TrueTokens())
    wrong = TokenCheck(source=TrueTokens(wrong=range(12)))
    run = undisturbed()
    assert claim(certificate(run.store, tokens=right), "recorded tokens").held
    assert "not read again" not in certificate(run.store, tokens=right).statement
    refused = certificate(run.store, tokens=wrong)
    assert not refused.held
    assert claim(refused, "recorded tokens").evidence == (
        "12 steps read again, 12 differing; the first is step 0 of attempt 1"
    )


def test_a_certificate_carries_its_own_hash() -> None:
    found = certificate(moved().store)
    assert found.intact
    copy = Certificate.from_bytes(found.to_bytes(), where="copy")
    assert copy == found
    assert copy.intact


def test_any_change_of_a_certificate_shows() -> None:
    data = certificate(moved().store).to_bytes()
    changes = {
        b'"held": true': b'"held": false',
        b"Run moved": b"Run Moved",
        b'"steps_lost": 3': b'"steps_lost": 2',
        b'"PRODUCTIVE"': b'"PRODUCTIVe"',
    }
    for before, after in changes.items():
        assert before in data
        assert not Certificate.from_bytes(data.replace(before, after, 1), where="copy").intact


def test_the_same_store_gives_the_same_bytes() -> None:
    store = moved().store
    assert certificate(store).to_bytes() == certificate(store).to_bytes()
