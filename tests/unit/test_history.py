"""The fold over the event log."""

import pytest

from orchestrator.contract.event import Amend, Event, SetState
from orchestrator.planner.history import History, fold
from tests.unit.facts_factory import HALF, START, Case
from tests.unit.run_factory import RunFactory


def test_a_fold_can_be_continued_where_it_stopped() -> None:
    run = RunFactory(steps=12)
    run.launch("full").train(4).commit().train(7).die(host=3)
    run.launch("quarter").train(12).commit(proven=True).finish()
    run.complete()
    events = run.store.events()
    for cut in range(len(events) + 1):
        assert fold(events[cut:], fold(events[:cut])) == fold(events)


def test_an_attempt_is_live_from_its_launch_to_its_fence_or_end() -> None:
    case = Case()
    assert not case.history.live
    assert case.launch().history.live
    assert not case.fence().history.live
    assert not case.ended().history.live
    assert case.launch().history.live
    assert not case.ended("died").history.live


def test_a_launch_forgets_what_belonged_to_the_attempt_before_it() -> None:
    case = Case().launch().stepping().event("save-failed", details={"count": 3}).drain(target="half")
    history = case.ended("drained").launch(HALF).history
    assert (history.drain, history.fence, history.first_new_step, history.save_failures) == (None, None, False, 0)
    assert history.target is None
    assert not history.ended


def test_a_fenced_attempt_that_was_replaced_before_its_hosts_were_free_is_remembered() -> None:
    history = Case().launch().fence().launch(HALF).history
    assert [launch.attempt for launch in history.loose] == [1]
    assert Case().launch().fence().ended().launch(HALF).history.loose == ()


def test_failures_count_by_host_until_the_next_proof() -> None:
    case = Case().launch().ended("died", host="first/h1").launch().ended("died", host="first/h1")
    assert [failure.host for failure in case.history.failures] == ["first/h1", "first/h1"]
    assert case.event("proven", details={"manifests": ["000000000010-a0002"]}).history.failures == ()


@pytest.mark.parametrize(
    ("step", "proven", "left"),
    [
        (33, "000000000033-a0009", 1),
        (33, "000000000034-a0001", 0),
        (None, "000000000034-a0001", 1),
        (None, "000000000000-a0002", 0),
    ],
)
def test_an_error_is_overcome_by_a_proven_checkpoint_beyond_it(step: int | None, proven: str, left: int) -> None:
    case = Case().launch().ended("own-error", error="ValueError@read", error_step=step)
    history = case.event("proven", details={"manifests": [proven]}).history
    assert len(history.errors) == left


def test_a_resume_forgets_errors_and_failures() -> None:
    case = Case().launch().ended("own-error", error="ValueError@read", error_step=3, host="first/h0")
    case.event(action=SetState(state="held"))
    assert len(case.history.errors) == len(case.history.failures) == 1
    case.event(action=SetState(state="running"))
    assert case.history.errors == case.history.failures == ()


def test_an_episode_is_open_until_the_next_new_step() -> None:
    case = Case().launch().stepping()
    case.event("ended", cause="died", episode=1)
    assert (case.history.episode, case.history.episode_open) == (1, True)
    case.launch().event("first-new-step", episode=1)
    assert (case.history.episode, case.history.episode_open) == (1, False)


def test_a_reason_to_wait_is_forgotten_when_anything_else_happens() -> None:
    case = Case().event("waiting", details={"key": "nothing-fits"})
    assert case.history.waiting == "nothing-fits"
    assert case.launch().history.waiting == ""


def test_an_amendment_ends_what_was_and_becomes_the_cause_of_the_next_launch() -> None:
    case = Case().launch().stepping().drain(then="amend").ended("drained")
    amend = Amend(revision=2, base="000000000020-a0001", from_step=20, recipe_sha256="1" * 64)
    history = case.event(action=amend, cause="request-rewind").history
    assert (history.revision, history.state, history.end_cause) == (2, "running", "request-rewind")
    assert (history.drain, history.fence, history.live) == (None, None, False)


def test_deletions_and_statements_are_remembered() -> None:
    case = Case().event("deleted", details={"manifests": ["000000000010-a0001"]})
    assert case.history.deleted == {"000000000010-a0001"}
    case.event("answered", details={"host_gone": "first/h3"})
    assert case.history.declared_gone == {"first/h3"}


def test_only_an_event_with_a_name_answers_a_request() -> None:
    history = Case().event("refused", request="move-1").event("answered").history
    assert history.answered == {"move-1"}


def test_an_empty_log_is_a_run_that_waits_for_its_first_launch() -> None:
    history = fold([])
    assert history == History()
    assert (history.attempt, history.next_attempt, history.state, history.ended) == (0, 1, "running", True)


def test_numbers_are_taken_from_the_events() -> None:
    event = Event(number=7, at=START, kind="alert", message="x")
    assert fold([event]).last_number == 7
