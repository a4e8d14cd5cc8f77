"""Why an attempt ended, by its exit documents: the first failure is the cause, what other hosts die of is an echo."""

from collections.abc import Iterable
from typing import ClassVar, Literal

from orchestrator.contract.attempt import CLEAN_EXITS, Exit, OwnError
from orchestrator.contract.base import Document, Part
from orchestrator.store.run_store import RunStore

Role = Literal["cause", "echo", "killed", "clean"]


class ExitLog(Part):
    """How one trainer process ended, and its last lines."""

    role: Role
    """``cause``: the attempt's first failure. ``echo``: a failure after it. ``killed``: by Everstep. ``clean``: the
    process did what it was asked for."""
    process: int
    pool: str
    host: str
    at: float
    code: int | None
    signal: int | None
    phase: str | None
    step: int | None
    """The last step that it finished."""
    error: OwnError | None
    lines: tuple[str, ...]


class Logs(Document):
    """The exits of one attempt: the cause, then its echoes, then what was killed or left as asked, each by time."""

    KIND: ClassVar[str] = "logs"

    run: str
    attempt: int | None
    """None: no attempt of the run has an exit document."""
    exits: tuple[ExitLog, ...]


def logs(run_store: RunStore, attempt: int | None = None) -> Logs:
    """The exits of an attempt; None: of the newest attempt that has any."""
    if attempt is None:
        numbers = sorted(run_store.attempt_numbers(), reverse=True)
        attempt = next((number for number in numbers if run_store.exits(number)), None)
    if attempt is None:
        return Logs(run=run_store.name, attempt=None, exits=())
    exits = list(run_store.exits(attempt).values())
    cause = first_failure(exits)
    entries = [_entry(document, cause) for document in exits]
    order: list[Role] = ["cause", "echo", "killed", "clean"]
    entries.sort(key=lambda entry: (order.index(entry.role), entry.at, entry.process))
    return Logs(run=run_store.name, attempt=attempt, exits=tuple(entries))


def failed(document: Exit) -> bool:
    """The process ended neither as asked nor by Everstep's own hand."""
    return not document.killed_by_us and document.code not in CLEAN_EXITS


def first_failure(exits: Iterable[Exit]) -> Exit | None:
    """The earliest failure, by the clocks of the hosts; of two at one moment, one with an error of its own."""
    failures = [document for document in exits if failed(document)]
    return min(failures, key=lambda document: (document.at, document.error is None, document.process), default=None)


def _entry(document: Exit, cause: Exit | None) -> ExitLog:
    role: Role = "killed" if document.killed_by_us else "clean"
    if failed(document):
        role = "cause" if document is cause else "echo"
    return ExitLog(
        role=role,
        process=document.process,
        pool=document.host.pool,
        host=document.host.host,
        at=document.at,
        code=document.code,
        signal=document.signal,
        phase=document.phase,
        step=document.step,
        error=document.error,
        lines=document.last_lines,
    )
