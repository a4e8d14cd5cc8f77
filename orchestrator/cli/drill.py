"""``everstep drill``: faults on purpose, on a local fleet."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import click

from orchestrator.backends.local import drills, lasting_drills, store_drills
from orchestrator.backends.local.fleet_file import read_fleet
from orchestrator.cli.controllers import how_to_start, leader_of
from orchestrator.cli.errors import BadInput
from orchestrator.cli.fleets import find_fleet, host_named
from orchestrator.cli.options import fleet_option, json_option, run_argument, store_option
from orchestrator.cli.output import note, print_document, print_lines
from orchestrator.cli.stores import open_run, open_store
from orchestrator.contract.attempt import HostRef
from orchestrator.contract.base import Document
from orchestrator.store.run_store import RunStore

C = TypeVar("C", bound=Callable[..., Any])

DRILLS = {
    "kill-host": "SIGKILL a host's agent and trainer in mid-step; the host stays in the fleet, as after a reboot",
    "agent-lost": "SIGKILL a host's agent alone; the kernel ends its trainer too",
    "controller-lost": "SIGKILL the controller of a run; its trainers go on",
    "stop-host": "SIGSTOP a host's trainer: alive, but stuck",
    "slow-host": "make a host's trainer slow for a while",
    "shrink": "take all but some hosts of a pool away",
    "grow": "give all hosts of a pool back",
    "maintenance": "announce that a host will be taken away, or withdraw that",
    "corrupt-checkpoint": "damage a run's newest committed checkpoint: a flipped bit, a missing file, a cut manifest",
    "torn-ledger": "cut the newest ledger segment of a run in the middle of a record",
    "store-outage": "take the whole store away for a while",
    "full-disk": "take all space of a store that has a file system of its own, for a while",
}


class DrillDone(Document):
    """What a drill says with ``--json``."""

    KIND: ClassVar[str] = "drill-done"

    drill: str
    fleet: str | None
    """None: a drill on a store."""
    target: str
    """A pool, a host as ``pool/host``, a run, or a store."""
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
    return fleet_option(_on_a_store(command))


def _on_a_store(command: C) -> C:
    return store_option(json_option(schema="drill-done")(command))


def _lasting(command: C) -> C:
    seconds = click.FloatRange(min=0, min_open=True)
    return click.option("--seconds", type=seconds, default=10.0, show_default=True, help="How long it lasts.")(command)


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


@drill.command("agent-lost")
@click.argument("host", metavar="POOL/HOST")
@_on_a_fleet
def agent_lost(host: str, **options: Any) -> None:
    """SIGKILL a host's agent alone; the kernel ends its trainer with it, and the run is relaunched.

    \b
    Example:
      everstep drill agent-lost main/h1
    """
    _on_host("agent-lost", host, lambda fleet, ref: drills.lose_agent(fleet, ref, now=time.time()), **options)


@drill.command("controller-lost")
@run_argument
@_on_a_store
def controller_lost(run: str, **options: Any) -> None:
    """SIGKILL the controller of a run; its trainers go on, and the next controller adopts them.

    \b
    Example:
      everstep drill controller-lost demo
    """
    _on_run("controller-lost", run, _kill_controller, **options)


def _kill_controller(store: RunStore) -> str:
    leader = leader_of(store.run())
    again = f"start one: {how_to_start(store.name, store.objects.address)}"
    if leader is None:
        return f"run {store.name}: no controller leads it, nothing was killed; {again}"
    os.kill(leader, signal.SIGKILL)
    return f"run {store.name}: killed controller {leader}; its trainers go on; {again}"


@drill.command("slow-host")
@click.argument("host", metavar="POOL/HOST")
@click.option("--factor", type=click.FloatRange(min=1, min_open=True), default=4.0, show_default=True)
@_lasting
@_on_a_fleet
def slow_host(host: str, factor: float, seconds: float, **options: Any) -> None:
    """Make a host's trainer slow for a while, by stopping it again and again; Ctrl-C ends it at once.

    \b
    Example:
      everstep drill slow-host main/h1 --factor 4 --seconds 10
    """

    def slow(fleet: Path, ref: HostRef) -> str:
        return lasting_drills.slow_host(fleet, ref, factor=factor, seconds=seconds, wait=_ended_by_signals())

    _on_host("slow-host", host, slow, **options)


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
@run_argument
@click.option("--how", type=click.Choice(store_drills.DAMAGES), default="flipped-byte", show_default=True)
@_on_a_store
def corrupt_checkpoint(run: str, how: store_drills.Damage, **options: Any) -> None:
    """Damage the newest committed checkpoint of a run: the next restore puts it aside and takes the one before it.

    \b
    Example:
      everstep drill corrupt-checkpoint demo --how missing-file
    """
    _on_run("corrupt-checkpoint", run, lambda store: store_drills.corrupt_checkpoint(store, how=how), **options)


@drill.command("torn-ledger")
@run_argument
@_on_a_store
def torn_ledger(run: str, **options: Any) -> None:
    """Cut the newest closed ledger segment of a run in the middle of its last record.

    \b
    Example:
      everstep drill torn-ledger demo
    """
    _on_run("torn-ledger", run, store_drills.tear_ledger, **options)


@drill.command("store-outage")
@_lasting
@_on_a_store
def store_outage(seconds: float, store: str | None, as_json: bool) -> None:
    """Take the whole store away for a while; Ctrl-C gives it back at once.

    Meanwhile nothing is decided or relaunched; training goes on, and records and saves wait.

    \b
    Example:
      everstep drill store-outage --seconds 10
    """
    root = Path(open_store(store).address)
    note(f"if this command is killed with SIGKILL: {lasting_drills.how_to_give_back(root)}")
    text = lasting_drills.store_outage(root, seconds=seconds, wait=_ended_by_signals())
    _say("store-outage", str(root), text, as_json=as_json)


@drill.command("full-disk")
@_lasting
@_on_a_store
def full_disk(seconds: float, store: str | None, as_json: bool) -> None:
    """Take all space of the store's file system for a while; Ctrl-C frees it at once.

    Only for a store that has a file system of its own, as one that was mounted for this. Training goes on; records and
    saves wait.

    \b
    Example:
      everstep drill full-disk --seconds 10 --store /mnt/small/store
    """
    root = Path(open_store(store).address)
    text = lasting_drills.full_disk(root, seconds=seconds, wait=_ended_by_signals())
    _say("full-disk", str(root), text, as_json=as_json)


def _ended_by_signals() -> lasting_drills.Wait:
    """Waiting that SIGTERM ends as Ctrl-C does, so that a drill always takes back what it did."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    return time.sleep


def _on_host(name: str, host: str, effect: Callable[[Path, HostRef], str], **options: Any) -> None:
    _run(name, host, lambda fleet: effect(fleet, host_named(host, read_fleet(fleet))), **options)


def _on_run(name: str, run: str, effect: Callable[[RunStore], str], *, store: str | None, as_json: bool) -> None:
    run_store = open_run(open_store(store), run)
    _say(name, run, effect(run_store), fleet=run_store.run().fleet, as_json=as_json)


def _run(
    name: str, target: str, effect: Callable[[Path], str], *, store: str | None, fleet: str | None, as_json: bool
) -> None:
    folder = find_fleet(given=fleet, run=None, store=store)
    _say(name, target, effect(folder), fleet=str(folder), as_json=as_json)


def _say(name: str, target: str, text: str, *, fleet: str | None = None, as_json: bool) -> None:
    if as_json:
        print_document(DrillDone(drill=name, fleet=fleet, target=target, text=text, at=time.time()))
    else:
        print_lines([text])
