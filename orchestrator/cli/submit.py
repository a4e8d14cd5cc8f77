"""``everstep submit``."""

import time
from pathlib import Path
from typing import ClassVar

import click

from orchestrator.cli import controllers, submission
from orchestrator.cli.bars import hashing_with_bar
from orchestrator.cli.identity import person
from orchestrator.cli.options import json_option
from orchestrator.cli.output import print_document, print_lines
from orchestrator.cli.run_file import read_run
from orchestrator.cli.stores import make_store
from orchestrator.cli.submission import Submission
from orchestrator.contract.base import Document
from orchestrator.store.objects import ObjectStore


class Submitted(Document):
    """What ``everstep submit --json`` says."""

    KIND: ClassVar[str] = "submitted"

    run: str
    store: str
    created: bool
    """False: it was submitted before, just so."""
    recipe_sha256: str
    last_step: int
    placements: dict[str, tuple[str, ...]]
    """Those that may run each stage, in order of preference."""
    controller: int | None
    """Process that leads it on this machine; None: none, as asked."""
    log: str | None
    """Where that controller writes."""


@click.command()
@click.argument("file", metavar="RUN.YAML", type=click.Path(path_type=Path))
@click.option("--store", metavar="FOLDER", help="Instead of the store that the file names.")
@click.option("--name", metavar="NAME", help="Instead of the name that the file gives.")
@click.option("--controller/--no-controller", default=True, show_default=True, help="Start a controller for it.")
@click.option("--rehash", is_flag=True, help="Hash every file, also those that have not changed since a submit.")
@click.option("--watch", is_flag=True, help="Then watch it, as `everstep status --watch` does.")
@json_option(schema="submitted")
def submit(
    file: Path, store: str | None, name: str | None, controller: bool, rehash: bool, watch: bool, as_json: bool
) -> None:
    """Check a run.yaml with everything it names, and start the run.

    Everything is checked before anything is written: recipe, token files, placements, fleet, store. A controller is
    started that outlives this terminal. Submitting the same run again changes nothing and starts a controller if the
    run has none. What was found of files that have not changed since is remembered.

    \b
    Examples:
      everstep submit run.yaml
      everstep submit run.yaml --watch
      everstep submit run.yaml --name demo-reference --no-controller

    Exit codes: 0 submitted, now or before; 2 something is wrong and nothing was started; 3 the store cannot be written.
    """
    description = read_run(file, name=name, store=store)
    submission.check_placements(description)
    objects = make_store(description.store)
    submission.probe(objects)
    with hashing_with_bar(use_remembered=not rehash) as hashing:
        checked = submission.check(description, by=person(), now=time.time(), hashing=hashing)
    created = submission.create(checked, objects)
    leader = ensure_controller(checked, objects) if controller else controllers.leader_of(checked.run)
    answer = _submitted(checked, objects, created=created, leader=leader)
    if as_json:
        print_document(answer)
    else:
        print_lines(_lines(answer))
    if watch:
        from orchestrator.cli.watch import watch_run

        watch_run(objects, checked.run.name)


def ensure_controller(checked: Submission, objects: ObjectStore) -> int:
    """The process that leads the run on this machine, started if there is none."""
    return controllers.leader_of(checked.run) or controllers.start_detached(checked.run, store_address=objects.address)


def _submitted(checked: Submission, objects: ObjectStore, *, created: bool, leader: int | None) -> Submitted:
    return Submitted(
        run=checked.run.name,
        store=objects.address,
        created=created,
        recipe_sha256=checked.run.recipe_sha256,
        last_step=checked.recipe.last_step,
        placements={
            stage.name: tuple(legal.name for legal in checked.policy.legal_for(checked.recipe, stage.name))
            for stage in checked.recipe.stages
        },
        controller=leader,
        log=str(controllers.log_of(checked.run)) if leader is not None else None,
    )


def _lines(answer: Submitted) -> list[str]:
    first = "submitted" if answer.created else "was submitted before, just so"
    lines = [f"run {answer.run} {first}: recipe {answer.recipe_sha256[:12]}, {answer.last_step:,} steps"]
    lines += [f"stage {stage}: {', '.join(names)}" for stage, names in answer.placements.items()]
    if answer.controller is None:
        lines.append(f"no controller leads it; start one: {controllers.how_to_start(answer.run, answer.store)}")
    else:
        lines.append(f"controller: process {answer.controller}, log {answer.log}")
        lines.append(f"next: everstep status {answer.run} --watch --store {answer.store}")
    return lines
