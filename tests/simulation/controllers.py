"""The real controller inside a simulation: woken by the timeline, killed or paused between any two operations."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from orchestrator.contract.manifest import Proof, Quarantine
from orchestrator.controller.effects import Effects
from orchestrator.controller.loop import Controller
from orchestrator.controller.observe import Observer
from orchestrator.controller.sweep import Sweeper
from orchestrator.fleet.backend import Ahead
from orchestrator.store.objects import StoreUnavailable
from orchestrator.store.run_store import RunStore
from tests.simulation.fleet import SimBackend
from tests.simulation.timeline import EPOCH, SimClock

if TYPE_CHECKING:
    from tests.simulation.world import World

MOST_ACTS_IN_A_ROW = 60


class ControllerKilled(BaseException):
    """SIGKILL, at whatever the controller was doing."""


class ControllerGuard:
    """Counts a controller's operations, and lets happen to it what was planned."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self.operations = 0
        self.die_in: int | None = None
        """Operations until it is killed."""
        self.die_after_writing = False
        self.pause_in: int | None = None
        """Operations until it is paused."""
        self.writes_only = False
        """Of these, only writes are counted."""
        self.pause: Callable[[], None] = lambda: None
        self.read_failed = False
        """A read failed in this look."""

    def before(self, operation: str, name: str) -> None:
        self.operations += 1
        self._count_down(operation)
        if self._world.looks_are_slow and self._world.random.random() < 0.06:
            self._world.timeline.run_until(self._world.timeline.now + self._world.random.uniform(0.05, 1.5))
        if self._world.store_down["controller"] and operation not in ("hosts", "prove", "certify", *BACKEND):
            self.read_failed = True
            raise StoreUnavailable("the store does not answer")

    def after(self, operation: str, name: str) -> None:
        if self.die_in is not None and self.die_in <= 0:
            self.die_in = None
            raise ControllerKilled
        if operation in WRITES and self._world.loses_response("controller"):
            raise StoreUnavailable("no response")

    def _count_down(self, operation: str) -> None:
        if self.writes_only and operation not in WRITES:
            return
        if self.pause_in is not None:
            self.pause_in -= 1
            if self.pause_in <= 0:
                self.pause_in = None
                self.pause()
        if self.die_in is not None:
            self.die_in -= 1
            late = self.die_after_writing and operation in WRITES
            if self.die_in <= 0 and not late:
                self.die_in = None
                raise ControllerKilled


WRITES = ("create", "swap")
BACKEND = ("ensure_agents", "kill_agents", "release")


class SimController:
    """One controller process, from its start to its end."""

    def __init__(self, world: "World", name: str, *, wrong_by: float = 0.0) -> None:
        self.world = world
        self.name = name
        self.guard = ControllerGuard(world)
        self.clock = SimClock(world.timeline, booted=world.timeline.now)
        self.clock.wrong_by = wrong_by
        self.alive = True
        self.looking = False
        self._acts = 0
        self._idle = 0
        store = world.store_for(name, self.guard)
        backend = SimBackend(world, self.guard, name)
        self.controller = Controller(
            name=name,
            store=store,
            observer=Observer(store, backend, self.clock),
            effects=Effects(
                run=world.run,
                store=store,
                backend=backend,
                prover=SimProver(world, self.guard),
                preparer=SimPreparer(),
                certify=self._certify,
                clock=self.clock,
            ),
            sweeper=Sweeper(store),
            clock=self.clock,
        )
        world.timeline.after(0.0, self.look)

    def look(self) -> None:
        if not self.alive or self.looking:
            return
        self.looking, self.guard.read_failed = True, False
        try:
            looked = self.controller.look()
        except ControllerKilled:
            self.end("killed")
            return
        finally:
            self.looking = False
        self.world.watch.looked(self, looked)
        if not self.alive:
            return
        if looked == "acted":
            self._acts, self._idle = self._acts + 1, 0
            assert self._acts < MOST_ACTS_IN_A_ROW, f"{self.name} decides again and again without a pause"
            self.world.timeline.after(0.0, self.look)
            return
        self._acts = 0
        if looked == "waiting" and self.controller.done:
            self.end("has nothing left to do")
            return
        self.world.timeline.after(self._pause(looked), self.look)

    def end(self, why: str) -> None:
        self.alive = False
        self.world.say(f"{self.name} {why}")
        self.world.controller_ended(self, why)

    def _pause(self, looked: str) -> float:
        """About a second; longer where nothing at all happens, so that a long back-off is cheap to simulate."""
        self._idle = 0 if self.world.busy or looked == "blind" else self._idle + 1
        return self.world.random.uniform(0.7, 1.3) * min(60.0, 2.0 ** max(0, self._idle - 20))

    def _certify(self, _store: RunStore) -> None:
        self.guard.before("certify", "")
        self.world.certified = True


class SimPreparer:
    """Compiling ahead changes nothing that a simulation sees."""

    def prepare(self, wanted: Sequence[Ahead]) -> None: ...


class SimProver:
    """Reads checkpoints back beside the run."""

    def __init__(self, world: "World", guard: ControllerGuard) -> None:
        self._world = world
        self._guard = guard
        self._store = world.store_for("prover", world.guard_of(None, "controller"))
        self._running = False

    def prove(self, manifest: str) -> None:
        self._guard.before("prove", manifest)
        if not self._running:
            self._running = True
            self._world.timeline.after(self._world.random.uniform(0.5, 3.0), lambda: self._finish(manifest))

    def _finish(self, manifest: str) -> None:
        self._running = False
        now = EPOCH + self._world.timeline.now
        try:
            if manifest in self._store.tombstones():
                return
            if manifest in self._world.corrupt or not self._world.data_of(manifest):
                self._store.create_quarantine(Quarantine(manifest=manifest, problem="checksum", attempt=None, at=now))
            else:
                self._store.create_proof(Proof(manifest=manifest, how="scrub", attempt=None, arrays=1, at=now))
        except StoreUnavailable:
            return
