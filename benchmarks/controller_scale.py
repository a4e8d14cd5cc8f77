"""Planner and controller at the size of a large fleet: a thousand runs, whose controllers see ten thousand slices each.

    python benchmarks/controller_scale.py --runs 1000 --slices 10000 --events 25

Fleet, agents and trainers are those of ``tests/simulation``, the store is in memory; documents, planner and controller
are the real ones. A slice has one host. Each run trains on at most 8 slices and could on a quarter of them; the others
are spare. As in a deployment, every run has a controller of its own, and each sees the whole fleet.

A disturbance takes a slice, an agent or a trainer from a run, or announces maintenance. Its controller looks once a
virtual second until a new attempt takes new steps. An *event* is the disturbance or a fact that follows from it (exits,
a start, a first new step); a look that finds one *acts*: it records one decision and does it. Other looks only *wait*.
*Quiet* looks are those of runs to which nothing happens. On one core all controllers take turns, so that an event may
wait for a round of quiet looks.

Exit 1 if an event is not acted on within 1 s on one core, or 512 MiB are passed; 130 after Ctrl-C.
"""

import argparse
import gc
import json
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

from rich.console import Console
from rich.progress import Progress

from orchestrator.contract.attempt import HostRef
from orchestrator.contract.run import CheckpointPolicy, Placement, Policy
from orchestrator.controller import loop
from orchestrator.planner.history import History
from tests.simulation import faults
from tests.simulation.controllers import SimController
from tests.simulation.fleet import Host, SimBackend
from tests.simulation.invariants import Watch
from tests.simulation.world import World
from tests.unit.run_documents import recipe_of

WITHIN, MEMORY = 1.0, 512 << 20
"""Seconds and bytes."""
POOL, GENERATION = "slices", "g1"
WIDEST, QUIET, PATIENCE = 8, 120, 60
"""Slices of a run at most; quiet looks that are measured; virtual seconds in which a run takes new steps again."""
INTERRUPTED = 130
NAMES = {
    "acts": "a look that acts on an event",
    "waits": "a look that waits for what follows",
    "quiet": "a quiet look",
    "list": "in each: the fleet's list",
    "decide": "in each: decide",
}


@dataclass
class Times:
    """Durations of one kind, in seconds."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def add(self, wall: float, cpu: float) -> None:
        """Since these readings of the two clocks."""
        self.cpu.append(time.process_time() - cpu)
        self.wall.append(time.perf_counter() - wall)

    def row(self) -> dict[str, float]:
        """Count, and milliseconds."""
        found: dict[str, float] = {"count": len(self.wall)}
        for name, values in (("wall", sorted(self.wall)), ("cpu", sorted(self.cpu))):
            for percent in (50, 99):
                found[f"{name}_p{percent}_ms"] = 1e3 * values[(len(values) - 1) * percent // 100]
        return found


class Unwatched(Watch):
    """Passes orders on and checks nothing: the tests check, and that takes longer than what is measured here."""

    def written(self, actor: str, name: str, before: bytes | None, after: bytes | None) -> None:
        if name.endswith(("/order.json", "/kill.json", "/drain.json")):
            self._world.ordered()

    def listed(self, controller: str, views: object) -> None: ...

    def looked(self, controller: object, looked: str) -> None: ...

    def trainer_starts(self, host: object, attempt: int) -> None: ...

    def initialises(self, spec: object) -> None: ...


class OneOfMany(World):
    """A run among others, with its own timeline: only where something happens does time go on."""

    def __init__(self, scenario: faults.Scenario, *, name: str, own: dict[HostRef, Host]) -> None:
        self.run_name = name
        super().__init__(scenario)
        self.hosts = own
        self.watch = Unwatched(self)

    def ordered(self) -> None:
        for host in self.hosts.values():
            if host.agent is not None and host.agent.run == self.run_name:
                host.agent.wake()

    def begin(self) -> None:
        """Beyond the first step, led by a controller that looks by itself."""
        first = self.start_controller()
        self.timeline.run_until(PATIENCE, or_when=lambda: is_settled(first.controller.history))
        assert is_settled(first.controller.history), f"{self.run_name} does not begin: {first.controller.waiting}"
        first.alive = False

    def adopt(self) -> None:
        """By a new controller, as after a restart; it looks when it is told to."""
        self.leader = SimController(self, "measured")
        self.leader.alive = False
        while self.leader.controller.look() == "acted":
            pass


def is_settled(history: History) -> bool:
    return history.live and history.first_new_step and history.drain is None


@dataclass
class Measured:
    """What is printed; ``operations`` of the store and the fleet are those of all quiet looks."""

    mib: dict[str, float]
    looks: dict[str, Times] = field(default_factory=lambda: {name: Times() for name in NAMES})
    unanswered: int = 0
    operations: int = 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000, help="runs, each with its controller (default 1000)")
    parser.add_argument("--slices", type=int, default=10_000, help="slices of the fleet (default 10000)")
    parser.add_argument("--events", type=int, default=25, help="disturbances (default 25)")
    parser.add_argument("--seed", type=int, default=0, help="of chance (default 0)")
    parser.add_argument("--json", action="store_true", help="one document instead of a table")
    asked = parser.parse_args(arguments)
    if min(asked.runs, asked.events) < 1 or asked.slices < asked.runs:
        parser.error("--runs and --events are at least 1, and there is at least one slice for each run")
    try:
        with Progress(console=Console(stderr=True), transient=True) as progress:
            report = _report(asked, _measure(asked, progress))
    except KeyboardInterrupt:
        print("interrupted; nothing was measured", file=sys.stderr)
        return INTERRUPTED
    print(json.dumps(report, indent=2)) if asked.json else _print(report)
    return 0 if report["met"] else 1


def _measure(asked: argparse.Namespace, progress: Progress) -> Measured:
    """Runs begin and are adopted with a view of their own slices, which is quicker; then all see the whole fleet."""
    measured, random = Measured(mib={"begin": _resident()}), Random(asked.seed)
    share = asked.slices // asked.runs
    refs = [HostRef(pool=POOL, host=f"s{index}") for index in range(asked.slices)]
    hosts = {ref: Host(ref=ref, generation=GENERATION) for ref in refs}
    scenario, worlds = _scenario(share, seed=asked.seed), []
    for index in progress.track(range(asked.runs), description="runs begin"):
        own = {ref: hosts[ref] for ref in refs[index * share : (index + 1) * share]}
        worlds.append(OneOfMany(scenario, name=f"run-{index}", own=own))
        worlds[-1].begin()
    measured.mib["runs"] = _resident()
    for world in progress.track(worlds, description="controllers adopt them"):
        world.adopt()
    measured.mib["controllers"] = _resident()
    for world in worlds:
        world.controllers, world.hosts = [world.leader], hosts
    gc.collect()
    gc.freeze()  # a controller in its own process has no others' objects to walk through
    with _timed(loop, "decide", measured.looks["decide"]), _timed(SimBackend, "hosts", measured.looks["list"]):
        for world in progress.track(random.sample(worlds, min(QUIET, asked.runs)), description="quiet looks"):
            before = world.leader.guard.operations
            _look(world, measured, waiting="quiet")
            measured.operations += world.leader.guard.operations - before
        for _ in progress.track(range(asked.events), description="disturbances"):
            _disturb(random.choice(worlds), refs, random, measured)
    measured.mib["peak"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return measured


def _scenario(share: int, *, seed: int) -> faults.Scenario:
    """A run on the largest power of two of its share of slices, with a quarter of it to fall back on."""
    width = min(WIDEST, 1 << (share.bit_length() - 1))
    placements = tuple(
        Placement(name=name, pool=POOL, generation=GENERATION, hosts=hosts, devices_per_host=1)
        for name, hosts in {"full": width, "quarter": max(1, width // 4)}.items()
    )
    recipe = recipe_of({"pretrain": 1_000_000}, ranks=WIDEST)
    return faults.Scenario(
        seed=seed,
        pools=(faults.Pool(name=POOL, generation=GENERATION, count=0),),
        recipe=recipe,
        amended=recipe,
        policy=Policy(placements=placements, checkpoint=CheckpointPolicy(every_steps=10)),
        faults=(),
        exact_bytes=True,
    )


def _disturb(world: OneOfMany, refs: Sequence[HostRef], random: Random, measured: Measured) -> None:
    """One disturbance, followed until a new attempt takes new steps."""
    controller, launch = world.leader.controller, world.leader.controller.history.launch
    assert launch is not None
    host = refs.index(random.choice(launch.hosts))
    kinds = (
        lambda: faults.vanish(world, host=host, shown_gone=False, back_after=30.0),
        lambda: faults.reboot(world, host=host),
        lambda: faults.agent_killed(world, host=host, trainer_lives=0.3),
        lambda: faults.trainer_killed(world, host=host),
        lambda: faults.maintenance(world, host=host, notice=45.0, lasts=30.0, cancelled=False),
    )
    random.choice(kinds)()
    for _ in range(PATIENCE):
        while _look(world, measured, waiting="waits") == "acted":
            pass
        if controller.history.attempt > launch.attempt and is_settled(controller.history):
            return
        world.timeline.run_until(world.timeline.now + 1.0)
    measured.unanswered += 1


def _look(world: OneOfMany, measured: Measured, *, waiting: str) -> loop.Looked:
    wall, cpu = time.perf_counter(), time.process_time()
    looked = world.leader.controller.look()
    assert looked in ("acted", "waiting"), world.leader.controller.waiting
    measured.looks["acts" if looked == "acted" else waiting].add(wall, cpu)
    return looked


@contextmanager
def _timed(owner: Any, name: str, times: Times) -> Iterator[None]:
    """Time every call of a function where it is used, with what it is really given there."""
    function = getattr(owner, name)

    def timed(*given: Any) -> Any:
        wall, cpu = time.perf_counter(), time.process_time()
        answer = function(*given)
        times.add(wall, cpu)
        return answer

    with patch.object(owner, name, timed):
        yield


def _report(asked: argparse.Namespace, measured: Measured) -> dict[str, Any]:
    looks, mib = measured.looks, measured.mib
    acts, waits, quiet = (sum(looks[name].cpu) for name in ("acts", "waits", "quiet"))
    rows = {name: times.row() for name, times in looks.items()}
    a_round = asked.runs * quiet / rows["quiet"]["count"]
    within = a_round + rows["acts"]["cpu_p99_ms"] / 1e3
    return {
        "runs": asked.runs,
        "slices": asked.slices,
        "disturbances": asked.events,
        "unanswered": measured.unanswered,
        "looks": rows,
        "events_a_second": rows["acts"]["count"] / acts,
        "disturbances_a_second": asked.events / (acts + waits),
        "operations_a_quiet_look": measured.operations / rows["quiet"]["count"],
        "round_seconds": a_round,
        "acted_on_within_seconds": within,
        "mib": mib,
        "kib_a_run": 1024 * (mib["runs"] - mib["begin"]) / asked.runs,
        "kib_a_controller": 1024 * (mib["controllers"] - mib["runs"]) / asked.runs,
        "met": within <= WITHIN and mib["peak"] * (1 << 20) <= MEMORY and not measured.unanswered,
    }


def _print(report: dict[str, Any]) -> None:
    print(f"{report['runs']:,} runs on {report['slices']:,} slices; disturbances: {report['disturbances']}", end=", ")
    print(f"of which not answered within {PATIENCE} virtual s: {report['unanswered']}")
    print(f"{'ms':36}{'count':>7}{'wall p50':>10}{'wall p99':>10}{'CPU p50':>10}{'CPU p99':>10}")
    for name, row in report["looks"].items():
        count, *columns = row.values()
        print(f"{NAMES[name]:36}{count:7.0f}" + "".join(f"{value:10.2f}" for value in columns))
    print("operations of a quiet look: {operations_a_quiet_look:.0f}; a second of CPU:".format(**report), end=" ")
    print("{events_a_second:.1f} events, {disturbances_a_second:.2f} disturbances".format(**report))
    within = "on one core: {round_seconds:.1f} s a round, an event is acted on within {acted_on_within_seconds:.1f} s"
    print(within.format(**report) + f"; bar: {WITHIN:.0f} s")
    print("MiB: " + ", ".join(f"{name} {value:.0f}" for name, value in report["mib"].items()), end="; ")
    print(f"bar: {MEMORY >> 20}; KiB a run: {report['kib_a_run']:.0f}, a controller: {report['kib_a_controller']:.0f}")


def _resident() -> float:
    """MiB of this process in memory now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / (1 << 20)


if __name__ == "__main__":
    sys.exit(main())
