"""What an agent says of a trainer that ended, or that it never started."""

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from orchestrator.contract.attempt import Exit, HostRef, OwnError, Progress
from orchestrator.contract.base import ContractError

MOST_LINES = 200
_LONGEST_LINE = 2000
_TAIL_BYTES = 256 * 1024

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Ending:
    """The end of one trainer, before the store was asked how far it had come."""

    attempt: int
    process: int
    host: HostRef
    status: int | None
    """Wait status; None when it never started."""
    told_to: bool
    """The agent was told to end it, or not to start it."""
    error: OwnError | None
    last_lines: tuple[str, ...]
    at: float

    def document(self, progress: Progress | None) -> Exit:
        ended_with = None if self.status is None else os.waitstatus_to_exitcode(self.status)
        by_signal = ended_with is not None and ended_with < 0
        return Exit(
            attempt=self.attempt,
            process=self.process,
            host=self.host,
            code=None if by_signal else ended_with,
            signal=-ended_with if by_signal and ended_with is not None else None,
            # a trainer that left by itself just before the kill reached it was not killed by us
            killed_by_us=self.told_to and (by_signal or ended_with is None),
            phase=progress.phase if progress else None,
            step=progress.step if progress else None,
            error=self.error,
            last_lines=self.last_lines,
            at=self.at,
        )


class Outbox:
    """Documents that the store has not taken yet, in order; nothing is lost while it is away."""

    def __init__(self) -> None:
        self._waiting: list[Callable[[], None]] = []

    def put(self, write: Callable[[], None]) -> None:
        self._waiting.append(write)

    @property
    def empty(self) -> bool:
        return not self._waiting

    def flush(self) -> None:
        """Write all; what could not be written stays. Raises what the first failing write raises."""
        while self._waiting:
            self._waiting[0]()
            del self._waiting[0]


def last_lines(log: Path) -> tuple[str, ...]:
    """The end of a trainer's output; binary junk becomes replacement characters."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL_BYTES))
            text = file.read(_TAIL_BYTES).decode(errors="replace")
    except OSError as error:
        return (f"(the trainer's output cannot be read: {error})",)
    return tuple(line[:_LONGEST_LINE] for line in text.splitlines()[-MOST_LINES:])


def own_error(path: Path) -> OwnError | None:
    """The error that a trainer left, if it is one."""
    try:
        return OwnError.from_bytes(path.read_bytes(), where=str(path))
    except FileNotFoundError:
        return None
    except (OSError, ContractError) as error:
        _log.warning("the trainer's error document is ignored: %s", error)
        return None
