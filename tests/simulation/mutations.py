"""Does anything notice when a rule of the decision is broken?

    python -m tests.simulation.mutations [--seeds 120] [--only TEXT]

Each mutation replaces one piece of source text of planner or controller, in a child process of its own; there the
simulation runs until a seed fails, and the unit tests of planner and controller run. A mutation that neither notices
is printed as MISSED, one whose text is not in the source any more as STALE; the command then ends with 1.
"""

import argparse
import contextlib
import importlib.abc
import importlib.util
import io
import multiprocessing
import signal
import sys
import types
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
UNIT_TESTS = [
    f"tests/unit/test_{name}.py" for name in ("decide", "requests", "history", "choice", "retention", "controller")
]
MOST_SECONDS = 300


@dataclass(frozen=True, kw_only=True)
class Mutation:
    """One rule broken."""

    breaks: str
    """What is done wrong now."""
    module: str
    """Below ``orchestrator``."""
    old: str
    new: str
    also: tuple[str, str] = ("", "")
    """A second replacement."""

    @property
    def path(self) -> Path:
        return ROOT / "orchestrator" / (self.module.replace(".", "/") + ".py")

    @property
    def applies(self) -> bool:
        text = self.path.read_text()
        return text.count(self.old) == 1 and (not self.also[0] or text.count(self.also[0]) == 1)

    def source(self) -> str:
        return self.path.read_text().replace(self.old, self.new).replace(*self.also, 1 if self.also[0] else 0)


def no_row(row: str) -> Mutation:
    return Mutation(breaks=f"row {row} is missing", module="planner.decide", old=f"\n    {row},\n", new="\n")


ROWS = (
    "noticed",
    "someone_asked",
    "finished",
    "not_running",
    "proof_failed",
    "host_gone",
    "maintenance",
    "no_progress",
    "all_exited",
    "drain_overdue",
    "unproven_for_long",
    "better_placement",
    "running",
    "own_error_repeats",
    "last_step_committed",
    "none_restores",
    "launch",
)


def planner(module: str, breaks: str, old: str, new: str) -> Mutation:
    return Mutation(breaks=breaks, module=f"planner.{module}", old=old, new=new)


def controller(module: str, breaks: str, old: str, new: str) -> Mutation:
    return Mutation(breaks=breaks, module=f"controller.{module}", old=old, new=new)


MUTATIONS: tuple[Mutation, ...] = (
    *map(no_row, ROWS),
    # ---- fences and unknown hosts
    controller("effects", "a fence does not raise head", "        self._raise_head(number + 1)\n", ""),
    controller(
        "effects",
        "a fence orders no kill",
        '        self._stop(number, "kill", history.fence_cause)\n',
        "",
    ),
    controller(
        "effects",
        "an attempt is launched without raising head to it",
        "        if not self._raise_head(launch.attempt):\n            return\n",
        "",
    ),
    controller(
        "effects",
        "a stale controller launches below head",
        "            if head.attempt >= attempt:\n                return head.attempt == attempt\n",
        "            if head.attempt == attempt:\n                return True\n",
    ),
    controller(
        "effects",
        "agents that do not obey are never killed",
        "            self._backend.kill_agents(sorted(seen.unconfirmed, key=str))\n",
        "            pass\n",
    ),
    controller(
        "observe",
        "unknown is taken for gone",
        'return ("running" if started else "ordered"), f"{ref} is unknown: {view.evidence}"',
        'return "lost", f"{ref} is unknown: {view.evidence}"',
    ),
    controller(
        "observe",
        "a host that is not listed is not gone",
        'return "lost", f"{ref} is not in the fleet\'s list"',
        'return "running", "?"',
    ),
    controller(
        "observe",
        "a free lock is no evidence",
        'return "lost", f"{ref}: {view.evidence}"\n        return "ordered", f"{ref}: no agent yet"',
        'return "running", "?"\n        return "ordered", f"{ref}: no agent yet"',
    ),
    controller(
        "observe",
        "an agent that only takes later attempts is no evidence",
        "    if view.agent.from_attempt > attempt:",
        "    if view.agent.from_attempt > attempt + 1000:",
    ),
    controller(
        "observe",
        "an attempt that was never ordered is never free",
        "    if killed and not ordered:",
        "    if killed and not ordered and started:",
    ),
    controller(
        "observe",
        "hosts of replaced attempts are forgotten",
        "for launch in history.loose for",
        "for launch in history.loose[:0] for",
    ),
    controller(
        "observe",
        "a fenced attempt's hosts count as free",
        "        if attempt is not None and history.fence is not None:\n            processes += attempt.processes\n",
        "",
    ),
    Mutation(
        breaks="head is read before the exits",
        module="controller.observe",
        old="        head = self._store.head().value\n",
        new="        head = early\n",
        also=(
            "        hosts = self._backend.hosts()\n",
            "        early = self._store.head().value\n        hosts = self._backend.hosts()\n",
        ),
    ),
    planner(
        "choice", "unknown hosts are used", '    if host.condition != "ready":', '    if host.condition == "gone":'
    ),
    planner(
        "choice",
        "hosts that are not confirmed free are used",
        "    if host.ref in facts.seen.unconfirmed:",
        "    if host.ref in ():",
    ),
    planner("choice", "other runs' hosts are used", "host.agent.run != facts.run", "host.agent.run is None"),
    planner("choice", "maintenance is ignored", "    if host.maintenance_at is not None and", "    if False and"),
    planner(
        "stops",
        "the fenced attempt is not waited for",
        "    return facts.seen.head.attempt <= fence.attempt or facts.now < kill_grace(facts)",
        "    return False",
    ),
    planner(
        "stops",
        "a checkpoint is chosen while the fenced attempt can still commit",
        "facts.seen.head.attempt <= fence.attempt or facts.now",
        "facts.now",
    ),
    planner(
        "stops",
        "the fenced attempt is waited for without an end",
        "facts.history.fenced_at + facts.policy.deadlines.kill",
        "facts.now + 1.0",
    ),
    planner(
        "decide",
        "hosts that are all lost are not fenced",
        'all(process.state == "exited" for process in attempt.processes)',
        "attempt.ended",
    ),
    # ---- resuming
    planner("decide", "a run is started over", "    return whole[0].manifest if whole else None", "    return None"),
    planner(
        "decide",
        "an older checkpoint is resumed",
        "    return whole[0].manifest if whole else None",
        "    return whole[-1].manifest if whole else None",
    ),
    planner(
        "decide",
        "a quarantined checkpoint is resumed",
        "    whole = [checkpoint for checkpoint in facts.seen.checkpoints if not checkpoint.quarantined]\n",
        "    whole = list(facts.seen.checkpoints)\n",
    ),
    planner(
        "decide",
        "the new revision is launched before head has it",
        "    if head.revision != history.revision:\n        return Wait(",
        "    if False:\n        return Wait(",
    ),
    planner(
        "decide",
        "a run is complete before its last checkpoint is proven",
        "    if not newest.proven:",
        "    if not newest.manifest:",
    ),
    controller(
        "effects",
        "the last checkpoint is read back only after a clean end",
        "        last = not history.live and checkpoints[0].next_step >= last_step\n",
        '        last = history.ended and history.end_cause == "last-step"\n',
    ),
    controller("prior", "nothing must be reproduced", "        if number >= before or", "        if True or"),
    controller(
        "prior",
        "an attempt that differed is a witness",
        "return of_revision and all(",
        "return of_revision or all(",
    ),
    # ---- causes and budgets
    planner("causes", "the last death is the cause", "first = min(died", "first = max(died"),
    planner(
        "causes",
        "an own error has the step of the newest progress",
        "step=error.step if error.step is not None else end.step",
        "step=end.step",
    ),
    planner("causes", "our own kill is a death", "return end.killed_by_us or end.code", "return end.code"),
    planner("endings", "own errors count against hosts", "        if not death.own:", "        if True:"),
    planner("endings", "nothing counts against hosts", "        if not death.own:", "        if False:"),
    planner("choice", "no back-off", "    if excess < 0:", "    if excess < 10**6:"),
    planner("choice", "the back-off does not double", "budgets.back_off * 2**excess", "budgets.back_off"),
    planner(
        "decide",
        "an own error is tried for ever",
        "    limit = facts.policy.budgets.own_error_repeats\n",
        "    limit = 10**6\n",
    ),
    planner("decide", "a difference is never held", "    hold = any(", "    hold = False and any("),
    planner("decide", "a difference is held at once", "    hold = any(", "    hold = True or any("),
    planner(
        "decide",
        "a difference is tried again on the same hosts",
        'then="hold" if hold else None, suspects=suspects)',
        'then="hold" if hold else None)',
    ),
    planner(
        "history",
        "a resume forgets nothing",
        '                errors = () if state == "running" else self.errors\n',
        "                errors = self.errors\n",
    ),
    planner(
        "history",
        "a proof does not end a back-off",
        "proven=self.proven | names, failures=(), errors=errors)",
        "proven=self.proven | names, errors=errors)",
    ),
    planner(
        "history",
        "any proof forgives an error",
        "int(next_step) > self.step",
        "int(next_step) >= 0",
    ),
    # ---- stalls and deadlines
    planner(
        "stall",
        "every phase has the limit of a step",
        "    return by_phase.get(phase, stepping)",
        "    return stepping",
    ),
    planner("stall", "slow steps are stalls", "deadlines.stall_factor * (facts.seen.step_seconds or 0.0)", "0.0"),
    planner("stall", "nobody lags", "return lagging if len(lagging) < len(running) else ()", "return ()"),
    controller(
        "observe",
        "the time of a blind controller counts as quiet",
        "        self._signature = None\n\n    def _attempt",
        "\n    def _attempt",
    ),
    planner(
        "stops",
        "an attempt is drained before its first step",
        "    if attempt is None or not attempt.started_stepping:",
        "    if attempt is None:",
    ),
    planner("decide", "a drain has no deadline", "facts.now <= history.drain.deadline", "facts.now <= 1e12"),
    planner(
        "stops",
        "a kill forgets what the drain was for",
        'then=then or (ordered.then if ordered else "relaunch")',
        'then=then or "relaunch"',
    ),
    # ---- voluntary moves
    planner("decide", "no hold-off", "    if whole < needed:\n", "    if whole < 0:\n"),
    planner(
        "decide", "the hold-off does not double", "moves.hold_off * 2**facts.history.failed_returns", "moves.hold_off"
    ),
    planner("decide", "any number of moves a day", "    if len(today) >= moves.per_day:\n", "    if False:\n"),
    planner(
        "history",
        "a return whose drain was cut short does not count",
        'self.drain_cause == "return" and self.target',
        'event.cause == "return" and self.target',
    ),
    planner("history", "a target is forgotten", "        return stop.target if stop else None", "        return None"),
    planner(
        "decide",
        "the preferred placement is not waited for",
        "facts.history.end_at + facts.policy.moves.wait_for_preferred",
        "0.0",
    ),
    controller("loop", "a hold-off goes on over a blind look", "            self._whole_since.clear()\n", ""),
    planner(
        "decide",
        "maintenance is left too late",
        "first.maintenance_at - drain_margin(facts)",
        "first.maintenance_at + 60.0",
    ),
    planner(
        "decide", "maintenance is left at once", "    if not equal and facts.now <", "    if False and facts.now <"
    ),
    # ---- people
    planner(
        "requests",
        "a request against an older attempt is done",
        "    if request.attempt_seen != facts.history.attempt:\n",
        "    if False:\n",
    ),
    planner(
        "requests",
        "a draining amendment blocks everything",
        "            return None  # the rows below",
        '            return Wait(key="x", reason="x")  # ',
    ),
    planner(
        "requests",
        "a request is answered without its name",
        "        action=action,\n        request=name,\n    )\n\n\ndef _host_gone",
        "        action=action,\n    )\n\n\ndef _host_gone",
    ),
    planner(
        "requests",
        "an amendment does not wait for the attempt",
        "    if history.live:\n        if history.drain is not None:",
        "    if False:\n        if history.drain is not None:",
    ),
    planner(
        "requests",
        "a quarantined base is accepted",
        "for checkpoint in facts.seen.checkpoints if not checkpoint.quarantined\n    }",
        "for checkpoint in facts.seen.checkpoints\n    }",
    ),
    planner(
        "history",
        "an amended attempt comes back to life",
        "            loose=self._loose_now(),\n            ended=True,\n",
        "",
    ),
    planner("history", "a pause is forgotten at the end of its drain", '{"pause": "paused", "hold"', '{"hold"'),
    planner(
        "history",
        "a statement about a host is never withdrawn",
        "declared_gone=self.declared_gone - back",
        "declared_gone=self.declared_gone",
    ),
    controller("effects", "hosts are never given back", "            self._release(seen)\n", "            pass\n"),
    controller(
        "effects",
        "another run's agents are released",
        "host.agent is not None and host.agent.run == run]",
        "host.agent is not None]",
    ),
    # ---- log and retention
    planner(
        "retention",
        "the result of a revision that was left behind goes",
        "if one.left_by is not None and one.proven",
        "if False",
    ),
    controller(
        "loop",
        "effects are done though another controller leads",
        '            return "outrun"\n        self.history = self.history.after(event)\n        self.waiting = None\n',
        "            pass\n        self.history = self.history.after(event)\n        self.waiting = None\n",
    ),
    controller(
        "loop",
        "what a dead controller left undone stays undone",
        "        self._finish(seen, policy)\n        facts = self._facts(seen, policy)\n",
        "        facts = self._facts(seen, policy)\n",
    ),
    controller(
        "loop",
        "a wait is recorded again and again",
        "not wait.record or wait.key == self.history.waiting",
        "not wait.record",
    ),
    controller("observe", "what is given up is a candidate", "            if manifest.name not in deleted\n", ""),
    controller(
        "sweep",
        "interrupted deletions stay",
        '            if f"checkpoints/{name}" in there or name not in marked:',
        "            if False:",
    ),
    controller(
        "sweep",
        "head is judged as it was before a revision",
        "        if seen.head.revision != facts.history.revision:\n",
        "        if False:\n",
    ),
    controller("sweep", "there are no tombstones", "        self._store.create_tombstone(name)\n", ""),
    controller("sweep", "pins are ignored", "pins=self._store.pins()", "pins=()"),
    controller("sweep", "what is in use is ignored", "            in_use=in_use,\n", "            in_use=(),\n"),
    controller(
        "sweep",
        "evidence is deleted",
        "quarantined=name in quarantined",
        "quarantined=view is not None and view.quarantined",
    ),
    planner("retention", "the newest are not kept", "good[: policy.keep_newest]", "good[: 0]"),
    planner("retention", "the proven are not kept", "[: policy.keep_proven]", "[: 0]"),
    planner("retention", "ends of stages are not kept", "one.next_step in ends", "one.next_step in ()"),
    planner(
        "retention",
        "what the current attempt wrote is deleted",
        "one.attempt < current_attempt",
        "one.attempt <= current_attempt",
    ),
)


class Mutated(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module from changed source."""

    def __init__(self, mutation: Mutation) -> None:
        self._mutation = mutation
        self._name = f"orchestrator.{mutation.module}"

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        return importlib.util.spec_from_loader(fullname, self) if fullname == self._name else None

    def exec_module(self, module: types.ModuleType) -> None:
        exec(compile(self._mutation.source(), str(self._mutation.path), "exec"), module.__dict__)


class FirstFailure:
    """A pytest plugin that remembers which test failed first."""

    def __init__(self) -> None:
        self.name: str | None = None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and self.name is None:
            self.name = report.nodeid.removeprefix("tests/unit/")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.mutations", description=__doc__)
    parser.add_argument("--seeds", type=int, default=120, help="to simulate for each mutation, until one fails")
    parser.add_argument("--only", default="", help="mutations whose description has this text")
    options = parser.parse_args(arguments)
    missed = 0
    for mutation in MUTATIONS:
        if options.only not in mutation.breaks:
            continue
        simulated, unit = _caught(mutation, options.seeds) if mutation.applies else (None, None)
        missed += simulated is None and unit is None
        verdict = "caught" if simulated or unit else "MISSED" if mutation.applies else "STALE"
        print(f"{verdict} | {mutation.breaks} | {simulated or '-'} | {unit or '-'}", flush=True)
    print(f"{missed} missed or stale")
    return 1 if missed else 0


def _caught(mutation: Mutation, seeds: int) -> tuple[str | None, str | None]:
    """What noticed it: an invariant with its seed, a unit test."""
    here, there = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(target=_child, args=(mutation, seeds, there))
    child.start()
    there.close()
    try:
        answer: tuple[str | None, str | None] = here.recv() if here.poll(MOST_SECONDS + 10) else ("it hangs", None)
    except EOFError:
        answer = ("it hangs", None)
    child.kill()
    child.join()
    return answer


def _child(mutation: Mutation, seeds: int, answer: Connection) -> None:
    signal.alarm(MOST_SECONDS)
    sys.meta_path.insert(0, Mutated(mutation))
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        answer.send((_simulated(seeds), _unit_tested()))


def _simulated(seeds: int) -> str | None:
    from tests.simulation.run_seeds import failure_of

    for seed in range(seeds):
        failed = failure_of(seed)
        if failed is not None:
            what = failed.split("\n")[0].split(": ", 1)[1]
            return f"seed {seed}: {what}"[:140]
    return None


def _unit_tested() -> str | None:
    first = FirstFailure()
    code = pytest.main(["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", *UNIT_TESTS], plugins=[first])
    return first.name or (f"pytest ends with {code}" if code else None)


if __name__ == "__main__":
    sys.exit(main())
