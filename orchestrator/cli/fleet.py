"""``everstep fleet``: hosts, and what is known of each."""

import time
from typing import ClassVar, Literal

import click
from rich.table import Table

from orchestrator.backends.local.backend import LocalBackend
from orchestrator.cli import render
from orchestrator.cli.fleets import find_fleet
from orchestrator.cli.options import fleet_option, json_option, store_option
from orchestrator.cli.output import print_document, print_table
from orchestrator.contract.base import Document, Part
from orchestrator.fleet.observation import HostView


class HostLine(Part):
    """One host as the backend sees it."""

    pool: str
    host: str
    generation: str
    devices: int
    condition: Literal["ready", "gone", "unknown"]
    evidence: str
    run: str | None
    """That its agent serves; None: no agent lives on it."""
    from_attempt: int | None
    maintenance_at: float | None
    """Seconds since the epoch."""


class FleetView(Document):
    """What ``everstep fleet --json`` says."""

    KIND: ClassVar[str] = "fleet-view"

    fleet: str
    at: float
    hosts: tuple[HostLine, ...]


@click.command()
@click.argument("run", metavar="[RUN]", required=False)
@store_option
@fleet_option
@json_option(schema="fleet-view")
def fleet(run: str | None, store: str | None, fleet: str | None, as_json: bool) -> None:
    """Show the hosts of a fleet: condition, evidence, whose agent lives there, announced maintenance.

    "unknown" never means gone: only evidence does.

    \b
    Examples:
      everstep fleet
      everstep fleet demo --json
    """
    folder = find_fleet(given=fleet, run=run, store=store)
    now = time.time()
    views = LocalBackend(fleet=folder, store_address="", run="").hosts()
    if as_json:
        print_document(FleetView(fleet=str(folder), at=now, hosts=tuple(_line(view) for view in views)))
    else:
        print_table(_table([_line(view) for view in views], now=now))


def _line(view: HostView) -> HostLine:
    return HostLine(
        pool=view.ref.pool,
        host=view.ref.host,
        generation=view.generation,
        devices=view.devices,
        condition=view.condition,
        evidence=view.evidence,
        run=view.agent.run if view.agent else None,
        from_attempt=view.agent.from_attempt if view.agent else None,
        maintenance_at=view.maintenance_at,
    )


def _table(lines: list[HostLine], *, now: float) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("HOST", "GENERATION", "DEVICES", "CONDITION", "RUN", "MAINTENANCE", "EVIDENCE"):
        table.add_column(heading)
    for line in lines:
        table.add_row(
            f"{line.pool}/{line.host}",
            line.generation,
            str(line.devices),
            line.condition,
            line.run or "-",
            _maintenance(line.maintenance_at, now=now),
            line.evidence,
        )
    return table


def _maintenance(at: float | None, *, now: float) -> str:
    if at is None:
        return "-"
    return f"in {render.duration(at - now)}" if at > now else f"since {render.duration(now - at)}"
