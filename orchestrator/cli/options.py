"""Arguments and options that several commands have, each with one name and one meaning."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

C = TypeVar("C", bound=Callable[..., Any])

STORE_VARIABLE = "EVERSTEP_STORE"


def run_argument(command: C) -> C:
    return click.argument("run", metavar="RUN")(command)


def store_option(command: C) -> C:
    return click.option(
        "--store",
        envvar=STORE_VARIABLE,
        metavar="FOLDER",
        help=f"The object store.  [default: {STORE_VARIABLE}, else ./store]",
    )(command)


def fleet_option(command: C) -> C:
    return click.option(
        "--fleet",
        type=str,
        metavar="FOLDER",
        help="Folder of a local fleet.  [default: the fleet of the store's runs]",
    )(command)


def json_option(*, schema: str) -> Callable[[C], C]:
    """``--json``, with the name of the published schema of what it prints."""
    return click.option("--json", "as_json", is_flag=True, help=f"Print JSON as in docs/schemas/{schema}.json.")


def reason_option(command: C) -> C:
    return click.option(
        "--reason", default="", metavar="TEXT", help="Recorded with the request, besides who made it and when."
    )(command)


def wait_option(command: C) -> C:
    """``--wait/--no-wait`` and ``--timeout``."""
    command = click.option(
        "--timeout",
        type=click.FloatRange(min=0),
        default=300.0,
        show_default=True,
        metavar="SECONDS",
        help="How long to wait for the answer.",
    )(command)
    return click.option("--wait/--no-wait", default=True, show_default=True, help="Wait for the answer.")(command)
