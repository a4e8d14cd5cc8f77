"""The loop and its effects against a store in memory and a backend that does what it is told."""

import gc
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from orchestrator.contract.attempt import ExitCode, HostRef
from orchestrator.contract.event import Amend, Event, Fence, Request, SetState
from orchestrator.contract.manifest import Manifest, Pin
from orchestrator.contract.run import CheckpointPolicy, LeafPlan, Moves, Policy
from orchestrator.controller.effects import Effects
from orchestrator.controller.loop import Controller
from orchestrator.controller.observe import Observer
from orchestrator.controller.prior import freeze
from orchestrator.controller.sweep import Sweeper
from orchestrator.fleet.backend import Ahead, BackendUnavailable
from orchestrator.fleet.observation import AgentView, HostView
from orchestrator.store.memory import MemoryStore
from orchestrator.store.objects import Stored, StoreUnavailable
from orchestrator.store.run_store import RunStore
from tests.unit.run_documents import FULL, PLACEMENTS, QUARTER
from tests.unit.run_factory import RunFactory

Killed = type("Killed", (BaseException,), {})


class Clock:
    """Moves only when it is told to."""

    def __init__(self, run: RunFactory) -> None:
        self._run = run
        self.elapsed = 0.0
        self.wrong_by = 0.0
        """Seconds that the wall clock is ahead."""
        self.waits: list[float] = []
        self.stop_after: int | None = None

    def time(self) -> float:
        return self._run.now + self.elapsed + self.wrong_by

    def monotonic(self) -> float:
        return 50.0 + self.elapsed

    def wait(self, seconds: float) -> bool:
        self.waits.append(seconds)
        self.elapsed += seconds
        return self.stop_after is not None and len(self.waits) >= self.stop_after


class Fleet:
    """A backend whose agents come and go at once."""

    def __init__(self, run: str, count: int = 4) -> None:
        self._run = run
        self.views = {
            ref: HostView(ref=ref, generation="cpu", devices=1, condition="ready", evidence="listed")
            for ref in (HostRef(pool="pool", host=f"h{index}") for index in range(count))
        }
        self.away = False
        self.done: list[tuple[str, tuple[str, ...]]] = []

    def hosts(self) -> tuple[HostView, ...]:
        if self.away:
            raise BackendUnavailable("the API does not answer")
        return tuple(self.views.values())

    def ensure_agents(self, hosts: Sequence[HostRef], *, from_attempt: int) -> None:
        self._note("ensure", hosts)
        for ref in hosts:
            if self.views[ref].agent is None:
                self.change(ref.host, agent=AgentView(run=self._run, from_attempt=from_attempt))

    def kill_agents(self, hosts: Sequence[HostRef]) -> None:
        self._note("kill", hosts)

    def release(self, hosts: Sequence[HostRef]) -> None:
        self._note("release", hosts)
        for ref in hosts:
            self.change(ref.host, agent=None)

    def change(self, host: str, **fields: Any) -> None:
        ref = HostRef(pool="pool", host=host)
        view = self.views[ref]
        known = {name: getattr(view, name) for name in view.__dataclass_fields__}
        self.views[ref] = HostView(**{**known, **fields})

    def _note(self, what: str, hosts: Sequence[HostRef]) -> None:
        self.done.append((what, tuple(ref.host for ref in hosts)))


class BrittleStore(MemoryStore):
    """Fails, or takes the controller with it, at a chosen operation."""

    def __init__(self) -> None:
        super().__init__()
        self.before: Callable[[str, str], None] = lambda operation, name: None

    def read(self, name: str) -> Stored:
        self.before("read", name)
        return super().read(name)

    def create(self, name: str, data: bytes) -> str:
        self.before("create", name)
        return super().create(name, data)

    def swap(self, name: str, data: bytes, *, generation: str) -> str:
        self.before("swap", name)
        return super().swap(name, data, generation=generation)

    def delete(self, prefix: str) -> None:
        self.before("delete", prefix)
        super().delete(prefix)

    def die_at(self, operation: str, part: str) -> None:
        """SIGKILL just before that."""

        def before(now: str, name: str) -> None:
            if now == operation and part in name:
                self.before = lambda operation, name: None
                raise Killed

        self.before = before


class Bench:
    """A submitted run and everything around its controller."""

    def __init__(self, **factory: Any) -> None:
        self.objects = BrittleStore()
        self.run = RunFactory(objects=self.objects, **factory)
        for placement in self.run.policy.placements:
            self._plan(placement.generation)
        self.store = self.run.store
        self.fleet = Fleet(self.store.name)
        self.clock = Clock(self.run)
        self.asked_to_prove: list[str] = []
        self.compiled_ahead: list[list[str]] = []
        self.certified = 0

    def controller(self, name: str = "one") -> Controller:
        return Controller(
            name=name,
            store=self.store,
            observer=Observer(self.store, self.fleet, self.clock),
            effects=Effects(
                run=self.store.run(),
                store=self.store,
                backend=self.fleet,
                prover=self,
                preparer=self,
                certify=self._certify,
                clock=self.clock,
            ),
            sweeper=Sweeper(self.store),
            clock=self.clock,
        )

    def prove(self, manifest: str) -> None:
        self.asked_to_prove.append(manifest)

    @property
    def last(self) -> Event:
        return self.store.events()[-1]

    def settle(self, controller: Controller) -> str:
        """Look until there is nothing more to do."""
        for _ in range(20):
            looked = controller.look()
            if looked != "acted":
                return looked
        raise AssertionError("it never settles")

    def prepare(self, wanted: Sequence[Ahead]) -> None:
        self.compiled_ahead.append([f"{ahead.stage} on {ahead.placement.name}" for ahead in wanted])

    def _certify(self, store: RunStore) -> None:
        assert store is self.store
        self.certified += 1

    def _plan(self, generation: str) -> None:
        self.run.store.create_leaf_plan(LeafPlan(generation=generation))


# ---- looking
def test_what_a_controller_remembers_of_checkpoints_does_not_grow_with_their_arrays() -> None:
    bench = Bench()
    bench.run.launch("full").train(4).commit(proven=True)
    read: list[weakref.ref[Manifest]] = []
    manifest = bench.store.manifest

    def reading(name: str) -> Manifest:
        found = manifest(name)
        read.append(weakref.ref(found))
        return found

    bench.store.manifest = reading  # type: ignore[method-assign]
    controller = bench.controller()
    assert bench.settle(controller) == "waiting"
    gc.collect()
    assert read
    assert not [whole for whole in read if whole() is not None]
    assert len(controller.facts().seen.checkpoints) == 2


def test_the_first_look_launches_in_the_order_that_is_safe() -> None:
    bench = Bench()
    order: list[str] = []
    watched = ("events/", "head.json", "attempt.json", "order.json")
    bench.objects.before = lambda operation, name: order.extend(
        part for part in watched if operation in ("create", "swap") and part in name
    )
    assert bench.controller().look() == "acted"
    assert order == ["events/", "head.json", "attempt.json", "order.json"]
    assert bench.fleet.done == [("ensure", ("h0", "h1", "h2", "h3"))]
    assert bench.store.head().value.attempt == 1
    spec = bench.store.attempt(1)
    assert (spec.placement, spec.resume, spec.prior) == (FULL, None, ())


@pytest.mark.parametrize("place", ["swap head.json", "create attempt.json", "create order.json"])
def test_a_recorded_decision_whose_effects_are_missing_is_finished_first(place: str) -> None:
    bench = Bench()
    operation, part = place.split()
    bench.objects.die_at(operation, part)
    with pytest.raises(Killed):
        bench.controller().look()
    assert bench.store.start_order(1) is None
    number = bench.last.number
    assert bench.settle(bench.controller("two")) == "waiting"
    assert bench.store.start_order(1) is not None
    assert bench.last.number == number


def test_a_number_that_is_taken_means_that_another_controller_leads() -> None:
    bench = Bench()
    one, two = bench.controller("one"), bench.controller("two")

    def other_leads(operation: str, name: str) -> None:
        if operation == "create" and "events/" in name:
            bench.objects.before = lambda operation, name: None
            assert two.look() == "acted"

    bench.objects.before = other_leads
    assert one.look() == "outrun"
    assert bench.last.by == "two"
    assert bench.settle(one) == "waiting"
    assert one.history == two.history


def test_while_the_store_is_away_nothing_is_decided_and_it_says_so() -> None:
    bench = Bench()

    def away(operation: str, name: str) -> None:
        raise StoreUnavailable("disk is gone")

    controller = bench.controller()
    bench.objects.before = away
    assert controller.look() == "blind"
    assert controller.waiting is not None
    assert "disk is gone" in controller.waiting.reason
    assert bench.fleet.done == []


def test_while_the_fleet_cannot_be_seen_nothing_is_decided() -> None:
    bench = Bench()
    bench.fleet.away = True
    assert bench.controller().look() == "blind"
    assert len(bench.store.events()) == 1


def test_a_store_that_was_away_starts_the_clock_of_a_stall_anew() -> None:
    bench = Bench()
    bench.run.launch("full").train(4)
    bench.fleet.ensure_agents(list(bench.fleet.views), from_attempt=1)
    controller = bench.controller()
    assert bench.settle(controller) == "waiting"
    bench.clock.elapsed += 29.0
    bench.fleet.away = True
    assert controller.look() == "blind"
    bench.fleet.away = False
    bench.clock.elapsed += 29.0
    assert bench.settle(controller) == "waiting"
    bench.clock.elapsed += 29.0
    assert bench.settle(controller) == "waiting"
    bench.clock.elapsed += 2.0
    assert controller.look() == "acted"
    assert bench.last.cause == "stalled-train"


def test_a_wall_clock_that_jumps_by_an_hour_disturbs_no_attempt_that_runs() -> None:
    bench = Bench(policy=Policy(placements=(FULL, QUARTER), moves=Moves(hold_off=40.0)))
    bench.run.launch("quarter").train(4)
    bench.fleet.ensure_agents(list(bench.fleet.views), from_attempt=1)
    controller = bench.controller()
    assert bench.settle(controller) == "waiting"
    count = len(bench.store.events())
    for jump in (3600.0, -3600.0):
        bench.clock.wrong_by += jump
        bench.clock.elapsed += 2.0
        assert bench.settle(controller) == "waiting"
    assert len(bench.store.events()) == count, "neither a stall nor the end of a hold-off"


def test_a_hold_off_starts_anew_after_a_look_that_failed() -> None:
    policy = Policy(placements=(FULL, QUARTER), moves=Moves(hold_off=40.0))
    bench = Bench(policy=policy)
    bench.run.launch("quarter").train(4)
    bench.fleet.ensure_agents(list(bench.fleet.views), from_attempt=1)
    controller = bench.controller()
    for blind in (True, False):
        bench.settle(controller)
        bench.clock.elapsed += 25.0
        bench.fleet.away = blind
        controller.look()
        bench.fleet.away = False
        bench.run.attempts[0].train(bench.run.attempts[0].next_step + 1)
    bench.settle(controller)
    assert bench.store.stop_order(1, "drain") is None


def test_a_reason_to_wait_is_recorded_once() -> None:
    bench = Bench()
    for ref in bench.fleet.views:
        bench.fleet.change(ref.host, condition="unknown", evidence="silent")
    controller = bench.controller()
    assert bench.settle(controller) == "waiting"
    number = bench.last.number
    assert bench.last.kind == "waiting"
    for _ in range(3):
        assert controller.look() == "waiting"
    assert bench.last.number == number


def test_a_decision_can_be_asked_for_without_being_made() -> None:
    bench = Bench()
    facts = bench.controller().facts()
    assert facts.history.attempt == 0
    assert len(bench.store.events()) == 1


def test_it_acts_without_a_pause_and_ends_when_the_run_is_complete() -> None:
    bench = Bench()
    bench.run.launch("full").train(12).commit(proven=True).finish()
    bench.controller().run(every=5.0)
    assert [event.cause for event in bench.store.events()][-1] == "complete"
    assert bench.clock.waits == []
    assert bench.certified >= 1


def test_it_ends_when_its_clock_is_stopped() -> None:
    bench = Bench()
    bench.clock.stop_after = 3
    bench.controller().run(every=5.0)
    assert bench.clock.waits == [5.0, 5.0, 5.0]


def test_it_looks_more_often_while_a_killed_attempt_is_on_its_way_out() -> None:
    bench = Bench()
    attempt = bench.run.launch("full").train(4)
    bench.fleet.ensure_agents(list(bench.fleet.views), from_attempt=1)
    bench.clock.stop_after = 1
    controller = bench.controller()
    controller.run(every=4.0)
    attempt.exit(1, signal=9)
    bench.clock.stop_after = 3
    controller.run(every=4.0)
    assert controller.history.fence is not None
    for process in (0, 2, 3):
        attempt.exit(process, signal=9)
    bench.clock.stop_after = 4
    controller.run(every=4.0)
    assert bench.clock.waits == [4.0, 1.0, 1.0, 4.0]
    assert (controller.history.attempt, controller.history.fence) == (2, None)


def test_a_controller_that_was_paused_while_its_attempt_was_fenced_does_not_lower_head() -> None:
    bench = Bench()
    one, two = bench.controller("one"), bench.controller("two")

    def paused(operation: str, name: str) -> None:
        if operation == "swap" and "head.json" in name:
            bench.objects.before = lambda operation, name: None
            bench.settle(two)
            bench.store.create_request(stop_now(bench))
            bench.settle(two)

    bench.objects.before = paused
    one.look()
    assert bench.store.head().value.attempt == 2
    assert bench.store.stop_order(1, "kill") is not None


def stop_now(bench: Bench) -> Request:
    fields = {"kind": "stop", "by": "ada", "reason": "x", "attempt_seen": 1, "arguments": {"now": "yes"}}
    return Request.model_validate({**fields, "at": bench.run.now})


# ---- effects
def test_a_fence_raises_head_before_it_orders_the_kill_and_kills_agents_that_do_not_obey() -> None:
    bench = Bench()
    bench.run.launch("full").train(4)
    bench.fleet.ensure_agents(list(bench.fleet.views), from_attempt=1)
    bench.fleet.change("h3", condition="gone", evidence="deleted", agent=None)
    order: list[str] = []
    bench.objects.before = lambda operation, name: order.extend(
        part for part in ("head.json", "kill.json") if operation in ("create", "swap") and part in name
    )
    controller = bench.controller()
    assert bench.settle(controller) == "waiting"
    assert order == ["head.json", "kill.json"]
    assert bench.store.head().value.attempt == 2
    bench.fleet.done.clear()
    bench.clock.elapsed += 6.0
    controller.look()
    assert bench.fleet.done == [("kill", ("h0", "h1", "h2"))]


def test_hosts_that_were_not_confirmed_free_are_killed_even_when_an_attempt_runs_elsewhere() -> None:
    bench = Bench()
    bench.run.launch("full").train(4)
    bench.run.event("fence", action=Fence(attempt=1), attempt=1, cause="host-lost")
    for name in ("h2", "h3"):
        bench.fleet.change(name, agent=AgentView(run=bench.store.name, from_attempt=1))
    for index in (0, 1):
        bench.run.attempts[0].exit(index, signal=9, killed_by_us=True)
    controller = bench.controller()
    bench.settle(controller)
    bench.clock.elapsed += 16.0
    bench.settle(controller)
    assert controller.history.attempt == 2
    assert bench.store.attempt(2).hosts == (HostRef(pool="pool", host="h0"),)
    bench.fleet.done.clear()
    bench.clock.elapsed += 16.0
    controller.look()
    assert ("kill", ("h2", "h3")) in bench.fleet.done


def test_a_paused_run_gives_its_hosts_back() -> None:
    bench = Bench()
    bench.fleet.ensure_agents(list(bench.fleet.views), from_attempt=1)
    bench.run.request("pause")
    bench.settle(bench.controller())
    assert ("release", ("h0", "h1", "h2", "h3")) in bench.fleet.done
    assert all(view.agent is None for view in bench.fleet.views.values())


def test_another_runs_agents_are_left_alone() -> None:
    bench = Bench()
    bench.fleet.change("h0", agent=AgentView(run="another", from_attempt=1))
    bench.run.request("pause")
    bench.settle(bench.controller())
    assert not [done for done in bench.fleet.done if done[0] == "release"]


def test_the_hosts_of_a_better_placement_get_agents_before_the_switch() -> None:
    policy = Policy(placements=(FULL, QUARTER), moves=Moves(hold_off=60.0))
    bench = Bench(policy=policy)
    bench.run.launch("quarter").train(4)
    bench.fleet.change("h0", agent=AgentView(run=bench.store.name, from_attempt=1))
    controller = bench.controller()
    bench.settle(controller)
    assert bench.fleet.views[HostRef(pool="pool", host="h3")].agent is not None
    assert bench.store.stop_order(1, "drain") is None
    bench.clock.elapsed += 60.0
    bench.run.attempts[0].train(5)
    bench.settle(controller)
    assert bench.store.stop_order(1, "drain") is not None


def test_an_amendment_becomes_a_revision_once_whoever_carries_it_out() -> None:
    bench = Bench()
    bench.run.launch("full").train(4).commit().train(8).commit(proven=True).drain(cause="request-hold", then="hold")
    base = "000000000004-a0001"
    action = Amend(revision=2, base=base, from_step=4, recipe_sha256=bench.run.recipe_sha256)
    bench.run.event("ada asked for rewind: x", action=action, cause="request-rewind", attempt=1)
    bench.objects.die_at("swap", "head.json")
    with pytest.raises(Killed):
        bench.controller().look()
    bench.settle(bench.controller("two"))
    head = bench.store.head().value
    assert (head.revision, head.manifest, head.next_step) == (2, base, 4)
    assert [revision.number for revision in bench.store.revisions()] == [1, 2]
    spec = bench.store.attempt(2)
    assert (spec.revision, spec.resume, spec.prior) == (2, base, ())


@pytest.mark.parametrize(
    ("proven", "finished", "asked"), [(False, True, True), (True, True, False), (False, False, False)]
)
def test_the_last_checkpoint_is_read_back_however_its_attempt_ended(proven: bool, finished: bool, asked: bool) -> None:
    bench = Bench()
    bench.run.launch("full").train(6).commit(proven=True).train(12 if finished else 10).commit(proven=proven).die()
    bench.settle(bench.controller())
    assert bool(bench.asked_to_prove) == asked


def test_while_a_run_trains_what_may_come_next_is_compiled() -> None:
    bench = Bench(policy=Policy(placements=tuple(PLACEMENTS.values()), prepare=True))
    bench.fleet.ensure_agents(list(bench.fleet.views), from_attempt=1)
    bench.run.launch("full")
    controller = bench.controller()
    bench.settle(controller)
    assert bench.compiled_ahead[-1] == [], "nothing before the first new step"
    bench.run.attempts[0].train(2)
    bench.settle(controller)
    assert bench.compiled_ahead[-1][0] == f"{bench.run.recipe.stages[0].name} on quarter"


def test_checkpoints_are_read_back_beside_the_run_when_enough_are_unproven() -> None:
    bench = Bench()
    bench.fleet.ensure_agents(list(bench.fleet.views), from_attempt=1)
    bench.run.launch("full")
    controller = bench.controller()
    bench.settle(controller)
    assert bench.asked_to_prove == []
    bench.run.attempts[0].train(2).commit()
    bench.settle(controller)
    assert set(bench.asked_to_prove) == {"000000000002-a0001"}


def test_an_attempt_that_commits_its_last_step_and_exits_during_a_look_is_seen_with_that_step() -> None:
    bench = Bench()
    bench.fleet.ensure_agents(list(bench.fleet.views), from_attempt=1)
    attempt = bench.run.launch("full").train(8)
    controller = bench.controller()
    bench.settle(controller)

    def finishes(operation: str, name: str) -> None:
        if operation == "read" and "order.json" in name:
            bench.objects.before = lambda operation, name: None
            attempt.train(12).commit()
            for index in range(4):
                attempt.exit(index, code=0)

    bench.objects.before = finishes
    bench.settle(controller)
    assert [event.cause for event in bench.store.events() if event.kind == "ended"] == ["last-step"]


# ---- what must be reproduced
def test_the_ledger_at_and_beyond_the_resume_point_is_frozen_into_the_next_attempt() -> None:
    bench = Bench()
    bench.run.launch("full").train(4).commit().train(6).train(9).die(host=1)
    bench.settle(bench.controller())
    spec = bench.store.attempt(2)
    assert spec.resume == "000000000004-a0001"
    assert [(segment.first_step, segment.last_step) for segment in spec.prior] == [(4, 5), (6, 8)]


def test_an_attempt_that_differed_is_no_witness_for_the_next_one() -> None:
    bench = Bench()
    bench.run.launch("full").train(4).commit().train(6).die(host=1)
    second = bench.run.launch("full").train(6)
    second.exit(0, code=ExitCode.REPLAY_DIFFERS)
    segments = freeze(bench.store, before=3, revision=1, from_step=4)
    assert [segment.attempt for segment in segments] == [1]


# ---- what is seen of a process
def observed(bench: Bench) -> list[str]:
    controller = bench.controller()
    facts = controller.facts()
    assert facts.seen.attempt is not None
    return [process.state for process in facts.seen.attempt.processes]


def test_a_process_is_what_its_host_and_agent_prove() -> None:
    bench = Bench()
    attempt = bench.run.launch("full").train(4)
    bench.fleet.ensure_agents(list(bench.fleet.views), from_attempt=1)
    assert observed(bench) == ["running"] * 4
    bench.fleet.change("h0", condition="unknown", agent=None)
    bench.fleet.change("h1", agent=None)
    bench.fleet.change("h2", condition="gone")
    bench.fleet.change("h3", agent=AgentView(run=bench.store.name, from_attempt=2))
    assert observed(bench) == ["running", "lost", "lost", "lost"]
    attempt.exit(0, code=0)
    assert observed(bench) == ["exited", "lost", "lost", "lost"]
    del bench.fleet.views[HostRef(pool="pool", host="h1")]
    assert observed(bench)[1] == "lost"


def test_a_statement_makes_an_unknown_host_a_lost_one() -> None:
    bench = Bench()
    bench.run.launch("full").train(4)
    bench.fleet.change("h0", condition="unknown", agent=None)
    bench.run.event("gone", kind="answered", details={"host_gone": "pool/h0"})
    assert observed(bench)[0] == "lost"


def test_an_attempt_that_was_never_ordered_holds_no_host_once_its_kill_was_ordered() -> None:
    bench = Bench()
    bench.objects.die_at("create", "order.json")
    with pytest.raises(Killed):
        bench.controller().look()
    assert observed(bench) == ["ordered"] * 4
    bench.run.event("fence", action=Fence(attempt=1), attempt=1, cause="request-pause")
    controller = bench.controller("two")
    for _ in range(2):  # the first look orders the kill, the second one sees it
        bench.settle(controller)
    assert "ended" in [event.kind for event in bench.store.events()]


# ---- retention
KEEP_ONE = CheckpointPolicy(keep_newest=1, keep_proven=1)


def with_data(bench: Bench) -> list[str]:
    return [folder.removeprefix("checkpoints/") for folder in bench.store.checkpoint_folders()]


def swept(**policy: Any) -> Bench:
    bench = Bench(policy=Policy(placements=tuple(PLACEMENTS.values()), checkpoint=KEEP_ONE.model_copy(update=policy)))
    bench.fleet.ensure_agents(list(bench.fleet.views), from_attempt=1)
    attempt = bench.run.launch("full")
    for step in (2, 4, 6):
        attempt.train(step).commit(proven=True)
        bench.objects.overwrite(f"{bench.store.name}/checkpoints/{step:012d}-a0001/data", b"x")
    return bench


def test_a_deletion_is_an_event_then_a_tombstone_then_gone() -> None:
    bench = swept()
    order: list[str] = []
    bench.objects.before = lambda operation, name: order.extend(
        f"{operation} {part}"
        for part in ("events/", "tombstones/", "checkpoints/")
        if operation in ("create", "delete") and part in name
    )
    bench.settle(bench.controller())
    assert order[-7:] == ["create events/", *["create tombstones/", "delete checkpoints/"] * 3]
    assert with_data(bench) == ["000000000006-a0001"]


@pytest.mark.parametrize("place", ["create tombstones/", "delete checkpoints/"])
def test_a_deletion_that_was_interrupted_is_finished_by_the_next_controller(place: str) -> None:
    bench = swept()
    bench.objects.die_at(*place.split())
    with pytest.raises(Killed):
        bench.settle(bench.controller())
    assert len(with_data(bench)) == 3
    bench.settle(bench.controller("two"))
    assert with_data(bench) == ["000000000006-a0001"]
    assert bench.store.tombstones() == {f"{step:012d}-a0001" for step in (0, 2, 4)}
    assert [event.kind for event in bench.store.events()].count("deleted") == 1


def test_what_was_given_up_is_no_checkpoint_any_more_even_while_its_data_is_there() -> None:
    bench = swept()
    bench.objects.die_at("create", "tombstones/")
    with pytest.raises(Killed):
        bench.settle(bench.controller())
    facts = bench.controller("two").facts()
    assert [view.next_step for view in facts.seen.checkpoints] == [6]


def test_what_a_new_revision_starts_from_stays_when_another_controller_moves_head_to_it() -> None:
    bench = swept()
    attempt = bench.run.attempts[-1]
    attempt.drain(cause="request-hold", then="hold")
    assert bench.controller().look() == "acted"
    assert bench.last.kind == "proven", "nothing but head is left to be seen"
    base = "000000000002-a0001"
    action = Amend(revision=2, base=base, from_step=2, recipe_sha256=bench.run.recipe_sha256)
    bench.run.event("ada asked for rewind: x", action=action, cause="request-rewind", attempt=1)
    bench.objects.die_at("swap", "head.json")
    with pytest.raises(Killed):
        bench.controller().look()
    bench.settle(bench.controller("two"))
    assert bench.store.head().value.manifest == base
    assert base in with_data(bench), [event.message for event in bench.store.events()]


def test_pins_stay() -> None:
    bench = swept()
    bench.store.create_pin(Pin(manifest="000000000002-a0001", reason="x", by="ada", at=0.0))
    bench.settle(bench.controller())
    assert with_data(bench) == ["000000000002-a0001", "000000000006-a0001"]


def test_the_state_that_a_person_set_is_what_the_next_controller_finds() -> None:
    bench = Bench()
    bench.run.event("held", action=SetState(state="held"), cause="request-hold")
    controller = bench.controller()
    assert bench.settle(controller) == "waiting"
    assert controller.waiting is not None
    assert controller.waiting.key == "held"
