"""What a decision is made from, built by hand: a log of events and one look at a fleet of four hosts.

case = Case().launch()
facts = case.facts(attempt=case.attempt(process(0), process(1, state="lost"), …))
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Self

from orchestrator.contract.attempt import Exit, ExitCode, HostRef, OwnError, Progress
from orchestrator.contract.event import Action, Drain, Event, EventKind, Fence, Launch, Request
from orchestrator.contract.manifest import Head, manifest_name
from orchestrator.contract.recipe import Recipe
from orchestrator.contract.run import CheckpointPolicy, Deadlines, Moves, Placement, Policy
from orchestrator.fleet.observation import AgentView, AttemptView, CheckpointView, HostView, Observation, ProcessView
from orchestrator.planner.decision import Facts
from orchestrator.planner.history import History
from tests.unit.run_documents import recipe_of

START = 1_000_000.0
FULL = Placement(name="full", pool="first", generation="g1", hosts=4, devices_per_host=1)
HALF = Placement(name="half", pool="first", generation="g1", hosts=2, devices_per_host=1)
QUARTER = Placement(name="quarter", pool="first", generation="g1", hosts=1, devices_per_host=1)
OTHER = Placement(name="other", pool="second", generation="g2", hosts=2, devices_per_host=1)
POLICY = Policy(
    placements=(FULL, HALF, QUARTER, OTHER),
    checkpoint=CheckpointPolicy(every_steps=10, max_unproven=4, prove_after=2),
    deadlines=Deadlines(kill=15.0, drain=600.0),
    moves=Moves(hold_off=600.0, per_day=4),
)
RECIPE = recipe_of({"pretrain": 100, "anneal": 20})
ERROR = OwnError(type="ValueError", frame="trainer/data/batches.py:read", message="bad batch", step=33)


def ref(index: int, pool: str = "first") -> HostRef:
    return HostRef(pool=pool, host=f"h{index}")


def host(index: int, pool: str = "first", **change: Any) -> HostView:
    """A ready host with this run's agent."""
    fields: dict[str, Any] = {
        "ref": ref(index, pool),
        "generation": "g1" if pool == "first" else "g2",
        "devices": 1,
        "condition": "ready",
        "evidence": "listed, agent's lock is held",
        "agent": AgentView(run="demo", from_attempt=1),
    }
    return HostView(**{**fields, **change})


def hosts(count: int = 4, pool: str = "first") -> tuple[HostView, ...]:
    return tuple(host(index, pool) for index in range(count))


def progress(index: int = 0, *, attempt: int = 1, **change: Any) -> Progress:
    fields: dict[str, Any] = {
        "attempt": attempt,
        "process": index,
        "pid": 1,
        "phase": "train",
        "step": 33,
        "counter": 9,
        "phases": (),
        "first_new_step_at": START,
        "at": START,
    }
    return Progress.model_validate({**fields, **change})


def process(index: int, *, state: str = "running", pool: str = "first", **change: Any) -> ProcessView:
    """A process that trains; ``change`` goes to its progress."""
    return ProcessView(
        index=index,
        host=ref(index, pool),
        state=state,  # type: ignore[arg-type]
        evidence=f"host {index} is {state}",
        progress=progress(index, **change),
    )


def exited(index: int, code: int | None, *, at: float = START, **change: Any) -> ProcessView:
    """A process whose agent reported its exit."""
    fields: dict[str, Any] = {
        "attempt": 1,
        "process": index,
        "host": ref(index),
        "code": code,
        "signal": None if code is not None else 9,
        "killed_by_us": False,
        "phase": "train",
        "step": 33,
        "error": ERROR if code == ExitCode.OWN_ERROR else None,
        "last_lines": (),
        "at": at,
    }
    end = Exit.model_validate({**fields, **change})
    return ProcessView(
        index=index, host=ref(index), state="exited", evidence="reported", progress=progress(index), exit=end
    )


def checkpoint(next_step: int, *, attempt: int = 1, proven: bool = True, quarantined: bool = False) -> CheckpointView:
    return CheckpointView(
        manifest=manifest_name(next_step, attempt),
        next_step=next_step,
        proven=proven,
        quarantined=quarantined,
        at=START,
    )


class Case:
    """A log under construction, and the look that goes with it."""

    def __init__(self, *, policy: Policy = POLICY, recipe: Recipe = RECIPE) -> None:
        self.policy = policy
        self.recipe = recipe
        self.now = START
        self.history = History()
        self.event("submitted", cause="submit")

    def event(
        self, kind: EventKind = "decision", *, cause: str = "", action: Action | None = None, **fields: Any
    ) -> Self:
        number = self.history.last_number + 1
        fields.setdefault("attempt", self.history.attempt)
        event = Event(number=number, at=self.now, kind=kind, message=kind, cause=cause, action=action, **fields)
        self.history = self.history.after(event)
        return self

    def after(self, seconds: float) -> Self:
        self.now += seconds
        return self

    def launch(self, placement: Placement = FULL, *, cause: str = "submit", on: Iterable[int] | None = None) -> Self:
        number = self.history.attempt + 1
        indexes = range(placement.hosts) if on is None else on
        action = Launch(
            attempt=number,
            revision=self.history.revision,
            stage="pretrain",
            until_step=100,
            placement=placement,
            hosts=tuple(ref(index, placement.pool) for index in indexes),
            allocation=1,
            resume=None,
        )
        return self.event(cause=cause, action=action, attempt=number)

    def stepping(self) -> Self:
        """It has gone beyond what was recorded."""
        return self.event("first-new-step")

    def drain(self, *, cause: str = "request-drain", deadline: float = 600.0, **fields: Any) -> Self:
        return self.event(
            cause=cause, action=Drain(attempt=self.history.attempt, deadline=self.now + deadline, **fields)
        )

    def fence(self, *, cause: str = "host-lost", **fields: Any) -> Self:
        return self.event(cause=cause, action=Fence(attempt=self.history.attempt, **fields))

    def ended(self, cause: str = "host-lost", **details: Any) -> Self:
        return self.event("ended", cause=cause, details=details)

    def attempt(self, *processes: ProcessView, **change: Any) -> AttemptView:
        """The newest launch, with these processes, or with all of them training."""
        launch = self.history.launch
        assert launch is not None
        fields: dict[str, Any] = {
            "number": launch.attempt,
            "placement": launch.placement,
            "stage": launch.stage,
            "until_step": launch.until_step,
            "processes": processes or tuple(process(index) for index in range(launch.placement.hosts)),
        }
        return AttemptView(**{**fields, **change})

    def head(self, next_step: int | None = 30, *, attempt: int | None = None, writer: int = 1) -> Head:
        history = self.history
        raised = history.attempt + 1 if history.fence is not None else history.attempt
        return Head(
            attempt=raised if attempt is None else attempt,
            manifest=None if next_step is None else manifest_name(next_step, writer),
            next_step=next_step,
            revision=history.revision,
            write_id="w",
        )

    def facts(self, *processes: ProcessView, noted: bool = True, **seen: Any) -> Facts:
        """All of it now; ``seen`` replaces parts of the observation.

        Args:
            noted: what is seen of checkpoints is in the log already.
        """
        fields: dict[str, Any] = {
            "head": self.head(),
            "hosts": hosts(),
            "attempt": self.attempt(*processes) if self.history.launch is not None else None,
            "unconfirmed": frozenset(),
            "checkpoints": (checkpoint(30), checkpoint(20)),
            "requests": (),
            "step_seconds": 1.0,
            "save_seconds": 2.0,
        }
        observation = Observation(**{**fields, **seen})
        history = self.history
        if noted:
            proven = frozenset(view.manifest for view in observation.checkpoints if view.proven)
            quarantined = frozenset(view.manifest for view in observation.checkpoints if view.quarantined)
            history = replace(history, proven=proven, quarantined=quarantined)
        return Facts(
            run="demo", recipe=self.recipe, policy=self.policy, seen=observation, history=history, now=self.now
        )

    def request(self, kind: str, *, seen: int | None = None, **arguments: str) -> tuple[str, Request]:
        """An unanswered request, as ``Observation.requests`` has it."""
        fields = {
            "kind": kind,
            "by": "ada",
            "reason": "test",
            "attempt_seen": self.history.attempt if seen is None else seen,
            "arguments": arguments,
            "at": self.now,
        }
        return f"{kind}-1", Request.model_validate(fields)
