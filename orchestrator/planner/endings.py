"""How an attempt ended, as the event that the next launch is decided from."""

from typing import Any

from orchestrator.contract.attempt import ExitCode
from orchestrator.fleet.observation import AttemptView
from orchestrator.planner.causes import Death, first_death
from orchestrator.planner.decision import Decision, Facts


def ended(facts: Facts) -> Decision:
    """The newest attempt has no process left: say why, and whom it counts against."""
    attempt, history = facts.seen.attempt, facts.history
    assert attempt is not None
    death = first_death(attempt)
    cause, text = _cause(facts, attempt, death)
    details: dict[str, Any] = {"exits": _exits(attempt), "return_failed": _return_failed(facts, cause)}
    if death is not None:
        details |= {"first_death_at": death.at, "first_death": str(death.host)}
        if death.identity is not None:
            details |= {"error": death.identity, "error_step": death.step}
        if not death.own:
            details["host"] = str(death.host)
    elif cause.startswith("stalled-") and history.fence is not None and len(history.fence.suspects) == 1:
        details["host"] = str(history.fence.suspects[0])
    return Decision(
        kind="ended",
        message=f"a{attempt.number} ended: {text}; every host of it is confirmed free",
        cause=cause,
        evidence=tuple(process.evidence for process in attempt.processes),
        details=details,
        disturbs=cause not in ("stage-done", "last-step"),
    )


def _cause(facts: Facts, attempt: AttemptView, death: Death | None) -> tuple[str, str]:
    history = facts.history
    if history.fence is not None:
        return history.fence_cause, f"killed, {history.fence_cause}"
    if death is not None:
        return death.cause, death.text
    codes = {process.exit.code for process in attempt.processes if process.exit is not None}
    done = (facts.seen.head.next_step or 0) >= attempt.until_step
    if codes == {ExitCode.LAST_STEP_COMMITTED} and done:
        last = attempt.until_step == facts.recipe.last_step
        return ("last-step", "the last step is committed") if last else ("stage-done", f"stage {attempt.stage} is done")
    if history.drain is not None and ExitCode.LAST_STEP_COMMITTED not in codes:
        return "drained", f"drained, {history.drain_cause}"
    if codes <= {ExitCode.DRAINED, ExitCode.DRAINED_NOTHING_NEW}:
        return "preempted", "drained, but not by us"
    return "died", f"exit codes {sorted(str(code) for code in codes)} without the last step in head"


def _return_failed(facts: Facts, cause: str) -> bool:
    """Whether a return to a better placement ended too soon for a reason that lies in the placement."""
    young = facts.now - facts.history.launched_at < facts.policy.moves.failed_within
    asked = cause in ("drained", "stage-done", "last-step") or cause.startswith("request-")
    return young and not asked


def _exits(attempt: AttemptView) -> dict[str, str]:
    found: dict[str, str] = {}
    for process in attempt.processes:
        end = process.exit
        if end is None:
            found[str(process.index)] = process.state
        else:
            found[str(process.index)] = f"signal {end.signal}" if end.signal is not None else f"code {end.code}"
    return found
