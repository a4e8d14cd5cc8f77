"""``everstep scrub``: read a checkpoint back from the store and record what came of it."""

import os
import subprocess
from typing import ClassVar

import click

from orchestrator.cli.checkpoints import checkpoint_named
from orchestrator.cli.errors import DOES_NOT_HOLD, BadInput
from orchestrator.cli.options import json_option, run_argument, store_option
from orchestrator.cli.output import print_document, print_lines
from orchestrator.cli.stores import open_run, open_store
from orchestrator.contract.base import Document
from orchestrator.store.run_store import RunStore

STANDARD_ERROR = 2


class Scrubbed(Document):
    """What ``everstep scrub --json`` says."""

    KIND: ClassVar[str] = "scrubbed"

    run: str
    manifest: str
    proven: bool
    problem: str | None
    """Of a checkpoint that is in quarantine, or of a scrub that failed."""
    code: int | None
    """Exit status of the scrub; None: the checkpoint was proven or in quarantine before."""


@click.command()
@run_argument
@store_option
@click.option("--manifest", metavar="NAME", help="Which checkpoint.  [default: the newest committed one]")
@click.option("--again", is_flag=True, help="Also one that is proven already.")
@json_option(schema="scrubbed")
@click.pass_context
def scrub(ctx: click.Context, run: str, store: str | None, manifest: str | None, again: bool, as_json: bool) -> None:
    """Read a checkpoint back from the store, compare every array's checksum, and write its proof or quarantine.

    \b
    Examples:
      everstep scrub demo
      everstep scrub demo --manifest 000000000040-a0002

    Exit codes: 0 it is proven; 1 it failed its checks or could not be read.
    """
    run_store = open_run(open_store(store), run)
    name = checkpoint_named(run_store, manifest)
    code = None
    if again or not _settled(run_store, name):
        code = _run(run_store, name)
    found = _outcome(run_store, name, code)
    if as_json:
        print_document(found)
    else:
        print_lines([f"checkpoint {name}: " + ("proven" if found.proven else f"not proven: {found.problem}")])
    ctx.exit(0 if found.proven and not code else DOES_NOT_HOLD)


def _settled(store: RunStore, manifest: str) -> bool:
    return manifest in store.proven_names() or manifest in store.quarantined()


def _run(store: RunStore, manifest: str) -> int:
    """The scrub's exit status; its output goes to standard error."""
    run = store.run()
    if not run.scrub:
        raise BadInput(f"run {run.name} was submitted without a scrub command; restores alone prove its checkpoints")
    command = [*run.scrub, "--store", store.objects.address, "--run", run.name, "--manifest", manifest]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=STANDARD_ERROR, check=False, env=environment)
    except OSError as error:
        raise BadInput(f"{run.scrub[0]}: {error.strerror}; run this where the trainer is installed") from error
    return done.returncode


def _outcome(store: RunStore, manifest: str, code: int | None) -> Scrubbed:
    quarantine = store.quarantined().get(manifest)
    proven = manifest in store.proven_names() and quarantine is None
    problem = None
    if quarantine is not None:
        problem = quarantine.problem
    elif not proven or code:
        problem = f"the scrub ended with exit code {code}"
    return Scrubbed(run=store.name, manifest=manifest, proven=proven, problem=problem, code=code)
