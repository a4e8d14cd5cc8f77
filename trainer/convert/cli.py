"""``everstep convert``: Hugging Face in and out. Imports what it needs when it is called: help is quick."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from orchestrator.contract.manifest import Manifest
    from orchestrator.store.run_store import RunStore


@click.group(invoke_without_command=True)
@click.pass_context
def convert(ctx: click.Context) -> None:
    """Weights and configurations as Hugging Face's Olmo 3 has them.

    Into a run they come by its recipe: initial: {folder: FOLDER}, a folder with config.json and safetensors below
    data_root; `everstep convert model FOLDER` prints the model that the recipe must have then.

    \b
    Examples:
      everstep convert model data/Olmo-3-1025-7B
      everstep convert export demo exported/
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@convert.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False, exists=True))
def model(folder: Path) -> None:
    """Print a folder's model as a recipe says it, once its weights have been looked over.

    \b
    Example:
      everstep convert model data/Olmo-3-1025-7B >> recipe.yaml

    Exit codes: 0 printed; 2 a file is missing or damaged, or it is no Olmo 3.
    """
    import yaml

    from trainer.convert.config import read_config
    from trainer.convert.weights import HuggingFaceWeights

    found = read_config(folder)
    with HuggingFaceWeights(folder, found):
        click.echo(
            yaml.safe_dump({"model": found.model_dump(mode="json", exclude_defaults=True)}, sort_keys=False), nl=False
        )


@convert.command()
@click.argument("run", metavar="RUN")
@click.argument("out", metavar="FOLDER", type=click.Path(path_type=Path))
@click.option(
    "--store",
    envvar="EVERSTEP_STORE",
    default="store",
    metavar="FOLDER",
    help="The object store.  [default: EVERSTEP_STORE, else ./store]",
)
@click.option("--step", type=click.IntRange(min=0), help="Of the checkpoint.  [default: the newest]")
@click.option(
    "--dtype", type=click.Choice(["bfloat16", "float32"]), default="bfloat16", show_default=True, help="Of the weights."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON: run, checkpoint, folder, files, bytes.")
def export(run: str, out: Path, store: str, step: int | None, dtype: Any, as_json: bool) -> None:
    """Write a checkpoint's weights for transformers, a file at a time.

    Rows of padding are left out. Tokenizer files are not part of a run; copy them beside the weights.

    \b
    Examples:
      everstep convert export demo exported/
      everstep convert export demo exported-1000/ --step 1000 --dtype float32

    Exit codes: 0 written; 2 no such checkpoint, or the folder is there; nothing is half-written.
    """
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # never take an accelerator from a run
    from rich.console import Console
    from rich.progress import Progress

    from orchestrator.store.opening import open_objects
    from orchestrator.store.run_store import RunStore
    from trainer.convert.export import export as write
    from trainer.convert.export import weight_bytes

    run_store = RunStore(open_objects(store), run)
    manifest = _checkpoint(run_store, step)
    size = weight_bytes(run_store.recipe(manifest.recipe_sha256).model, dtype)
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(f"writing {out}", total=size)
        files = write(run_store, manifest, out, dtype=dtype, progress=lambda count: bar.advance(task, count))
    if as_json:
        said = {"run": run, "checkpoint": manifest.name, "folder": str(out.absolute()), "files": files, "bytes": size}
        click.echo(json.dumps(said))
    else:
        click.echo(f"checkpoint {manifest.name} of run {run}: {size:,} bytes in {', '.join(files)} in {out}")


def _checkpoint(store: "RunStore", step: int | None) -> "Manifest":
    """Reachable from head; raises ContractError: there is none of that step."""
    from orchestrator.contract.base import ContractError
    from orchestrator.store.objects import NotFound

    try:
        head = store.head().value
    except NotFound as error:
        raise ContractError(f"no run {store.name} in {store.objects.address}; see everstep status") from error
    gone = store.tombstones()
    chain = [found for found in store.lineage(head.manifest) if found.name not in gone] if head.manifest else []
    for manifest in chain:
        if step is None or manifest.next_step == step:
            return manifest
    there = ", ".join(f"{found.next_step:,}" for found in chain[:8])
    raise ContractError(
        f"run {store.name} has no checkpoint" + (f" of step {step:,}; there are {there}" if there else " yet")
    )
