"""``everstep profile``: what can be asked for, and when the files are there."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.cli.errors import DoesNotHold, Unreachable
from orchestrator.cli.profile import ProfileAsked, ordered, see_through
from orchestrator.contract.attempt import ProfileOrder
from orchestrator.store.local import LocalStore
from orchestrator.store.objects import AlreadyExists, Conflict
from tests.unit.cli_folder import CliFolder, document, error_line, everstep, outcome
from tests.unit.run_factory import AttemptFactory, RunFactory


@pytest.fixture
def live(folder: CliFolder) -> AttemptFactory:
    """Attempt 1 of run demo in ./store, which has done steps 0 … 2 of 12."""
    return RunFactory(steps=12, objects=LocalStore(Path("store"))).launch("full").train(3)


def test_steps_to_come_are_ordered_of_the_live_attempt(live: AttemptFactory) -> None:
    code, lines = outcome(everstep("profile", "demo", "--steps", "4..6", "--reason", "slow", "--no-wait"))
    folder = Path("store/demo/profiles/000000000004-000000000006-a0001").absolute()
    assert (code, lines) == (0, [f"steps 4..6 of a1: {folder}; not waiting"])
    order = live.store.profile_order(1)
    assert order is not None
    assert (order.attempt, order.first_step, order.last_step, order.reason) == (1, 4, 6, "slow")


@pytest.mark.parametrize(
    ("steps", "says"),
    [
        ("2..5", "step 2 has passed: run demo computes step 3 now; name later steps"),
        ("3..5", "step 3 has passed: run demo computes step 3 now; name later steps"),
        ("6..5", "--steps 6..5: name the first and the last step"),
        ("6", "--steps 6: name the first and the last step"),
        ("6..12", "a1 ends before step 12; name earlier ones"),
        ("4..104", "101 steps are too many; trace at most 100"),
    ],
)
def test_steps_that_cannot_be_traced(live: AttemptFactory, steps: str, says: str) -> None:
    result = everstep("profile", "demo", "--steps", steps, "--no-wait")
    assert result.exit_code == 2
    assert says in error_line(result)
    assert live.store.profile_order(1) is None


def test_before_its_first_step_an_attempt_can_be_asked_for_that_step(folder: CliFolder) -> None:
    run = RunFactory(steps=12, objects=LocalStore(Path("store")))
    run.launch("full").train(4).commit().die()
    attempt = run.launch("quarter")
    assert "begins at step 4" in error_line(everstep("profile", "demo", "--steps", "3..5", "--no-wait"))
    assert everstep("profile", "demo", "--steps", "4..5", "--no-wait").exit_code == 0
    assert attempt.store.profile_order(2) is not None


def test_one_profile_at_a_time(live: AttemptFactory) -> None:
    assert everstep("profile", "demo", "--steps", "4..6", "--no-wait").exit_code == 0
    refused = everstep("profile", "demo", "--steps", "8..9", "--no-wait")
    assert "steps 4..6 are to be traced already" in error_line(refused)
    live.train(7)
    assert "4..6 are to be traced" not in everstep("profile", "demo", "--steps", "9..9", "--no-wait").stderr
    order = live.store.profile_order(1)
    assert order is not None
    assert order.steps == "9..9"


def test_of_two_orders_at_once_one_is_refused(live: AttemptFactory) -> None:
    first = ordered(live.store, 4, 5, reason="")
    second = ProfileOrder(attempt=1, first_step=6, last_step=7, by="bob", reason="", at=0.0)
    with pytest.raises(AlreadyExists):
        live.store.put_profile_order(second, after=None)
    live.store.put_profile_order(second, after=first)
    with pytest.raises(Conflict):
        live.store.put_profile_order(first, after=first)


def test_a_run_that_is_over_has_nothing_to_trace(moved: RunFactory) -> None:
    result = everstep("profile", "demo", "--steps", "4..6")
    assert result.exit_code == 2
    assert "run demo has no live attempt" in error_line(result)


# ---- waiting
def waiting(live: AttemptFactory, then: Callable[[], object]) -> int:
    """How often it was waited for steps 4..6 while ``then`` happened at the second time."""
    waits = 0

    def sleep(_: float) -> None:
        nonlocal waits
        waits += 1
        if waits == 2:
            then()

    see_through(live.store, ordered(live.store, 4, 6, reason=""), timeout=2.0, sleep=sleep)
    return waits


def test_the_files_are_there_when_every_process_has_done_the_last_step(live: AttemptFactory) -> None:
    def one_lags() -> None:
        live.train(7)
        slow = live.store.progress(1)[3].model_copy(update={"step": 5})
        live.store.write_progress(slow)

    assert waiting(live, lambda: live.train(7)) == 2
    other = RunFactory(steps=12, name="other", objects=LocalStore(Path("store"))).launch("full").train(3)
    live = other
    with pytest.raises(Unreachable, match="step 6 was not done within 2 s; the order stays"):
        waiting(other, one_lags)


def test_an_attempt_that_ends_before_is_named(live: AttemptFactory) -> None:
    with pytest.raises(DoesNotHold, match="a1 ended before step 6; name steps of its successor"):
        waiting(live, lambda: live.die())


def test_json(live: AttemptFactory) -> None:
    found = document(everstep("profile", "demo", "--steps", "4..6", "--no-wait", "--json"))
    assert isinstance(found, ProfileAsked)
    assert (found.run, found.order.steps, found.written) == ("demo", "4..6", False)
    assert json.loads(Path("store/demo/attempts/0001/profile.json").read_text())["schema"] == "profile/1"
