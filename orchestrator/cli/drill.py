"""``everstep drill``: faults on purpose, on a local fleet."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import click

from orchestrator.backends.local import drills, store_drills
from orchestrator.backends.local.fleet_file import read_fleet
from orchestrator.cli.errors import BadInput
from orchestrator.cli.fleets import find_fleet, host_named
from orchestrator.cli.options import fleet_option, json_option, store_option
from orchestrator.cli.output import print_document, print_lines
from orchestrator.cli.stores import open_run, open_store
from orchestrator.contract.attempt import HostRef
from orchestrator.contract.base import Document

C = TypeVar("C", bound=Callable[..., Any])

DRILLS = {
    "kill-host": "SIGKILL a host's agent and trainer in mid-step; the host stays in the fleet, as after a reboot",
    "stop-host": "SIGSTOP a host's trainer: alive, but stuck",
    "shrink": "take all but some hosts of a pool away",
    "grow": "give all hosts of a pool back",
    "maintenance": "announce that a host will be taken away, or withdraw that",
    "corrupt-checkpoint": "damage the newest committed checkpoint of a run: a flipped bit, or a missing file",
}


class DrillDone(Document):
    """What a drill says with ``--json``."""

    KIND: ClassVar[str] = "drill-done"

    drill: str
    fleet: str
    target: str
    """A pool, a host as ``pool/host``, or a run."""
    text: str
    at: float


class DrillList(Document):
    """What ``everstep drill --list --json`` says."""

    KIND: ClassVar[str] = "drill-list"

    drills: dict[str, str]
    """What each does, by name."""


@click.group(invoke_without_command=True)
@click.option("--list", "listed", is_flag=True, help="The drills that there are.")
@json_option(schema="drill-list")
@click.pass_context
def drill(ctx: click.Context, listed: bool, as_json: bool) -> None:
    """Disturb a local fleet on purpose, and see the runs on it go on.

    \b
    Examples:
      everstep drill --list
      everstep drill kill-host main/h1
      everstep drill shrink main --keep 1
      everstep drill maintenance main/h3 --in 60
    """
    if ctx.invoked_subcommand is not None:
        return
    if not listed:
        raise click.UsageError("which drill?", ctx)
    if as_json:
        print_document(DrillList(drills=DRILLS))
    else:
        print_lines(f"{name:18} {text}" for name, text in DRILLS.items())


def _on_a_fleet(command: C) -> C:
    for option in (json_option(schema="drill-done"), fleet_option, store_option):
        command = option(command)
    return command


@drill.command("kill-host")
@click.argument("host", metavar="POOL/HOST")
@_on_a_fleet
def kill_host(host: str, **options: Any) -> None:
    """SIGKILL a host's agent and trainer; the host stays in the fleet.

    \b
    Example:
      everstep drill kill-host main/h1
    """
    _on_host("kill-host", host, lambda fleet, ref: drills.kill_host(fleet, ref, now=time.time()), **options)


@drill.command("stop-host")
@click.argument("host", metavar="POOL/HOST")
@_on_a_fleet
def stop_host(host: str, **options: Any) -> None:
    """SIGSTOP a host's trainer: it is alive and does nothing any more.

    \b
    Example:
      everstep drill stop-host main/h2
    """
    _on_host("stop-host", host, drills.stop_host, **options)


@drill.command()
@click.argument("pool", metavar="POOL")
@click.option("--keep", type=click.IntRange(min=0), required=True, help="Hosts that stay.")
@_on_a_fleet
def shrink(pool: str, keep: int, **options: Any) -> None:
    """Take all but the first hosts of a pool away, and end what runs on them.

    \b
    Example:
      everstep drill shrink main --keep 1
    """
    _run("shrink", pool, lambda fleet: drills.shrink(fleet, pool, keep=keep, now=time.time()), **options)


@drill.command()
@click.argument("pool", metavar="POOL")
@_on_a_fleet
def grow(pool: str, **options: Any) -> None:
    """Give all hosts of a pool back.

    \b
    Example:
      everstep drill grow main
    """
    _run("grow", pool, lambda fleet: drills.grow(fleet, pool), **options)


@drill.command()
@click.argument("host", metavar="POOL/HOST")
@click.option("--in", "seconds", type=click.FloatRange(min=0), metavar="SECONDS", help="When it will be taken away.")
@click.option("--clear", is_flag=True, help="Withdraw the announcement.")
@_on_a_fleet
def maintenance(host: str, seconds: float | None, clear: bool, **options: Any) -> None:
    """Announce maintenance of a host, or withdraw it.

    \b
    Examples:
      everstep drill maintenance main/h3 --in 60
      everstep drill maintenance main/h3 --clear
    """
    if (seconds is None) != clear:
        raise BadInput("drill maintenance: say either --in SECONDS or --clear")

    def announce(fleet: Path, ref: HostRef) -> str:
        if seconds is None:
            return drills.clear_maintenance(fleet, ref)
        now = time.time()
        return drills.announce_maintenance(fleet, ref, at=now + seconds, now=now)

    _on_host("maintenance", host, announce, **options)


@drill.command("corrupt-checkpoint")
@click.argument("run", metavar="RUN")
@click.option("--how", type=click.Choice(store_drills.DAMAGES), default="flipped-byte", show_default=True)
@store_option
@json_option(schema="drill-done")
def corrupt_checkpoint(run: str, how: store_drills.Damage, store: str | None, as_json: bool) -> None:
    """Damage the newest committed checkpoint of a run: the next restore puts it aside and takes the one before it.

    \b
    Example:
      everstep drill corrupt-checkpoint demo --how missing-file
    """
    run_store = open_run(open_store(store), run)
    text = store_drills.corrupt_checkpoint(run_store, how=how)
    _say("corrupt-checkpoint", run, text, fleet=run_store.run().fleet, as_json=as_json)


def _on_host(name: str, host: str, effect: Callable[[Path, HostRef], str], **options: Any) -> None:
    _run(name, host, lambda fleet: effect(fleet, host_named(host, read_fleet(fleet))), **options)


def _run(
    name: str, target: str, effect: Callable[[Path], str], *, store: str | None, fleet: str | None, as_json: bool
) -> None:
    folder = find_fleet(given=fleet, run=None, store=store)
    _say(name, target, effect(folder), fleet=str(folder), as_json=as_json)


def _say(name: str, target: str, text: str, *, fleet: str, as_json: bool) -> None:
    if as_json:
        print_document(DrillDone(drill=name, fleet=fleet, target=target, text=text, at=time.time()))
    else:
        print_lines([text])
