"""What state a run was in when, as a fold over its events."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from orchestrator.contract.event import Amend, Drain, Event, Fence, Launch, SetState

State = Literal["waiting", "running", "draining", "killing", "relaunching", "held", "paused", "stopped", "complete"]
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
    because: str
    """The message of the event that changed it."""


def states(submitted_at: float, events: Sequence[Event]) -> list[StateChange]:
    """Every change of state, oldest first; a run waits from the moment it is submitted."""
    changes = [StateChange(at=submitted_at, state="waiting", attempt=0, because="submitted")]
    then = "relaunch"
    for event in events:
        last = changes[-1]
        if isinstance(event.action, Drain | Fence):
            then = event.action.then
        state = _next_state(last, event, then)
        attempt = event.action.attempt if isinstance(event.action, Launch) else last.attempt
        if (state, attempt) != (last.state, last.attempt):
            at = max(event.at, last.at)
            changes.append(StateChange(at=at, state=state, attempt=attempt, because=event.message))
    return changes


def _next_state(last: StateChange, event: Event, then: str) -> State:
    live = last.state in ("running", "draining", "killing")
    match event.action:
        case Launch():
            return "running"
        case Drain():
            return "draining"
        case Fence():
            return "killing"
        case Amend():
            return last.state if live else "relaunching"
        case SetState(state="running"):
            return last.state if live else "relaunching"
        case SetState(state=state):
            return state
    if event.kind == "ended" and live and event.attempt == last.attempt:
        return AFTER[then] if last.state != "running" else "relaunching"
    if event.kind == "waiting" and last.state == "relaunching":
        return "waiting"
    return last.state
