"""Comparing a step with what earlier attempts recorded of it."""

from typing import Any

import pytest

from orchestrator.contract.attempt import AttemptSpec, HostRef, Segment
from orchestrator.contract.base import ContractError, sha256_of
from orchestrator.contract.ledger import COMPUTED, Record, bits_of
from orchestrator.contract.run import CheckpointPolicy, LeafPlan, Placement
from orchestrator.store.memory import MemoryStore
from orchestrator.store.run_store import RunStore
from tests.unit.records import record_of
from trainer.replay import Replay

ANOTHER = {
    "ce_by_rank": tuple(bits_of(float(rank)) for rank in range(4)),
    "gradient": "2" * 16,
    "tokens": "2" * 16,
    "skipped": True,
    "finite": False,
}


def replay_of(*ledgers: list[Record], **policy: Any) -> Replay:
    """What attempt n + 1 compares with when attempts 1 … n wrote these ledgers."""
    store = RunStore(MemoryStore(), "run")
    prior = []
    for number, records in enumerate(ledgers, 1):
        name = store.create_segment(number, 0, [record.model_copy(update={"attempt": number}) for record in records])
        data, _ = store.read_segment(name)
        steps = [record.step for record in records]
        prior.append(
            Segment(
                attempt=number,
                name=name,
                length=len(data),
                sha256=sha256_of(data),
                first_step=min(steps),
                last_step=max(steps),
            )
        )
    return Replay(store, spec_of(tuple(prior), **policy))


def spec_of(prior: tuple[Segment, ...], **policy: Any) -> AttemptSpec:
    return AttemptSpec(
        run="run",
        attempt=9,
        revision=1,
        recipe_sha256="0" * 64,
        store="/",
        data_root="/",
        stage="pretrain",
        until_step=100,
        allocation="run-g1",
        placement=Placement(name="p", pool="p", generation="cpu", hosts=1, devices_per_host=1),
        hosts=(HostRef(pool="p", host="h"),),
        leaf_plan=LeafPlan(generation="cpu"),
        resume=None,
        prior=prior,
        checkpoint=CheckpointPolicy(),
        trainer=("true",),
        **policy,
    )


def test_equal_bits_are_no_difference_and_times_do_not_count() -> None:
    replay = replay_of([record_of(5)])
    assert replay.difference(record_of(5, attempt=9, seconds=7.0, started=1.0, data_seconds=3.0)) is None


@pytest.mark.parametrize("field", COMPUTED)
def test_every_computed_field_counts(field: str) -> None:
    replay = replay_of([record_of(5)])
    found = replay.difference(record_of(5, attempt=9, **{field: ANOTHER.get(field, bits_of(9.0))}))
    assert found is not None
    assert found.startswith(f"step 5: attempt 9 against attempt 1: {field} differ")


def test_virtual_ranks_that_differ_are_named() -> None:
    losses = list(record_of(5).ce_by_rank)
    losses[1], losses[3] = bits_of(0.0), bits_of(0.0)
    found = replay_of([record_of(5)]).difference(record_of(5, ce_by_rank=tuple(losses)))
    assert found is not None
    assert found.endswith("CE of virtual ranks 1, 3")


def test_sign_of_zero_is_a_difference() -> None:
    assert replay_of([record_of(5)]).difference(record_of(5, z_loss=bits_of(-0.0))) is not None


def test_attempts_that_disagree_among_themselves_are_a_difference_also_under_another_fingerprint() -> None:
    replay = replay_of([record_of(5)], [record_of(5, total=bits_of(9.0))])
    found = replay.difference(record_of(5, attempt=9, fingerprint="b"))
    assert found is not None
    assert "attempt 1 against attempt 2: total" in found


def test_any_earlier_attempt_can_be_the_one_that_differs() -> None:
    replay = replay_of([record_of(5)], [record_of(6)], [record_of(6)])
    assert replay.difference(record_of(5, attempt=9)) is None
    found = replay.difference(record_of(6, attempt=9, total=bits_of(9.0)))
    assert found is not None
    assert "against attempt 2" in found


def test_other_fingerprints_are_held_to_the_bound_where_there_is_one() -> None:
    other = record_of(5, attempt=9, fingerprint="b", total=bits_of(2.95 + 0.009))
    assert replay_of([record_of(5)]).difference(other) is None
    assert replay_of([record_of(5)], comparison="bounded", loss_bound=0.01).difference(other) is None
    found = replay_of([record_of(5)], comparison="bounded", loss_bound=0.005).difference(other)
    assert found is not None
    assert "more than loss_bound 0.005" in found


def test_a_loss_that_is_not_a_number_is_beyond_every_bound() -> None:
    nan = record_of(5, fingerprint="b", total=bits_of(float("nan")))
    assert replay_of([record_of(5)], comparison="bounded", loss_bound=1e9).difference(nan) is not None


def test_steps_are_new_beyond_what_anybody_recorded() -> None:
    replay = replay_of([record_of(5), record_of(6)], [record_of(5)])
    assert [replay.is_new(step) for step in (4, 6, 7)] == [False, False, True]
    assert replay_of().is_new(0)


def test_segment_that_was_changed_after_the_fence_is_refused() -> None:
    store = RunStore(MemoryStore(), "run")
    name = store.create_segment(1, 0, [record_of(5)])
    changed = Segment(attempt=1, name=name, length=3, sha256="0" * 64, first_step=5, last_step=5)
    with pytest.raises(ContractError, match="changed after attempt 1 was fenced"):
        Replay(store, spec_of((changed,)))
