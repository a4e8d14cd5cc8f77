"""A simulated world: a fleet, its agents and trainers, people and controllers, on a virtual clock.

Everything in it talks through the run's directory in the store, as in reality; only the controllers are the real ones.
"""

from collections import deque
from random import Random
from typing import Any, Literal, TypeVar

from orchestrator.contract.attempt import AttemptSpec, HostRef, OwnError
from orchestrator.contract.base import Document, sha256_of
from orchestrator.contract.event import Amend, Event, Request, RequestKind
from orchestrator.contract.manifest import Head, Manifest, Pin
from orchestrator.contract.recipe import Recipe
from orchestrator.contract.run import LeafPlan, Revision, Run
from orchestrator.store.objects import StoreUnavailable
from orchestrator.store.run_store import RunStore
from tests.simulation.agents import Agent
from tests.simulation.controllers import SimController
from tests.simulation.faults import Scenario
from tests.simulation.fleet import Host
from tests.simulation.invariants import Watch
from tests.simulation.objects import ActorObjects, Guard, QuickRunStore, SimObjects
from tests.simulation.timeline import EPOCH, Timeline
from tests.simulation.trainers import Gang, Process

D = TypeVar("D", bound=Document)
Actor = Literal["controller", "agent", "trainer"]


class HostGuard:
    """Cuts agents and trainers of a host, or all of them, off from the store; loses responses."""

    def __init__(self, world: "World", host: Host | None, actor: Actor) -> None:
        self._world = world
        self._host = host
        self._actor = actor

    def before(self, operation: str, name: str) -> None:
        if self._world.store_down[self._actor] or (self._host is not None and self._host.cut):
            raise StoreUnavailable("the store does not answer")

    def after(self, operation: str, name: str) -> None:
        if operation in ("create", "swap") and self._world.loses_response(self._actor):
            raise StoreUnavailable("no response")


class Plain:
    """A guard that lets everything pass."""

    def before(self, operation: str, name: str) -> None:
        return

    def after(self, operation: str, name: str) -> None:
        return


class World:
    """See the module."""

    run_name = "sim"

    def __init__(self, scenario: Scenario, *, trace: bool = False) -> None:
        self.scenario = scenario
        self.random = Random(scenario.seed)
        self.timeline = Timeline()
        self._trace = trace
        self.lines: deque[str] = deque(maxlen=None if trace else 120)
        self._objects = SimObjects()
        self._parsed: dict[Any, Any] = {}
        self.hosts = {ref: Host(ref=ref, generation=pool.generation) for pool in scenario.pools for ref in pool.refs()}
        self.gangs: dict[int, Gang] = {}
        self.controllers: list[SimController] = []
        self._controllers_started = 0
        self.standby = False
        """A controller that ended was meant to: nobody starts another one until a person asks for something."""
        self.certified = False
        # ---- what is wrong at the moment
        self.store_down: dict[str, bool] = {"controller": False, "agent": False, "trainer": False}
        self._responses_to_lose: dict[str, int] = {}
        self.backend_down = False
        self.looks_are_slow = False
        """Time goes by between a controller's operations."""
        self.saves_fail = False
        self.next_save_is_corrupt = False
        self.corrupt: set[str] = set()
        """Manifests whose data is damaged."""
        self.own_errors: dict[int, tuple[OwnError, int]] = {}
        """By step: the error, and how often it will still happen."""
        self.not_finite_at: dict[int, int] = {}
        self.corrupting: dict[HostRef, bool] = {}
        """Hosts that compute wrong bits: in replays only (True) or in new steps only (False)."""
        self.watch = Watch(self)
        self.store = self.store_for("person", Plain())
        self.run = self._submit()

    # ---- actors
    def store_for(self, actor: str, guard: Guard) -> RunStore:
        objects = ActorObjects(self._objects, actor=actor, guard=guard, witness=self.watch)
        if self.scenario.exact_bytes:
            return RunStore(objects, self.run_name)
        return QuickRunStore(objects, self.run_name, self._parsed)

    def guard_of(self, host: Host | None, actor: Actor) -> HostGuard:
        return HostGuard(self, host, actor)

    def start_controller(self, *, wrong_by: float = 0.0) -> SimController:
        self._controllers_started += 1
        controller = SimController(self, f"controller-{self._controllers_started}", wrong_by=wrong_by)
        self.controllers.append(controller)
        self.say(f"{controller.name} starts")
        return controller

    def controller_ended(self, controller: SimController, why: str) -> None:
        self.controllers.remove(controller)
        if why == "killed":
            wrong_by = controller.clock.wrong_by
            self.timeline.after(self.random.uniform(0.3, 8.0), lambda: self.start_controller(wrong_by=wrong_by))

    def start_agent(self, host: Host, from_attempt: int) -> None:
        host.agent = Agent(self, host, from_attempt)
        self.say(f"agent of {host.ref} starts, from a{from_attempt}")
        host.agent.wake()

    def start_trainer(self, host: Host, agent: Agent, spec: AttemptSpec, index: int) -> Process:
        self.watch.trainer_starts(host, spec.attempt)
        gang = self.gangs.setdefault(spec.attempt, Gang(self, spec))
        process = Process(gang, index, host, agent)
        host.trainers.append(process)
        self.say(f"trainer a{spec.attempt}/{index} starts on {host.ref}")
        gang.join(process)
        return process

    def ordered(self) -> None:
        """A start or stop order was written: agents look soon."""
        for host in self.hosts.values():
            if host.agent is not None:
                host.agent.wake()

    def request(self, kind: RequestKind, *, seen: int | None = None, **arguments: str) -> str:
        """A person's command; it also starts a controller where none is left."""
        request = Request(
            kind=kind,
            by="ada",
            reason="simulated",
            attempt_seen=self.watch.log.attempt if seen is None else seen,
            arguments=arguments,
            at=EPOCH + self.timeline.now,
        )
        name = self.store.create_request(request)
        self.say(f"request {kind} {arguments} against a{request.attempt_seen}: {name}")
        if not self.controllers:
            self.start_controller()
        return name

    def amend(self, kind: RequestKind, recipe: Recipe, *, seen: int | None, to: Manifest | None) -> None:
        """Ask for a new revision that goes on from a checkpoint."""
        data = recipe.to_bytes()
        self._objects.create(f"{self.run_name}/recipes/{sha256_of(data)}.json", data)
        step = {"step": str(to.next_step)} if to is not None else {}
        self.request(kind, seen=seen, recipe_sha256=sha256_of(data), **step)

    def pin(self, manifest: str) -> None:
        self.store.create_pin(Pin(manifest=manifest, reason="simulated", by="ada", at=EPOCH))

    def repair(self, manifest: str) -> None:
        """A person brings a checkpoint's data back from a copy."""
        self.corrupt.discard(manifest)
        self._objects.overwrite(f"{self.run_name}/checkpoints/{manifest}/data", b"state")
        self._objects.delete(f"{self.run_name}/quarantine/{manifest}.json")
        self.watch.log.quarantined.discard(manifest)

    # ---- what is wrong
    def loses_response(self, actor: str) -> bool:
        left = self._responses_to_lose.get(actor, 0)
        self._responses_to_lose[actor] = max(0, left - 1)
        return left > 0

    def lose_responses(self, actor: str, count: int) -> None:
        self._responses_to_lose[actor] = count

    def own_error(self, step: int) -> OwnError | None:
        error, left = self.own_errors.get(step, (None, 0))
        if error is None or left <= 0:
            return None
        self.own_errors[step] = (error, left - 1)
        return error

    def not_finite(self, step: int) -> bool:
        left = self.not_finite_at.get(step, 0)
        if left > 0:
            self.not_finite_at[step] = left - 1
        return left > 0

    def corrupts(self, hosts: list[Host], *, replayed: bool) -> bool:
        return any(self.corrupting.get(host.ref) is replayed for host in hosts)

    def data_of(self, manifest: str) -> bool:
        """Whether a checkpoint's data is there."""
        return bool(self._objects.children(f"{self.run_name}/checkpoints/{manifest}/"))

    def heal(self) -> None:
        """All faults end, except in what was already written."""
        self.store_down = dict.fromkeys(self.store_down, False)
        self._responses_to_lose.clear()
        self.backend_down = self.looks_are_slow = self.saves_fail = self.next_save_is_corrupt = False
        self.corrupting.clear()
        for host in self.hosts.values():
            host.listed, host.shown_gone, host.unknown, host.cut = True, False, False, False
            host.maintenance_at, host.slowness = None, 1.0
            if host.agent is not None and host.agent.hung:
                host.agent.hung = False
                host.agent.wake()
            for process in list(host.trainers):
                process.stopped = False

    # ---- looking on
    @property
    def tracing(self) -> bool:
        return self._trace

    @property
    def recipe(self) -> Recipe:
        """Of the current revision."""
        amended = next((e.action for e in reversed(self.events) if isinstance(e.action, Amend)), None)
        return self.store.recipe(amended.recipe_sha256 if amended else self.run.recipe_sha256)

    @property
    def last_step(self) -> int:
        return self.scenario.recipe.last_step

    def document(self, kind: type[D], data: bytes) -> D:
        """What was written, parsed."""
        found = self._parsed.get((kind, data))
        if found is None:
            found = kind.from_bytes(data, where="simulation")
        return found  # type: ignore[no-any-return]

    @property
    def busy(self) -> bool:
        """A trainer lives somewhere."""
        return any(host.trainers for host in self.hosts.values())

    @property
    def events(self) -> list[Event]:
        return self.watch.log.events

    def say(self, text: str) -> None:
        line = f"{self.timeline.now:9.2f}  {text}"
        self.lines.append(line)
        if self._trace:
            print(line)

    # ---- the beginning
    def _submit(self) -> Run:
        scenario, store = self.scenario, self.store
        recipe = scenario.recipe.to_bytes()
        run = Run(
            name=self.run_name,
            recipe_sha256=sha256_of(recipe),
            fleet="fleet",
            data_root="data",
            trainer=("trainer",),
            scrub=("scrub",),
            submitted_at=EPOCH,
        )
        revision = Revision(
            number=1,
            recipe_sha256=run.recipe_sha256,
            base_manifest=None,
            from_step=0,
            reason="submitted",
            by="ada",
            at=EPOCH,
        )
        store.create_run(run)
        store.create_revision(revision, recipe)
        store.create_policy(scenario.policy)
        for pool in scenario.pools:
            store.create_leaf_plan(LeafPlan(generation=pool.generation))
        store.create_head(Head(attempt=0, manifest=None, next_step=None, revision=1, write_id="submit"))
        store.create_event(
            Event(number=1, at=EPOCH, kind="submitted", message="submitted by ada", cause="submit", by="person")
        )
        return run
