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
from orchestrator.contract.event import Event
from orchestrator.reports.status import Status, status
from orchestrator.reports.steps import StepTimes
from orchestrator.reports.why import Why, why
from orchestrator.store.objects import ObjectStore
from orchestrator.store.run_store import RunStore

EVERY = 1.0
"""Seconds between two looks."""
OVER = ("complete", "stopped")


class Look:
    """Status and newest events of a run, cheap to repeat: closed ledger segments are read once."""

    def __init__(self, objects: ObjectStore, name: str) -> None:
        self._store = RunStore(objects, name)
        self._times = StepTimes(self._store)

    def status(self) -> Status:
        return status(self._store, now=time.time(), times=self._times)

    def why(self, count: int) -> Why:
        return why(self._store, count=count)

    def events(self, *, after: int) -> list[Event]:
        return self._store.events(after=after)


def watch_run(
    objects: ObjectStore,
    name: str,
    *,
    count: int = 8,
    as_json: bool = False,
    until: Callable[[Status], bool] | None = None,
) -> Status:
    """Show a run until ``until`` holds (default: it is complete or stopped); returns the last status."""
    look = Look(objects, name)
    over = until or (lambda row: row.state in OVER and not row.live)
    if as_json:
        return _lines(look, over, print_json_line)
    if not sys.stdout.isatty():
        return _lines(look, over, lambda row: print_lines([status_line(row)]), events=True)
    with Live(console=console(), auto_refresh=False) as live:
        while True:
            row = look.status()
            live.update(_view(row, look.why(count)), refresh=True)
            if over(row):
                return row
            time.sleep(EVERY)


def status_line(row: Status) -> str:
    """One line, for logs and pipes."""
    time_of_day = datetime.fromtimestamp(row.at).astimezone().strftime("%H:%M:%S")
    loss = "-" if row.loss is None else f"{row.loss:.4f}"
    where = f"{row.placement} a{row.attempt}" if row.attempt else "-"
    return (
        f"{time_of_day}  {row.run} {row.stage or '-'} step {row.next_step:,}/{row.last_step:,} on {where}, "
        f"loss {loss}, goodput {row.goodput_percent:.1f} %, ETA {render.duration(row.eta_seconds)}, {row.state}"
    )


def _view(row: Status, newest: Why) -> RenderableType:
    zone = datetime.now().astimezone().tzinfo
    assert zone is not None
    return Group(render.status_table([row]), Text(), *(Text(line) for line in render.why_lines(newest, zone=zone)))


def _lines(
    look: Look, over: Callable[[Status], bool], show: Callable[[Status], None], *, events: bool = False
) -> Status:
    """Into a pipe: a line whenever something changed, and every event once."""
    shown: tuple[object, ...] = ()
    seen = 0
    while True:
        row = look.status()
        for event in look.events(after=seen) if events else ():
            moment = datetime.fromtimestamp(event.at).astimezone()
            print_lines([f"{moment:%H:%M:%S}  {event.message}"])
            seen = event.number
        state = (row.next_step, row.state, row.attempt, row.phase)
        if state != shown:
            show(row)
            shown = state
        if over(row):
            return row
        time.sleep(EVERY)
