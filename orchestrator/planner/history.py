"""What the event log says so far, as one frozen value.

``History`` is a fold: ``history.after(event)``. Nothing else that a decision depends on is remembered between two
looks, so a controller that starts again decides as the one before it would have.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal, Self

from orchestrator.contract.event import Amend, Drain, Event, Fence, Launch, SetState

RunState = Literal["running", "held", "paused", "stopped", "complete"]

HARDWARE_CAUSES = frozenset({"host-lost", "died"})
"""Causes that count against the host on which they began; ``stalled-…`` does too."""


INTEGRITY = frozenset({"replay-differs", "not-finite"})
"""Causes, and identities, of ends after which nothing may be committed."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A disturbance that began on a host."""

    host: str
    at: float


@dataclass(frozen=True, kw_only=True)
class ErrorSeen:
    """An own error, a difference or a non-finite step that ended an attempt."""

    identity: str
    step: int | None
    attempt: int

    def is_like(self, other: "ErrorSeen") -> bool:
        """The same error at the same step; wrong bits are the same wherever they appear."""
        return self.identity == other.identity and (self.identity in INTEGRITY or self.step == other.step)

    def overcome_by(self, proven: str) -> bool:
        """A proven checkpoint holds the step that failed (before the first step: was written by a later attempt)."""
        next_step, _, attempt = proven.partition("-a")
        return int(attempt) > self.attempt if self.step is None else int(next_step) > self.step


@dataclass(frozen=True, kw_only=True)
class History:
    """Everything that was decided and recorded; see the module."""

    last_number: int = 0
    state: RunState = "running"
    revision: int = 1
    amend: Event | None = None
    """The decision that made the current revision; None for revision 1."""
    loose: tuple[Launch, ...] = ()
    """Fenced launches that were replaced before all their hosts were confirmed free."""
    launch: Launch | None = None
    """The newest launch; its attempt is *live* until it is ended or fenced."""
    launch_cause: str = ""
    launched_at: float = 0.0
    drain: Drain | None = None
    """Ordered for the newest launch."""
    drain_cause: str = ""
    fence: Fence | None = None
    """Decided for the newest launch."""
    fence_cause: str = ""
    fenced_at: float = 0.0
    ended: bool = True
    """Every process of the newest launch is confirmed gone."""
    first_new_step: bool = False
    """The newest launch has gone beyond what was recorded before it."""
    end_cause: str = "submit"
    """Why the newest attempt ended: the cause of the next launch."""
    end_at: float = 0.0
    episode: int = 0
    episode_open: bool = False
    answered: frozenset[str] = frozenset()
    failures: tuple[Failure, ...] = ()
    """Since the newest proof."""
    errors: tuple[ErrorSeen, ...] = ()
    """Own errors and integrity failures at steps beyond every proven checkpoint, since a person's resume."""
    returning: bool = False
    """The newest launch carries out a voluntary move, however the drain before it ended."""
    returns: tuple[float, ...] = ()
    """Times of voluntary moves."""
    failed_returns: int = 0
    """Voluntary moves in a row that ended too soon."""
    proven: frozenset[str] = frozenset()
    quarantined: frozenset[str] = frozenset()
    save_failures: int = 0
    """Of the newest attempt, as last recorded."""
    newest_skipped: int = -1
    """The last skipped step that was recorded, of the newest revision."""
    deleted: frozenset[str] = frozenset()
    """Checkpoints whose data was given up, deleted by now or not."""
    declared_gone: frozenset[str] = frozenset()
    """Hosts that a person stated to be gone and that were not seen since."""
    waiting: str = ""
    """Key of the newest recorded reason to wait."""
    alerts: frozenset[str] = frozenset()

    @property
    def attempt(self) -> int:
        """Number of the newest attempt; 0 before the first."""
        return self.launch.attempt if self.launch else 0

    @property
    def live(self) -> bool:
        """An attempt was launched that is neither ended nor fenced."""
        return self.launch is not None and not self.ended and self.fence is None

    @property
    def next_attempt(self) -> int:
        return self.attempt + 1

    @property
    def target(self) -> str | None:
        """The placement that the newest drain or kill was for."""
        stop = self.fence or self.drain
        return stop.target if stop else None

    def after(self, event: Event) -> Self:
        """The history with one more event."""
        now = replace(self, last_number=event.number, waiting=self.waiting if event.kind == "waiting" else "")
        if event.request is not None:
            now = replace(now, answered=now.answered | {event.request})
        if event.episode:
            now = replace(now, episode=event.episode, episode_open=True)
        if event.action is not None:
            now = now._after_action(event)
        return now._after_fact(event)

    def _after_action(self, event: Event) -> Self:
        action = event.action
        match action:
            case Launch():
                return self._launched(event, action)
            case Drain():
                return replace(self, drain=action, drain_cause=event.cause)
            case Fence():
                return replace(self, fence=action, fence_cause=event.cause, fenced_at=event.at)
            case SetState(state=state):
                errors = () if state == "running" else self.errors
                return replace(self, state=state, errors=errors, failures=() if state == "running" else self.failures)
            case Amend():
                return self._amended(event, action)
            case _:
                raise AssertionError(f"unknown action {action}")

    def _launched(self, event: Event, launch: Launch) -> Self:
        returning = self.drain is not None and self.drain_cause == "return" and self.target == launch.placement.name
        return replace(
            self,
            loose=self._loose_now(),
            launch=launch,
            launch_cause=event.cause,
            launched_at=event.at,
            drain=None,
            fence=None,
            ended=False,
            first_new_step=False,
            returning=returning,
            returns=(*self.returns, event.at) if returning else self.returns,
            save_failures=0,
        )

    def _amended(self, event: Event, amend: Amend) -> Self:
        """The attempt before it is over, whether or not all its hosts are confirmed free."""
        return replace(
            self,
            revision=amend.revision,
            amend=event,
            state="running",
            errors=(),
            newest_skipped=amend.from_step - 1,
            drain=None,
            fence=None,
            loose=self._loose_now(),
            ended=True,
            end_cause=event.cause,
        )

    def _loose_now(self) -> tuple[Launch, ...]:
        return (*self.loose, self.launch) if self.launch is not None and not self.ended else self.loose

    def _after_fact(self, event: Event) -> Self:
        match event.kind:
            case "ended":
                return self._after_end(event)
            case "first-new-step":
                return replace(self, first_new_step=True, episode_open=False)
            case "proven" | "quarantined" | "deleted":
                return self._after_word_on_checkpoints(event, frozenset(event.details.get("manifests", ())))
            case "save-failed":
                return replace(self, save_failures=int(event.details.get("count", 0)))
            case "skipped-step":
                return replace(self, newest_skipped=max((self.newest_skipped, *event.details.get("steps", ()))))
            case "waiting":
                return replace(self, waiting=str(event.details.get("key", "")))
            case "alert":
                return self._after_alert(event)
            case "answered" if event.details.get("host_gone"):
                return replace(self, declared_gone=self.declared_gone | {str(event.details["host_gone"])})
            case _:
                return self

    def _after_alert(self, event: Event) -> Self:
        back = {str(event.details.get("host_back", ""))}
        alerts = self.alerts | {str(event.details.get("key", ""))}
        return replace(self, alerts=alerts, declared_gone=self.declared_gone - back)

    def _after_word_on_checkpoints(self, event: Event, names: frozenset[str]) -> Self:
        if event.kind == "quarantined":
            return replace(self, quarantined=self.quarantined | names)
        if event.kind == "deleted":
            return replace(self, deleted=self.deleted | names)
        errors = tuple(error for error in self.errors if not any(error.overcome_by(name) for name in names))
        return replace(self, proven=self.proven | names, failures=(), errors=errors)

    def _after_end(self, event: Event) -> Self:
        stop = self.fence or self.drain
        then = stop.then if stop else "relaunch"
        states: dict[str, RunState] = {"pause": "paused", "hold": "held", "stop": "stopped"}
        failures, errors = self.failures, self.errors
        if host := event.details.get("host"):
            failures = (*failures, Failure(host=str(host), at=event.at))
        if identity := event.details.get("error"):
            step = event.details.get("error_step")
            errors = (*errors, ErrorSeen(identity=str(identity), step=step, attempt=event.attempt))
        return replace(
            self,
            ended=True,
            end_cause=event.cause,
            end_at=event.at,
            state=states.get(then, self.state),
            failures=failures,
            errors=errors,
            failed_returns=self._failed_returns(event),
        )

    def _failed_returns(self, event: Event) -> int:
        if not self.returning:
            return self.failed_returns
        return self.failed_returns + 1 if event.details.get("return_failed") else 0


def fold(events: Iterable[Event], history: History | None = None) -> History:
    """The history after all events, in order."""
    now = history or History()
    for event in events:
        now = now.after(event)
    return now
