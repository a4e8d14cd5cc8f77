"""What ``decide`` answers with: something to record and do, or a reason to wait."""

from dataclasses import dataclass, field
from typing import Any

from orchestrator.contract.event import Action, EventKind
from orchestrator.contract.recipe import Recipe
from orchestrator.contract.run import Policy
from orchestrator.fleet.observation import Observation
from orchestrator.planner.history import History


@dataclass(frozen=True, kw_only=True)
class Decision:
    """Becomes the next event; its action's effects follow."""

    kind: EventKind
    message: str
    cause: str = ""
    evidence: tuple[str, ...] = ()
    action: Action | None = None
    request: str | None = None
    disturbs: bool = False
    """Opens an episode when none is open."""
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Wait:
    """Nothing to do: why, until when, and what ends it. Recorded when its key changes and ``record`` is set."""

    key: str
    reason: str
    until: float | None = None
    """Seconds since the epoch at which this is looked at again at the latest; None: only an observation ends it."""
    record: bool = True


@dataclass(frozen=True, kw_only=True)
class Facts:
    """All that a decision may depend on."""

    run: str
    recipe: Recipe
    """Of the current revision."""
    policy: Policy
    seen: Observation
    history: History
    now: float
    """Seconds since the epoch."""
