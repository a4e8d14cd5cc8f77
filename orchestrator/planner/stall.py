"""Whether a live attempt is stuck, in which phase, and who lags.

No process's step or phase changed for longer than its limit, on the controller's own clock, while the store could be
read. That is a fact about the attempt; it justifies a fence and a move, never the re-use of a host that is unknown.
"""

from dataclasses import dataclass

from orchestrator.contract.attempt import HostRef
from orchestrator.fleet.observation import AttemptView, ProcessView
from orchestrator.planner.decision import Facts

ORDER = ("start", "initialise", "compile", "restore", "replay", "train", "drain", "end")


@dataclass(frozen=True, kw_only=True)
class Stall:
    """A stuck attempt."""

    phase: str
    """Of the process that is furthest behind."""
    hosts: tuple[HostRef, ...]
    """Those that lag; empty when all are at the same place."""
    text: str
    evidence: tuple[str, ...]

    @property
    def names(self) -> str:
        return ", ".join(str(host) for host in self.hosts) or "none (all hosts are at the same step)"


def stalled(facts: Facts) -> Stall | None:
    """The stall of the newest attempt; None while it is within its limits.

    Stepping phases: max(stall_floor, stall_factor x the median step). Phases before the first step have deadlines of
    their own (``Deadlines``); a process that no agent has acknowledged is in ``start``.
    """
    attempt = facts.seen.attempt
    if attempt is None or attempt.ended:
        return None
    behind = min((process for process in attempt.processes if not process.free), key=_place)
    phase = _phase(behind)
    limit = _limit(facts, phase)
    if facts.seen.quiet_for <= limit:
        return None
    lagging = _lagging(attempt, behind)
    who = f"host {', '.join(str(process.index) for process in lagging)}" if lagging else "every host"
    return Stall(
        phase=phase,
        hosts=tuple(process.host for process in lagging),
        text=f"no progress for {facts.seen.quiet_for:.0f} s (limit {limit:.0f} s) in phase {phase}: {who} lags",
        evidence=tuple(
            f"host {process.index} ({process.host}): phase {_phase(process)}, step {process.step}"
            for process in attempt.processes
        ),
    )


def _phase(process: ProcessView) -> str:
    return process.progress.phase if process.progress else "start"


def _place(process: ProcessView) -> tuple[int, int]:
    return (ORDER.index(_phase(process)), process.step if process.step is not None else -1)


def _lagging(attempt: AttemptView, behind: ProcessView) -> tuple[ProcessView, ...]:
    running = [process for process in attempt.processes if not process.free]
    lagging = tuple(process for process in running if _place(process) == _place(behind))
    return lagging if len(lagging) < len(running) else ()


def _limit(facts: Facts, phase: str) -> float:
    deadlines = facts.policy.deadlines
    by_phase = {
        "start": deadlines.start,
        "initialise": deadlines.initialise,
        "compile": deadlines.compile,
        "restore": deadlines.restore,
        "drain": deadlines.drain,
        "end": deadlines.drain,
    }
    stepping = max(deadlines.stall_floor, deadlines.stall_factor * (facts.seen.step_seconds or 0.0))
    return by_phase.get(phase, stepping)
