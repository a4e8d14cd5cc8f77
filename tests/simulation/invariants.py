"""What must hold at every write, at every look and at the end of a simulation, whatever went wrong.

The checks do not trust the planner: they keep a log of their own and compare it with the truth about hosts, trainers
and state that only the simulation knows.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from orchestrator.contract.attempt import AttemptSpec, Exit, ExitCode, HostRef, Progress, StartOrder
from orchestrator.contract.event import Amend, Drain, Event, Fence, Launch, SetState
from orchestrator.contract.manifest import Head, Manifest
from orchestrator.fleet.observation import HostView
from tests.simulation.overlooked import Overlooked
from tests.simulation.trainers import after_step, bits_of_step, initial_state

if TYPE_CHECKING:
    from tests.simulation.controllers import SimController
    from tests.simulation.fleet import Host
    from tests.simulation.trainers import Gang
    from tests.simulation.world import World


class Violation(AssertionError):
    """An invariant does not hold."""


@dataclass
class Log:
    """The event log as an outsider reads it."""

    events: list[Event] = field(default_factory=list)
    state: str = "running"
    launches: list[Launch] = field(default_factory=list)
    open: Launch | None = None
    """Launched, and neither fenced nor ended."""
    stop: Drain | Fence | None = None
    revision: int = 1
    ended: set[int] = field(default_factory=set)
    fenced: set[int] = field(default_factory=set)
    proven: set[str] = field(default_factory=set)
    quarantined: set[str] = field(default_factory=set)
    given_up: set[str] = field(default_factory=set)
    """Deleted by retention, or about to be."""
    answered: Counter[str] = field(default_factory=Counter)
    failures: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """By host, since the newest proof or resume."""
    returns: list[float] = field(default_factory=list)
    failed_returns: int = 0
    errors: list[tuple[str, int | None, int]] = field(default_factory=list)
    """Identity, step and attempt, of what was not overcome since."""
    end: Event | None = None
    """Of the newest attempt."""
    loose: set[int] = field(default_factory=set)
    """Attempts that were replaced before all their hosts were confirmed free."""
    returning: bool = False
    """The newest launch carries out a return."""

    @property
    def attempt(self) -> int:
        return self.launches[-1].attempt if self.launches else 0


class Watch:
    """Sees every write before anybody else, every list of hosts and every look."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self.log = Log()
        self.head: Head | None = None
        self._listed: dict[str, dict[HostRef, HostView]] = {}
        self._not_whole_at: dict[tuple[str, str], float] = {}
        """When a controller last saw that a placement could not be had: by controller and placement."""
        self.manifests: dict[str, Manifest] = {}
        self.requests: dict[str, float] = {}
        self._pending_return = False
        self.ended_at = 0.0
        """When the newest end of an attempt was recorded: until then its hosts could not be had."""
        self._overlooked = Overlooked(world, self)

    # ---- hooks
    def written(self, actor: str, name: str, before: bytes | None, after: bytes | None) -> None:
        folder, _, rest = name.removeprefix(f"{self._world.run_name}/").partition("/")
        if folder == "events" and after is not None:
            self._event(actor, self._world.document(Event, after), int(rest.removesuffix(".json")))
        elif folder == "head.json" and after is not None:
            self._head(actor, self._world.document(Head, after))
        elif folder == "manifests" and after is not None:
            manifest = self._world.document(Manifest, after)
            self.manifests[manifest.name] = manifest
        elif folder == "checkpoints" and after is None:
            self._delete(rest.split("/", 1)[0])
        elif folder == "requests":
            self.requests[rest.removesuffix(".json")] = self._world.timeline.now
        elif folder == "proofs":
            self._overlooked.proven(rest.removesuffix(".json"))
        elif folder == "attempts" and after is not None:
            self._of_attempt(rest.split("/")[1], after)

    def _of_attempt(self, what: str, after: bytes) -> None:
        if what in ("order.json", "kill.json", "drain.json"):
            if what == "order.json":
                self._ordered(self._world.document(StartOrder, after))
                self._overlooked.moved()
            self._world.ordered()
        elif what == "started":
            self._overlooked.moved()
        elif what == "exits":
            self._overlooked.exited(self._world.document(Exit, after))
        elif what == "hosts":
            self._overlooked.progressed(self._world.document(Progress, after))

    def listed(self, controller: str, views: tuple[HostView, ...]) -> None:
        self._listed[controller] = {view.ref: view for view in views}
        self._overlooked.look_begins(controller, views)
        now = self._world.timeline.now
        for placement in self._world.scenario.policy.placements:
            ready = [
                view
                for view in views
                if view.ref.pool == placement.pool and view.condition == "ready" and view.maintenance_at is None
            ]
            if len(ready) < placement.hosts:
                self._not_whole_at[(controller, placement.name)] = now
        self._not_whole_at.setdefault((controller, ""), now)

    def not_whole_at(self, controller: str, placement: str) -> float:
        """When that controller last saw that the placement could not be had, or first looked."""
        return self._not_whole_at.get((controller, placement), self._not_whole_at[(controller, "")])

    def looked(self, controller: "SimController", looked: str) -> None:
        wait = controller.controller.waiting
        if looked in ("waiting", "blind"):
            self.must(wait is not None and bool(wait.reason), "a wait has a reason")
        if looked == "blind":
            self._overlooked.look_failed(controller.name)
        if looked == "waiting":
            assert wait is not None
            self._overlooked.check(controller)
            self._world.say(f"{controller.name} waits: {wait.reason}") if self._world.tracing else None

    def slept(self, controller: str) -> None:
        """What went on meanwhile is new to a controller that was paused."""
        self._overlooked.look_failed(controller)

    def trainer_starts(self, host: "Host", attempt: int) -> None:
        older = [process.attempt for process in host.trainers if process.attempt <= attempt]
        self.must(not older, f"a{attempt} starts on {host.ref} while a trainer of a{older[:1]} lives there")

    def initialises(self, spec: AttemptSpec) -> None:
        head = self.head
        assert head is not None
        self.must(head.manifest is None, f"a{spec.attempt} initialises though head has {head.manifest}")

    # ---- events
    def _event(self, actor: str, event: Event, number: int) -> None:
        log, world = self.log, self._world
        world.say(f"event {event.number} by {event.by} [{event.cause}] {event.message}")
        self.must(number == event.number == len(log.events) + 1, f"event {number} comes after {len(log.events)}")
        self.must(actor == event.by, f"{actor} writes an event by {event.by}")
        self.must(bool(event.message) and "\n" not in event.message, "an event is one line")
        for controller in world.controllers:
            if controller.name == actor:
                self.must(not controller.guard.read_failed, "nothing is decided when a read failed")
        if event.request is not None:
            self._answer(event)
        log.events.append(event)
        self._act(actor, event)
        self._fact(actor, event)

    def _answer(self, event: Event) -> None:
        assert event.request is not None
        self.log.answered[event.request] += 1
        self.must(self.log.answered[event.request] == 1, f"request {event.request} is answered twice")
        request = self._world.store.request(event.request)
        if event.kind != "refused":
            seen = request.attempt_seen
            self.must(seen == self.log.attempt, f"{request.kind} against a{seen} is done at a{self.log.attempt}")

    def _act(self, actor: str, event: Event) -> None:
        log, action = self.log, event.action
        if isinstance(action, Launch):
            self._launched(actor, event, action)
        elif isinstance(action, Drain):
            self._drained(actor, event, action)
        elif isinstance(action, Fence):
            self.must(
                log.state == "running" or event.cause == "drain-overdue" or event.cause.startswith("request-"),
                f"a {log.state} run is only watched, but a{action.attempt} is fenced",
            )
            self.must(log.open is not None and log.open.attempt == action.attempt, "only a live attempt is fenced")
            self.must(action.then != "hold" or bool(event.cause), "a hold has a reason")
            log.fenced.add(action.attempt)
            log.open, log.stop = None, action
        elif isinstance(action, SetState):
            self.must(bool(event.cause) and bool(event.message), f"{action.state} has a reason")
            self.must(action.state != "complete" or self._is_complete(), "complete means committed and proven")
            log.state = action.state
            if action.state == "running":
                log.failures.clear()
                log.errors.clear()
        elif isinstance(action, Amend):
            self.must(log.open is None, "an amendment waits until the attempt is gone")
            self.must(action.base in self.manifests, "an amendment goes on from a checkpoint")
            log.revision, log.stop, log.end = action.revision, None, None
            log.errors.clear()
            if log.launches and log.attempt not in log.ended:
                log.loose.add(log.attempt)
            log.state = "running" if log.state in ("running", "held", "complete", "paused", "stopped") else log.state

    def _launched(self, actor: str, event: Event, launch: Launch) -> None:
        log, world = self.log, self._world
        self.must(log.state == "running", f"a{launch.attempt} is launched while the run is {log.state}")
        self.must(log.open is None, f"a{launch.attempt} is launched while a{log.attempt} is live")
        self.must(launch.attempt == log.attempt + 1, f"a{launch.attempt} comes after a{log.attempt}")
        self.must(launch.placement in world.scenario.policy.placements, "a placement of the policy")
        self.must(launch.placement.serves(launch.stage), f"{launch.placement.name} serves {launch.stage}")
        seen = self._listed[actor]
        for ref in launch.hosts:
            self.must(ref in seen and seen[ref].condition == "ready", f"a{launch.attempt} uses {ref}, which is unknown")
            self._free(ref, launch.attempt)
            self._not_left_alone(event, ref)
        head = self.head
        assert head is not None
        self._resumes_newest(launch, head)
        self._budgets(actor, event, launch)
        if log.launches and log.attempt not in log.ended:
            log.loose.add(log.attempt)
        cause = event.cause
        drain = log.stop if isinstance(log.stop, Drain | Fence) else None
        log.returning = self._pending_return and drain is not None and drain.target == launch.placement.name
        if log.returning:
            log.returns.append(event.at)
            day = [at for at in log.returns if at > event.at - 86_400]
            self.must(len(day) <= world.scenario.policy.moves.per_day, f"{len(day)} voluntary moves in a day ({cause})")
        self._overlooked.moved()
        log.launches.append(launch)
        log.open, log.stop = launch, None
        self._pending_return = False

    def _budgets(self, actor: str, event: Event, launch: Launch) -> None:
        """An error that happened twice is held; a difference is tried on other hosts; the preferred placement is
        waited for."""
        log, policy = self.log, self._world.scenario.policy
        target = log.stop.target if log.stop is not None else None
        if log.end is None or log.attempt not in log.ended or not log.launches:
            return
        error = log.end.details.get("error")
        if error is not None and log.errors:
            integrity = error in ("replay-differs", "not-finite")
            same = [one for one in log.errors if one[0] == error and (integrity or one[1] == log.errors[-1][1])]
            self.must(
                len(same) < policy.budgets.own_error_repeats, f"{error} happened {len(same)} times and is not held"
            )
            if integrity and target is None:
                self._elsewhere(actor, event, launch)
        legal = [placement.name for placement in policy.legal_for(self._world.recipe, launch.stage)]
        if launch.placement.name != legal[0] and target is None:
            waited = event.at - log.end.at
            self.must(waited >= policy.moves.wait_for_preferred - 0.01, f"{legal[0]} is waited for {waited:.1f} s only")

    def _elsewhere(self, actor: str, event: Event, launch: Launch) -> None:
        policy, used = self._world.scenario.policy, self.log.launches[-1].hosts
        free = [
            view
            for view in self._listed[actor].values()
            if view.condition == "ready" and view.maintenance_at is None and view.ref not in used
        ]
        if any(len(times) > 2 for times in self.log.failures.values()) or self.log.loose:
            return
        for placement in policy.legal_for(self._world.recipe, launch.stage):
            if len([view for view in free if view.ref.pool == placement.pool]) >= placement.hosts:
                self.must(not set(used) & set(launch.hosts), f"a{launch.attempt} tries again on the same hosts")

    def _resumes_newest(self, launch: Launch, head: Head) -> None:
        if launch.resume is None:
            self.must(head.manifest is None, f"a{launch.attempt} would start over though head has {head.manifest}")
            return
        newer = [manifest.name for manifest in self._lineage(head.manifest)]
        self.must(launch.resume in newer, f"a{launch.attempt} resumes {launch.resume}, which head does not reach")
        bad = self._world.store.quarantined().keys() | self._world.store.tombstones()
        passed_over = [name for name in newer[: newer.index(launch.resume)] if name not in bad]
        self.must(not passed_over, f"a{launch.attempt} resumes {launch.resume}, but {passed_over[:1]} is newer")

    def _free(self, ref: HostRef, attempt: int) -> None:
        there = [p.attempt for p in self._world.hosts[ref].trainers if p.attempt < attempt and not p.excused]
        excused = self._world.hosts[ref].blinked
        self.must(not there or excused, f"a{attempt} is launched on {ref}, where a{there[:1]} still lives")

    def _not_left_alone(self, event: Event, ref: HostRef) -> None:
        budgets = self._world.scenario.policy.budgets
        times = self.log.failures[str(ref)]
        recent = [at for at in times if at > times[-1] - budgets.failure_window] if times else []
        if len(recent) >= budgets.host_failures:
            pause = min(budgets.back_off * 2 ** (len(recent) - budgets.host_failures), budgets.max_back_off)
            self.must(event.at >= times[-1] + pause, f"{ref} failed {len(recent)} times and is not left alone")

    def _drained(self, actor: str, event: Event, drain: Drain) -> None:
        log, world = self.log, self._world
        self.must(log.open is not None and log.open.attempt == drain.attempt, "only a live attempt is drained")
        self.must(
            log.state == "running" or event.cause.startswith("request-"),
            f"a {log.state} run is only watched",
        )
        gang = world.gangs.get(drain.attempt)
        self.must(gang is not None and gang.last_step is not None, f"a{drain.attempt} is drained before its first step")
        log.stop = drain
        if event.cause == "return":
            self._pending_return = True
            moves = world.scenario.policy.moves
            whole_since = self.not_whole_at(actor, str(drain.target))
            needed = min(moves.hold_off * 2**log.failed_returns, moves.max_hold_off)
            whole = world.timeline.now - whole_since
            self.must(whole >= needed - 0.01, f"{drain.target} was whole for {whole:.1f} s, not {needed:.1f} s")
        elif drain.then != "relaunch" or event.request is not None:
            self._pending_return = False

    def _fact(self, actor: str, event: Event) -> None:
        log = self.log
        if event.kind == "ended":
            self._ended(event)
        elif event.kind == "proven":
            log.failures.clear()
            log.proven.update(event.details["manifests"])
            log.errors = [error for error in log.errors if not self._overcome(error, event.details["manifests"])]
        elif event.kind == "deleted":
            for name in event.details["manifests"]:
                self._given_up(actor, name)
            log.given_up.update(event.details["manifests"])
        elif event.kind == "quarantined":
            log.quarantined.update(event.details["manifests"])

    def _overcome(self, error: tuple[str, int | None, int], proven: list[str]) -> bool:
        _, step, attempt = error
        manifests = [self.manifests[name] for name in proven]
        return any(m.attempt > attempt if step is None else m.next_step > step for m in manifests)

    def _ended(self, event: Event) -> None:
        log, world = self.log, self._world
        self.must(event.attempt == log.attempt, f"the end of a{event.attempt} is recorded at a{log.attempt}")
        self.must(event.attempt not in log.ended, f"a{event.attempt} ends twice")
        for host in world.hosts.values():
            living = [p for p in host.trainers if p.attempt == event.attempt and not p.excused]
            self.must(not living or host.blinked, f"a{event.attempt} is called gone, but it lives on {host.ref}")
        self._right_cause(event)
        log.ended.add(event.attempt)
        log.open, log.end, self.ended_at = None, event, world.timeline.now
        if error := event.details.get("error"):
            log.errors.append((str(error), event.details.get("error_step"), event.attempt))
        if host_name := event.details.get("host"):
            log.failures[str(host_name)].append(event.at)
        if log.returning:
            log.failed_returns = log.failed_returns + 1 if event.details.get("return_failed") else 0
        stop = log.stop
        if stop is not None:
            log.state = {"pause": "paused", "hold": "held", "stop": "stopped"}.get(stop.then, log.state)

    def _right_cause(self, event: Event) -> None:
        exits = self._overlooked.exits(event.attempt)
        launch = self.log.launches[-1]
        codes = {end.code for end in exits.values()}
        if len(exits) == len(launch.hosts) and codes == {ExitCode.LAST_STEP_COMMITTED} and self.log.open is not None:
            self.must(event.cause in ("stage-done", "last-step"), f"a{event.attempt} was finished, not {event.cause}")
        blamed = event.details.get("host")
        if blamed is not None and not event.cause.startswith("stalled-"):
            hosts = [str(ref) for ref in launch.hosts]
            end = self._overlooked.exits_seen_by(event.by).get(hosts.index(str(blamed)))
            self.must(end is None or not end.killed_by_us, f"{blamed} is blamed for what we killed")

    # ---- orders
    def _ordered(self, order: StartOrder) -> None:
        head = self.head
        assert head is not None
        self.must(head.attempt >= order.attempt, f"a{order.attempt} is ordered before the fence was raised to it")

    # ---- head
    def _head(self, actor: str, head: Head) -> None:
        before, self.head = self.head, head
        self._world.say(f"head by {actor}: a{head.attempt} {head.manifest} r{head.revision}")
        if before is None:
            return
        self.must(head.attempt >= before.attempt, f"head's attempt falls from {before.attempt} to {head.attempt}")
        if actor.startswith("trainer"):
            self._committed(actor, before, head)
        elif head.revision != before.revision:
            self.must(head.revision == before.revision + 1 == self.log.revision, "a revision was decided before")
        else:
            self.must(head.manifest == before.manifest, f"{actor} moves head without an amendment")
            self.must(head.attempt <= self.log.attempt + 1, "head's attempt is not ahead of the log")

    def _committed(self, actor: str, before: Head, head: Head) -> None:
        self.must(
            actor == f"trainer a{head.attempt}" and before.attempt == head.attempt, f"{actor} commits after a fence"
        )
        assert head.manifest is not None
        assert head.next_step is not None
        manifest = self.manifests[head.manifest]
        self.must(manifest.next_step == head.next_step and manifest.attempt == head.attempt, "head says what it has")
        self.must(manifest.revision == head.revision == before.revision, "a commit stays in its revision")
        lineage = self._lineage(before.manifest)
        skipped: list[str] = []
        for older in lineage:
            if older.name == manifest.parent:
                break
            skipped.append(older.name)
        quarantined = self._world.store.quarantined()
        bad = [name for name in skipped if name not in quarantined and name not in self.log.given_up]
        self.must(not bad, f"{actor} commits {manifest.name} on {manifest.parent} and loses {bad[:1]}")
        self.must(not skipped or skipped[0] in quarantined, f"{actor} passes over head's checkpoint, which is whole")
        if not skipped:
            self.must(
                head.next_step >= (before.next_step or 0), f"head falls from {before.next_step} to {head.next_step}"
            )
        self._right_bits(manifest)
        gang = self._world.gangs[head.attempt]
        self.must(
            gang.differed_at is None or head.next_step <= gang.differed_at, f"{actor} commits beyond a difference"
        )

    def _right_bits(self, manifest: Manifest) -> None:
        if manifest.parent is None:
            state, first = initial_state(manifest.recipe_sha256), 0
            self.must(manifest.next_step == 0, f"{manifest.name} has no parent")
        else:
            parent = self.manifests[manifest.parent]
            state, first = parent.params_sha256, parent.next_step
        for step in range(first, manifest.next_step):
            state = after_step(state, bits_of_step(manifest.recipe_sha256, step))
        self.must(state == manifest.params_sha256, f"{manifest.name} does not hold each step exactly once")

    def lineage(self) -> list[Manifest]:
        """What is reachable from head, newest first."""
        return self._lineage(self.head.manifest if self.head else None)

    def at_end(self, *, most_attempts: int) -> None:
        """A run that says that it is complete."""
        launched = len(self.log.launches)
        self.must(launched <= most_attempts, f"{launched} attempts, for what justifies {most_attempts} at most")
        self.must(self._is_complete(), "complete means committed and proven")
        open_requests = self.requests.keys() - self.log.answered.keys()
        self.must(not open_requests, f"requests without an answer: {sorted(open_requests)}")
        self.given_back()

    def given_back(self) -> None:
        """A run that is complete, paused or stopped, and settled, has no hosts."""
        held = [str(host.ref) for host in self._world.hosts.values() if host.held]
        self.must(not held, f"the run is {self.log.state}, and its agent stays on {held[:1]}")

    def _lineage(self, name: str | None) -> list[Manifest]:
        found = []
        while name is not None:
            found.append(self.manifests[name])
            name = found[-1].parent
        return found

    def _is_complete(self) -> bool:
        head = self.head
        assert head is not None
        return head.next_step == self._world.last_step and head.manifest in self._world.store.proven_names()

    # ---- retention
    def _given_up(self, actor: str, name: str) -> None:
        """The rules of retention, at the moment that a deletion is decided."""
        world, head, policy = self._world, self.head, self._world.scenario.policy.checkpoint
        assert head is not None
        self.must(name not in world.store.pins(), f"{name} is pinned and is deleted")
        self.must(name not in self.log.quarantined, f"{name} is evidence and is deleted")
        quarantined, gone = self.log.quarantined, self.log.given_up
        good = [m.name for m in self._lineage(head.manifest) if m.name not in quarantined and m.name not in gone]
        proven = [other for other in good if other in self.log.proven]
        self.must(name not in good[: policy.keep_newest], f"{name} is one of the newest and is deleted")
        self.must(name not in proven[: policy.keep_proven], f"{name} is one of the newest proven and is deleted")
        self.must(
            self.manifests[name].next_step not in self._kept_steps() or name not in good, f"{name} is kept for its step"
        )
        result = self._result_left_by(self.manifests[name].revision)
        known = name in self._overlooked.proofs_seen_by(actor)
        self.must(name != result or not known, f"{name} is its revision's result")

    def _result_left_by(self, revision: int) -> str | None:
        """The newest proven checkpoint of an earlier revision that head does not go back to."""
        head, given_up = self.head, self.log.given_up
        assert head is not None
        if revision >= head.revision:
            return None
        proven = self._world.store.proven_names()  # the log has no word on proofs of what head cannot reach any more
        reachable = {manifest.name for manifest in self._lineage(head.manifest)}
        left = [
            manifest
            for name, manifest in self.manifests.items()
            if manifest.revision == revision and name in proven and name not in reachable | given_up
        ]
        return max(left, key=lambda manifest: manifest.next_step).name if left else None

    def _kept_steps(self) -> set[int]:
        every = self._world.scenario.policy.checkpoint.keep_every
        last = self._world.last_step
        ends = {sum(stage.steps for stage in self._world.recipe.stages[: index + 1]) for index in range(2)}
        return ends | (set(range(0, last + 1, every)) if every else set())

    def _delete(self, name: str) -> None:
        """What must hold when the data goes, however long after the decision."""
        head = self.head
        assert head is not None
        self.must(name in self.log.given_up, f"{name} is deleted without an event")
        self.must(name in self._world.store.tombstones(), f"{name} is deleted without a tombstone")
        self.must(name != head.manifest, f"{name} is head's and is deleted")
        for gang in self._living_gangs():
            needed = gang.restored if gang.saver is not None and gang.saver.parent == gang.restored else None
            self.must(name not in (gang.spec.resume, needed), f"a{gang.spec.attempt} started from {name}")

    def _living_gangs(self) -> list["Gang"]:
        head = self.head
        assert head is not None
        return [gang for gang in self._world.gangs.values() if gang.living and gang.spec.attempt == head.attempt]

    def must(self, holds: bool, what: str) -> None:
        if not holds:
            raise Violation(what)
