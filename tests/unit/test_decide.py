"""Each row of the decision: when it applies, when it does not, and that the rows before it come first."""

from collections.abc import Callable

import pytest

from orchestrator.contract.attempt import ExitCode, HostRef
from orchestrator.contract.event import Drain, Fence, Launch, SetState
from orchestrator.fleet.observation import ProcessView
from orchestrator.planner.decide import decide, drain_margin, hold_off
from orchestrator.planner.decision import Decision, Facts, Wait
from tests.unit.facts_factory import (
    FULL,
    HALF,
    OTHER,
    QUARTER,
    START,
    Case,
    checkpoint,
    exited,
    host,
    hosts,
    process,
    progress,
    ref,
)


def decision(facts: Facts) -> Decision:
    answer = decide(facts)
    assert isinstance(answer, Decision), answer
    return answer


def wait(facts: Facts) -> Wait:
    answer = decide(facts)
    assert isinstance(answer, Wait), answer
    assert answer.reason
    return answer


def four(changed: dict[int, ProcessView]) -> list[ProcessView]:
    return [changed.get(index, process(index)) for index in range(4)]


# ---- launching
def test_the_first_launch_initialises_on_the_preferred_placement() -> None:
    case = Case()
    action = decision(case.facts(head=case.head(None), checkpoints=())).action
    assert isinstance(action, Launch)
    assert (action.attempt, action.placement, action.resume) == (1, FULL, None)
    assert (action.stage, action.until_step) == ("pretrain", 100)


def test_a_relaunch_resumes_the_newest_checkpoint_that_passed_its_checks_proven_or_not() -> None:
    case = Case().launch().stepping().ended("died")
    seen = (checkpoint(30, quarantined=True), checkpoint(20, proven=False), checkpoint(10))
    action = decision(case.facts(checkpoints=seen)).action
    assert isinstance(action, Launch)
    assert action.resume == "000000000020-a0001"


def test_history_without_a_checkpoint_that_restores_is_held_and_never_started_over() -> None:
    case = Case().launch().stepping().ended("died")
    answer = decision(case.facts(checkpoints=(checkpoint(30, quarantined=True), checkpoint(20, quarantined=True))))
    assert answer.action == SetState(state="held")
    assert "all 2 checkpoints failed their checks" in answer.message


def test_the_same_allocation_is_used_again_when_it_is_whole() -> None:
    case = Case().launch(HALF, on=(2, 3)).ended("died")
    case.policy = case.policy.model_copy(update={"placements": (HALF,)})
    action = decision(case.facts()).action
    assert isinstance(action, Launch)
    assert action.hosts == (ref(2), ref(3))
    assert action.allocation == 1


def test_other_hosts_are_another_allocation() -> None:
    case = Case().launch(HALF, on=(2, 3)).ended("died")
    case.policy = case.policy.model_copy(update={"placements": (HALF,)})
    three = (host(0), host(1), host(2))
    action = decision(case.facts(hosts=three)).action
    assert isinstance(action, Launch)
    assert action.hosts == (ref(2), ref(0))
    assert action.allocation == 2


def test_a_lost_host_leaves_the_best_smaller_placement() -> None:
    case = Case().launch().fence().ended("host-lost")
    action = decision(case.facts(hosts=hosts(3))).action
    assert isinstance(action, Launch)
    assert action.placement == HALF


def test_nothing_that_fits_is_waited_for_with_each_hosts_reason() -> None:
    case = Case().launch().fence().ended("host-lost")
    answer = wait(case.facts(hosts=(host(0, condition="unknown", evidence="silent"),)))
    assert answer.key == "nothing-fits-pretrain"
    assert "first/h0: unknown: silent" in answer.reason


def test_the_preferred_placement_is_waited_for_as_long_as_the_policy_says() -> None:
    case = Case().launch().fence().ended("host-lost")
    case.policy = case.policy.model_copy(
        update={"moves": case.policy.moves.model_copy(update={"wait_for_preferred": 60.0})}
    )
    answer = wait(case.after(59.0).facts(hosts=hosts(3)))
    assert (answer.key, answer.until) == ("wait-full", START + 60.0)
    assert isinstance(decision(case.after(1.0).facts(hosts=hosts(3))).action, Launch)


def test_the_next_stage_is_launched_on_a_placement_that_serves_it() -> None:
    case = Case().launch().stepping().ended("stage-done")
    anneal = OTHER.model_copy(update={"stages": ("anneal",)})
    pretrain = FULL.model_copy(update={"stages": ("pretrain",)})
    case.policy = case.policy.model_copy(update={"placements": (pretrain, anneal)})
    seen = (*hosts(4), *hosts(2, "second"))
    action = decision(case.facts(head=case.head(100), checkpoints=(checkpoint(100),), hosts=seen)).action
    assert isinstance(action, Launch)
    assert (action.stage, action.until_step, action.placement) == ("anneal", 120, anneal)


# ---- unknown is never dead
def test_an_unknown_host_is_no_reason_to_do_anything_while_steps_rise() -> None:
    case = Case().launch().stepping()
    seen = (host(0, condition="unknown", evidence="silent"), *hosts(4)[1:])
    assert wait(case.facts(hosts=seen, quiet_for=3.0)).key == "running"


def test_an_unknown_host_is_never_used() -> None:
    case = Case().launch().fence().ended("host-lost")
    seen = (host(0, condition="unknown", evidence="silent"), *hosts(4)[1:])
    action = decision(case.facts(hosts=seen)).action
    assert isinstance(action, Launch)
    assert ref(0) not in action.hosts


def test_a_host_that_is_not_confirmed_free_is_never_used() -> None:
    case = Case().launch().stepping().fence()
    stuck = four({index: exited(index, None, killed_by_us=True) for index in (0, 1, 2)})
    facts = case.after(16.0).facts(*stuck, unconfirmed=frozenset({ref(3)}))
    action = decision(facts).action
    assert isinstance(action, Launch)
    assert ref(3) not in action.hosts
    assert action.placement == HALF


# ---- a host or process is gone
def test_a_lost_host_fences_and_kills_the_rest() -> None:
    case = Case().launch().stepping()
    answer = decision(case.facts(*four({2: process(2, state="lost")})))
    assert answer.action == Fence(attempt=1)
    assert answer.cause == "host-lost"
    assert answer.disturbs


def test_hosts_that_are_all_lost_are_fenced_too_since_no_agent_said_that_their_trainers_ended() -> None:
    case = Case().launch().stepping()
    gone = [process(index, state="lost") for index in range(4)]
    assert decision(case.facts(*gone)).action == Fence(attempt=1)


def test_the_first_death_is_the_cause_and_the_others_are_echoes() -> None:
    case = Case().launch().stepping()
    dead = {1: exited(1, ExitCode.OWN_ERROR, at=START + 2.0), 3: exited(3, None, at=START + 1.0)}
    answer = decision(case.facts(*four(dead)))
    assert answer.cause == "died"
    assert "host 3" in answer.message


def test_a_graceful_exit_of_some_is_no_death() -> None:
    case = Case().launch().stepping()
    assert wait(case.facts(*four({0: exited(0, ExitCode.LAST_STEP_COMMITTED)}))).key == "leaving"


def test_nothing_is_launched_while_the_fenced_attempt_is_being_killed() -> None:
    case = Case().launch().stepping().fence()
    answer = wait(case.after(14.0).facts(unconfirmed=frozenset(ref(index) for index in range(4))))
    assert (answer.key, answer.until) == ("killing", START + 15.0)


def test_nothing_is_launched_before_head_was_seen_beyond_the_fenced_attempt() -> None:
    """Until then it can commit, so the newest checkpoint is not known."""
    case = Case().launch(QUARTER).stepping().fence().after(60.0)
    facts = case.facts(head=case.head(attempt=1), unconfirmed=frozenset({ref(0)}))
    assert wait(facts).key == "killing"


def test_a_host_that_a_person_stated_to_be_gone_is_not_used_until_it_is_seen_again() -> None:
    case = Case().launch().fence().event("answered", details={"host_gone": "first/h0"}).ended("host-lost")
    away = (host(0, condition="unknown", evidence="silent"), *hosts(4)[1:])
    action = decision(case.facts(hosts=away)).action
    assert isinstance(action, Launch)
    assert ref(0) not in action.hosts
    answer = decision(case.facts())
    assert answer.kind == "alert"
    back = case.event("alert", details=answer.details)
    assert back.history.declared_gone == frozenset()


# ---- integrity
@pytest.mark.parametrize(
    ("code", "cause"), [(ExitCode.REPLAY_DIFFERS, "replay-differs"), (ExitCode.NOT_FINITE, "not-finite")]
)
def test_a_difference_is_tried_once_more_on_other_hosts_and_then_held(code: ExitCode, cause: str) -> None:
    case = Case().launch(HALF).stepping()
    answer = decision(case.facts(exited(0, code), process(1)))
    assert answer.cause == cause
    assert answer.action == Fence(attempt=1, suspects=(ref(0), ref(1)))
    case.fence(cause=cause, suspects=(ref(0), ref(1))).ended(cause, error=cause, error_step=33)
    case.policy = case.policy.model_copy(update={"placements": (HALF,)})
    again = decision(case.facts()).action
    assert isinstance(again, Launch)
    assert again.hosts == (ref(2), ref(3))
    case.launch(HALF, on=(2, 3)).stepping()
    second = decision(case.facts(exited(0, code, attempt=2), process(1)))
    assert isinstance(second.action, Fence)
    assert second.action.then == "hold"
    held = case.fence(cause=cause, then="hold").ended(cause, error=cause, error_step=33)
    assert held.history.state == "held"


def test_a_difference_that_was_found_only_at_the_end_is_tried_on_other_hosts_too() -> None:
    case = Case().launch(HALF).stepping().fence(cause="stalled-train")
    case.ended("stalled-train", error="not-finite", error_step=33)
    action = decision(case.facts()).action
    assert isinstance(action, Launch)
    assert action.hosts == (ref(2), ref(3))
    case.launch(HALF, on=(2, 3)).stepping().fence(cause="stalled-train")
    case.ended("stalled-train", error="not-finite", error_step=7)
    assert decision(case.facts()).action == SetState(state="held")


def test_the_suspects_are_used_where_there_are_no_other_hosts() -> None:
    case = Case().launch().stepping().fence(cause="not-finite", suspects=tuple(ref(index) for index in range(4)))
    case.ended("not-finite", error="not-finite", error_step=33)
    action = decision(case.facts()).action
    assert isinstance(action, Launch)
    assert action.placement == FULL


# ---- own errors
def own(case: Case, step: int | None = 33) -> Case:
    return case.stepping().ended("own-error", error="ValueError@read", error_step=step)


def test_the_same_own_error_twice_at_one_step_holds_the_run_with_the_error_shown() -> None:
    case = own(own(Case().launch()).launch())
    answer = decision(case.facts())
    assert answer.action == SetState(state="held")
    assert "ValueError@read 2 times at step 33 (attempts 1, 2)" in answer.message


def test_an_own_error_counts_even_when_the_attempt_also_lost_a_host() -> None:
    case = own(Case().launch()).launch().stepping().fence()
    case.ended("host-lost", error="ValueError@read", error_step=33)
    assert decision(case.facts()).action == SetState(state="held")


def test_an_own_error_at_another_step_is_another_one() -> None:
    case = own(own(Case().launch()).launch(), step=34)
    assert isinstance(decision(case.facts()).action, Launch)


def test_the_errors_own_step_counts_and_not_the_progress_that_may_be_seconds_old() -> None:
    case = Case().launch(QUARTER).stepping()
    answer = decision(case.facts(exited(0, ExitCode.OWN_ERROR, step=31)))
    assert answer.details["error_step"] == 33


def test_a_persons_resume_gives_an_error_its_budget_back() -> None:
    case = own(own(Case().launch()).launch()).event(action=SetState(state="held"))
    case.event(action=SetState(state="running"))
    assert isinstance(decision(case.facts()).action, Launch)


def test_a_proof_beyond_the_error_gives_its_budget_back_and_one_before_it_does_not() -> None:
    before = own(own(Case().launch()).event("proven", details={"manifests": ["000000000030-a0001"]}).launch())
    assert decision(before.facts()).action == SetState(state="held")
    beyond = own(Case().launch()).launch().event("proven", details={"manifests": ["000000000040-a0002"]})
    assert isinstance(decision(own(beyond).facts(checkpoints=(checkpoint(30),))).action, Launch)


# ---- maintenance
def test_maintenance_is_left_at_once_for_an_equal_placement() -> None:
    case = Case().launch().stepping()
    seen = (host(0, maintenance_at=START + 7200.0), *hosts(5)[1:])
    action = decision(case.facts(hosts=seen)).action
    assert action == Drain(attempt=1, deadline=START + 7200.0)


def test_maintenance_is_left_as_late_as_is_safe_for_a_lesser_placement() -> None:
    case = Case().launch().stepping()
    seen = (host(0, maintenance_at=START + 100.0), *hosts(4)[1:])
    assert wait(case.facts(hosts=seen)).key == "running"
    margin = drain_margin(case.facts())
    assert margin == 16.0
    assert isinstance(decision(case.after(100.0 - margin).facts(hosts=seen)).action, Drain)


def test_a_host_under_announced_maintenance_is_not_chosen() -> None:
    case = Case().launch().stepping().drain(cause="maintenance").ended("drained")
    action = decision(case.facts(hosts=(host(0, maintenance_at=START + 100.0), *hosts(4)[1:]))).action
    assert isinstance(action, Launch)
    assert ref(0) not in action.hosts


def test_far_maintenance_is_put_up_with_when_nothing_else_is_left() -> None:
    case = Case().launch().stepping().drain(cause="maintenance").ended("drained")
    far, near = START + 601.0, START + 600.0
    assert isinstance(decision(case.facts(hosts=(host(0, maintenance_at=far),))).action, Launch)
    assert wait(case.facts(hosts=(host(0, maintenance_at=near),))).key == "nothing-fits-pretrain"


# ---- stalls
def test_a_stall_names_the_host_that_lags_and_keeps_away_from_it() -> None:
    case = Case().launch().stepping()
    views = four({1: process(1, step=32)})
    answer = decision(case.facts(*views, quiet_for=30.1))
    assert answer.cause == "stalled-train"
    assert answer.action == Fence(attempt=1, suspects=(ref(1),))
    assert len(answer.evidence) == 4


@pytest.mark.parametrize(
    ("phase", "limit"),
    [
        ("start", 300.0),
        ("initialise", 300.0),
        ("compile", 1800.0),
        ("restore", 1800.0),
        ("replay", 30.0),
        ("train", 30.0),
        ("drain", 600.0),
    ],
)
def test_each_phase_has_its_own_limit(phase: str, limit: float) -> None:
    case = Case().launch()
    views = [process(index, phase=phase, step=None, first_new_step_at=None) for index in range(4)]
    assert wait(case.facts(*views, quiet_for=limit)).key == "running"
    assert decision(case.facts(*views, quiet_for=limit + 0.1)).cause == f"stalled-{phase}"


def test_a_stepping_limit_follows_the_step() -> None:
    case = Case().launch().stepping()
    assert wait(case.facts(quiet_for=99.0, step_seconds=10.0)).key == "running"
    assert decision(case.facts(quiet_for=101.0, step_seconds=10.0)).cause == "stalled-train"


# ---- ends
@pytest.mark.parametrize(
    ("code", "cause"),
    [
        (ExitCode.DRAINED, "preempted"),
        (ExitCode.DRAINED_NOTHING_NEW, "preempted"),
        (ExitCode.OWN_ERROR, "own-error"),
        (ExitCode.DRAIN_SAVE_FAILED, "save-failed"),
        (ExitCode.LAST_STEP_COMMITTED, "died"),
        (7, "died"),
        (None, "died"),
    ],
)
def test_the_exit_codes_say_how_an_attempt_ended(code: int | None, cause: str) -> None:
    case = Case().launch(QUARTER).stepping()
    answer = decision(case.facts(exited(0, code)))
    assert (answer.kind, answer.cause) == ("ended", cause)


def test_an_own_error_does_not_count_against_its_host_and_a_death_does() -> None:
    case = Case().launch(QUARTER).stepping()
    assert "host" not in decision(case.facts(exited(0, ExitCode.OWN_ERROR))).details
    assert decision(case.facts(exited(0, None))).details["host"] == "first/h0"


def test_a_process_that_we_killed_is_nobodys_failure() -> None:
    case = Case().launch().stepping().fence(cause="stalled-train")
    killed = [exited(index, None, killed_by_us=True) for index in range(4)]
    answer = decision(case.facts(*killed))
    assert (answer.kind, answer.cause) == ("ended", "stalled-train")
    assert "host" not in answer.details


def test_the_host_that_lagged_alone_is_blamed_for_a_stall() -> None:
    case = Case().launch().stepping().fence(cause="stalled-train", suspects=(ref(2),))
    killed = [exited(index, None, killed_by_us=True) for index in range(4)]
    assert decision(case.facts(*killed)).details["host"] == "first/h2"


def test_the_end_of_a_stage_and_of_the_recipe() -> None:
    case = Case().launch(QUARTER).stepping()
    done = exited(0, ExitCode.LAST_STEP_COMMITTED)
    assert decision(case.facts(done, head=case.head(100))).cause == "stage-done"
    last = case.attempt(done, until_step=120, stage="anneal")
    assert decision(case.facts(attempt=last, head=case.head(120))).cause == "last-step"


def test_a_drained_attempt_ends_as_drained_and_is_relaunched_where_it_was_to_go() -> None:
    case = Case().launch().stepping().drain(target="half", cause="request-move")
    gone = [exited(index, ExitCode.DRAINED) for index in range(4)]
    assert decision(case.facts(*gone)).cause == "drained"
    action = decision(case.ended("drained").facts(*gone)).action
    assert isinstance(action, Launch)
    assert action.placement == HALF


@pytest.mark.parametrize(("then", "state"), [("pause", "paused"), ("hold", "held"), ("stop", "stopped")])
def test_a_drain_leads_to_what_it_was_for(then: str, state: str) -> None:
    case = Case().launch().stepping().drain(then=then).ended("drained")
    assert case.history.state == state
    assert wait(case.facts()).reason.startswith(state)


def test_a_kill_keeps_what_the_drain_was_for() -> None:
    case = Case().launch().stepping().drain(then="pause", target="half")
    action = decision(case.facts(*four({2: process(2, state="lost")}))).action
    assert action == Fence(attempt=1, then="pause", target="half")


def test_a_drain_beyond_its_deadline_is_a_kill() -> None:
    case = Case().launch().stepping().drain(deadline=60.0)
    assert wait(case.after(60.0).facts()).key == "running"
    answer = decision(case.after(0.1).facts())
    assert (answer.cause, answer.action) == ("drain-overdue", Fence(attempt=1))


# ---- proofs
def test_checkpoints_that_nobody_could_read_back_drain_and_hold_the_run() -> None:
    case = Case().launch().stepping()
    many = tuple(checkpoint(step, proven=False) for step in (60, 50, 40, 30))
    answer = decision(case.facts(checkpoints=many))
    assert isinstance(answer.action, Drain)
    assert answer.action.then == "hold"
    alert = decision(case.facts(checkpoints=many[1:]))
    assert (alert.kind, alert.action) == ("alert", None)
    case.event("alert", details=alert.details)
    assert wait(case.facts(checkpoints=many[1:])).key == "running"


def test_a_run_that_was_resumed_after_that_gets_the_chance_to_prove_one_by_restoring_it() -> None:
    case = Case().launch()
    many = tuple(checkpoint(step, proven=False) for step in (60, 50, 40, 30))
    early = [process(index, step=None, phase="restore", first_new_step_at=None) for index in range(4)]
    assert wait(case.facts(*early, checkpoints=many)).key == "running"


def test_the_run_is_complete_when_the_last_step_is_committed_and_proven() -> None:
    case = Case().launch().stepping().ended("last-step")
    facts = case.facts(head=case.head(120), checkpoints=(checkpoint(120, proven=False),))
    assert wait(facts).key == "proving"
    case.event("proven", details={"manifests": ["000000000120-a0001"]})
    answer = decision(case.facts(head=case.head(120), checkpoints=(checkpoint(120),)))
    assert answer.action == SetState(state="complete")


def test_a_final_checkpoint_that_failed_its_checks_is_held_for_a_person() -> None:
    case = Case().launch().stepping().ended("last-step")
    case.event("quarantined", details={"manifests": ["000000000120-a0001"]})
    answer = decision(case.facts(head=case.head(120), checkpoints=(checkpoint(120, quarantined=True),)))
    assert answer.action == SetState(state="held")


def test_a_complete_run_still_records_that_its_last_hosts_are_free() -> None:
    case = Case().launch(QUARTER).stepping().fence(cause="stalled-train").event(action=SetState(state="complete"))
    assert wait(case.facts(process(0))).key == "complete"
    assert decision(case.facts(exited(0, None, killed_by_us=True))).kind == "ended"


# ---- returns
def test_a_better_placement_must_be_whole_for_its_hold_off() -> None:
    case = Case().launch(HALF).stepping()
    assert wait(case.facts(whole_for=(("full", 599.0),))).key == "running"
    answer = decision(case.facts(whole_for=(("full", 600.0),)))
    assert answer.cause == "return"
    assert isinstance(answer.action, Drain)
    assert answer.action.target == "full"


def test_a_better_placement_that_is_not_whole_now_is_no_target() -> None:
    case = Case().launch(HALF).stepping()
    assert wait(case.facts(hosts=hosts(3), whole_for=(("full", 900.0),))).key == "running"


def test_there_is_no_return_before_a_first_new_step() -> None:
    case = Case().launch(HALF)
    early = [process(index, step=None, first_new_step_at=None) for index in range(2)]
    assert wait(case.facts(*early, whole_for=(("full", 900.0),))).key == "running"


def returned(case: Case, *, failed: bool) -> Case:
    case.launch(HALF, cause="host-lost").stepping().drain(cause="return", target="full").ended("drained")
    return case.launch(FULL, cause="return").stepping().fence().ended("host-lost", return_failed=failed)


def test_the_hold_off_doubles_after_each_return_that_failed_up_to_its_limit() -> None:
    case = Case()
    expected = [600.0, 1200.0, 2400.0, 4800.0, 9600.0, 19200.0, 21600.0, 21600.0]
    for seconds in expected:
        assert hold_off(case.facts()) == seconds
        returned(case, failed=True)
    assert hold_off(returned(case, failed=False).facts()) == 600.0


def test_voluntary_moves_a_day_are_limited() -> None:
    case = Case()
    for _ in range(4):
        returned(case, failed=False)
    case.launch(HALF).stepping()
    assert wait(case.facts(whole_for=(("full", 9000.0),))).key == "running"
    facts = case.after(86_401.0).facts(whole_for=(("full", 9000.0),))
    assert decision(facts).cause == "return"


def test_a_return_whose_drain_was_cut_short_counts_as_a_move_too() -> None:
    case = Case().launch(HALF).stepping().drain(cause="return", target="full")
    case.fence(cause="drain-overdue", target="full").ended("drain-overdue").launch(FULL, cause="drain-overdue")
    assert case.history.returns == (START,)
    assert case.history.returning


# ---- held, paused, stopped
def test_a_held_run_is_only_watched() -> None:
    case = Case().launch().stepping().event(action=SetState(state="held"))
    facts = case.facts(*four({2: process(2, state="lost")}), quiet_for=9000.0, whole_for=(("full", 9000.0),))
    assert wait(facts).key == "held"


def test_the_end_of_an_attempt_is_recorded_while_the_run_is_held() -> None:
    case = Case().launch(QUARTER).stepping().event(action=SetState(state="held"))
    assert decision(case.facts(exited(0, None))).kind == "ended"
    assert wait(case.ended("died").facts()).key == "held"


@pytest.mark.parametrize("state", ["paused", "stopped", "held"])
def test_nothing_is_launched_until_a_person_resumes(state: str) -> None:
    case = Case().launch().stepping().ended("died").event(action=SetState(state=state))  # type: ignore[arg-type]
    assert wait(case.facts()).key == state


# ---- what is noticed
@pytest.mark.parametrize(
    ("expected", "facts"),
    [
        ("first-new-step", lambda: Case().launch().facts()),
        ("proven", lambda: _proven_case(proven=True)),
        ("quarantined", lambda: _proven_case(proven=False)),
        ("save-failed", lambda: Case().launch().stepping().facts(process(0, save_failures=1), checkpoints=())),
        ("skipped-step", lambda: Case().launch().stepping().facts(process(0, skipped=(31, 33)), checkpoints=())),
    ],
)
def test_new_facts_are_recorded_first(expected: str, facts: Callable[[], Facts]) -> None:
    assert decision(facts()).kind == expected


def _proven_case(*, proven: bool) -> Facts:
    case = Case().launch().stepping()
    return case.facts(checkpoints=(checkpoint(30, proven=proven, quarantined=not proven),), noted=False)


def test_a_skipped_step_is_recorded_once_however_often_it_is_replayed() -> None:
    case = Case().launch().stepping().event("skipped-step", details={"steps": [31, 33]}).ended("died").launch()
    assert wait(case.stepping().facts(process(0, skipped=(31, 33)), checkpoints=())).key == "running"
    answer = decision(case.facts(process(0, skipped=(33, 34)), process(1, skipped=(33, 34)), checkpoints=()))
    assert answer.message == ("step 34 was skipped by a2: loss or gradient norm far above the last ones; not applied")


def test_a_fact_is_recorded_once() -> None:
    case = Case().launch().stepping().event("save-failed", details={"count": 1})
    assert wait(case.facts(process(0, save_failures=1), checkpoints=())).key == "running"
    assert progress().first_new_step_at is not None


def test_hosts_are_named_by_pool_and_name() -> None:
    assert str(HostRef(pool="first", host="h0")) == "first/h0"
