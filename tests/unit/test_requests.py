"""A person's requests: each is done or refused, with one event that names it."""

import pytest

from orchestrator.contract.attempt import ExitCode
from orchestrator.contract.event import Amend, Drain, Fence, Launch, SetState
from orchestrator.planner.decide import decide
from orchestrator.planner.decision import Decision, Wait
from tests.unit.facts_factory import HALF, QUARTER, START, Case, checkpoint, exited, host, hosts, process


def answered(case: Case, kind: str, *, seen: int | None = None, **arguments: str) -> Decision:
    request = case.request(kind, seen=seen, **arguments)
    answer = decide(case.facts(requests=(request,)))
    assert isinstance(answer, Decision), answer
    return answer


def running() -> Case:
    return Case().launch().stepping()


def idle() -> Case:
    return running().ended("died").event(action=SetState(state="held"))


ALL = ("drain", "move", "pause", "hold", "resume", "stop", "host-gone", "amend", "rewind", "policy", "pin")


@pytest.mark.parametrize("kind", ALL)
def test_a_request_against_an_older_attempt_is_refused(kind: str) -> None:
    case = running().ended("died").launch().stepping()
    answer = answered(case, kind, seen=1)
    assert (answer.kind, answer.action, answer.request) == ("refused", None, f"{kind}-1")
    assert "made against a1, a2 is current" in answer.message


@pytest.mark.parametrize("kind", ["drain", "move", "pause", "hold", "resume", "stop", "host-gone", "policy"])
def test_a_complete_run_is_only_amended_rewound_or_pinned(kind: str) -> None:
    case = running().ended("last-step").event(action=SetState(state="complete"))
    assert answered(case, kind).kind == "refused"


@pytest.mark.parametrize(
    ("kind", "arguments", "then", "target"),
    [
        ("drain", {}, "relaunch", None),
        ("move", {"to": "half"}, "relaunch", "half"),
        ("pause", {}, "pause", None),
        ("stop", {}, "stop", None),
    ],
)
def test_a_live_attempt_is_drained_for_it(kind: str, arguments: dict[str, str], then: str, target: str | None) -> None:
    answer = answered(running(), kind, **arguments)
    assert answer.action == Drain(attempt=1, deadline=START + 600.0, then=then, target=target)  # type: ignore[arg-type]
    assert answer.cause == f"request-{kind}"
    assert answer.request == f"{kind}-1"


def test_before_the_first_step_a_drain_is_a_kill() -> None:
    case = Case().launch()
    early = [process(index, step=None, phase="compile", first_new_step_at=None) for index in range(4)]
    answer = decide(case.facts(*early, requests=(case.request("pause"),)))
    assert isinstance(answer, Decision)
    assert answer.action == Fence(attempt=1, then="pause")


def test_stop_now_is_a_kill() -> None:
    assert answered(running(), "stop", now="yes").action == Fence(attempt=1, then="stop")


@pytest.mark.parametrize(("kind", "state"), [("pause", "paused"), ("stop", "stopped"), ("hold", "held")])
def test_a_run_without_an_attempt_changes_its_state_at_once(kind: str, state: str) -> None:
    case = running().fence().ended("host-lost")
    assert answered(case, kind).action == SetState(state=state)  # type: ignore[arg-type]


def test_hold_leaves_a_live_attempt_alone() -> None:
    assert answered(running(), "hold").action == SetState(state="held")


def test_resume() -> None:
    assert answered(idle(), "resume").action == SetState(state="running")
    assert answered(running(), "resume").kind == "refused"


@pytest.mark.parametrize(
    ("to", "why"), [("nowhere", "no placement for stage pretrain"), ("other", "cannot be had in full now")]
)
def test_a_move_that_cannot_be_is_refused(to: str, why: str) -> None:
    answer = answered(running(), "move", to=to)
    assert answer.kind == "refused"
    assert why in answer.message


@pytest.mark.parametrize("kind", ["drain", "move"])
def test_there_is_nothing_to_drain_where_nothing_runs(kind: str) -> None:
    assert answered(idle(), kind, to="half").kind == "refused"


def test_a_request_waits_while_an_attempt_is_being_killed() -> None:
    case = running().fence()
    facts = case.facts(requests=(case.request("hold"),))
    answer = decide(facts)
    assert isinstance(answer, Wait)
    assert answer.key == "killing"


def test_a_request_waits_until_head_was_seen_beyond_the_fenced_attempt() -> None:
    case = running().fence().after(60.0)
    facts = case.facts(requests=(case.request("rewind", recipe_sha256="1" * 64),), head=case.head(attempt=1))
    assert isinstance(decide(facts), Wait)


def test_a_request_comes_before_what_the_controller_would_do() -> None:
    case = running().fence().ended("host-lost")
    answer = answered(case, "pause")
    assert answer.action == SetState(state="paused")


# ---- amend and rewind
def test_an_amendment_drains_first_and_is_answered_by_the_new_revision() -> None:
    case = running()
    first = answered(case, "rewind", step="20", recipe_sha256="1" * 64)
    assert first.request is None
    assert isinstance(first.action, Drain)
    case.drain(cause="request-rewind", then="amend").ended("drained")
    second = answered(case, "rewind", step="20", recipe_sha256="1" * 64)
    assert second.action == Amend(revision=2, base="000000000020-a0001", from_step=20, recipe_sha256="1" * 64)
    assert second.request == "rewind-1"


def test_while_it_drains_for_an_amendment_the_attempt_is_watched_as_ever() -> None:
    case = running().drain(cause="request-amend", then="amend")
    request = case.request("amend", recipe_sha256="1" * 64)
    gone = [exited(index, ExitCode.DRAINED) for index in range(4)]
    answer = decide(case.facts(*gone, requests=(request,)))
    assert isinstance(answer, Decision)
    assert answer.kind == "ended"
    lost = [process(index, state="lost" if index else "running") for index in range(4)]
    answer = decide(case.facts(*lost, requests=(request,)))
    assert isinstance(answer, Decision)
    assert isinstance(answer.action, Fence)
    late = decide(case.after(601.0).facts(requests=(request,)))
    assert isinstance(late, Decision)
    assert late.cause == "drain-overdue"


def test_without_a_step_an_amendment_goes_on_from_head() -> None:
    action = answered(idle(), "amend", recipe_sha256="1" * 64).action
    assert isinstance(action, Amend)
    assert action.from_step == 30


@pytest.mark.parametrize(
    "arguments", [{"step": "25", "recipe_sha256": "1" * 64}, {"step": "30"}], ids=["no such step", "no recipe"]
)
def test_an_amendment_that_cannot_be_is_refused(arguments: dict[str, str]) -> None:
    assert answered(idle(), "amend", **arguments).kind == "refused"


def test_a_quarantined_checkpoint_is_no_base() -> None:
    case = idle()
    request = case.request("rewind", step="30", recipe_sha256="1" * 64)
    answer = decide(case.facts(requests=(request,), checkpoints=(checkpoint(30, quarantined=True), checkpoint(20))))
    assert isinstance(answer, Decision)
    assert answer.kind == "refused"


def test_a_new_revision_waits_until_head_has_it_and_then_launches_from_its_base() -> None:
    case = idle()
    old = case.head()
    amend = Amend(revision=2, base="000000000020-a0001", from_step=20, recipe_sha256="1" * 64)
    case.event(action=amend, cause="request-rewind", request="rewind-1")
    answer = decide(case.facts(head=old))
    assert isinstance(answer, Wait)
    assert answer.key == "amending"
    launched = decide(case.facts(head=case.head(20), checkpoints=(checkpoint(20),)))
    assert isinstance(launched, Decision)
    assert isinstance(launched.action, Launch)
    assert (launched.action.revision, launched.cause) == (2, "request-rewind")


def test_an_attempt_that_is_amended_over_before_its_hosts_are_free_does_not_come_back_to_life() -> None:
    case = Case().launch(HALF).stepping().fence(cause="request-rewind", then="amend")
    case.event(action=Amend(revision=2, base="000000000020-a0001", from_step=20, recipe_sha256="1" * 64))
    assert not case.history.live
    assert [launch.attempt for launch in case.history.loose] == [1]


# ---- statements
def test_only_an_unknown_host_can_be_stated_to_be_gone() -> None:
    case = running()
    unknown = (*hosts(3), host(3, condition="unknown", evidence="silent"))
    request = case.request("host-gone", host="first/h3")
    answer = decide(case.facts(hosts=unknown, requests=(request,)))
    assert isinstance(answer, Decision)
    assert (answer.kind, answer.details) == ("answered", {"host_gone": "first/h3"})
    assert answered(case, "host-gone", host="first/h3").kind == "refused"
    assert answered(case, "host-gone", host="first/h9").kind == "refused"


@pytest.mark.parametrize(("kind", "event"), [("policy", "policy-changed"), ("pin", "answered")])
def test_what_was_done_elsewhere_is_noted(kind: str, event: str) -> None:
    answer = answered(running(), kind, what="x")
    assert (answer.kind, answer.action, answer.details) == (event, None, {"what": "x"})


def test_the_oldest_request_is_answered_first_and_only_once() -> None:
    case = Case().launch(QUARTER).stepping()
    first, second = case.request("pin"), case.request("hold")
    answer = decide(case.facts(requests=(first, second)))
    assert isinstance(answer, Decision)
    assert answer.request == "pin-1"
    case.event("answered", request=answer.request)
    assert case.history.answered == {"pin-1"}
