"""A run as it goes: one row that changes, and the newest events below it."""

import sys
import time
from collections.abc import Callable
from datetime import datetime

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from orchestrator.cli import render
from orchestrator.cli.output import console, print_json_line, print_lines
from orchestrator.reports.status import Status, status
from orchestrator.reports.steps import StepTimes
from orchestrator.reports.why import why
from orchestrator.store.objects import ObjectStore
from orchestrator.store.run_store import RunStore

EVERY = 1.0
"""Seconds between two looks."""
LINE_EVERY = 5.0
"""Seconds between two lines that differ in nothing but the step."""
OVER = ("complete", "stopped")


class Watch:
    """Looks at one run again and again; every event is shown once, also over several calls of ``until``."""

    def __init__(
        self, objects: ObjectStore, name: str, *, count: int = 8, as_json: bool = False, every: float = EVERY
    ) -> None:
        self._store = RunStore(objects, name)
        self._times = StepTimes(self._store)  # reads closed ledger segments once
        self._count = count
        self._as_json = as_json
        self._every = every
        self._seen = 0
        self._told: tuple[object, ...] = ()
        self._told_at = 0.0

    def until(self, over: Callable[[Status], bool]) -> Status:
        """Show the run until ``over`` holds; returns the last status."""
        if self._as_json:
            return self._repeat(over, self._document)
        if not sys.stdout.isatty():
            return self._repeat(over, self._lines)
        with Live(console=console(), auto_refresh=False) as live:
            return self._repeat(over, lambda row: live.update(self._view(row), refresh=True))

    def _repeat(self, over: Callable[[Status], bool], show: Callable[[Status], None]) -> Status:
        while True:
            row = status(self._store, now=time.time(), times=self._times)
            show(row)
            if over(row):
                return row
            time.sleep(self._every)

    def _view(self, row: Status) -> RenderableType:
        newest = why(self._store, count=self._count)
        zone = datetime.now().astimezone().tzinfo
        assert zone is not None
        return Group(render.status_table([row]), Text(), *(Text(line) for line in render.why_lines(newest, zone=zone)))

    def _document(self, row: Status) -> None:
        """A line of JSON whenever something changed."""
        if self._changed((row.next_step, row.state, row.attempt, row.phase)):
            print_json_line(row)

    def _lines(self, row: Status) -> None:
        """Into a pipe: every event, and a line when the run turned or has made steps for a while."""
        for event in self._store.events(after=self._seen):
            moment = datetime.fromtimestamp(event.at).astimezone()
            print_lines([f"{moment:%H:%M:%S}  {event.message}"])
            self._seen = event.number
        period = row.next_step if row.at - self._told_at >= LINE_EVERY else None
        if self._changed((row.state, row.attempt, row.phase), period):
            print_lines([status_line(row)])
            self._told_at = row.at

    def _changed(self, turn: tuple[object, ...], step: int | None = None) -> bool:
        told_turn, told_step = self._told[:-1], self._told[-1:]
        if turn == told_turn and (step is None or (step,) == told_step):
            return False
        self._told = (*turn, step)
        return True


def watch_run(objects: ObjectStore, name: str, *, count: int = 8, as_json: bool = False) -> Status:
    """Show a run until it is complete or stopped; returns the last status."""
    return Watch(objects, name, count=count, as_json=as_json).until(lambda row: row.state in OVER and not row.live)


def status_line(row: Status) -> str:
    """One line, for logs and pipes."""
    time_of_day = datetime.fromtimestamp(row.at).astimezone().strftime("%H:%M:%S")
    loss = "-" if row.loss is None else f"{row.loss:.4f}"
    where = f"{row.placement} a{row.attempt}" if row.attempt else "-"
    return (
        f"{time_of_day}  {row.run} {row.stage or '-'} step {row.next_step:,}/{row.last_step:,} on {where}, "
        f"loss {loss}, goodput {row.goodput_percent:.1f} %, ETA {render.duration(row.eta_seconds)}, {row.state}"
    )
