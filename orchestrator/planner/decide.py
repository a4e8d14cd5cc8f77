"""The decision: rows tried from the top, the first that applies wins; at most one decision a look.

Everything here is pure: no clock, no randomness, no I/O. Each row is a function of ``Facts`` that answers with a
``Decision``, a ``Wait``, or None when it does not apply.
"""

from collections.abc import Callable

from orchestrator.contract.attempt import HostRef
from orchestrator.contract.event import Launch, SetState
from orchestrator.planner import requests
from orchestrator.planner.causes import Death, first_death, gracefully_left
from orchestrator.planner.choice import Choice, best, better_than_here, rank, unavailable
from orchestrator.planner.decision import Decision, Facts, Wait
from orchestrator.planner.endings import ended
from orchestrator.planner.history import INTEGRITY
from orchestrator.planner.noticed import noticed
from orchestrator.planner.stall import stalled
from orchestrator.planner.stops import being_killed, drain, fence, kill_grace

Row = Callable[[Facts], Decision | Wait | None]


def decide(facts: Facts) -> Decision | Wait:
    """What to do about a run now."""
    for row in ROWS:
        answer = row(facts)
        if answer is not None:
            return answer
    raise AssertionError("the last row always answers")


def finished(facts: Facts) -> Decision | Wait | None:
    """A complete run needs nothing but the word that its last hosts are free."""
    if facts.history.state == "complete":
        return all_exited(facts) or Wait(key="complete", reason="complete", record=False)
    return None


def someone_asked(facts: Facts) -> Decision | None:
    """A person's request comes before everything that the controller would do by itself."""
    return requests.answer(facts)


def not_running(facts: Facts) -> Decision | Wait | None:
    """Held: only watched. Paused or stopped: nothing is launched; what still runs there was ordered to end."""
    history = facts.history
    if history.state == "running":
        return None
    if history.live and history.state != "held":
        raise AssertionError("a paused or stopped run has no live attempt")
    overdue = drain_overdue(facts)
    if overdue is not None:
        return overdue
    gone = all_exited(facts)
    if gone is not None:
        return gone
    reason = {"held": "held", "paused": "paused", "stopped": "stopped"}[history.state]
    return Wait(key=reason, reason=f"{reason} until a person resumes it", record=False)


def proof_failed(facts: Facts) -> Decision | None:
    """A replay that differs or a non-finite step: nothing may be committed; once more on other hosts, then hold."""
    death = _death_of_live(facts)
    if death is None or death.cause not in INTEGRITY:
        return None
    hold = any(error.identity == death.identity for error in facts.history.errors)
    what = "hold: it happened again" if hold else "once more, on other hosts where there are any"
    assert facts.seen.attempt is not None
    suspects = tuple(process.host for process in facts.seen.attempt.processes)
    message = f"{death.text}; {what}"
    return fence(facts, death.cause, message, then="hold" if hold else None, suspects=suspects)


def host_gone(facts: Facts) -> Decision | None:
    """A process or its host is gone while others run, or all are gone and not every agent said so: fence, kill the
    rest. Only an exit document excludes that something commits between this look and the next launch."""
    attempt = facts.seen.attempt
    if attempt is None or not facts.history.live or all(process.state == "exited" for process in attempt.processes):
        return None
    death = first_death(attempt)
    if death is None:
        return None
    return fence(facts, death.cause, f"{death.text}; kill the rest of a{attempt.number}")


def maintenance(facts: Facts) -> Decision | None:
    """A host will be taken away: leave at once for an equal placement, else as late as is safe."""
    attempt, history = facts.seen.attempt, facts.history
    if attempt is None or not history.live or history.drain is not None:
        return None
    used = frozenset(process.host for process in attempt.processes)
    announced = [view for view in facts.seen.hosts if view.maintenance_at is not None and view.ref in used]
    if not announced:
        return None
    first = min(announced, key=lambda view: view.maintenance_at or 0.0)
    assert first.maintenance_at is not None
    elsewhere = best(facts, attempt.stage)
    equal = elsewhere is not None and rank(facts, attempt.stage, elsewhere.placement.name) <= rank(
        facts, attempt.stage, attempt.placement.name
    )
    if not equal and facts.now < first.maintenance_at - drain_margin(facts):
        return None
    where = f"continue on {elsewhere.placement.name}" if elsewhere else "no other placement is free yet"
    message = (
        f"maintenance of {first.ref} in {first.maintenance_at - facts.now:.0f} s: drain a{attempt.number}, {where}"
    )
    return drain(facts, cause="maintenance", message=message, deadline=first.maintenance_at, evidence=(first.evidence,))


def drain_margin(facts: Facts) -> float:
    """Seconds before a deadline at which a drain must begin: thrice a save and ten steps, at least 5 s, at most the
    policy's drain deadline."""
    save, step = facts.seen.save_seconds or 0.0, facts.seen.step_seconds or 0.0
    return min(max(5.0, 3 * save + 10 * step), facts.policy.deadlines.drain)


def no_progress(facts: Facts) -> Decision | None:
    """No step rose for too long, or a phase's deadline passed: name who lags, fence, kill, go on without them."""
    if not facts.history.live:
        return None
    found = stalled(facts)
    if found is None:
        return None
    assert facts.seen.attempt is not None
    message = f"{found.text}; kill a{facts.seen.attempt.number} and relaunch away from {found.names}"
    return fence(facts, f"stalled-{found.phase}", message, suspects=found.hosts, evidence=found.evidence)


def all_exited(facts: Facts) -> Decision | None:
    """Every process of the newest attempt is confirmed gone: record how it ended."""
    attempt = facts.seen.attempt
    if attempt is None or facts.history.ended or not attempt.ended:
        return None
    return ended(facts)


def drain_overdue(facts: Facts) -> Decision | None:
    """The drain's deadline passed: kill."""
    history = facts.history
    if history.drain is None or not history.live or facts.now <= history.drain.deadline:
        return None
    message = f"the drain of a{history.attempt} passed its deadline; kill it"
    return fence(facts, "drain-overdue", message)


def own_error_repeats(facts: Facts) -> Decision | None:
    """The same own error too often at one step: hold, with that error shown, whatever else ended the attempt too."""
    history = facts.history
    if history.live or not history.errors or history.errors[-1].attempt != history.attempt:
        return None
    last = history.errors[-1]
    same = [error for error in history.errors if error.is_like(last)]
    limit = facts.policy.budgets.own_error_repeats
    if len(same) < limit:
        return None
    message = (
        f"hold: {last.identity} {len(same)} times at step {last.step} (attempts "
        f"{', '.join(str(error.attempt) for error in same)}); see `everstep logs {facts.run}`, then resume"
    )
    cause = last.identity if last.identity in INTEGRITY else "own-error"
    return Decision(kind="decision", message=message, cause=cause, action=SetState(state="held"))


def unproven_for_long(facts: Facts) -> Decision | None:
    """Too many checkpoints in a row that nobody could read back: alert, then drain and hold."""
    attempt, history = facts.seen.attempt, facts.history
    if attempt is None or not history.live or history.drain is not None or not history.first_new_step:
        return None
    proven = [index for index, checkpoint in enumerate(facts.seen.checkpoints) if checkpoint.proven]
    since = proven[0] if proven else len(facts.seen.checkpoints)
    limit = facts.policy.checkpoint.max_unproven
    if since >= limit:
        message = f"{since} checkpoints in a row are not proven: drain a{attempt.number} and hold; run `everstep scrub`"
        deadline = facts.now + facts.policy.deadlines.drain
        return drain(facts, cause="unproven", message=message, deadline=deadline, then="hold")
    key = f"unproven-{facts.seen.checkpoints[0].manifest}" if facts.seen.checkpoints else ""
    if since > facts.policy.checkpoint.prove_after and key not in history.alerts:
        message = f"the newest {since} checkpoints are not proven yet; at {limit} the run is drained and held"
        return Decision(kind="alert", message=message, cause="unproven", details={"key": key})
    return None


def better_placement(facts: Facts) -> Decision | None:
    """A better placement has been whole for its hold-off: drain and switch."""
    attempt, history, moves = facts.seen.attempt, facts.history, facts.policy.moves
    choice = better_than_here(facts)
    if attempt is None or choice is None or history.drain is not None:
        return None
    today = [at for at in history.returns if at > facts.now - 86_400]
    if len(today) >= moves.per_day:
        return None
    needed = hold_off(facts)
    whole = dict(facts.seen.whole_for).get(choice.placement.name, 0.0)
    if whole < needed:
        return None
    message = f"{choice.placement.name} has been whole for {whole:.0f} s: drain a{attempt.number} and return to it"
    deadline = facts.now + facts.policy.deadlines.drain
    return drain(facts, cause="return", message=message, deadline=deadline, target=choice.placement.name)


def hold_off(facts: Facts) -> float:
    """Seconds that a better placement must be whole: doubled after each return that failed."""
    moves = facts.policy.moves
    return float(min(moves.hold_off * 2**facts.history.failed_returns, moves.max_hold_off))


def running(facts: Facts) -> Wait | None:
    """A live attempt, and nothing to do about it; or a fenced one whose hosts are not all confirmed free."""
    history, attempt = facts.history, facts.seen.attempt
    if history.live:
        if attempt is not None and gracefully_left(attempt):
            return Wait(key="leaving", reason=f"a{history.attempt} is leaving", record=False)
        return Wait(key="running", reason=f"a{history.attempt} runs", record=False)
    if being_killed(facts):
        reason = f"a{history.attempt} is being killed"
        return Wait(key="killing", reason=reason, until=kill_grace(facts), record=False)
    return None


def last_step_committed(facts: Facts) -> Decision | Wait | None:
    """The recipe's last step is in head: prove that checkpoint, then the run is complete."""
    head = facts.seen.head
    if head.next_step is None or head.next_step < facts.recipe.last_step or not facts.seen.checkpoints:
        return None
    if head.revision != facts.history.revision:
        return None
    newest = facts.seen.checkpoints[0]
    if newest.quarantined:
        message = f"hold: the final checkpoint {newest.manifest} failed its checks; rewind to an earlier one"
        return Decision(kind="decision", message=message, cause="unproven", action=SetState(state="held"))
    if not newest.proven:
        return Wait(key="proving", reason=f"reading back the final checkpoint {newest.manifest}", record=False)
    message = f"complete: step {head.next_step:,} is committed and proven"
    return Decision(kind="decision", message=message, cause="complete", action=SetState(state="complete"))


def none_restores(facts: Facts) -> Decision | None:
    """There is history, but no checkpoint that passes its checks: never start over, hold."""
    checkpoints = facts.seen.checkpoints
    if not checkpoints or any(not checkpoint.quarantined for checkpoint in checkpoints):
        return None
    message = f"hold: all {len(checkpoints)} checkpoints failed their checks; see quarantine/, restore one, then resume"
    return Decision(kind="decision", message=message, cause="none-restores", action=SetState(state="held"))


def launch(facts: Facts) -> Decision | Wait:
    """No live attempt: launch on the best placement that can be had, or wait for one."""
    head, history = facts.seen.head, facts.history
    if head.revision != history.revision:
        return Wait(key="amending", reason=f"revision {history.revision} is being made", record=False)
    stage = facts.recipe.stage_at(head.next_step or 0)
    assert stage is not None, "a finished recipe is handled above"
    choice = _choose(facts, stage.name)
    if choice is None:
        return _nothing_fits(facts, stage.name)
    waiting = _wait_for_preferred(facts, stage.name, choice)
    if waiting is not None:
        return waiting
    action = Launch(
        attempt=max(history.next_attempt, head.attempt),
        revision=history.revision,
        stage=stage.name,
        until_step=facts.recipe.first_step_of(stage) + stage.steps,
        placement=choice.placement,
        hosts=choice.hosts,
        allocation=_allocation(facts, choice),
        resume=_resume(facts),
    )
    cause = history.drain_cause if history.drain is not None and history.end_cause == "drained" else history.end_cause
    again = "" if history.launch is None else f", cause {cause}"
    message = f"launch a{action.attempt} on {choice.placement.name} from step {head.next_step or 0:,}{again}"
    return Decision(kind="decision", message=message, cause=cause, action=action, disturbs=True)


def _choose(facts: Facts, stage: str) -> Choice | None:
    history = facts.history
    if history.target is not None:
        asked = best(facts, stage, only=history.target)
        if asked is not None:
            return asked
    suspects = _suspects(facts)
    long_enough = facts.now + facts.policy.deadlines.drain
    return best(facts, stage, avoid=suspects) or best(facts, stage) or best(facts, stage, maintenance_after=long_enough)


def _suspects(facts: Facts) -> tuple[HostRef, ...]:
    """Hosts that the next launch keeps away from where it can."""
    history = facts.history
    if history.fence is not None and history.fence.suspects:
        return history.fence.suspects
    ended_by = history.errors[-1] if history.errors else None
    if history.launch is not None and ended_by is not None and ended_by.attempt == history.attempt:
        return history.launch.hosts if ended_by.identity in INTEGRITY else ()
    return ()


def _nothing_fits(facts: Facts, stage: str) -> Wait:
    why = [f"{host.ref}: {reason}" for host in facts.seen.hosts if (reason := unavailable(facts, host))]
    listed = "; ".join(why[:4]) + (f"; and {len(why) - 4} more" if len(why) > 4 else "")
    reason = f"no placement for stage {stage} can be had in full" + (f" ({listed})" if listed else "")
    return Wait(key=f"nothing-fits-{stage}", reason=reason)


def _wait_for_preferred(facts: Facts, stage: str, choice: Choice) -> Wait | None:
    if rank(facts, stage, choice.placement.name) == 0 or facts.history.launch is None:
        return None
    until = facts.history.end_at + facts.policy.moves.wait_for_preferred
    if facts.now >= until or facts.history.target is not None:
        return None
    preferred = facts.policy.legal_for(facts.recipe, stage)[0].name
    return Wait(key=f"wait-{preferred}", reason=f"waiting for {preferred}: cheaper than a move until then", until=until)


def _allocation(facts: Facts, choice: Choice) -> int:
    before = facts.history.launch
    if before is None:
        return 1
    same = before.hosts == choice.hosts and before.placement == choice.placement
    return before.allocation if same else before.allocation + 1


def _resume(facts: Facts) -> str | None:
    whole = [checkpoint for checkpoint in facts.seen.checkpoints if not checkpoint.quarantined]
    return whole[0].manifest if whole else None


def _death_of_live(facts: Facts) -> Death | None:
    attempt = facts.seen.attempt
    return first_death(attempt) if attempt is not None and facts.history.live else None


ROWS: tuple[Row, ...] = (
    noticed,
    someone_asked,
    finished,
    not_running,
    proof_failed,
    host_gone,
    maintenance,
    no_progress,
    all_exited,
    drain_overdue,
    unproven_for_long,
    better_placement,
    running,
    own_error_repeats,
    last_step_committed,
    none_restores,
    launch,
)
