"""How a live attempt is ended: asked (drain) or not (fence and kill)."""

from typing import Literal

from orchestrator.contract.attempt import HostRef
from orchestrator.contract.event import Drain, Fence
from orchestrator.planner.decision import Decision, Facts

Then = Literal["relaunch", "pause", "hold", "stop", "amend"]


def drain(
    facts: Facts,
    *,
    cause: str,
    message: str,
    deadline: float,
    target: str | None = None,
    then: Then = "relaunch",
    request: str | None = None,
    evidence: tuple[str, ...] = (),
) -> Decision:
    """Drain the live attempt; before its first step it has nothing to save, so that is a kill.

    Args:
        deadline: seconds since the epoch at which the drain becomes a kill.
        target: the placement to launch on afterwards; None: the best.
    """
    history, attempt = facts.history, facts.seen.attempt
    if attempt is None or not attempt.started_stepping:
        kill = Fence(attempt=history.attempt, then=then, target=target)
        text = f"{message} (before its first step: kill)"
        return Decision(
            kind="decision", message=text, cause=cause, evidence=evidence, action=kill, request=request, disturbs=True
        )
    order = Drain(attempt=history.attempt, deadline=deadline, then=then, target=target)
    return Decision(
        kind="decision", message=message, cause=cause, evidence=evidence, action=order, request=request, disturbs=True
    )


def fence(
    facts: Facts,
    cause: str,
    message: str,
    *,
    then: Then | None = None,
    suspects: tuple[HostRef, ...] = (),
    evidence: tuple[str, ...] = (),
    request: str | None = None,
) -> Decision:
    """Raise head beyond the live attempt and kill it.

    Args:
        then: None keeps what an ordered drain was for.
        suspects: hosts that the next launch keeps away from where it can.
    """
    ordered = facts.history.drain
    action = Fence(
        attempt=facts.history.attempt,
        then=then or (ordered.then if ordered else "relaunch"),
        target=ordered.target if ordered else None,
        suspects=suspects,
    )
    return Decision(
        kind="decision",
        message=message,
        cause=cause,
        evidence=evidence,
        action=action,
        request=request,
        disturbs=True,
    )


def being_killed(facts: Facts) -> bool:
    """Whether the fenced attempt must still be waited for: head was not seen beyond it (until then it can commit, and
    the newest checkpoint is not known), or its hosts have time left to be confirmed free."""
    fence, ended = facts.history.fence, facts.history.ended
    if fence is None or ended:
        return False
    return facts.seen.head.attempt <= fence.attempt or facts.now < kill_grace(facts)


def kill_grace(facts: Facts) -> float:
    """When waiting for the fenced attempt's hosts to be confirmed free ends (seconds since the epoch)."""
    return facts.history.fenced_at + facts.policy.deadlines.kill
