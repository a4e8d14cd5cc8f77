"""What a person asks of a run: drain, move, pause, hold, resume, stop, host-gone.

Each writes a request that carries who, why and which attempt was seen. The controller answers with an event; a request
that was made against an older attempt is refused, so that nobody ends what they have not seen.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from orchestrator.cli.options import json_option, reason_option, run_argument, store_option, wait_option
from orchestrator.cli.requests import ask
from orchestrator.cli.stores import open_run, open_store
from orchestrator.contract.event import RequestKind

C = TypeVar("C", bound=Callable[..., Any])


def asks(command: C) -> C:
    """The options that all of them have."""
    for option in (json_option(schema="answer"), wait_option, reason_option, store_option):
        command = option(command)
    return command


@click.command()
@run_argument
@asks
def drain(run: str, **options: Any) -> None:
    """Let the newest attempt save and leave, then launch again on the best placement.

    \b
    Example:
      everstep drain demo --reason "new kernel on the hosts"

    Exit codes: 0 done, 1 refused, 3 not answered in time.
    """
    _ask(run, "drain", **options)


@click.command()
@run_argument
@click.argument("to", metavar="PLACEMENT")
@asks
def move(run: str, to: str, **options: Any) -> None:
    """Drain, and go on on another placement of the run's policy.

    \b
    Example:
      everstep move demo quarter --reason "the others need the hosts"

    Exit codes: 0 done, 1 refused, 3 not answered in time.
    """
    _ask(run, "move", arguments={"to": to}, **options)


@click.command()
@run_argument
@asks
def pause(run: str, **options: Any) -> None:
    """Drain, and give the hosts back until the run is resumed.

    \b
    Example:
      everstep pause demo --reason "conference demo needs the pool"

    Exit codes: 0 done, 1 refused, 3 not answered in time.
    """
    _ask(run, "pause", **options)


@click.command()
@run_argument
@asks
def hold(run: str, **options: Any) -> None:
    """Let the controller only watch: what runs goes on, nothing is launched or moved until the run is resumed.

    \b
    Example:
      everstep hold demo --reason "looking at a strange loss"

    Exit codes: 0 done, 1 refused, 3 not answered in time.
    """
    _ask(run, "hold", **options)


@click.command()
@run_argument
@asks
def resume(run: str, **options: Any) -> None:
    """Go on with a held, paused or stopped run. A person's resume also forgives its errors.

    \b
    Example:
      everstep resume demo --reason "disk is replaced"

    Exit codes: 0 done, 1 refused, 3 not answered in time.
    """
    _ask(run, "resume", **options)


@click.command()
@run_argument
@click.option("--now", is_flag=True, help="Kill instead of drain: steps since the last checkpoint are computed again.")
@asks
def stop(run: str, now: bool, **options: Any) -> None:
    """End a run: drain it, give its hosts back, and let its controller leave. It can be resumed.

    \b
    Examples:
      everstep stop demo --reason "budget is spent"
      everstep stop demo --now

    Exit codes: 0 done, 1 refused, 3 not answered in time.
    """
    _ask(run, "stop", arguments={"now": "yes"} if now else {}, **options)


@click.command("host-gone")
@run_argument
@click.argument("host", metavar="POOL/HOST")
@asks
def host_gone(run: str, host: str, **options: Any) -> None:
    """State that a host is gone for good, where nothing else can show it.

    Silence never makes a host gone. Your word does: the run goes on without it, and never uses it again. If the host
    is alive after all, the fence keeps what runs there from committing.

    \b
    Example:
      everstep host-gone demo main/h3 --reason "burnt down, ticket 4711"

    Exit codes: 0 done, 1 refused, 3 not answered in time.
    """
    _ask(run, "host-gone", arguments={"host": host}, **options)


def _ask(
    run: str,
    kind: RequestKind,
    *,
    store: str | None,
    reason: str,
    wait: bool,
    timeout: float,
    as_json: bool,
    arguments: Mapping[str, str] | None = None,
) -> None:
    run_store = open_run(open_store(store), run)
    ask(run_store, kind, reason=reason, arguments=arguments, wait=wait, timeout=timeout, as_json=as_json)
