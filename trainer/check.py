"""Whether the trainer takes a run's leaf plans and initial weights; asked before it begins, answered without JAX.

    python -m trainer.check < leaf-plan-check.json

Exit codes: 0 it does; 2 it does not: what is wrong is on standard output, in a line each.
"""

import sys
from pathlib import Path

from orchestrator.contract.base import ContractError
from orchestrator.contract.recipe import Model
from orchestrator.contract.run import LeafPlanCheck
from trainer.parallel.plan import StepPlan

UNSEEN_IN_SHAPES = ("n_heads", "n_kv_heads", "head_dim", "global_every", "sliding_window", "norm_eps")
"""Fields of a model that weights of equal shapes may have been trained with another value of."""


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
    if question.recipe.initial is not None:
        found += _problems_of_weights(Path(question.data_root) / question.recipe.initial.folder, question.recipe.model)
    return list(dict.fromkeys(found))


def _problems_of_weights(folder: Path, model: Model) -> list[str]:
    """What is wrong with a folder of weights for this model; reads no weight.

    Positions may be meant to change, as when the context grows; what else the shapes do not show may not.
    """
    from trainer.convert.config import read_config
    from trainer.convert.weights import HuggingFaceWeights

    try:
        with HuggingFaceWeights(folder, model):
            theirs = read_config(folder)
    except ContractError as error:
        return [f"initial: {error}"]
    pairs = {field: (getattr(theirs, field), getattr(model, field)) for field in UNSEEN_IN_SHAPES}
    return [
        f"initial: {folder}: config.json has {field} {one}, the recipe's model {other}"
        for field, (one, other) in pairs.items()
        if one != other
    ]


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
