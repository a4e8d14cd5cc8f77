"""``everstep plan``: what a run needs, before it is submitted; no JAX, no data read."""

from pathlib import Path
from typing import ClassVar

import click
from rich.table import Table

from orchestrator.cli import sizes
from orchestrator.cli.errors import DOES_NOT_HOLD, BadInput
from orchestrator.cli.options import json_option
from orchestrator.cli.output import print_document, print_lines, print_table
from orchestrator.cli.placement_checks import why_illegal
from orchestrator.cli.run_file import RunDescription, read_run
from orchestrator.contract.base import Document, Part
from orchestrator.contract.recipe import Stage
from orchestrator.contract.run import Placement


class StagePlacement(Part):
    """A stage on a placement."""

    placement: str
    devices: int
    """P."""
    serves: bool
    """The policy means it for this stage."""
    legal: bool
    micro_steps: int | None
    """V / P; None where it is not legal."""
    why_not: str | None


class StagePlan(Part):
    stage: str
    steps: int
    virtual_ranks: int
    """V."""
    tokens_a_step: int
    tokens: int
    placements: tuple[StagePlacement, ...]
    """In order of preference."""


class IntervalPlan(Part):
    """How often to save, from what a save costs and how often something happens."""

    best_seconds: float
    best_steps: int
    overhead_percent: float
    policy_steps: int
    """What the policy says now."""


class Plan(Document):
    """What ``everstep plan --json`` says."""

    KIND: ClassVar[str] = "plan"

    run: str
    runnable: bool
    """Each stage has a legal placement."""
    parameters: int
    checkpoint_bytes: int
    kept_checkpoints: int
    """At most, at the end of the run, pins aside."""
    kept_bytes: int
    checkpoints: int
    """Saved over the whole run, the first one included."""
    last_step: int
    tokens: int
    stages: tuple[StagePlan, ...]
    interval: IntervalPlan | None
    """None: no times were given."""


@click.command()
@click.argument("file", metavar="RUN.YAML", type=click.Path(path_type=Path))
@click.option("--save-seconds", type=click.FloatRange(min=0, min_open=True), help="What a save keeps a step waiting.")
@click.option("--mtbf-hours", type=click.FloatRange(min=0, min_open=True), help="Between disturbances of the run.")
@click.option("--step-seconds", type=click.FloatRange(min=0, min_open=True), help="Of one step.")
@json_option(schema="plan")
@click.pass_context
def plan(
    ctx: click.Context,
    file: Path,
    save_seconds: float | None,
    mtbf_hours: float | None,
    step_seconds: float | None,
    as_json: bool,
) -> None:
    """Say which placement can run which stage, and what the run needs in bytes and tokens.

    With --save-seconds, --mtbf-hours and --step-seconds also how often to save (Young and Daly).

    \b
    Examples:
      everstep plan run.yaml
      everstep plan run.yaml --save-seconds 12 --mtbf-hours 9 --step-seconds 1.6

    Exit codes: 0 each stage has a placement; 1 one has none.
    """
    description = read_run(file)
    advice = _advice(description, save_seconds, mtbf_hours, step_seconds)
    found = plan_of(description, advice)
    if as_json:
        print_document(found)
    else:
        print_table(_table(found))
        print_lines(["", *_lines(found)])
    ctx.exit(0 if found.runnable else DOES_NOT_HOLD)


def plan_of(description: RunDescription, interval: IntervalPlan | None) -> Plan:
    recipe, policy = description.recipe, description.policy
    stages = tuple(_stage(stage, policy.placements) for stage in recipe.stages)
    kept = sizes.kept_checkpoints(recipe, policy.checkpoint)
    return Plan(
        run=description.name,
        runnable=all(any(place.legal for place in stage.placements) for stage in stages),
        parameters=sizes.parameters(recipe.model),
        checkpoint_bytes=sizes.checkpoint_bytes(recipe.model),
        kept_checkpoints=kept,
        kept_bytes=kept * sizes.checkpoint_bytes(recipe.model),
        checkpoints=1 + sum(-(-stage.steps // policy.checkpoint.every_steps) for stage in recipe.stages),
        last_step=recipe.last_step,
        tokens=sum(stage.tokens for stage in stages),
        stages=stages,
        interval=interval,
    )


def _stage(stage: Stage, placements: tuple[Placement, ...]) -> StagePlan:
    return StagePlan(
        stage=stage.name,
        steps=stage.steps,
        virtual_ranks=stage.virtual_ranks,
        tokens_a_step=stage.tokens_a_step,
        tokens=stage.tokens_a_step * stage.steps,
        placements=tuple(_on(placement, stage) for placement in placements),
    )


def _on(placement: Placement, stage: Stage) -> StagePlacement:
    reason = why_illegal(placement, stage)
    return StagePlacement(
        placement=placement.name,
        devices=placement.devices,
        serves=placement.serves(stage.name),
        legal=reason is None,
        micro_steps=stage.virtual_ranks // placement.devices if reason is None else None,
        why_not=reason,
    )


def _advice(
    description: RunDescription, save_seconds: float | None, mtbf_hours: float | None, step_seconds: float | None
) -> IntervalPlan | None:
    given = (save_seconds, mtbf_hours, step_seconds)
    if all(value is None for value in given):
        return None
    if save_seconds is None or mtbf_hours is None or step_seconds is None:
        raise BadInput("how often to save needs all of --save-seconds, --mtbf-hours and --step-seconds")
    found = sizes.interval(save_seconds=save_seconds, mtbf_seconds=3600 * mtbf_hours, step_seconds=step_seconds)
    return IntervalPlan(
        best_seconds=found.seconds,
        best_steps=found.steps,
        overhead_percent=found.overhead_percent,
        policy_steps=description.policy.checkpoint.every_steps,
    )


def _table(found: Plan) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("STAGE", "V", "PLACEMENT", "P", "MICRO-STEPS", ""):
        table.add_column(heading)
    for stage in found.stages:
        for place in (each for each in stage.placements if each.serves):
            micro_steps = "-" if place.micro_steps is None else str(place.micro_steps)
            remark = f"not legal: {place.why_not}" if place.why_not else ""
            table.add_row(
                stage.stage, str(stage.virtual_ranks), place.placement, str(place.devices), micro_steps, remark
            )
    return table


def _lines(found: Plan) -> list[str]:
    lines = [
        f"{found.parameters:,} parameters; {found.last_step:,} steps, {found.tokens:,} tokens",
        f"a checkpoint: {size(found.checkpoint_bytes)} (fp32 parameters and two moments); {found.checkpoints:,} saved",
        f"kept at most: {found.kept_checkpoints:,} checkpoints, {size(found.kept_bytes)}, besides pins",
    ]
    if found.interval is not None:
        advice = found.interval
        lines.append(
            f"save every {advice.best_steps:,} steps ({advice.best_seconds:,.0f} s), which costs "
            f"{advice.overhead_percent:.2f} % of the time; the policy says {advice.policy_steps:,}"
        )
    if not found.runnable:
        lines.append("a stage has no legal placement: change hosts x devices_per_host, or virtual_ranks")
    return lines


def size(count: float) -> str:
    """``84.0 GB``; powers of 1,000."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 1000 or unit == "TB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError("TB ends the loop")
