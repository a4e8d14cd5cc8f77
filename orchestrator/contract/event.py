"""Requests and events: what people asked for, what was decided and what was seen.

The event log is the controller's write-ahead log. A decision is created as event number last + 1 before any of its
effects; the number being taken means that another controller led. Everything the controller remembers is a fold over
these events, so a controller that starts again knows what the one before it knew.
"""

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import ConfigDict, Field, ValidationError, model_validator

from orchestrator.contract.attempt import HostRef
from orchestrator.contract.base import Document, Part, first_problem
from orchestrator.contract.names import ManifestName, RequestName
from orchestrator.contract.recipe import Name, Positive, Sha256
from orchestrator.contract.run import Placement

RequestKind = Literal[
    "drain", "move", "pause", "hold", "resume", "stop", "host-gone", "amend", "rewind", "policy", "pin"
]


class Request(Document):
    """A person's command. Answered by an event that carries its name."""

    KIND: ClassVar[str] = "request"

    kind: RequestKind
    by: str
    reason: str
    attempt_seen: Annotated[int, Field(ge=0)]
    """The attempt that the person looked at; the request is refused when another one is current."""
    arguments: dict[str, str] = Field(default_factory=dict)
    at: float


class Launch(Part):
    """Start an attempt on hosts that are confirmed free of the one before it."""

    kind: Literal["launch"] = "launch"
    attempt: Positive
    revision: Positive
    stage: Name
    until_step: Positive
    placement: Placement
    hosts: tuple[HostRef, ...]
    allocation: Positive
    resume: ManifestName | None


class Drain(Part):
    """Ask an attempt to save and leave; kill it at the deadline."""

    kind: Literal["drain"] = "drain"
    attempt: Positive
    deadline: float
    """Seconds since the epoch."""
    then: Literal["relaunch", "pause", "hold", "stop", "amend"] = "relaunch"
    target: Name | None = None
    """Placement to launch on afterwards, when a person or a return asked for one."""


class Fence(Part):
    """Raise head to a new attempt number and kill what runs under the old one."""

    kind: Literal["fence"] = "fence"
    attempt: Positive
    """The number that is killed; head becomes attempt + 1."""
    then: Literal["relaunch", "pause", "hold", "stop", "amend"] = "relaunch"
    target: Name | None = None
    """As of the drain that this kill replaces."""
    suspects: tuple[HostRef, ...] = ()
    """Hosts that the next launch keeps away from."""


class SetState(Part):
    """Hold, pause, resume, stop or complete a run that has no live attempt to end first."""

    kind: Literal["state"] = "state"
    state: Literal["running", "held", "paused", "stopped", "complete"]


class Amend(Part):
    """Go on from ``base`` as a new revision."""

    kind: Literal["amend"] = "amend"
    revision: Positive
    base: ManifestName
    from_step: int
    recipe_sha256: Sha256


Action = Annotated[Launch | Drain | Fence | SetState | Amend, Field(discriminator="kind")]

EventKind = Literal[
    "submitted",
    "decision",
    "refused",
    "answered",
    "first-new-step",
    "ended",
    "stage-done",
    "proven",
    "quarantined",
    "save-failed",
    "skipped-step",
    "deleted",
    "alert",
    "waiting",
    "policy-changed",
]


class KnownDetails(Part):
    """Members of an event's ``details`` from which something is decided; others may be anything."""

    model_config = ConfigDict(extra="allow", strict=True)

    manifests: list[ManifestName] = Field(default_factory=list)
    count: int = 0
    steps: list[int] = Field(default_factory=list)
    key: str = ""
    host: str = ""
    host_gone: str = ""
    host_back: str = ""
    error: str = ""
    error_step: int | None = None
    return_failed: bool = False


class Event(Document):
    """One decision or fact."""

    KIND: ClassVar[str] = "event"

    number: Positive
    at: float
    kind: EventKind
    message: str
    """One line for a person."""
    episode: int = 0
    """0: outside any episode."""
    cause: str = ""
    """``submit``, ``host-lost``, ``stalled-<phase>``, ``own-error``, ``replay-differs``, ``not-finite``,
    ``maintenance``,
    ``capacity``, ``return``, ``stage``, ``request-<kind>``, ``died``, …"""
    attempt: int = 0
    evidence: tuple[str, ...] = ()
    action: Action | None = None
    request: RequestName | None = None
    """Name of the request that this answers."""
    details: dict[str, Any] = Field(default_factory=dict)
    """Facts for reports, by name: seconds of phases, host names, sizes."""
    by: str = ""
    """The controller that wrote it."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        try:
            KnownDetails.model_validate(self.details)
        except ValidationError as error:
            raise ValueError(f"details.{first_problem(error)}") from error
        return self
