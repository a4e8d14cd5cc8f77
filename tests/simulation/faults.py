"""Seeded scenarios: a fleet, a recipe, a policy, and what goes wrong when.

A scenario is data: the same seed gives the same scenario, and a failing one can be printed and run again.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

from orchestrator.contract.attempt import HostRef, OwnError
from orchestrator.contract.recipe import Data, Model, Recipe, Schedule, Stage, TokenFile
from orchestrator.contract.run import Budgets, CheckpointPolicy, Deadlines, Moves, Placement, Policy
from tests.simulation.timeline import EPOCH

if TYPE_CHECKING:
    from tests.simulation.fleet import Host
    from tests.simulation.world import World

FAULTS_END = 70.0
"""Seconds after which nothing new goes wrong."""
RANKS = 4


@dataclass(frozen=True, kw_only=True)
class Pool:
    """Equal hosts."""

    name: str
    generation: str
    count: int

    def refs(self) -> list[HostRef]:
        return [HostRef(pool=self.name, host=f"h{index}") for index in range(self.count)]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One thing that goes wrong, or that a person asks for, at a time."""

    at: float
    """Seconds after the beginning."""
    kind: str
    settings: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.at:7.2f} {self.kind} {' '.join(f'{name}={value}' for name, value in self.settings.items())}"

    def strike(self, world: "World") -> None:
        world.say(f"fault: {self.kind} {self.settings}")
        FAULTS[self.kind](world, **self.settings)


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """Everything that a seed decides beforehand."""

    seed: int
    pools: tuple[Pool, ...]
    recipe: Recipe
    amended: Recipe
    """What a person's amendment asks for."""
    policy: Policy
    faults: tuple[Fault, ...]
    step_seconds: float = 1.0
    exact_bytes: bool = False
    """Real serialisation."""


# ---- what can go wrong; each takes the world and plain settings
def _lost(world: "World", host: "Host", *, shown_gone: bool, back_after: float) -> None:
    host.listed, host.shown_gone = False, shown_gone
    host.die()
    world.timeline.after(back_after, lambda: _back(host))


def _back(host: "Host") -> None:
    host.listed, host.shown_gone, host.maintenance_at = True, False, None


def vanish(world: "World", *, host: int, shown_gone: bool, back_after: float) -> None:
    """The host is not listed any more; it comes back empty."""
    _lost(world, _host(world, host), shown_gone=shown_gone, back_after=back_after)


def zombie(world: "World", *, host: int, lives_on: float, back_after: float) -> None:
    """The host is not listed any more, but what runs on it goes on for a while."""
    target = _host(world, host)
    target.listed = False
    target.blinked = True

    def dies() -> None:
        target.die()
        target.blinked = False
        world.timeline.after(back_after, lambda: _back(target))

    world.timeline.after(lives_on, dies)


def blink(world: "World", *, host: int, seconds: float) -> None:
    """The host is out of the list for a moment, and nothing happens to what runs on it."""
    target = _host(world, host)
    target.listed, target.blinked = False, True
    if target.agent is not None:
        target.agent.excused = True

    def returns() -> None:
        for process in target.trainers:
            process.excused = True
        target.blinked = False
        _back(target)

    world.timeline.after(seconds, returns)


def reboot(world: "World", *, host: int) -> None:
    """Agent and trainer are killed; the host stays."""
    _host(world, host).die()


def agent_killed(world: "World", *, host: int, trainer_lives: float) -> None:
    """The agent alone is killed; its trainer follows after a moment."""
    target = _host(world, host)
    if target.agent is None:
        return
    target.agent.die()
    for process in list(target.trainers):
        world.timeline.after(trainer_lives, lambda process=process: process.die(signal=9, seen=False))


def agent_hangs(world: "World", *, host: int) -> None:
    """The agent lives and does nothing any more, until it is killed."""
    target = _host(world, host)
    if target.agent is not None:
        target.agent.hung = True


def trainer_killed(world: "World", *, host: int) -> None:
    for process in list(_host(world, host).trainers):
        process.die(signal=9)


def killed_again_and_again(world: "World", *, host: int, every: float, times: int) -> None:
    """A bad host: whatever trains on it is killed."""
    trainer_killed(world, host=host)
    if times > 1:
        world.timeline.after(every, lambda: killed_again_and_again(world, host=host, every=every, times=times - 1))


def trainer_stopped(world: "World", *, host: int) -> None:
    """SIGSTOP."""
    for process in _host(world, host).trainers:
        process.stopped = True
        for other in process.gang.living:
            if other is not process:
                other.stepped(now=True)


def slow(world: "World", *, host: int, factor: float, seconds: float) -> None:
    target = _host(world, host)
    target.slowness = factor
    world.timeline.after(seconds, lambda: setattr(target, "slowness", 1.0))


def unknown(world: "World", *, host: int, cut: bool, seconds: float) -> None:
    """A partition: the host cannot be seen, and perhaps cannot see the store; it lives on."""
    target = _host(world, host)
    target.unknown, target.cut = True, cut

    def heals() -> None:
        target.unknown = target.cut = False

    world.timeline.after(seconds, heals)


def maintenance(world: "World", *, host: int, notice: float, lasts: float, cancelled: bool) -> None:
    target = _host(world, host)
    target.maintenance_at = EPOCH + world.timeline.now + notice

    def comes() -> None:
        if target.maintenance_at is None:
            return
        if cancelled:
            target.maintenance_at = None
        else:
            _lost(world, target, shown_gone=False, back_after=lasts)

    world.timeline.after(notice, comes)


def shrink(world: "World", *, keep: int, back_after: float, pool: int) -> None:
    """All but a few hosts of a pool go."""
    name = world.scenario.pools[pool % len(world.scenario.pools)].name
    for host in [host for host in world.hosts.values() if host.ref.pool == name][keep:]:
        _lost(world, host, shown_gone=False, back_after=back_after)


def store_away(world: "World", *, actors: tuple[str, ...], seconds: float) -> None:
    for actor in actors:
        world.store_down[actor] = True

    def back() -> None:
        for actor in actors:
            world.store_down[actor] = False

    world.timeline.after(seconds, back)


def responses_lost(world: "World", *, actor: str, count: int) -> None:
    world.lose_responses(actor, count)


def backend_away(world: "World", *, seconds: float) -> None:
    world.backend_down = True
    world.timeline.after(seconds, lambda: setattr(world, "backend_down", False))


def slow_looks(world: "World", *, seconds: float) -> None:
    """Each operation of a controller may take its time, and the world does not wait."""
    world.looks_are_slow = True
    world.timeline.after(seconds, lambda: setattr(world, "looks_are_slow", False))


def clock_jumps(world: "World", *, seconds: float) -> None:
    for controller in world.controllers:
        controller.clock.wrong_by += seconds


def controller_killed(world: "World", *, operations: int, writes: bool, after_writing: bool) -> None:
    """Between any two of its operations, or just before or after one of its writes."""
    for controller in world.controllers[:1]:
        controller.guard.die_in, controller.guard.writes_only = operations, writes
        controller.guard.die_after_writing = after_writing


def second_controller(world: "World", *, wrong_by: float) -> None:
    if len(world.controllers) < 3:
        world.start_controller(wrong_by=wrong_by)


def controller_paused(world: "World", *, operations: int, writes: bool, seconds: float) -> None:
    """It stops in the middle of a look; another one leads meanwhile; then it goes on with what it had seen."""
    if not world.controllers:
        return
    controller = world.controllers[0]

    def pause() -> None:
        world.say(f"{controller.name} is paused for {seconds:.0f} s")
        if len(world.controllers) < 2:
            world.start_controller()
        world.timeline.run_until(world.timeline.now + seconds)
        world.watch.slept(controller.name)
        world.say(f"{controller.name} goes on")

    controller.guard.pause_in, controller.guard.pause = operations, pause
    controller.guard.writes_only = writes


def own_error(world: "World", *, step: int, times: int, with_step: bool) -> None:
    error = OwnError(
        type="ValueError", frame="trainer/data/batches.py:read", message="bad batch", step=step if with_step else None
    )
    world.own_errors[step] = (error, times)


def not_finite(world: "World", *, step: int, times: int) -> None:
    world.not_finite_at[step] = times


def corrupting(world: "World", *, hosts: tuple[int, ...], replayed: bool, seconds: float) -> None:
    """Hosts compute wrong bits."""
    refs = [_host(world, index).ref for index in hosts]
    for ref in refs:
        world.corrupting[ref] = replayed

    def ends() -> None:
        for ref in refs:
            world.corrupting.pop(ref, None)

    world.timeline.after(seconds, ends)


def next_save_corrupt(world: "World") -> None:
    world.next_save_is_corrupt = True


def checkpoints_corrupt(world: "World", *, newest: int) -> None:
    """The newest checkpoints are damaged where they lie."""
    names = [manifest.name for manifest in world.store.lineage(world.store.head().value.manifest)[:newest]]
    world.corrupt.update(names)


def saves_fail(world: "World", *, seconds: float) -> None:
    world.saves_fail = True
    world.timeline.after(seconds, lambda: setattr(world, "saves_fail", False))


def request(world: "World", *, kind: str, older: bool, which: int) -> None:
    """A person asks for something, perhaps looking at an older attempt."""
    seen = max(0, world.watch.log.attempt - 1) if older else None
    arguments: dict[str, str] = {}
    placements, checkpoints = world.scenario.policy.placements, world.store.lineage(world.store.head().value.manifest)
    if kind == "move":
        arguments["to"] = placements[which % len(placements)].name
    elif kind == "host-gone":
        arguments["host"] = str(_declare_gone(world, which).ref)
    elif kind == "stop" and which % 2:
        arguments["now"] = "yes"
    elif kind in ("rewind", "amend"):
        recipe = world.scenario.recipe if kind == "rewind" else world.scenario.amended
        world.amend(kind, recipe, seen=seen, to=checkpoints[which % len(checkpoints)] if checkpoints else None)
        return
    elif kind == "pin" and checkpoints:
        world.pin(checkpoints[which % len(checkpoints)].name)
    world.request(kind, seen=seen, **arguments)  # type: ignore[arg-type]


def _declare_gone(world: "World", which: int) -> "Host":
    """A person is sure that a host is gone, rightly or not; one that is unknown, if there is any."""
    host = next((host for host in world.hosts.values() if host.unknown), _host(world, which))
    for process in host.trainers:
        process.excused = True
    return host


def _host(world: "World", index: int) -> "Host":
    hosts = list(world.hosts.values())
    return hosts[index % len(hosts)]


FAULTS: dict[str, Callable[..., None]] = {
    function.__name__: function
    for function in (
        vanish,
        zombie,
        blink,
        reboot,
        agent_killed,
        agent_hangs,
        trainer_killed,
        killed_again_and_again,
        trainer_stopped,
        slow,
        unknown,
        maintenance,
        shrink,
        store_away,
        responses_lost,
        backend_away,
        slow_looks,
        clock_jumps,
        controller_killed,
        second_controller,
        controller_paused,
        own_error,
        not_finite,
        corrupting,
        next_save_corrupt,
        checkpoints_corrupt,
        saves_fail,
        request,
    )
}


# ---- chance
def _settings(kind: str, random: Random, steps: int) -> dict[str, Any]:  # noqa: C901 - one case a fault
    """Settings of a fault, by its name."""
    host, short, long = random.randrange(6), random.uniform(2.0, 15.0), random.uniform(10.0, 80.0)
    actors = ("controller", "agent", "trainer")
    match kind:
        case "vanish":
            return {"host": host, "shown_gone": random.random() < 0.3, "back_after": long}
        case "zombie":
            return {"host": host, "lives_on": short, "back_after": short}
        case "blink":
            return {"host": host, "seconds": random.uniform(0.3, 4.0)}
        case "reboot" | "agent_hangs" | "trainer_killed" | "trainer_stopped":
            return {"host": host}
        case "agent_killed":
            return {"host": host, "trainer_lives": random.choice((0.0, 0.3, short))}
        case "killed_again_and_again":
            return {"host": host, "every": random.uniform(4.0, 9.0), "times": random.randint(2, 6)}
        case "slow":
            return {"host": host, "factor": random.choice((2.0, 5.0, 40.0)), "seconds": long}
        case "unknown":
            return {"host": host, "cut": random.random() < 0.6, "seconds": random.choice((short, long))}
        case "maintenance":
            notice = random.choice((0.5, 6.0, 25.0))
            return {"host": host, "notice": notice, "lasts": long, "cancelled": random.random() < 0.2}
        case "shrink":
            return {"keep": random.choice((0, 1, 1, 2)), "back_after": long, "pool": random.randrange(2)}
        case "store_away":
            chosen = random.choice((actors, actors, ("controller",), ("agent",), ("trainer",), ("agent", "trainer")))
            return {"actors": chosen, "seconds": random.choice((2.0, short, long / 2))}
        case "responses_lost":
            return {"actor": random.choice(actors), "count": random.randint(1, 3)}
        case "backend_away":
            return {"seconds": short}
        case "slow_looks":
            return {"seconds": long}
        case "clock_jumps":
            return {"seconds": random.choice((-3600.0, -60.0, 60.0, 3600.0))}
        case "controller_killed":
            return {**_moment(random), "after_writing": random.random() < 0.5}
        case "second_controller":
            return {"wrong_by": random.choice((0.0, -3.0, 3.0))}
        case "controller_paused":
            return {**_moment(random), "seconds": random.choice((short, long / 2))}
        case "own_error":
            return {"step": random.randrange(steps), "times": random.choice((1, 1, 2, 5)), "with_step": True}
        case "not_finite":
            return {"step": random.randrange(steps), "times": random.choice((1, 1, 2, 4))}
        case "corrupting":
            hosts = (host,) if random.random() < 0.6 else tuple(range(6))
            return {"hosts": hosts, "replayed": random.random() < 0.6, "seconds": long}
        case "checkpoints_corrupt":
            return {"newest": random.choice((1, 1, 2, 9))}
        case "saves_fail":
            return {"seconds": random.choice((short, long / 2))}
        case "request":
            kinds = (
                "drain",
                "move",
                "pause",
                "hold",
                "stop",
                "resume",
                "rewind",
                "amend",
                "host-gone",
                "pin",
                "policy",
            )
            weights = (4, 4, 3, 3, 2, 3, 2, 1, 1, 1, 1)
            chosen = random.choices(kinds, weights)[0]
            return {"kind": chosen, "older": random.random() < 0.15, "which": random.randrange(8)}
    return {}


def _moment(random: Random) -> dict[str, Any]:
    """When a controller is hit: after so many operations, or at one of its next writes, where most is at stake."""
    writes = random.random() < 0.6
    return {"operations": random.randint(1, 6 if writes else 60), "writes": writes}


_WEIGHTS = {
    "request": 6,
    "vanish": 3,
    "unknown": 3,
    "store_away": 3,
    "controller_paused": 3,
    "controller_killed": 3,
    "reboot": 2,
    "trainer_killed": 2,
    "trainer_stopped": 2,
    "responses_lost": 2,
    "slow_looks": 2,
    "shrink": 2,
    "maintenance": 2,
}


def scenario_of(seed: int) -> Scenario:
    """The scenario of a seed."""
    random = Random(f"scenario {seed}")
    pools, placements, stages = _fleet(random)
    recipe = _recipe(stages, seed=0)
    policy = _policy(random, placements)
    count = random.choice((0, 1, 1, 2, 2, 3, 3, 4, 5, 6, 8, 10))
    kinds = random.choices(list(FAULTS), [_WEIGHTS.get(kind, 1) for kind in FAULTS], k=count)
    steps = recipe.last_step
    faults = [
        Fault(at=round(at, 2), kind=kind, settings=_settings(kind, random, steps))
        for kind, at in zip(kinds, _times(random, count), strict=True)
    ]
    return Scenario(
        seed=seed,
        pools=pools,
        recipe=recipe,
        amended=_recipe(stages, seed=1),
        policy=policy,
        faults=tuple(sorted(faults, key=lambda fault: fault.at)),
        exact_bytes=seed % 64 == 0,
    )


def _times(random: Random, count: int) -> list[float]:
    """Spread over the whole time, or all in a few seconds."""
    if random.random() < 0.5:
        return [random.uniform(0.0, FAULTS_END * random.random()) for _ in range(count)]
    begin = random.uniform(0.0, 40.0)
    return [begin + random.uniform(0.0, 12.0) for _ in range(count)]


def _fleet(random: Random) -> tuple[tuple[Pool, ...], tuple[Placement, ...], dict[str, int]]:
    width = random.choice((2, 4))
    spare = random.choice((0, 0, 1))
    pools = [Pool(name="first", generation="g1", count=width + spare)]
    placements = [
        Placement(name="full", pool="first", generation="g1", hosts=width, devices_per_host=1),
        Placement(name="quarter", pool="first", generation="g1", hosts=1, devices_per_host=1),
    ]
    stages = {"pretrain": random.choice((20, 30, 44))}
    if random.random() < 0.5:
        pools.append(Pool(name="second", generation="g2", count=2))
        placements.append(Placement(name="other", pool="second", generation="g2", hosts=2, devices_per_host=1))
    if random.random() < 0.35:
        stages["anneal"] = 8
        if len(pools) == 2 and random.random() < 0.5:
            placements[0] = placements[0].model_copy(update={"stages": ("pretrain",)})
            placements[1] = placements[1].model_copy(update={"stages": ("pretrain",)})
    if random.random() < 0.1:
        placements.reverse()
    return tuple(pools), tuple(placements), stages


def _recipe(stages: dict[str, int], *, seed: int) -> Recipe:
    model = Model(vocab_size=32, d_model=8, n_layers=4, n_heads=4, n_kv_heads=4, head_dim=2, d_ff=16)
    file = TokenFile(path="tokens.u32", sha256="1" * 64, tokens=4096)
    return Recipe(
        name="tiny",
        seed=seed,
        model=model,
        stages=tuple(
            Stage(
                name=name,
                steps=steps,
                virtual_ranks=RANKS,
                sequence_length=8,
                data=Data(files=(file,)),
                schedule=Schedule(peak=1e-3),
            )
            for name, steps in stages.items()
        ),
    )


def _policy(random: Random, placements: tuple[Placement, ...]) -> Policy:
    """Deadlines of minutes and hours are seconds here, so that a run takes minutes."""
    return Policy(
        placements=placements,
        checkpoint=CheckpointPolicy(
            every_steps=random.choice((3, 4, 6)),
            keep_newest=random.choice((1, 2, 3)),
            keep_proven=random.choice((1, 2)),
            keep_every=random.choice((None, None, 12)),
            prove_after=2,
            max_unproven=random.choice((4, 6)),
        ),
        deadlines=Deadlines(
            start=15.0,
            initialise=12.0,
            compile=15.0,
            restore=12.0,
            drain=12.0,
            kill=6.0,
            stall_floor=8.0,
            stall_factor=6.0,
        ),
        budgets=Budgets(own_error_repeats=2, host_failures=3, failure_window=120.0, back_off=30.0, max_back_off=120.0),
        moves=Moves(
            hold_off=12.0,
            failed_within=60.0,
            max_hold_off=60.0,
            per_day=random.choice((0, 1, 4)),
            wait_for_preferred=random.choice((0.0, 0.0, 15.0)),
        ),
        witness_steps=random.choice((0, 2)),
    )
