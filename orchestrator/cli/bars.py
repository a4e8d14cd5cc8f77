"""How far something has come that reads many bytes: on standard error, and gone when it is done."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from orchestrator.cli.hashes import Hashing, Remembered
from orchestrator.cli.output import note

WORTH_A_BAR = 64 << 20
"""Bytes from which hashing them takes long enough to show it."""


def bar_of_bytes() -> Progress:
    """Not started: it shows itself when it is entered or started."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


@contextmanager
def hashing_with_bar(*, use_remembered: bool = True) -> Iterator[Hashing]:
    """Hashing as a person's command does it: remembered, and with a bar while it takes long."""
    remembered = Remembered.of_this_person(use=use_remembered)
    bar = bar_of_bytes()
    try:
        yield Hashing(remembered=remembered, progress=_Shown(bar, bar.add_task("token files", total=None)))
    finally:
        bar.stop()
    if remembered.problem is not None:
        note(f"hashes of files are not remembered: {remembered.problem}")


@dataclass(frozen=True)
class _Shown:
    bar: Progress
    task: TaskID

    def begin(self, total: int) -> None:
        self.bar.update(self.task, total=total)
        if total >= WORTH_A_BAR:
            self.bar.start()

    def advance(self, path: Path, count: int) -> None:
        self.bar.update(self.task, advance=count, description=path.name)
