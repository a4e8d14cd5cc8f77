"""One simulation from submit to certificate: faults for a while, then a person who helps where only a person can."""

import traceback

from orchestrator.contract.event import SetState
from tests.simulation.faults import FAULTS_END, Scenario, scenario_of
from tests.simulation.invariants import Violation
from tests.simulation.world import World

HEALED_AT = FAULTS_END + 30.0
PATIENCE = 1500.0
"""Virtual seconds in which a healthy fleet must get a run to its end, or to a state that a person must change."""
MOST_HELP = 16


class SimulationFailed(AssertionError):
    """Carries what a person needs to understand and reproduce it."""


def simulate(seed: int, *, trace: bool = False, scenario: Scenario | None = None) -> World:
    """Run one seed.

    Raises:
        SimulationFailed: an invariant does not hold, or the controller raised what it must not raise.
    """
    world = World(scenario or scenario_of(seed), trace=trace)
    try:
        _run(world)
    except Exception as error:
        raise SimulationFailed(_report(world, error)) from error
    return world


def _run(world: World) -> None:
    for fault in world.scenario.faults:
        world.timeline.at(fault.at, lambda fault=fault: fault.strike(world))  # type: ignore[misc]
    world.start_controller()
    if world.scenario.faults:
        world.timeline.run_until(HEALED_AT)
        world.heal()
        world.say("all faults have ended")
    jumps = sum(abs(fault.settings["seconds"]) for fault in world.scenario.faults if fault.kind == "clock_jumps")
    for helped in range(MOST_HELP):
        until = world.timeline.now + PATIENCE + jumps
        world.timeline.run_until(until, or_when=lambda: _needs_a_person(world))
        if not _needs_a_person(world):
            raise Violation(f"no progress for {PATIENCE + jumps:.0f} s: {_waiting(world)}")
        if world.watch.log.state == "complete":
            world.watch.at_end(most_attempts=_most_attempts(world.scenario, helped))
            return
        if world.watch.log.state != "held":
            world.watch.given_back()
        _help(world)
    raise Violation(f"a person had to help more than {MOST_HELP} times")


def _most_attempts(scenario: Scenario, helped: int) -> int:
    """More than these are a storm: one for each stage, and two for each thing that went wrong or was asked for.

    A host that is slow for long goes wrong again at each return to it.
    """
    wrong = sum(fault.settings.get("times", 1) for fault in scenario.faults)
    slow = [fault.settings["seconds"] for fault in scenario.faults if fault.kind == "slow"]
    wrong += sum(int(seconds // scenario.policy.moves.hold_off) for seconds in slow)
    return 1 + len(scenario.recipe.stages) + 2 * (wrong + helped)


def _needs_a_person(world: World) -> bool:
    """Complete, or held, paused or stopped with nothing left to come; all requests are answered."""
    watch, log = world.watch, world.watch.log
    settled = log.state != "running" and log.open is None and log.attempt in log.ended | log.loose | {0}
    kept = log.state != "held" and any(host.held for host in world.hosts.values())
    answered = len(log.answered) == len(watch.requests)
    return settled and answered and not kept and (log.state != "complete" or world.certified)


def _help(world: World) -> None:
    """What the log's own words tell a person to do."""
    last = next(event for event in reversed(world.events) if _stopped_by(event.action))
    world.say(f"a person reads: {last.message}")
    useless = world.store.quarantined().keys() | world.store.tombstones()
    usable = [manifest for manifest in world.watch.lineage() if manifest.name not in useless]
    if last.cause == "none-restores":
        world.repair(world.watch.lineage()[0].name)
        world.request("resume")
    elif last.cause in ("replay-differs", "unproven") and usable:
        world.amend("rewind", world.recipe, seen=None, to=usable[0])
    else:
        world.request("resume")


def _stopped_by(action: object) -> bool:
    if isinstance(action, SetState):
        return action.state != "running"
    return getattr(action, "then", "relaunch") in ("hold", "pause", "stop")


def _waiting(world: World) -> str:
    reasons = [c.controller.waiting.reason for c in world.controllers if c.controller.waiting is not None]
    return "; ".join(reasons) or "no controller says why"


def _report(world: World, error: Exception) -> str:
    seed = world.scenario.seed
    faults = "\n".join(f"  {fault}" for fault in world.scenario.faults) or "  none"
    lines = "\n".join(f"  {line}" for line in list(world.lines)[-40:])
    what = f"{type(error).__name__}: {error}"
    if not isinstance(error, Violation):
        what += "\n" + "".join(traceback.format_tb(error.__traceback__)[-4:])
    return (
        f"seed {seed} at {world.timeline.now:.2f} s: {what}\nfaults:\n{faults}\nlast events:\n{lines}\n"
        f"reproduce: python -m tests.simulation.run_seeds --seed {seed} --trace"
    )
