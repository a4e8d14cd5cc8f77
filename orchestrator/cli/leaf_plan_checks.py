"""What the trainer says of a run's leaf plans and initial weights, which mean something to it alone."""

import subprocess
from collections.abc import Iterable, Sequence

from orchestrator.cli.errors import BadInput
from orchestrator.contract.recipe import Recipe
from orchestrator.contract.run import LeafPlan, LeafPlanCheck, Policy

SECONDS = 120.0
"""For an answer."""


def check(
    plans: Iterable[LeafPlan], *, command: Sequence[str], recipe: Recipe, policy: Policy, data_root: str, where: str
) -> None:
    """Ask the trainer about plans that have settings, and about weights; without a ``command`` nobody is asked.

    Raises:
        BadInput: it does not take them, or does not answer; one line.
    """
    asked = tuple(plan for plan in plans if plan.settings)
    if not (asked or recipe.initial) or not command:
        return
    question = LeafPlanCheck(recipe=recipe, plans=asked, stages=_stages(policy, recipe), data_root=data_root)
    without = f"correct `check` in {where}, or go without: check: []"
    try:
        done = subprocess.run(
            list(command), input=question.to_bytes(), capture_output=True, timeout=SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BadInput(f"{where}: the trainer cannot be asked: {error}; {without}") from error
    said = done.stdout.decode(errors="replace").splitlines()
    if done.returncode == 2 and said:
        raise BadInput(f"{where}: {said[0]}" + (f" (and {len(said) - 1} more)" if said[1:] else ""))
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["it said nothing"]
        raise BadInput(f"{where}: {' '.join(command)} ended with {done.returncode}: {last[0]}; {without}")


def _stages(policy: Policy, recipe: Recipe) -> dict[str, tuple[str, ...]]:
    served: dict[str, dict[str, None]] = {placement.generation: {} for placement in policy.placements}
    for stage in recipe.stages:
        for placement in policy.legal_for(recipe, stage.name):
            served[placement.generation][stage.name] = None
    return {generation: tuple(names) for generation, names in served.items()}
