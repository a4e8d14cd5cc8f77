"""What the controller asks of a backend: to say what hosts there are, and to put agents on them and take them away."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from orchestrator.contract.attempt import HostRef
from orchestrator.contract.run import Placement
from orchestrator.fleet.observation import HostView


@dataclass(frozen=True, kw_only=True)
class Ahead:
    """A launch that may come: what its trainers would compile can be compiled before."""

    revision: int
    stage: str
    placement: Placement


class BackendUnavailable(Exception):
    """The fleet cannot be seen or reached now; says nothing about any host. The text is one line for a person."""


class Backend(Protocol):
    """Hosts of one fleet, for one run. Every effect can be repeated."""

    def hosts(self) -> tuple[HostView, ...]:
        """A fresh, full list. Raises BackendUnavailable."""
        ...

    def ensure_agents(self, hosts: Sequence[HostRef], *, from_attempt: int) -> None:
        """See that an agent of this run is on each host, or on its way.

        Hosts that have one are left alone; a host that is gone or held by another run is no error here: the next
        ``hosts()`` shows it. Raises BackendUnavailable.
        """
        ...

    def kill_agents(self, hosts: Sequence[HostRef]) -> None:
        """End this run's agents on these hosts and their trainers at once; ``hosts()`` shows what came of it.

        Raises BackendUnavailable.
        """
        ...

    def release(self, hosts: Sequence[HostRef]) -> None:
        """Ask this run's agents on these hosts to end their trainers, say so, and leave. Raises BackendUnavailable."""
        ...
