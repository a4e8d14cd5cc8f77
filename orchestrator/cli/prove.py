"""``everstep verify``, ``certificate``, ``goodput`` and ``episodes``: what the store proves, with no cluster at all."""

import time
from pathlib import Path
from typing import ClassVar

import click

from orchestrator.cli import render
from orchestrator.cli.errors import DOES_NOT_HOLD, BadInput
from orchestrator.cli.options import json_option, run_argument, store_option
from orchestrator.cli.output import note, print_document, print_lines, print_table
from orchestrator.cli.samples import token_check
from orchestrator.cli.stores import open_run, open_store
from orchestrator.contract.base import Document
from orchestrator.reports.certificate import certificate as certificate_of
from orchestrator.reports.episodes import Episode
from orchestrator.reports.episodes import episodes as episodes_of
from orchestrator.reports.goodput import goodput as goodput_of
from orchestrator.reports.tokens import SAMPLE
from orchestrator.reports.verify import verify as verify_of

HOLDS = ("equal", "bounded", "nothing-replayed")
"""Verdicts with which nothing that was compared stands against the run."""


class EpisodeList(Document):
    """What ``everstep episodes --json`` says."""

    KIND: ClassVar[str] = "episode-list"

    run: str
    episodes: tuple[Episode, ...]


data_root_option = click.option(
    "--data-root",
    metavar="FOLDER",
    help="Where the token files are now; their samples are computed again.  [default: as submitted, if it is there]",
)
sample_option = click.option(
    "--sample",
    type=click.IntRange(min=0),
    default=SAMPLE,
    show_default=True,
    metavar="STEPS",
    help="Of each attempt, besides its first and last: steps whose tokens are read again, the same for everybody.",
)


@click.command()
@run_argument
@store_option
@data_root_option
@sample_option
@click.option("--checkpoints", is_flag=True, help="Also list every checkpoint with the hash of its parameters.")
@json_option(schema="verification")
@click.pass_context
def verify(
    ctx: click.Context,
    run: str,
    store: str | None,
    data_root: str | None,
    sample: int,
    checkpoints: bool,
    as_json: bool,
) -> None:
    """Compare everything that a run computed more than once, bit for bit, from the store alone.

    Verdicts: "equal" every replayed bit; "bounded" some replays were held to a bound only, as asked;
    "nothing-replayed" nothing was computed twice, so nothing is shown; "incomplete" a committed step has no record;
    "differs" something that must be equal is not.

    \b
    Examples:
      everstep verify demo
      everstep verify demo --json | jq .verdict

    Exit codes: 0 equal, bounded or nothing-replayed; 1 differs or incomplete.
    """
    run_store = open_run(open_store(store), run)
    found = verify_of(run_store, tokens=token_check(run_store, data_root, say=note, sample=sample))
    if as_json:
        print_document(found)
    else:
        print_lines(render.verification_lines(found))
        if checkpoints:
            print_table(render.checkpoint_table(found))
    ctx.exit(0 if found.verdict in HOLDS else DOES_NOT_HOLD)


@click.command()
@run_argument
@store_option
@data_root_option
@sample_option
@click.option("--reference", metavar="RUN", help="A run of the same recipe whose final parameters must be equal.")
@click.option("--reference-store", metavar="FOLDER", help="Where that run is.  [default: the same store]")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Also write the JSON to this file.")
@json_option(schema="certificate")
@click.pass_context
def certificate(
    ctx: click.Context,
    run: str,
    store: str | None,
    data_root: str | None,
    sample: int,
    reference: str | None,
    reference_store: str | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Say what was shown of a run, claim by claim, and in one sentence.

    A claim that could not be tested is not made. The document carries the SHA-256 of its own bytes.

    \b
    Examples:
      everstep certificate demo
      everstep certificate demo --reference demo-reference --out demo.json

    Exit codes: 0 the run is complete and every claim holds; 1 not.
    """
    objects = open_store(store)
    run_store = open_run(objects, run)
    other = None
    if reference is not None:
        other = open_run(open_store(reference_store) if reference_store else objects, reference)
    tokens = token_check(run_store, data_root, say=note, sample=sample)
    found = certificate_of(run_store, reference=other, tokens=tokens)
    if out is not None:
        _write(out, found)
    if as_json:
        print_document(found)
    else:
        print_lines(render.certificate_lines(found))
    ctx.exit(0 if found.held else DOES_NOT_HOLD)


@click.command()
@run_argument
@store_option
@json_option(schema="goodput")
def goodput(run: str, store: str | None, as_json: bool) -> None:
    """Split the wall time of a run into steps that count and everything else, by name, to the last nanosecond.

    \b
    Example:
      everstep goodput demo
    """
    found = goodput_of(open_run(open_store(store), run), now=time.time())
    if as_json:
        print_document(found)
    else:
        print_table(render.goodput_table(found))


@click.command()
@run_argument
@store_option
@json_option(schema="episode-list")
def episodes(run: str, store: str | None, as_json: bool) -> None:
    """Show what each disturbance cost: seconds by phase, from what happened to the first new step.

    \b
    Example:
      everstep episodes demo
    """
    found = tuple(episodes_of(open_run(open_store(store), run)))
    if as_json:
        print_document(EpisodeList(run=run, episodes=found))
    else:
        print_table(render.episode_table(found))


def _write(path: Path, document: Document) -> None:
    try:
        path.write_bytes(document.to_bytes())
    except OSError as error:
        raise BadInput(f"--out {path}: {error.strerror or error}; name a file that can be written") from error
