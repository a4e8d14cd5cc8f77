"""``everstep data``: what a recipe's data need before a run begins."""

import hashlib
from pathlib import Path
from typing import ClassVar

import click
import yaml

from orchestrator.cli.errors import BadInput
from orchestrator.cli.options import json_option
from orchestrator.cli.output import note, print_document, print_lines
from orchestrator.cli.token_files import counted, with_mixes
from orchestrator.cli.tokenize import tokenize
from orchestrator.cli.whole_file import whole_file
from orchestrator.cli.yaml_files import read_yaml
from orchestrator.contract.base import Document
from orchestrator.contract.recipe import Recipe, Stage, TokenFile
from orchestrator.order.global_order import GlobalOrder, permutation
from orchestrator.store.opening import is_bucket


class OrdersWritten(Document):
    """What ``everstep data index --json`` says."""

    KIND: ClassVar[str] = "orders-written"

    orders: dict[str, tuple[TokenFile, ...]]
    """By stage: what the recipe's ``data.orders`` is then."""


@click.group(invoke_without_command=True)
@click.pass_context
def data(ctx: click.Context) -> None:
    """Token files of text, and the order of their samples.

    \b
    Examples:
      everstep data tokenize texts/ --out data --tokenizer tokenizer.json
      everstep data index recipe.yaml --data-root data
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


data.add_command(tokenize)


@data.command()
@click.argument("recipe", metavar="RECIPE.YAML", type=click.Path(path_type=Path))
@click.option("--data-root", required=True, metavar="FOLDER", help="As in run.yaml.")
@click.option("--folder", default="orders", show_default=True, metavar="NAME", help="Below data_root, for the files.")
@click.option("--epochs", type=click.IntRange(min=1), default=1, show_default=True, help="How many of each stage.")
@json_option(schema="orders-written")
def index(recipe: Path, data_root: str, folder: str, epochs: int, as_json: bool) -> None:
    """Write the order of a stage's samples once, so that no process of a run computes or holds it.

    Worth it for a corpus of many millions of samples: 4 bytes each in a file of each epoch, of which a step reads its
    own. Prints what the recipe must say then; the order is the same with and without. If data_root is a bucket, the
    files are written below this folder, to be copied there.

    \b
    Example:
      everstep data index recipe.yaml --data-root data --epochs 2

    Exit codes: 0 written, or there already; 2 a token file is missing or torn.
    """
    if not is_bucket(data_root) and not Path(data_root).is_dir():
        raise BadInput(f"--data-root {data_root}: no such folder; name the one with the token files")
    found = with_mixes(read_yaml(recipe, Recipe), data_root=data_root)
    stages = counted(map(_bare, found.stages), data_root=data_root)
    orders = {
        stage.name: tuple(_written(stage, data_root, folder, epoch) for epoch in range(epochs)) for stage in stages
    }
    if is_bucket(data_root):
        note(f"now copy them: gcloud storage cp --recursive {folder} {data_root.rstrip('/')}/")
    if as_json:
        print_document(OrdersWritten(orders=orders))
        return
    for name, files in orders.items():
        said = {"orders": [file.model_dump(mode="json") for file in files]}
        print_lines([f"# stage {name}, below data:", yaml.safe_dump(said, sort_keys=False, width=200).rstrip()])


def _bare(stage: Stage) -> Stage:
    """As it was before anything was found of its files, or written."""
    files = tuple(TokenFile(path=file.path) for file in stage.data.files)
    return stage.model_copy(update={"data": stage.data.model_copy(update={"files": files, "orders": ()})})


def _written(stage: Stage, data_root: str, folder: str, epoch: int) -> TokenFile:
    """The file of one epoch, as the recipe names it then; it appears whole."""
    order = permutation(GlobalOrder(stage).instances, seed=stage.data.seed + epoch)
    path = f"{folder}/{stage.name}-{len(order)}-{stage.data.seed + epoch}.u32"
    target = Path(path) if is_bucket(data_root) else Path(data_root, path)
    target.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(target) as out:
        out.write(order.data)
    if is_bucket(data_root):
        return TokenFile(path=path, tokens=len(order))
    return TokenFile(path=path, sha256=hashlib.sha256(order.data).hexdigest(), tokens=len(order))
