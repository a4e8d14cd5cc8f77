"""``everstep policy``: what may change on a live run."""

from pathlib import Path
from typing import Any

import click
import yaml

from orchestrator.cli import leaf_plan_checks, placement_checks
from orchestrator.cli.errors import BadInput
from orchestrator.cli.options import json_option, reason_option, run_argument, store_option, wait_option
from orchestrator.cli.output import print_document, print_lines
from orchestrator.cli.requests import ask
from orchestrator.cli.run_file import RunFile, run_file_at
from orchestrator.cli.stores import open_run, open_store
from orchestrator.cli.submission import FLEET_FILE, differences
from orchestrator.cli.yaml_files import read_yaml
from orchestrator.contract.base import sha256_of
from orchestrator.contract.run import LeafPlan, Policy
from orchestrator.fleet.local_fleet import LocalFleet
from orchestrator.store.objects import NotFound
from orchestrator.store.run_store import RunStore


@click.command()
@run_argument
@click.option(
    "--from", "file", type=click.Path(path_type=Path), metavar="RUN.YAML", help="Replace it with this file's policy."
)
@reason_option
@wait_option
@store_option
@json_option(schema="policy")
def policy(
    run: str, file: Path | None, reason: str, wait: bool, timeout: float, store: str | None, as_json: bool
) -> None:
    """Show a run's policy: placements, intervals, deadlines, budgets. Or replace it, checked as at submit.

    A new policy counts from the next decision on; what an attempt was told at its launch stays. With --from, --json
    prints the answer (docs/schemas/answer.json).

    \b
    Examples:
      everstep policy demo
      everstep policy demo --from run.yaml --reason "save more often"

    Exit codes: 0 shown or replaced; 1 another writer was first; 2 it does not fit the run.
    """
    run_store = open_run(open_store(store), run)
    now = run_store.policy()
    if file is None:
        _show(now.value, as_json=as_json)
        return
    described = run_file_at(file)
    changed = differences(now.value, described.policy, most=20)
    if not changed:
        print_lines([f"run {run} has this policy already; nothing was changed"])
        return
    plans = _checked_plans(run_store, described, where=str(file))
    for plan in plans:
        run_store.create_leaf_plan(plan)
    run_store.swap_policy(described.policy, generation=now.generation)
    arguments = {"changed": ", ".join(changed), "policy_sha256": sha256_of(described.policy.to_bytes())}
    ask(run_store, "policy", reason=reason, arguments=arguments, wait=wait, timeout=timeout, as_json=as_json)


def _show(document: Policy, *, as_json: bool) -> None:
    if as_json:
        print_document(document)
    else:
        print_lines([yaml.safe_dump({"policy": document.model_dump(mode="json")}, sort_keys=False).rstrip()])


def _checked_plans(store: RunStore, described: RunFile, *, where: str) -> tuple[LeafPlan, ...]:
    """Leaf plans of generations that the run did not have.

    Raises:
        BadInput: the new policy does not fit recipe or fleet, or asks for another leaf plan than the stored one.
    """
    known: dict[str, dict[str, Any]] = {}
    new = []
    for generation in sorted({placement.generation for placement in described.policy.placements}):
        wanted = described.leaf_plans.get(generation, {})
        try:
            known[generation] = store.leaf_plan(generation).settings
        except NotFound:
            known[generation] = wanted
            new.append(LeafPlan(generation=generation, settings=wanted))
        if generation in described.leaf_plans and known[generation] != wanted:
            raise BadInput(
                f"{where}: leaf_plans.{generation} is not the one that run {store.name} was submitted with, and cannot "
                "change; put the old one back"
            )
    fleet = read_yaml(Path(store.run().fleet) / FLEET_FILE, LocalFleet)
    recipe = store.recipe(store.revisions()[-1].recipe_sha256)
    placement_checks.check(described.policy, recipe=recipe, fleet=fleet, leaf_plans=known, where=where)
    plans = [LeafPlan(generation=generation, settings=settings) for generation, settings in known.items()]
    run = store.run()
    leaf_plan_checks.check(
        plans,
        command=run.check,
        recipe=recipe,
        policy=described.policy,
        data_root=run.data_root,
        where=where,
    )
    return tuple(new)
