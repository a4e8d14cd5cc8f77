"""``everstep status``, ``why`` and ``events``: what the store says of runs."""

import time
from datetime import datetime, tzinfo
from typing import ClassVar

import click

from orchestrator.cli import render
from orchestrator.cli.controllers import how_to_start, without_leader
from orchestrator.cli.errors import BadInput
from orchestrator.cli.options import json_option, run_argument, store_option
from orchestrator.cli.output import note, print_document, print_json_line, print_lines, print_table
from orchestrator.cli.stores import open_run, open_store, run_names
from orchestrator.contract.base import Document
from orchestrator.contract.event import Event
from orchestrator.reports.status import Status
from orchestrator.reports.status import status as status_of
from orchestrator.reports.why import why as why_of
from orchestrator.store.objects import ObjectStore
from orchestrator.store.run_store import RunStore

FOLLOW_EVERY = 0.5
"""Seconds between two looks for new events."""


class StatusList(Document):
    """What ``everstep status --json`` says."""

    KIND: ClassVar[str] = "status-list"

    store: str
    runs: tuple[Status, ...]


class EventList(Document):
    """What ``everstep events --json`` says."""

    KIND: ClassVar[str] = "event-list"

    run: str
    events: tuple[Event, ...]


@click.command()
@click.argument("run", metavar="[RUN]", required=False)
@store_option
@click.option(
    "--watch", is_flag=True, help="Go on showing it, with the newest events, until it is complete or stopped."
)
@click.option("--count", type=click.IntRange(min=0), default=8, show_default=True, help="Events below, with --watch.")
@json_option(schema="status-list")
def status(run: str | None, store: str | None, watch: bool, count: int, as_json: bool) -> None:
    """Show where a run is, or all runs of the store.

    STEP counts updates done, LOSS is the newest recorded one, GOODPUT the share of the time since submit that was spent
    on steps that count. With --watch --json, one status a line (docs/schemas/status.json).

    \b
    Examples:
      everstep status
      everstep status demo --watch
      everstep status demo --json
    """
    objects = open_store(store)
    if watch:
        from orchestrator.cli.watch import watch_run

        watch_run(objects, _one(run, run_names(objects)), count=count, as_json=as_json)
        return
    names = run_names(objects) if run is None else [open_run(objects, run).name]
    rows = tuple(status_of(RunStore(objects, name), now=time.time()) for name in names)
    if as_json:
        print_document(StatusList(store=objects.address, runs=rows))
    elif rows:
        print_table(render.status_table(rows))
        _note_missing_controllers(objects, names)
    else:
        print_lines([f"no runs in {objects.address}; submit one: everstep submit run.yaml"])


@click.command()
@run_argument
@store_option
@click.option("-n", "--count", type=click.IntRange(min=1), default=12, show_default=True, help="Newest events shown.")
@click.option("--evidence", is_flag=True, help="Also what each one rests on.")
@json_option(schema="why")
def why(run: str, store: str | None, count: int, evidence: bool, as_json: bool) -> None:
    """Show the newest decisions and facts of a run, in the words they were made in.

    \b
    Examples:
      everstep why demo
      everstep why demo -n 40 --evidence
    """
    found = why_of(open_run(open_store(store), run), count=count)
    if as_json:
        print_document(found)
        return
    lines = render.why_lines(found, zone=zone_here())
    for line, entry in zip(lines, found.lines, strict=True):
        print_lines([line, *(f"    {text}" for text in entry.evidence if evidence and text)])


@click.command()
@run_argument
@store_option
@click.option("--after", type=click.IntRange(min=0), default=0, help="Only events with a higher number.")
@click.option("--kind", "kinds", multiple=True, metavar="KIND", help="Only this kind; may be given several times.")
@click.option("--follow", is_flag=True, help="Go on showing new ones; with --json one event a line.")
@json_option(schema="event-list")
def events(run: str, store: str | None, after: int, kinds: tuple[str, ...], follow: bool, as_json: bool) -> None:
    """Show the log of a run: every decision and every fact, by number.

    \b
    Examples:
      everstep events demo --kind decision --kind refused
      everstep events demo --follow
    """
    run_store = open_run(open_store(store), run)
    while True:
        found = run_store.events(after=after)
        wanted = [event for event in found if not kinds or event.kind in kinds]
        if as_json and not follow:
            print_document(EventList(run=run, events=tuple(wanted)))
        elif as_json:
            for event in wanted:
                print_json_line(event)
        else:
            print_lines(event_line(event) for event in wanted)
        if not follow:
            return
        after = found[-1].number if found else after
        time.sleep(FOLLOW_EVERY)


def event_line(event: Event) -> str:
    """Number, time, kind, attempt, message."""
    moment = datetime.fromtimestamp(event.at, zone_here())
    attempt = f"a{event.attempt}" if event.attempt else "-"
    return f"{event.number:>5}  {moment:%m-%d %H:%M:%S}  {event.kind:14}  {attempt:>4}  {event.message}"


def zone_here() -> tzinfo:
    """The time zone of the person who looks."""
    zone = datetime.now().astimezone().tzinfo
    assert zone is not None
    return zone


def _note_missing_controllers(objects: ObjectStore, names: list[str]) -> None:
    for name in names:
        if without_leader(RunStore(objects, name)):
            note(f"no controller leads run {name}; start one: {how_to_start(name, objects.address)}")


def _one(run: str | None, names: list[str]) -> str:
    if run is not None and run in names:
        return run
    if run is None and len(names) == 1:
        return names[0]
    raise BadInput(f"watch which run? name one of: {', '.join(names) or 'none, the store is empty'}")
