"""``everstep amend`` and ``rewind``: going on as a new, numbered revision."""

from pathlib import Path
from typing import Any

import click

from orchestrator.cli import leaf_plan_checks, token_files
from orchestrator.cli.bars import hashing_with_bar
from orchestrator.cli.errors import BadInput
from orchestrator.cli.options import run_argument
from orchestrator.cli.people import asks
from orchestrator.cli.placement_checks import why_illegal
from orchestrator.cli.requests import ask
from orchestrator.cli.stores import open_run, open_store
from orchestrator.cli.submission import differences
from orchestrator.cli.yaml_files import read_yaml
from orchestrator.contract.base import sha256_of
from orchestrator.contract.recipe import Recipe
from orchestrator.contract.run import Policy
from orchestrator.store.run_store import RunStore

SHAPES = ("vocab_size", "padded_vocab_size", "d_model", "n_layers", "n_heads", "n_kv_heads", "head_dim", "d_ff")
"""Fields of a model without which no checkpoint of the old one fits."""


@click.command()
@run_argument
@click.option("--recipe", "file", type=click.Path(path_type=Path), required=True, help="The changed recipe.")
@click.option(
    "--from-step", type=click.IntRange(min=0), help="Go on from the checkpoint of this step.  [default: the newest]"
)
@asks
def amend(run: str, file: Path, from_step: int | None, store: str | None, **options: Any) -> None:
    """Go on with a changed recipe, as a new revision with a reason.

    The run is drained first. Bits are compared within one revision only.

    \b
    Example:
      everstep amend demo --recipe recipe-2.yaml --reason "peak learning rate halved"

    Exit codes: 0 done, 1 refused, 2 the recipe is wrong or unchanged, 3 not answered in time.
    """
    run_store = open_run(open_store(store), run)
    recipe = changed_recipe(run_store, read_yaml(file, Recipe), where=str(file))
    sha256 = run_store.create_recipe(recipe.to_bytes())
    step = "" if from_step is None else str(from_step)
    ask(run_store, "amend", arguments={"step": step, "recipe_sha256": sha256}, **options)


@click.command()
@run_argument
@click.option("--to-step", type=click.IntRange(min=0), required=True, help="Step of the checkpoint to go on from.")
@asks
def rewind(run: str, to_step: int, store: str | None, **options: Any) -> None:
    """Go on from an earlier checkpoint with the same recipe, as a new revision with a reason.

    The run is drained first. What was computed beyond that step stays in the store, and counts no more.

    \b
    Example:
      everstep rewind demo --to-step 4000 --reason "loss spike at 4,120"

    Exit codes: 0 done, 1 refused (there is no such checkpoint: the text names those there are), 3 not answered in time.
    """
    run_store = open_run(open_store(store), run)
    sha256 = run_store.revisions()[-1].recipe_sha256
    ask(run_store, "rewind", arguments={"step": str(to_step), "recipe_sha256": sha256}, **options)


def changed_recipe(store: RunStore, recipe: Recipe, *, where: str) -> Recipe:
    """The resolved recipe, if it may replace the run's newest one.

    Raises:
        BadInput: it is the same, no checkpoint fits it, its data are wrong, or no placement can run it.
    """
    run = store.run()
    with hashing_with_bar() as hashing:
        resolved = token_files.resolve(recipe, data_root=run.data_root, hashing=hashing)
    newest = store.recipe(store.revisions()[-1].recipe_sha256)
    if sha256_of(resolved.to_bytes()) == sha256_of(newest.to_bytes()):
        raise BadInput(f"{where}: the recipe is the one that run {store.name} has; to repeat steps: everstep rewind")
    shapes = [line for line in differences(newest.model, resolved.model) if line in SHAPES]
    if shapes:
        raise BadInput(
            f"{where}: model.{', model.'.join(shapes)} changed, so no checkpoint of run {store.name} fits; "
            "submit another run instead"
        )
    policy = store.policy().value
    check_legal(policy, resolved, where=where)
    plans = [store.leaf_plan(generation) for generation in sorted({place.generation for place in policy.placements})]
    leaf_plan_checks.check(
        plans,
        command=run.check,
        recipe=resolved,
        policy=policy,
        data_root=run.data_root,
        where=where,
    )
    return resolved


def check_legal(policy: Policy, recipe: Recipe, *, where: str) -> None:
    """Raises BadInput: a stage that no placement of the policy can run."""
    for stage in recipe.stages:
        if not policy.legal_for(recipe, stage.name):
            reasons = "; ".join(f"{place.name}: {why_illegal(place, stage)}" for place in policy.placements)
            raise BadInput(f"{where}: no placement can run stage {stage.name} ({reasons}); change virtual_ranks")
