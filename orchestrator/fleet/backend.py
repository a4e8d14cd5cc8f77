"""What a backend must do: list hosts with their evidence, and bring agents up and down. Every call can be repeated."""

from collections.abc import Sequence
from typing import Protocol

from orchestrator.contract.attempt import HostRef
from orchestrator.fleet.observation import HostView


class BackendUnavailable(Exception):
    """The fleet could not be read or reached; says nothing about any host."""


class Backend(Protocol):
    """Hosts of a fleet, as one run uses them."""

    def hosts(self) -> tuple[HostView, ...]:
        """A fresh, full list. Raises BackendUnavailable."""
        ...

    def ensure_agents(self, hosts: Sequence[HostRef], *, from_attempt: int) -> None:
        """Start an agent of this run on each host that has none; one that is gone or taken is seen by ``hosts()``."""
        ...

    def kill_agents(self, hosts: Sequence[HostRef]) -> None:
        """Kill agents of this run that do not answer, with their trainers."""
        ...

    def release(self, hosts: Sequence[HostRef]) -> None:
        """Ask agents of this run to end and give their hosts back."""
        ...
