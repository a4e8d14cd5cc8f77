"""``everstep preflight``: compile the real step for TPUs that nobody holds yet."""

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from orchestrator.contract.preflight import CompileAnswer, PlacementReport, PreflightReport, Topology
    from orchestrator.contract.recipe import Recipe, Stage
    from trainer.preflight.report import Wanted
    from trainer.preflight.search import Ask, Settings

DOES_NOT_HOLD = 1


@click.command()
@click.argument("recipe", metavar="NAME|FILE")
@click.option(
    "--on",
    "places",
    multiple=True,
    required=True,
    metavar="TOPOLOGY[@STAGE]",
    help="Slices and a stage, the preferred ones first; without a stage, all that they may run. Repeat.",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="A setting of the leaf plan; with one, no plan is looked for, and the others have their defaults. Repeat.",
)
@click.option("--layers", type=click.IntRange(min=1), metavar="N", help="Of the model, in place of all: a quick look.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Write the report to a file, too.")
@click.option(
    "--texts", type=click.Path(path_type=Path, file_okay=False), help="Keep the compiled programs' texts in a folder."
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON (schema preflight-report).")
def preflight(
    recipe: str,
    places: tuple[str, ...],
    settings: tuple[str, ...],
    layers: int | None,
    out: Path | None,
    texts: Path | None,
    as_json: bool,
) -> None:
    """Compile a recipe's step with the TPU compiler, for placements that need not be there.

    It says whether the step fits, what it computes again, what it sends, and whether bits will hold against the first
    placement of the stage: they do if every unit with float arithmetic is the same, tiles included. The leaf plan of a
    generation is the first that fits all its placements. A compile takes minutes and some GB of memory; answers are
    kept, so the same question is answered at once. No TPU is needed, and none is used.

    \b
    Examples:
      everstep preflight olmo3-7b --on tpu7x:4x8x8@pretrain --on tpu7x:4x4x4@pretrain
      everstep preflight olmo3-7b --on v5p:4x4x8@midtrain --on '2*tpu7x:4x4x4@midtrain' --out report.json
      everstep preflight recipe.yaml --on tpu7x:2x2x1 --set attention=splash --set scan=block --layers 4

    Exit codes: 0 all fit; 1 one does not; 2 the input is wrong.
    """
    from trainer.preflight.report import report

    wanted = _wanted(recipe, places, settings, layers)
    found = report(wanted, ask=_asking(wanted.recipe, texts), at=time.time())
    if out is not None:
        out.write_bytes(found.to_bytes())
    if as_json:
        click.echo(found.to_bytes(), nl=False)
    else:
        _print(found)
    if any(place.answer.outcome.kind != "compiled" for place in found.placements):
        click.get_current_context().exit(DOES_NOT_HOLD)


def _wanted(name: str, places: tuple[str, ...], settings: tuple[str, ...], layers: int | None) -> "Wanted":
    """Raises ContractError: a file, a topology, a stage or a setting is wrong."""
    from orchestrator.contract import strict_yaml
    from orchestrator.contract.base import ContractError
    from orchestrator.contract.recipe import Recipe
    from orchestrator.contract.shipped import recipe_path
    from trainer.preflight.report import Wanted

    path = recipe_path(name)
    try:
        recipe = Recipe.from_fields(strict_yaml.read(path), where=str(path))
        if layers is not None:
            fields = recipe.model.model_dump() | {"n_layers": layers}
            recipe = recipe.model_copy(update={"model": type(recipe.model).model_validate(fields)})
    except ValueError as error:
        if isinstance(error, ContractError):
            raise
        raise ContractError(f"--layers {layers}: {error.errors()[0]['msg']}") from error  # type: ignore[attr-defined]
    asked = [pair for place in places for pair in _places(place, recipe)]
    return Wanted(recipe=recipe, places=asked, pinned=_settings(settings) if settings else None)


def _places(text: str, recipe: "Recipe") -> list[tuple["Topology", "Stage"]]:
    from orchestrator.contract.base import ContractError
    from orchestrator.contract.preflight import Topology

    where, _, named = text.partition("@")
    try:
        topology = Topology.parse(where)
    except ValueError as error:
        raise ContractError(
            f"--on {text}: write it as tpu7x:4x8x8, or 2*tpu7x:4x4x4 for two slices, and @STAGE behind it"
        ) from error
    stages = {stage.name: stage for stage in recipe.stages}
    if named and named not in stages:
        raise ContractError(f"--on {text}: recipe {recipe.name} has no stage {named!r}; it has {', '.join(stages)}")
    return [(topology, stage) for stage in stages.values() if not named or stage.name == named]


def _settings(pairs: tuple[str, ...]) -> "Settings":
    from orchestrator.contract.base import ContractError

    settings: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise ContractError(f"--set {pair}: write it as NAME=VALUE, for instance remat=layer")
        settings[name] = int(value) if value.isdigit() else value
    return settings


def _asking(recipe: "Recipe", texts: Path | None) -> "Ask":
    """What asks the compiler and says on standard error what it is at."""
    from rich.console import Console

    from orchestrator.contract.preflight import CompileQuestion
    from trainer.preflight.ask import ask
    from trainer.versions import LOADED, NUMERIC_PACKAGES

    console = Console(stderr=True, highlight=False)
    kept = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "everstep" / "preflight"
    software = {name: LOADED.packages[name] for name in NUMERIC_PACKAGES} | {"sources": LOADED.sources}

    def asking(topology: "Topology", stage: "Stage", settings: "Settings") -> "CompileAnswer":
        question = CompileQuestion(model=recipe.model, stage=stage, topology=topology, settings=dict(settings))
        what = f"{topology}, {stage.name}, remat {settings.get('remat', 'layer')}"
        with console.status(f"compiling {what}"):
            answer = ask(question, kept=kept, software=software, texts=texts)
        console.print(f"{what}: {_outcome(answer)} ({answer.seconds:.0f} s)", soft_wrap=True)
        return answer

    if texts is not None:
        texts.mkdir(parents=True, exist_ok=True)
    return asking


def _outcome(answer: "CompileAnswer") -> str:
    outcome = answer.outcome
    if outcome.kind == "compiled":
        return f"fits, {_gb(outcome.peak_bytes)} at the peak"
    return f"refused: {outcome.reason}"


def _print(found: "PreflightReport") -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    columns = ("placement", "stage", "devices", "micro", "peak", "arguments", "temporary", "FLOPs", "again")
    for column in (*columns, "gathered", "exchanged", "waits for", "compile", "bits"):
        table.add_column(column.upper(), justify="left" if column in ("placement", "stage", "bits") else "right")
    for place in found.placements:
        table.add_row(*_row(place))
    console = Console(highlight=False)
    for generation, settings in found.settings.items():
        said = ", ".join(f"{name} {value}" for name, value in settings.items())
        console.print(f"leaf plan of {generation}: {said}", soft_wrap=True)
    (console if console.is_terminal else Console(highlight=False, width=240)).print(table)
    for place in found.placements:
        for line in _differences(place):
            console.print(line, soft_wrap=True)


def _row(place: "PlacementReport") -> tuple[str, ...]:
    answer, outcome = place.answer, place.answer.outcome
    begin = (str(place.topology), place.stage, f"{answer.devices:,}", f"{answer.micro_steps}")
    if outcome.kind != "compiled":
        why = "does not fit" if outcome.out_of_memory else "refused"
        return (*begin, why, *[""] * 7, f"{answer.seconds:.0f} s", "")

    def sent(*kinds: str) -> str:
        return _gb(sum(one.bytes for one in outcome.collectives if one.kind in kinds))

    waiting = _gb(sum(one.bytes for one in outcome.collectives if not one.asynchronous))
    return (
        *begin,
        *(_gb(size) for size in (outcome.peak_bytes, outcome.argument_bytes, outcome.temporary_bytes)),
        f"{outcome.flops / 1e12:.1f} T",
        f"{100 * (outcome.flops / outcome.model_flops - 1):.1f} %",
        sent("all-gather", "all-reduce"),
        sent("all-to-all", "reduce-scatter", "collective-permute"),
        waiting,
        f"{answer.seconds:.0f} s",
        _bits(place),
    )


def _bits(place: "PlacementReport") -> str:
    said = {"equal": "will hold", "bounded": "bounded only", "reference": "reference", "unknown": "unknown"}[place.bits]
    return f"{said}: {place.equal_units} of {place.units} units" if place.bits in ("equal", "bounded") else said


def _differences(place: "PlacementReport") -> list[str]:
    if place.bits != "bounded":
        return []
    lines = [f"{place.topology}, {place.stage}: other than in the first placement:"]
    lines += [f"  only here: {label:.200}" for label in place.only_here[:20]]
    return lines + [f"  only there: {label:.200}" for label in place.only_there[:20]]


def _gb(size: int) -> str:
    return f"{size / 1e9:.1f} GB"
