"""What a controller that waits must not have overlooked.

Checked after each look that decided nothing: whatever was there to be seen when the look began, and calls for a
decision, is a violation. What the look could not see (written during it, or while it was paused) does not count.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from orchestrator.contract.attempt import CLEAN_EXITS, Exit, Progress
from orchestrator.contract.event import Drain, Launch
from orchestrator.fleet.observation import HostView
from tests.simulation.timeline import EPOCH

if TYPE_CHECKING:
    from tests.simulation.controllers import SimController
    from tests.simulation.invariants import Watch
    from tests.simulation.world import World

SLACK = 6.0
"""Seconds between two looks, and a bit."""


@dataclass
class Seen:
    """What the store said when a look began."""

    views: dict[str, HostView] = field(default_factory=dict)
    at: float = 0.0
    event: int = 0
    """Number of the newest event."""
    exits: dict[int, Exit] = field(default_factory=dict)
    """Of the newest attempt."""
    new_step: bool = False
    proofs: frozenset[str] = frozenset()
    quiet_since: float = 0.0


class Overlooked:
    """Keeps what was there to be seen, and compares it with what a look made of it."""

    def __init__(self, world: "World", watch: "Watch") -> None:
        self._world = world
        self._watch = watch
        self._exits: dict[int, dict[int, Exit]] = {}
        self._counters: dict[tuple[int, int], int] = {}
        self._moved_at = 0.0
        self._new_steps: set[int] = set()
        self._proofs: set[str] = set()
        self._seen: dict[str, Seen] = {}
        self._blind_at: dict[str, float] = {}
        self._longest_look: dict[str, float] = {}
        """Seconds, by controller: what moves while it looks is news to it that much later."""

    # ---- what there is to be seen
    def exited(self, end: Exit) -> None:
        self._exits.setdefault(end.attempt, {})[end.process] = end
        self._moved_at = self._world.timeline.now

    def exits(self, attempt: int) -> dict[int, Exit]:
        """Exit documents, by process."""
        return self._exits.get(attempt, {})

    def exits_seen_by(self, controller: str) -> dict[int, Exit]:
        """Those of the newest attempt that were there when a controller's last look began."""
        return self._seen[controller].exits

    def proofs_seen_by(self, controller: str) -> frozenset[str]:
        """Those that were there when its last look began."""
        return self._seen[controller].proofs

    def progressed(self, progress: Progress) -> None:
        key = (progress.attempt, progress.process)
        if self._counters.get(key) != progress.counter:
            self._counters[key] = progress.counter
            self._moved_at = self._world.timeline.now
        if progress.first_new_step_at is not None:
            self._new_steps.add(progress.attempt)

    def proven(self, manifest: str) -> None:
        self._proofs.add(manifest)

    def moved(self) -> None:
        """An attempt was launched or ordered, or an agent said that it started something."""
        self._moved_at = self._world.timeline.now

    def look_begins(self, controller: str, views: tuple[HostView, ...]) -> None:
        attempt = self._watch.log.attempt
        self._blind_at.setdefault(controller, self._world.timeline.now)
        self._seen[controller] = Seen(
            views={str(view.ref): view for view in views},
            at=self._world.timeline.now,
            event=len(self._watch.log.events),
            exits=dict(self._exits.get(attempt, {})),
            new_step=attempt in self._new_steps,
            proofs=frozenset(self._proofs),
            quiet_since=self._moved_at,
        )

    def look_failed(self, controller: str) -> None:
        self._blind_at[controller] = self._world.timeline.now

    # ---- what must not be waited over
    def check(self, controller: "SimController") -> None:
        """After a look that waits. Raises Violation."""
        world, log, seen = self._world, self._watch.log, self._seen[controller.name]
        lasted = world.timeline.now - seen.at
        self._longest_look[controller.name] = max(lasted, self._longest_look.get(controller.name, 0.0))
        if lasted > 0 or seen.event != len(log.events):
            return  # it was paused, or another controller led
        self._checkpoints(seen)
        launch = log.open
        if log.state != "running" or launch is None:
            return
        must, attempt = self._watch.must, launch.attempt
        bad = [end.process for end in seen.exits.values() if end.code not in CLEAN_EXITS and not end.killed_by_us]
        must(not bad, f"process {bad[:1]} of a{attempt} died, and nothing is done about it")
        must(len(seen.exits) < len(launch.hosts), f"a{attempt} has exited, and nothing is done about it")
        gone = [
            str(ref) for index, ref in enumerate(launch.hosts) if index not in seen.exits and self._gone(seen, str(ref))
        ]
        must(not gone, f"{gone[:1]} of a{attempt} is gone, and nothing is done about it")
        noticed = any(event.kind == "first-new-step" and event.attempt == attempt for event in log.events)
        must(noticed or not seen.new_step, f"the first new step of a{attempt} is not recorded")
        self._deadlines(controller, seen, launch)
        if noticed and not isinstance(log.stop, Drain):
            self._unproven(launch)
            self._better(controller.name, launch)

    def _gone(self, seen: Seen, ref: str) -> bool:
        view = seen.views.get(ref)
        return view is None or view.condition == "gone"

    def _checkpoints(self, seen: Seen) -> None:
        there = {manifest.name for manifest in self._watch.lineage()} - self._watch.log.given_up
        missing = (seen.proofs & there) - self._watch.log.proven
        self._watch.must(not missing, f"the proof of {sorted(missing)[:1]} is not recorded")

    def _deadlines(self, controller: "SimController", seen: Seen, launch: Launch) -> None:
        log, must, now = self._watch.log, self._watch.must, controller.clock.time()
        deadlines = self._world.scenario.policy.deadlines
        if isinstance(log.stop, Drain):
            must(now <= log.stop.deadline, f"the drain of a{launch.attempt} is overdue, and nothing is done about it")
        else:
            views = [seen.views.get(str(ref)) for ref in launch.hosts]
            due = [v for v in views if v is not None and v.maintenance_at is not None and v.maintenance_at < now + 4.9]
            must(not due, f"maintenance of a host of a{launch.attempt} is due, and it is not drained")
        since = max(seen.quiet_since, self._blind_at[controller.name])
        longest = max(deadlines.start, deadlines.compile, 6 * self._world.scenario.step_seconds * 1.1)
        quiet = self._world.timeline.now - since
        must(
            quiet <= longest + SLACK + self._longest_look[controller.name],
            f"a{launch.attempt} stands still for {quiet:.0f} s, and nothing is done about it",
        )

    def _unproven(self, launch: Launch) -> None:
        names = [manifest.name for manifest in self._watch.lineage() if manifest.name not in self._watch.log.given_up]
        since = next((index for index, name in enumerate(names) if name in self._watch.log.proven), len(names))
        limit = self._world.scenario.policy.checkpoint.max_unproven
        self._watch.must(since < limit, f"{since} checkpoints are not proven, and a{launch.attempt} goes on")

    def _better(self, controller: str, launch: Launch) -> None:
        """The best placement was there for longer than any hold-off, with moves left, and was not returned to."""
        world, log = self._world, self._watch.log
        policy = world.scenario.policy
        day = [at for at in log.returns if at > world.timeline.now + EPOCH - 90_000]
        if len(day) >= policy.moves.per_day or any(len(times) > 2 for times in log.failures.values()) or log.loose:
            return
        since = max(self._blind_at[controller], self._watch.ended_at)
        for placement in policy.legal_for(world.recipe, launch.stage):
            if placement == launch.placement:
                return
            not_whole_at = self._watch.not_whole_at(controller, placement.name)
            if not_whole_at == world.timeline.now:
                continue
            whole = world.timeline.now - max(since, not_whole_at)
            overdue = whole > policy.moves.max_hold_off + SLACK
            self._watch.must(
                not overdue, f"{placement.name} is whole for {whole:.0f} s, and a{launch.attempt} stays away"
            )
            return
