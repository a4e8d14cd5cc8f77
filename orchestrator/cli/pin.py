"""``everstep pin``: a checkpoint that retention must keep."""

import time
from typing import Any

import click

from orchestrator.cli.checkpoints import checkpoint_named
from orchestrator.cli.identity import person
from orchestrator.cli.options import run_argument
from orchestrator.cli.people import asks
from orchestrator.cli.requests import ask
from orchestrator.cli.stores import open_run, open_store
from orchestrator.contract.manifest import Pin


@click.command()
@run_argument
@click.option("--manifest", metavar="NAME", help="Which checkpoint.  [default: the newest committed one]")
@asks
def pin(run: str, manifest: str | None, store: str | None, reason: str, **options: Any) -> None:
    """Keep a checkpoint for good, whatever retention says. It counts at once; the controller notes it in the log.

    \b
    Example:
      everstep pin demo --manifest 000000000200-a0001 --reason "end of pre-training, for the paper"

    Exit codes: 0 pinned and noted, 2 there is no such checkpoint, 3 pinned and not noted in time.
    """
    run_store = open_run(open_store(store), run)
    name = checkpoint_named(run_store, manifest)
    run_store.create_pin(Pin(manifest=name, reason=reason, by=person(), at=time.time()))
    ask(run_store, "pin", reason=reason, arguments={"manifest": name}, **options)
