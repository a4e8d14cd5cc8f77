"""One look: what the backend sees, merged with what the store says. Only the controller does this."""

from collections.abc import Mapping
from statistics import median

from orchestrator.contract.attempt import HostRef
from orchestrator.contract.base import ContractError
from orchestrator.contract.event import Launch, Request
from orchestrator.contract.manifest import Manifest
from orchestrator.controller.clock import Clock
from orchestrator.fleet.backend import Backend
from orchestrator.fleet.observation import AttemptView, CheckpointView, HostView, Observation, ProcessView
from orchestrator.planner.history import History
from orchestrator.store.run_store import RunStore


class Observer:
    """Looks at a run; remembers only when something last moved, on the controller's own clock."""

    def __init__(self, store: RunStore, backend: Backend, clock: Clock) -> None:
        self._store = store
        self._backend = backend
        self._clock = clock
        self._manifests: dict[str, Manifest] = {}
        """Without their arrays and files: nearly 1 MiB each for a model of 7B, and a run has more than a thousand."""
        self._signature: object = None
        self._moved_at = 0.0

    def look(self, history: History) -> Observation:
        """What is there now.

        Raises:
            StoreError, ContractError, BackendUnavailable: something could not be read, so nothing may be concluded.
        """
        hosts = self._backend.hosts()
        views = {host.ref: host for host in hosts}
        attempt = self._attempt(history, views)
        # Head after the exits: what has exited cannot commit any more, so an ended attempt is seen with its last
        # commit.
        head = self._store.head().value
        lineage = self._lineage(head.manifest)
        return Observation(
            head=head,
            hosts=hosts,
            attempt=attempt,
            unconfirmed=self._unconfirmed(history, views, attempt),
            checkpoints=self._checkpoints(lineage, history.deleted),
            requests=self._requests(history),
            quiet_for=self._quiet_for(attempt),
            step_seconds=_step_seconds(attempt),
            save_seconds=lineage[0].save_seconds if lineage else None,
        )

    def lost_sight(self) -> None:
        """A look failed: what stood still meanwhile may have moved unseen."""
        self._signature = None

    def _attempt(self, history: History, views: Mapping[HostRef, HostView]) -> AttemptView | None:
        launch = history.launch
        if launch is None:
            return None
        return AttemptView(
            number=launch.attempt,
            placement=launch.placement,
            stage=launch.stage,
            until_step=launch.until_step,
            processes=self._processes(launch, views, history.declared_gone),
        )

    def _processes(
        self, launch: Launch, views: Mapping[HostRef, HostView], declared_gone: frozenset[str]
    ) -> tuple[ProcessView, ...]:
        """The order of the reads matters: the kill order before the start order, so that a start order that is absent
        after a kill order was seen can never be obeyed; hosts (read before) before exit documents, so that a host seen
        without an agent has written all its exit documents."""
        killed = self._store.stop_order(launch.attempt, "kill") is not None
        ordered = self._store.start_order(launch.attempt) is not None
        exits = self._store.exits(launch.attempt)
        started = self._store.started(launch.attempt)
        progress = self._store.progress(launch.attempt)
        found = []
        for index, ref in enumerate(launch.hosts):
            if index in exits:
                state, evidence = "exited", f"the agent of {ref} reported its exit"
            elif str(ref) in declared_gone:
                state, evidence = "lost", f"{ref} is gone: a person said so"
            else:
                state, evidence = _state(
                    views.get(ref), ref, launch.attempt, killed=killed, ordered=ordered, started=index in started
                )
            view = ProcessView(
                index=index,
                host=ref,
                state=state,  # type: ignore[arg-type]
                evidence=evidence,
                lost_at=_died_at(views.get(ref)) if state == "lost" else None,
                progress=progress.get(index),
                exit=exits.get(index),
            )
            found.append(view)
        return tuple(found)

    def _unconfirmed(
        self, history: History, views: Mapping[HostRef, HostView], attempt: AttemptView | None
    ) -> frozenset[HostRef]:
        processes = [
            process for launch in history.loose for process in self._processes(launch, views, history.declared_gone)
        ]
        if attempt is not None and history.fence is not None:
            processes += attempt.processes
        return frozenset(process.host for process in processes if not process.free)

    def _lineage(self, newest: str | None) -> list[Manifest]:
        found: list[Manifest] = []
        name = newest
        while name is not None:
            if name not in self._manifests:
                whole = self._store.manifest(name)
                self._manifests[name] = whole.model_copy(update={"arrays": {}, "files": {}})
            found.append(self._manifests[name])
            name = found[-1].parent
        return found

    def _checkpoints(self, lineage: list[Manifest], deleted: frozenset[str]) -> tuple[CheckpointView, ...]:
        proven, quarantined = self._store.proven_names(), self._store.quarantined()
        return tuple(
            CheckpointView(
                manifest=manifest.name,
                next_step=manifest.next_step,
                proven=manifest.name in proven,
                quarantined=manifest.name in quarantined,
                at=manifest.at,
            )
            for manifest in lineage
            if manifest.name not in deleted
        )

    def _requests(self, history: History) -> tuple[tuple[str, Request | str], ...]:
        names = [name for name in self._store.request_names() if name not in history.answered]
        return tuple((name, self._request(name)) for name in names)

    def _request(self, name: str) -> Request | str:
        """Anyone can ask, so what cannot be read is refused, and does not keep the run from being seen."""
        try:
            return self._store.request(name)
        except ContractError as error:
            return str(error)

    def _quiet_for(self, attempt: AttemptView | None) -> float:
        now = self._clock.monotonic()
        signature = _signature(attempt)
        if signature != self._signature:
            self._signature, self._moved_at = signature, now
        return now - self._moved_at


def _state(
    view: HostView | None, ref: HostRef, attempt: int, *, killed: bool, ordered: bool, started: bool
) -> tuple[str, str]:
    """A process without an exit document: what its host and agent prove about it."""
    if view is None:
        return "lost", f"{ref} is not in the fleet's list"
    if view.condition == "gone":
        return "lost", f"{ref}: {view.evidence}"
    if view.condition == "unknown":
        return ("running" if started else "ordered"), f"{ref} is unknown: {view.evidence}"
    if killed and not ordered:
        return "never", f"{ref} was never ordered to start it"
    if view.agent is None:
        if ordered:
            return "lost", f"{ref}: {view.evidence}"
        return "ordered", f"{ref}: no agent yet"
    if view.agent.from_attempt > attempt:
        return "lost", f"{ref}: its agent was replaced by one for a{view.agent.from_attempt} and later"
    return ("running", f"the agent of {ref} started it") if started else ("ordered", f"the agent of {ref} is alive")


def _died_at(view: HostView | None) -> float | None:
    return view.died_at if view is not None else None


def _step_seconds(attempt: AttemptView | None) -> float | None:
    if attempt is None:
        return None
    medians = [process.progress.step_seconds for process in attempt.processes if process.progress is not None]
    known = [seconds for seconds in medians if seconds is not None]
    return median(known) if known else None


def _signature(attempt: AttemptView | None) -> object:
    """Changes whenever a process of the attempt moves, starts or ends."""
    if attempt is None:
        return None
    moved = tuple(
        (process.state, process.progress.counter if process.progress else -1) for process in attempt.processes
    )
    return (attempt.number, moved)
