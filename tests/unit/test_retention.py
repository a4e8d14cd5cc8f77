"""Which checkpoints' data may go."""

from collections.abc import Collection

import pytest

from orchestrator.contract.manifest import manifest_name
from orchestrator.contract.run import CheckpointPolicy
from orchestrator.planner.retention import Kept, expendable
from tests.unit.run_documents import recipe_of

RECIPE = recipe_of({"pretrain": 50, "anneal": 20})


def kept(
    step: int,
    *,
    attempt: int = 1,
    proven: bool = False,
    reachable: bool = True,
    quarantined: bool = False,
    left_by: int | None = None,
) -> Kept:
    return Kept(
        manifest=manifest_name(step, attempt),
        next_step=step,
        attempt=attempt,
        proven=proven,
        reachable=reachable,
        quarantined=quarantined,
        left_by=left_by,
    )


def deleted(
    *checkpoints: Kept,
    pins: Collection[int] = (),
    in_use: Collection[int] = (),
    current: int = 1,
    every: int | None = None,
) -> list[int]:
    """Steps of what goes."""
    policy = CheckpointPolicy(keep_newest=3, keep_proven=2, keep_every=every)
    names = expendable(
        checkpoints,
        policy=policy,
        recipe=RECIPE,
        pins={manifest_name(step, 1) for step in pins},
        in_use={manifest_name(step, 1) for step in in_use},
        current_attempt=current,
    )
    return [int(name.partition("-")[0]) for name in names]


STEPS = (0, 5, 10, 15, 20, 25, 30)


def test_the_newest_three_stay() -> None:
    assert deleted(*(kept(step) for step in STEPS)) == [0, 5, 10, 15]


def test_the_newest_two_proven_stay_however_old() -> None:
    assert deleted(*(kept(step, proven=step <= 10) for step in STEPS)) == [0, 15]


@pytest.mark.parametrize("keep", ["pins", "in_use"])
def test_pins_and_what_is_in_use_stay(keep: str) -> None:
    assert deleted(*(kept(step) for step in STEPS), **{keep: [5]}) == [0, 10, 15]  # type: ignore[arg-type]


def test_multiples_and_ends_of_stages_stay() -> None:
    steps = range(40, 75, 5)
    assert deleted(*(kept(step) for step in steps), every=20) == [45, 55]


def test_the_newest_proven_checkpoint_of_each_revision_that_was_left_behind_stays() -> None:
    left = [kept(step, proven=step < 45, reachable=False, left_by=1) for step in (35, 40, 45)]
    older = [kept(step, attempt=2, proven=True, reachable=False, left_by=2) for step in (33, 38)]
    assert deleted(*(kept(step) for step in STEPS[-3:]), *left, *older, current=5) == [33, 35, 45]


def test_a_quarantined_checkpoint_stays_as_evidence_and_takes_no_place() -> None:
    checkpoints = [kept(step, quarantined=step == 30) for step in STEPS]
    assert deleted(*checkpoints) == [0, 5, 10]
    assert deleted(kept(30, quarantined=True, reachable=False), current=9) == []


def test_what_head_does_not_reach_goes_unless_the_current_attempt_may_still_commit_it() -> None:
    orphan = kept(30, attempt=2, reachable=False)
    assert deleted(orphan, current=2) == []
    assert deleted(orphan, current=3) == [30]


def test_nothing_goes_twice_and_the_oldest_goes_first() -> None:
    checkpoints = [kept(step) for step in reversed(STEPS)]
    assert deleted(*checkpoints) == sorted(set(deleted(*checkpoints)))
