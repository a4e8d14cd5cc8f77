"""A person's requests: checked, then done or refused, each answered by one event."""

import re
from collections.abc import Callable

from orchestrator.contract.event import Amend, EventKind, KnownDetails, Request, SetState
from orchestrator.planner.choice import best
from orchestrator.planner.decision import Decision, Facts
from orchestrator.planner.stops import being_killed, drain, fence


def answer(facts: Facts) -> Decision | None:
    """What the oldest unanswered request asks for; None when there is none or it must wait for an attempt to end."""
    if not facts.seen.requests:
        return None
    name, request = facts.seen.requests[0]
    if isinstance(request, str):
        return Decision(
            kind="refused", message=f"request refused, it cannot be read: {request}", cause="request", request=name
        )
    if request.attempt_seen != facts.history.attempt:
        return _refused(
            name,
            request,
            f"it was made against a{request.attempt_seen}, a{facts.history.attempt} is current; look again",
        )
    if facts.history.state == "complete" and request.kind not in ("amend", "rewind", "pin"):
        return _refused(name, request, "the run is complete")
    if being_killed(facts):
        return None
    return _ANSWERS[request.kind](facts, name, request)


def _refused(name: str, request: Request, why: str) -> Decision:
    return Decision(
        kind="refused",
        message=f"{request.kind} by {request.by} refused: {why}",
        cause=f"request-{request.kind}",
        request=name,
        evidence=(request.reason,),
    )


def _asked(request: Request, what: str) -> str:
    return (
        f"{request.by} asked for {request.kind} ({request.reason}): {what}"
        if request.reason
        else (f"{request.by} asked for {request.kind}: {what}")
    )


def _deadline(facts: Facts) -> float:
    return facts.now + facts.policy.deadlines.drain


def _drain(facts: Facts, name: str, request: Request) -> Decision:
    if not facts.history.live:
        return _refused(name, request, "nothing runs")
    message = _asked(request, f"drain a{facts.history.attempt} and relaunch")
    return drain(facts, cause="request-drain", message=message, deadline=_deadline(facts), request=name)


def _move(facts: Facts, name: str, request: Request) -> Decision:
    target = request.arguments.get("to", "")
    stage = facts.recipe.stage_at(facts.seen.head.next_step or 0)
    if stage is None:
        return _refused(name, request, "the last step is committed")
    legal = [placement.name for placement in facts.policy.legal_for(facts.recipe, stage.name)]
    if target not in legal:
        return _refused(
            name, request, f"{target!r} is no placement for stage {stage.name}; choose of {', '.join(legal)}"
        )
    if best(facts, stage.name, only=target) is None:
        return _refused(name, request, f"{target} cannot be had in full now; see `everstep fleet`")
    if not facts.history.live:
        return _refused(name, request, "nothing runs; resume the run first")
    message = _asked(request, f"drain a{facts.history.attempt} and move to {target}")
    return drain(facts, cause="request-move", message=message, deadline=_deadline(facts), target=target, request=name)


def _pause(facts: Facts, name: str, request: Request) -> Decision:
    if facts.history.live:
        message = _asked(request, f"drain a{facts.history.attempt} and give its hosts back")
        return drain(
            facts, cause="request-pause", message=message, deadline=_deadline(facts), then="pause", request=name
        )
    return _state(name, request, SetState(state="paused"), "paused")


def _stop(facts: Facts, name: str, request: Request) -> Decision:
    if not facts.history.live:
        return _state(name, request, SetState(state="stopped"), "stopped")
    if request.arguments.get("now"):
        message = _asked(request, f"kill a{facts.history.attempt}")
        return fence(facts, "request-stop", message, then="stop", request=name)
    message = _asked(request, f"drain a{facts.history.attempt}, then stop")
    return drain(facts, cause="request-stop", message=message, deadline=_deadline(facts), then="stop", request=name)


def _hold(facts: Facts, name: str, request: Request) -> Decision:
    return _state(name, request, SetState(state="held"), "only watched from now on")


def _resume(facts: Facts, name: str, request: Request) -> Decision:
    if facts.history.state == "running":
        return _refused(name, request, "it is not held, paused or stopped")
    return _state(name, request, SetState(state="running"), "go on")


def _state(name: str, request: Request, action: SetState, what: str) -> Decision:
    return Decision(
        kind="decision",
        message=_asked(request, what),
        cause=f"request-{request.kind}",
        action=action,
        request=name,
    )


def _host_gone(facts: Facts, name: str, request: Request) -> Decision:
    """Only of a host that is unknown: of any other one there is evidence that counts more than a word."""
    host = request.arguments.get("host", "")
    view = next((view for view in facts.seen.hosts if str(view.ref) == host), None)
    if view is None:
        return _refused(name, request, f"{host!r} is no host of the fleet; see `everstep fleet`")
    if view.condition != "unknown":
        return _refused(name, request, f"{host} is not unknown, it is {view.condition}: {view.evidence}")
    return Decision(
        kind="answered",
        message=_asked(request, f"{host} counts as gone"),
        cause="request-host-gone",
        request=name,
        details={"host_gone": host},
    )


def _amend(facts: Facts, name: str, request: Request) -> Decision | None:
    """Drain first; then the request, still unanswered, becomes the new revision on what the drain saved."""
    history, head = facts.history, facts.seen.head
    wanted = request.arguments.get("step", "")
    if history.live:
        if history.drain is not None:
            return None  # the rows below see that drain to its end
        message = _asked(request, f"drain a{history.attempt} first")
        return drain(facts, cause=f"request-{request.kind}", message=message, deadline=_deadline(facts), then="amend")
    there = {
        str(checkpoint.next_step): checkpoint for checkpoint in facts.seen.checkpoints if not checkpoint.quarantined
    }
    base = there.get(wanted or str(head.next_step))
    if base is None:
        nearest = ", ".join(sorted(there, key=int)) or "none"
        return _refused(name, request, f"there is no checkpoint at step {wanted}; there are {nearest}")
    recipe_sha256 = request.arguments.get("recipe_sha256")
    if recipe_sha256 is None or not re.fullmatch("[0-9a-f]{64}", recipe_sha256):
        return _refused(name, request, "it does not say which recipe; use `everstep amend` or `everstep rewind`")
    revision = history.revision + 1
    action = Amend(revision=revision, base=base.manifest, from_step=base.next_step, recipe_sha256=recipe_sha256)
    return Decision(
        kind="decision",
        message=_asked(request, f"revision {revision} goes on from step {base.next_step:,}"),
        cause=f"request-{request.kind}",
        action=action,
        request=name,
        evidence=(request.reason,),
    )


def _noted(facts: Facts, name: str, request: Request) -> Decision:
    """What was done elsewhere, in the person's words; none of them passes for a fact that is decided from."""
    kind: EventKind = "policy-changed" if request.kind == "policy" else "answered"
    words = {word: text for word, text in request.arguments.items() if word not in KnownDetails.model_fields}
    return Decision(
        kind=kind,
        message=_asked(request, "noted"),
        cause=f"request-{request.kind}",
        request=name,
        details=words,
    )


_ANSWERS: dict[str, Callable[[Facts, str, Request], Decision | None]] = {
    "drain": _drain,
    "move": _move,
    "pause": _pause,
    "stop": _stop,
    "hold": _hold,
    "resume": _resume,
    "host-gone": _host_gone,
    "amend": _amend,
    "rewind": _amend,
    "policy": _noted,
    "pin": _noted,
}
