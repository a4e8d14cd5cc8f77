"""``everstep logs``: what trainers said last, and what they say now."""

import time
from collections.abc import Iterator
from pathlib import Path

import click

from orchestrator.agent.host_folder import HostFolder
from orchestrator.cli import render
from orchestrator.cli.options import json_option, run_argument, store_option
from orchestrator.cli.output import note, print_document, print_lines
from orchestrator.cli.stores import open_run, open_store
from orchestrator.contract.attempt import HostRef
from orchestrator.reports.facts import read_facts
from orchestrator.reports.logs import logs as logs_of
from orchestrator.store.run_store import RunStore

FOLLOW_EVERY = 0.5
"""Seconds between two looks at the files."""


@click.command()
@run_argument
@store_option
@click.option("--attempt", type=click.IntRange(min=1), metavar="N", help="[default: the newest that has ended]")
@click.option("--follow", is_flag=True, help="Show what the trainers of the newest attempt write, as they write it.")
@json_option(schema="logs")
def logs(run: str, store: str | None, attempt: int | None, follow: bool, as_json: bool) -> None:
    """Show how the processes of an attempt ended: the first failure with its last lines, then its echoes.

    The first host that failed is the cause; what the others die of afterwards is an echo of it.

    \b
    Examples:
      everstep logs demo
      everstep logs demo --attempt 3
      everstep logs demo --follow
    """
    run_store = open_run(open_store(store), run)
    if follow:
        for line in Tail(run_store).lines():
            print_lines([line])
        return
    found = logs_of(run_store, attempt)
    if as_json:
        print_document(found)
        return
    print_lines(render.log_lines(found))
    if not found.exits:
        note(f"what runs now: everstep logs {run} --follow")


class Tail:
    """The trainers' own log files on a local fleet, attempt after attempt, until the run is over."""

    def __init__(self, store: RunStore) -> None:
        self._store = store
        self._fleet = Path(store.run().fleet)
        self._read: dict[Path, int] = {}
        """Bytes already shown."""

    def lines(self) -> Iterator[str]:
        while True:
            facts = read_facts(self._store)
            newest = max(facts.specs, default=None)
            if newest is not None:
                for process, host in enumerate(facts.specs[newest].hosts):
                    yield from self._new_lines(newest, process, host)
            if facts.over_at is not None and not facts.changes[-1].live:
                return
            time.sleep(FOLLOW_EVERY)

    def _new_lines(self, attempt: int, process: int, host: HostRef) -> Iterator[str]:
        path = HostFolder.of(self._fleet, host).trainer_log(attempt)
        try:
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                data = file.read()
        except FileNotFoundError:
            return
        whole, newline, _ = data.rpartition(b"\n")
        self._read[path] = self._read.get(path, 0) + len(whole) + len(newline)
        for line in whole.splitlines():
            yield f"a{attempt} {process} {host}  {line.decode(errors='replace')}"
