"""What was seen, each thing with its evidence. Frozen data, no I/O.

Unknown is its own condition and never means dead: only *positive evidence* makes a host gone (its agent's lock is free,
it is missing from a fresh full list, an agent reported the exit, a person said so).
"""

from dataclasses import dataclass
from typing import Literal

from orchestrator.contract.attempt import Exit, HostRef, Progress
from orchestrator.contract.event import Request
from orchestrator.contract.manifest import Head
from orchestrator.contract.run import Placement


@dataclass(frozen=True, kw_only=True)
class AgentView:
    """A host agent that is provably alive (its lock is held)."""

    run: str
    """The run that it serves."""
    from_attempt: int
    """It takes orders for this attempt and later ones; earlier ones cannot run on its host."""


@dataclass(frozen=True, kw_only=True)
class HostView:
    """One host of the fleet, as the backend sees it now."""

    ref: HostRef
    generation: str
    devices: int
    condition: Literal["ready", "gone", "unknown"]
    evidence: str
    """Why, in words for a person: ``listed, agent's lock is free``."""
    maintenance_at: float | None = None
    """Seconds since the epoch at which the host will be taken away; None: nothing announced."""
    agent: AgentView | None = None
    """None: no agent lives on it, unless the condition is ``unknown``; look at that first."""
    died_at: float | None = None
    """Seconds since the epoch at which its last agent died; None: it lives, or nobody knows."""


@dataclass(frozen=True, kw_only=True)
class ProcessView:
    """One trainer process of an attempt: the host, and all that is known of the process on it."""

    index: int
    host: HostRef
    state: Literal["ordered", "running", "exited", "lost", "never"]
    """``ordered``: no agent has said yet that it started; ``lost``: its agent or host is gone without an exit document;
    ``never``: the attempt was fenced before it was ordered to start."""
    evidence: str
    lost_at: float | None = None
    """Seconds since the epoch at which a lost process died; None: nobody knows."""
    progress: Progress | None = None
    exit: Exit | None = None

    @property
    def step(self) -> int | None:
        return self.progress.step if self.progress else None

    @property
    def free(self) -> bool:
        """The host is confirmed free of this attempt."""
        return self.state in ("exited", "lost", "never")


@dataclass(frozen=True, kw_only=True)
class AttemptView:
    """The newest attempt that was launched."""

    number: int
    placement: Placement
    stage: str
    until_step: int
    processes: tuple[ProcessView, ...]

    @property
    def ended(self) -> bool:
        return all(process.free for process in self.processes)

    @property
    def last_step(self) -> int | None:
        steps = [process.step for process in self.processes if process.step is not None]
        return max(steps, default=None)

    @property
    def started_stepping(self) -> bool:
        return self.last_step is not None


@dataclass(frozen=True, kw_only=True)
class CheckpointView:
    """A checkpoint reachable from head."""

    manifest: str
    next_step: int
    proven: bool
    quarantined: bool
    at: float


@dataclass(frozen=True, kw_only=True)
class Observation:
    """One look at everything a decision depends on."""

    head: Head
    hosts: tuple[HostView, ...]
    attempt: AttemptView | None
    unconfirmed: frozenset[HostRef]
    """Hosts on which a fenced attempt is not confirmed to be gone."""
    checkpoints: tuple[CheckpointView, ...]
    """Reachable from head, newest first."""
    requests: tuple[tuple[str, Request | str], ...]
    """Unanswered, oldest first, with their names; a text says why one cannot be read."""
    quiet_for: float = 0.0
    """Seconds on the controller's monotonic clock, while reads of the store succeeded, since any counter rose."""
    step_seconds: float | None = None
    """Median of the current attempt's last steps."""
    save_seconds: float | None = None
    """What the newest checkpoint took to save."""
    whole_for: tuple[tuple[str, float], ...] = ()
    """Placements that could be had in full, by name, and for how many seconds without a break."""

    def host(self, ref: HostRef) -> HostView | None:
        return next((host for host in self.hosts if host.ref == ref), None)
