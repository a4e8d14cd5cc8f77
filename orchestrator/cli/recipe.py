"""``everstep recipe``: what a recipe will do, by arithmetic alone."""

from pathlib import Path
from typing import ClassVar

import click
from rich.table import Table

from orchestrator.cli import sizes
from orchestrator.cli.errors import BadInput
from orchestrator.cli.options import json_option
from orchestrator.cli.output import print_document, print_lines, print_table
from orchestrator.cli.yaml_files import read_yaml
from orchestrator.contract.base import ContractError, Document, Part
from orchestrator.contract.flops import flops_a_token
from orchestrator.contract.recipe import Recipe, Stage
from orchestrator.contract.schedule import learning_rate
from orchestrator.contract.shipped import recipe_path, shipped


class Rate(Part):
    """The learning rate of one update."""

    update: int
    """Counted in the stage, from 1."""
    learning_rate: float


class StagePage(Part):
    """What a stage will do."""

    stage: str
    steps: int
    sequences: int
    """Of a step."""
    sequence_length: int
    tokens: int
    """Of all steps."""
    flops_a_token: float
    """Model FLOPs of training, each layer's attention over what it sees; nothing counts twice for being recomputed."""
    flops: float
    """Of all steps."""
    rates: tuple[Rate, ...]


class RecipePage(Document):
    """What ``everstep recipe --json`` says."""

    KIND: ClassVar[str] = "recipe-page"

    recipe: str
    parameters: int
    """Padding of the vocabulary included."""
    last_step: int
    tokens: int
    flops: float
    stages: tuple[StagePage, ...]


@click.command()
@click.argument("recipe", metavar="[NAME|FILE]", required=False)
@click.option(
    "--at", type=click.IntRange(min=1), multiple=True, metavar="UPDATE", help="Also its learning rate; repeat."
)
@click.option("--yaml", "as_yaml", is_flag=True, help="Print the recipe itself, to begin your own with.")
@json_option(schema="recipe-page")
def recipe(recipe: str | None, at: tuple[int, ...], as_yaml: bool, as_json: bool) -> None:
    """Say what a recipe will do: steps, tokens, parameters, FLOPs, learning rates; without an argument, list those that
    come with Everstep.

    \b
    Examples:
      everstep recipe
      everstep recipe olmo3-7b --at 100000
      everstep recipe olmo3-7b --yaml > recipe.yaml
    """
    if recipe is None:
        print_lines(f"{name:18} {_summary(path)}" for name, path in shipped().items())
        return
    path = _path_of(recipe)
    if as_yaml:
        click.echo(path.read_text(encoding="utf-8"), nl=False)
        return
    found = page_of(read_yaml(path, Recipe), at=at)
    if as_json:
        print_document(found)
        return
    print_lines(
        [f"{found.recipe}: {found.parameters:,} parameters; {found.last_step:,} steps, {found.tokens:,} tokens"]
    )
    print_table(_table(found))
    for stage in found.stages:
        said = ", ".join(f"{rate.learning_rate:.9g} at {rate.update:,}" for rate in stage.rates)
        print_lines([f"{stage.stage}: learning rate {said}"])


def _summary(path: Path) -> str:
    """A recipe's first line."""
    return path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")


def page_of(recipe: Recipe, *, at: tuple[int, ...] = ()) -> RecipePage:
    """What a recipe will do."""
    stages = tuple(_stage(recipe, stage, at) for stage in recipe.stages)
    return RecipePage(
        recipe=recipe.name,
        parameters=sizes.parameters(recipe.model),
        last_step=recipe.last_step,
        tokens=sum(stage.tokens for stage in stages),
        flops=sum(stage.flops for stage in stages),
        stages=stages,
    )


def _stage(recipe: Recipe, stage: Stage, at: tuple[int, ...]) -> StagePage:
    tokens = stage.steps * stage.tokens_a_step
    a_token = flops_a_token(recipe.model, length=stage.sequence_length)
    edges = {1, stage.schedule.warmup_steps, stage.steps, *(part.after for part in stage.schedule.continuations)}
    wanted = sorted(update for update in edges | set(at) if 1 <= update <= stage.steps)
    return StagePage(
        stage=stage.name,
        steps=stage.steps,
        sequences=stage.global_batch,
        sequence_length=stage.sequence_length,
        tokens=tokens,
        flops_a_token=a_token,
        flops=a_token * tokens,
        rates=tuple(Rate(update=update, learning_rate=learning_rate(stage, update=update)) for update in wanted),
    )


def _path_of(recipe: str) -> Path:
    try:
        return recipe_path(recipe)
    except ContractError as error:
        raise BadInput(str(error)) from error


def _table(found: RecipePage) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("STAGE")
    for heading in ("STEPS", "SEQUENCES", "LENGTH", "TOKENS", "FLOPS/TOKEN", "FLOPS"):
        table.add_column(heading, justify="right")
    for stage in found.stages:
        numbers = (stage.steps, stage.sequences, stage.sequence_length, stage.tokens)
        flops = (f"{value:.4g}" for value in (stage.flops_a_token, stage.flops))
        table.add_row(stage.stage, *(f"{value:,}" for value in numbers), *flops)
    return table
