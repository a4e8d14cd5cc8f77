"""Whether the trainer takes the leaf plans of a run; asked before a run begins, answered without JAX.

    python -m trainer.check < leaf-plan-check.json

Exit codes: 0 it does; 2 it does not: what is wrong is on standard output, in a line each.
"""

import sys

from orchestrator.contract.base import ContractError
from orchestrator.contract.run import LeafPlanCheck
from trainer.parallel.plan import StepPlan


def problems(question: LeafPlanCheck) -> list[str]:
    """What is wrong with each generation's plan for each stage that it may run."""
    found = []
    for plan in question.plans:
        for name in question.stages[plan.generation]:
            stage = question.recipe.stage_named(name)
            try:
                StepPlan.from_leaf_settings(question.recipe.model, stage, settings=plan.settings)
            except ValueError as error:
                found.append(f"leaf_plans.{plan.generation}: {str(error).removeprefix('leaf plan: ')}")
    return list(dict.fromkeys(found))


def main() -> int:
    try:
        found = problems(LeafPlanCheck.from_bytes(sys.stdin.buffer.read(), where="standard input"))
    except ContractError as error:
        found = [str(error)]
    for line in found:
        print(line)
    return 2 if found else 0


if __name__ == "__main__":
    sys.exit(main())
