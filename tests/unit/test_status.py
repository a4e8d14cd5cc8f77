"""status, why and logs: what a person sees at a glance, and where to look when an attempt ended."""

import pytest

from orchestrator.contract.attempt import Exit, HostRef, OwnError
from orchestrator.contract.event import Fence
from orchestrator.contract.ledger import float_of
from orchestrator.reports.logs import logs
from orchestrator.reports.state import states
from orchestrator.reports.status import status
from orchestrator.reports.why import why
from orchestrator.store.memory import MemoryStore
from orchestrator.store.objects import NotFound
from orchestrator.store.run_store import RunStore
from tests.unit.run_documents import true_record
from tests.unit.run_factory import SUBMITTED_AT, RunFactory


# ---- status
def test_a_submitted_run_waits() -> None:
    row = status(RunFactory(steps=8).store, now=0.0)
    assert (row.state, row.stage, row.next_step, row.last_step) == ("waiting", "pretrain", 0, 8)
    assert (row.placement, row.attempt, row.live, row.loss, row.eta_seconds) == (None, 0, False, None, None)


def test_a_running_run_by_its_trainers_word() -> None:
    run = RunFactory(stages={"pretrain": 8, "anneal": 4})
    run.launch("quarter").train(3).commit().train(5)
    row = status(run.store, now=run.now)
    assert (row.state, row.live, row.phase, row.placement, row.attempt) == ("running", True, "train", "quarter", 1)
    assert (row.next_step, row.committed_step, row.last_step) == (5, 3, 12)
    assert row.loss == float_of(true_record(4).total)
    assert row.eta_seconds == 7.0
    assert row.goodput_percent > 0


def test_a_dead_attempts_uncommitted_steps_do_not_count() -> None:
    run = RunFactory(steps=8)
    run.launch().train(3).commit().train(5).die()
    row = status(run.store, now=run.now)
    assert (row.state, row.live, row.next_step, row.eta_seconds) == ("relaunching", False, 3, None)
    assert row.because == "a1 ended: died"


def test_a_loss_that_is_not_a_number_is_not_shown_as_one() -> None:
    run = RunFactory(steps=8)
    run.launch().train(1, change={0: {"total": "7fc00000"}})
    assert status(run.store, now=run.now).loss is None


def test_a_held_run_may_still_train() -> None:
    run = RunFactory(steps=8)
    attempt = run.launch().train(3)
    run.state("held")
    row = status(run.store, now=run.now)
    assert (row.state, row.live, row.next_step) == ("held", True, 3)
    attempt.die()
    assert status(run.store, now=run.now).state == "held"
    run.state("running")
    assert status(run.store, now=run.now).state == "relaunching"


@pytest.mark.parametrize(("then", "state"), [("pause", "paused"), ("hold", "held"), ("stop", "stopped")])
def test_what_a_drain_was_for_is_the_state_after_it(then: str, state: str) -> None:
    run = RunFactory(steps=8)
    run.launch().train(3).drain(then=then)
    assert status(run.store, now=run.now).state == state


def test_a_late_word_on_an_old_attempt_does_not_end_the_new_one() -> None:
    run = RunFactory(steps=8)
    old = run.launch("full").train(2)
    run.event("h0 does not answer", action=Fence(attempt=1), disturbs=True)
    run.launch("quarter").train(4)
    old.ended("host-lost")
    row = status(run.store, now=run.now)
    assert (row.state, row.live, row.attempt) == ("running", True, 2)


def test_a_controller_whose_clock_is_behind_does_not_turn_time_back() -> None:
    run = RunFactory(steps=8)
    run.now -= 50
    run.launch().train(2)
    changes = states(SUBMITTED_AT, run.store.events())
    assert [change.at for change in changes] == [SUBMITTED_AT, SUBMITTED_AT]
    assert [change.state for change in changes] == ["waiting", "running"]


def test_a_run_finishes_and_is_complete() -> None:
    run = RunFactory(steps=4)
    run.launch().train(4).commit().finish()
    assert status(run.store, now=run.now).state == "finishing"
    row = status(run.complete().store, now=run.now)
    assert (row.state, row.stage, row.next_step, row.last_step) == ("complete", None, 4, 4)


def test_a_run_that_is_not_there_is_said_so() -> None:
    with pytest.raises(NotFound, match=r"nobody/head\.json is not in the store"):
        status(RunStore(MemoryStore(), "nobody"), now=0.0)


# ---- why
def test_the_newest_events_come_with_their_episodes() -> None:
    run = RunFactory(steps=8)
    run.launch().train(3).die()
    found = why(run.store, count=2)
    assert [line.message for line in found.lines] == ["process 0 died; kill the rest", "a1 ended: died"]
    assert [(line.episode, line.opens_episode, line.cause) for line in found.lines] == [
        (2, True, "died"),
        (2, False, "died"),
    ]
    assert found.left_out == len(run.store.events()) - 2


def test_fewer_events_than_asked_for_are_all_of_them() -> None:
    run = RunFactory(steps=8)
    assert [(line.kind, line.opens_episode) for line in why(run.store, count=50).lines] == [("submitted", False)]
    assert why(run.store, count=0).lines == ()


# ---- logs
def test_the_first_failure_comes_first_and_what_others_die_of_is_an_echo() -> None:
    run = RunFactory(steps=8)
    attempt = run.launch("full").train(2)
    for process, at, code, killed in (
        (0, 7.0, -6, False),
        (3, 5.0, 1, False),
        (1, 4.0, None, True),
        (2, 9.0, 80, False),
    ):
        run.store.create_exit(exit_of(attempt.number, process, at=at, code=code, killed=killed))
    found = logs(run.store)
    assert [(entry.process, entry.role) for entry in found.exits] == [
        (3, "cause"),
        (0, "echo"),
        (1, "killed"),
        (2, "clean"),
    ]
    assert found.exits[0].lines == ("process 3",)


def test_of_two_failures_at_one_moment_an_own_error_is_the_cause() -> None:
    run = RunFactory(steps=8)
    attempt = run.launch("full").train(2)
    error = OwnError(type="ValueError", frame="step.py:update", message="shape")
    run.store.create_exit(exit_of(attempt.number, 0, at=5.0, code=-6))
    run.store.create_exit(exit_of(attempt.number, 1, at=5.0, code=1, error=error))
    assert [(entry.process, entry.role) for entry in logs(run.store).exits] == [(1, "cause"), (0, "echo")]


def test_without_a_number_it_is_the_newest_attempt_that_ended() -> None:
    run = RunFactory(steps=8)
    run.launch("quarter").train(2).die()
    run.launch("quarter").train(4).die()
    run.launch("quarter")
    assert logs(run.store).attempt == 2
    assert logs(run.store, attempt=1).exits[0].lines == ("host 0 dies",)


def test_nothing_has_ended_yet() -> None:
    found = logs(RunFactory().store)
    assert (found.attempt, found.exits) == (None, ())


def exit_of(
    attempt: int, process: int, *, at: float, code: int | None, killed: bool = False, error: OwnError | None = None
) -> Exit:
    return Exit(
        attempt=attempt,
        process=process,
        host=HostRef(pool="pool", host=f"h{process}"),
        code=code,
        signal=9 if code is None else None,
        killed_by_us=killed,
        phase="train",
        step=1,
        error=error,
        last_lines=(f"process {process}",),
        at=at,
    )
