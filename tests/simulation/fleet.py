"""Simulated hosts, and the backend through which a controller sees them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from orchestrator.contract.attempt import HostRef
from orchestrator.fleet.backend import BackendUnavailable
from orchestrator.fleet.observation import AgentView, HostView
from tests.simulation.objects import Guard

if TYPE_CHECKING:
    from tests.simulation.agents import Agent
    from tests.simulation.trainers import Process
    from tests.simulation.world import World


@dataclass(eq=False, kw_only=True)
class Host:
    """One host of the fleet: the truth about it, and how much of it can be seen."""

    ref: HostRef
    generation: str
    devices: int = 1
    listed: bool = True
    shown_gone: bool = False
    """While not listed: shown with the condition ``gone``, not left out."""
    unknown: bool = False
    """Cut off from the controller: what runs there goes on."""
    cut: bool = False
    """Cut off from the store."""
    maintenance_at: float | None = None
    """Seconds since the epoch."""
    slowness: float = 1.0
    agent: "Agent | None" = None
    trainers: list["Process"] = field(default_factory=list)
    """Living trainer processes."""
    blinked: bool = False
    """It was out of the list for a moment while everything on it lived on."""

    def view(self) -> HostView | None:
        """What a full list shows of it."""
        if not self.listed and not self.shown_gone:
            return None
        condition, evidence = self._condition()
        agent = self.agent
        return HostView(
            ref=self.ref,
            generation=self.generation,
            devices=self.devices,
            condition=condition,  # type: ignore[arg-type]
            evidence=evidence,
            maintenance_at=self.maintenance_at,
            agent=AgentView(run=agent.run, from_attempt=agent.from_attempt) if agent is not None else None,
        )

    @property
    def held(self) -> bool:
        """An agent lives on it, and somebody could know."""
        return self.agent is not None and not self.agent.excused

    def _condition(self) -> tuple[str, str]:
        if not self.listed:
            return "gone", "deleted"
        if self.unknown:
            return "unknown", "does not answer"
        if self.agent is None and self.trainers:
            return "unknown", "its agent is dead, but something that it started holds its lock"
        return "ready", "listed, agent's lock is held" if self.agent else "listed, agent's lock is free"

    def die(self) -> None:
        """The machine is gone, and everything on it, without a word."""
        if self.agent is not None:
            self.agent.die()
        for process in list(self.trainers):
            process.die(signal=9, seen=False)


class SimBackend:
    """The fleet as one controller sees and commands it."""

    def __init__(self, world: "World", guard: Guard, seen_by: str) -> None:
        self._world = world
        self._guard = guard
        self._seen_by = seen_by

    def hosts(self) -> tuple[HostView, ...]:
        self._guard.before("hosts", "")
        if self._world.backend_down:
            raise BackendUnavailable("the fleet's API does not answer")
        views = tuple(view for host in self._world.hosts.values() if (view := host.view()) is not None)
        self._world.watch.listed(self._seen_by, views)
        return views

    def ensure_agents(self, hosts: Sequence[HostRef], *, from_attempt: int) -> None:
        for host in self._each("ensure_agents", hosts):
            if host.agent is None and not host.trainers:
                self._world.start_agent(host, from_attempt)

    def kill_agents(self, hosts: Sequence[HostRef]) -> None:
        for host in self._each("kill_agents", hosts):
            self._world.say(f"agent of {host.ref} is killed by the controller")
            host.die()

    def release(self, hosts: Sequence[HostRef]) -> None:
        for host in self._each("release", hosts):
            if host.agent is not None:
                host.agent.leave()

    def _each(self, operation: str, hosts: Sequence[HostRef]) -> Iterator[Host]:
        """The hosts that can be reached; time may pass, or it may fail, between any two of them."""
        for ref in hosts:
            self._guard.before(operation, str(ref))
            if self._world.backend_down:
                raise BackendUnavailable("the fleet's API does not answer")
            host = self._world.hosts[ref]
            if host.listed and not host.unknown:
                yield host
