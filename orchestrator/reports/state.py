"""What state a run was in when, as a fold over its events."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from orchestrator.contract.event import Amend, Drain, Event, Fence, Launch, SetState

State = Literal[
    "waiting", "running", "draining", "killing", "relaunching", "finishing", "held", "paused", "stopped", "complete"
]
"""``finishing``: the last step is committed, and its checkpoint is being read back."""
AFTER: dict[str, State] = {
    "relaunch": "relaunching",
    "amend": "relaunching",
    "pause": "paused",
    "hold": "held",
    "stop": "stopped",
}
"""The state that an attempt's end leads to, by what its drain or fence said comes then."""


@dataclass(frozen=True, kw_only=True)
class StateChange:
    """From ``at`` on, until the next change."""

    at: float
    """Seconds since the epoch, the controller's clock; never before the change before it."""
    state: State
    attempt: int
    """The newest attempt that was launched; 0 before the first."""
    live: bool
    """That attempt has not ended; a held run may have a live one."""
    because: str
    """The message of the event that changed it."""


def states(submitted_at: float, events: Sequence[Event]) -> list[StateChange]:
    """Every change of state, oldest first; a run waits from the moment it is submitted."""
    changes = [StateChange(at=submitted_at, state="waiting", attempt=0, live=False, because="submitted")]
    then, held = "relaunch", False
    for event in events:
        last = changes[-1]
        if isinstance(event.action, Launch):
            now = replace(last, state="running", attempt=event.action.attempt, live=True)
            then = "relaunch"
        elif event.kind == "ended" and last.live and event.attempt == last.attempt:
            after: State = "held" if held and then == "relaunch" else AFTER[then]
            now = replace(last, state="finishing" if event.cause == "last-step" else after, live=False)
        else:
            now = replace(last, state=_next_state(last, event))
        if isinstance(event.action, Drain | Fence):
            then = event.action.then
        if isinstance(event.action, SetState | Amend):
            held = now.state == "held"
        if now != last:
            changes.append(replace(now, at=max(event.at, last.at), because=event.message))
    return changes


def _next_state(last: StateChange, event: Event) -> State:
    """The state after an event that neither launches nor ends an attempt."""
    match event.action:
        case Drain():
            return "draining"
        case Fence():
            return "killing"
        case SetState(state="running"):
            return "running" if last.live else "relaunching"
        case SetState(state=state):
            return state
        case Amend():
            return last.state if last.live else "relaunching"
    if event.kind == "waiting" and last.state == "relaunching":
        return "waiting"
    return last.state
