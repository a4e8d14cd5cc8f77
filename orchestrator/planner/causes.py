"""Why an attempt ended: from exit codes, signals and agents' words, never from an error text.

The first death is the cause; what the other processes die of afterwards (a broken collective, an abort by the
coordination service) is an echo. A host that is gone has no exit document and so no time: it comes before all others,
because a trainer's own error cannot take an agent down with it.
"""

from dataclasses import dataclass

from orchestrator.contract.attempt import CLEAN_EXITS, Exit, ExitCode, HostRef
from orchestrator.fleet.observation import AttemptView, ProcessView


@dataclass(frozen=True, kw_only=True)
class Death:
    """The first process of an attempt that ended."""

    cause: str
    text: str
    """For a person: host and what happened to it."""
    host: HostRef
    at: float | None
    """Seconds since the epoch, by the clock of its host; None when nobody saw it."""
    own: bool = False
    """Not the host's fault: it does not count against it."""
    identity: str | None = None
    """Of an own error, a difference or a non-finite step."""
    step: int | None = None


def first_death(attempt: AttemptView) -> Death | None:
    """The first process that ended other than gracefully or by our own kill; None when there is none."""
    lost = [process for process in attempt.processes if process.state == "lost"]
    if lost:
        return _lost(lost[0])
    died = [process for process in attempt.processes if process.exit is not None and not _expected(process.exit)]
    if not died:
        return None
    first = min(died, key=lambda process: process.exit.at if process.exit else 0.0)
    assert first.exit is not None
    return _exited(first, first.exit)


def gracefully_left(attempt: AttemptView) -> tuple[ProcessView, ...]:
    """Processes that left with the last step committed or drained."""
    return tuple(
        process for process in attempt.processes if process.exit is not None and process.exit.code in CLEAN_EXITS
    )


def _expected(end: Exit) -> bool:
    return end.killed_by_us or end.code in CLEAN_EXITS


def _lost(process: ProcessView) -> Death:
    return Death(
        cause="host-lost",
        text=f"host {process.index} ({process.host}) is gone: {process.evidence}",
        host=process.host,
        at=process.lost_at,
    )


def _exited(process: ProcessView, end: Exit) -> Death:
    where = f"host {process.index} ({process.host})"
    if end.code == ExitCode.REPLAY_DIFFERS:
        return Death(
            cause="replay-differs",
            text=f"{where}: a replayed step differs from its record (step {end.step})",
            host=process.host,
            at=end.at,
            own=True,
            identity="replay-differs",
            step=end.step,
        )
    if end.code == ExitCode.NOT_FINITE:
        return Death(
            cause="not-finite",
            text=f"{where}: loss or gradient norm is not finite at step {end.step}",
            host=process.host,
            at=end.at,
            own=True,
            identity="not-finite",
            step=end.step,
        )
    if end.code == ExitCode.DRAIN_SAVE_FAILED:
        return Death(
            cause="save-failed", text=f"{where}: drained, but the save failed", host=process.host, at=end.at, own=True
        )
    if end.code == ExitCode.OWN_ERROR and end.error is not None:
        error = end.error
        return Death(
            cause="own-error",
            text=f"{where}: {error.type} in {error.frame}: {error.message}",
            host=process.host,
            at=end.at,
            own=True,
            identity=f"{error.type}@{error.frame}",
            step=error.step if error.step is not None else end.step,
        )
    how = f"signal {end.signal}" if end.signal is not None else f"exit code {end.code}"
    if end.signal is None and end.code is None:
        how = "never started"
    return Death(cause="died", text=f"{where}: the trainer ended with {how}", host=process.host, at=end.at)
