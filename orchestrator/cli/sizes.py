"""What a recipe needs, by arithmetic alone: parameters, bytes of a checkpoint, how often to save."""

import math
from dataclasses import dataclass

from orchestrator.contract.recipe import Model, Recipe
from orchestrator.contract.run import CheckpointPolicy

BYTES_A_PARAMETER = 12
"""In a checkpoint: the fp32 parameter and its two fp32 moments."""


def parameters(model: Model) -> int:
    """Of an Olmo 3 with untied embedding and head: matrices, and a scale for each channel of each norm."""
    width, keys = model.n_heads * model.head_dim, model.n_kv_heads * model.head_dim
    attention = 2 * model.d_model * width + 2 * model.d_model * keys + width + keys
    mlp = 3 * model.d_model * model.d_ff
    layer = attention + mlp + 2 * model.d_model
    return model.n_layers * layer + 2 * model.vocab_rows * model.d_model + model.d_model


def checkpoint_bytes(model: Model) -> int:
    """Of the arrays; Orbax adds a little for their description."""
    return BYTES_A_PARAMETER * parameters(model)


def kept_checkpoints(recipe: Recipe, policy: CheckpointPolicy) -> int:
    """Upper bound of the checkpoints that retention keeps at the end of a run, pins aside."""
    every = math.ceil(recipe.last_step / policy.keep_every) if policy.keep_every else 0
    wanted = policy.keep_newest + policy.keep_proven + len(recipe.stages) + every
    return min(wanted, 1 + sum(math.ceil(stage.steps / policy.every_steps) for stage in recipe.stages))


@dataclass(frozen=True, kw_only=True)
class IntervalAdvice:
    """How often to save so that saving and repeating cost least together."""

    seconds: float
    steps: int
    overhead_percent: float
    """Expected share of the time for saves and for steps computed twice, at that interval."""


def interval(*, save_seconds: float, mtbf_seconds: float, step_seconds: float) -> IntervalAdvice:
    """Daly's higher-order estimate of the best time between two saves.

    With cost δ of a save and mean time M between failures: √(2δM)·(1 + ⅓√(δ/2M) + δ/18M) − δ for δ < 2M, else M
    (J. T. Daly, A higher order estimate of the optimum checkpoint interval for restart dumps, 2006, eq. 37).

    Args:
        save_seconds: what a save keeps the next step waiting.
        mtbf_seconds: between disturbances of the whole run, not of one host.

    Raises:
        ValueError: a time that is not positive.
    """
    if min(save_seconds, mtbf_seconds, step_seconds) <= 0:
        raise ValueError("times must be positive")
    delta, mean = save_seconds, mtbf_seconds
    if delta < 2 * mean:
        ratio = delta / (2 * mean)
        best = math.sqrt(2 * delta * mean) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - delta
    else:
        best = mean
    steps = max(1, round(best / step_seconds))
    taken = steps * step_seconds
    overhead = delta / (taken + delta) + (taken + delta) / (2 * mean)
    return IntervalAdvice(seconds=best, steps=steps, overhead_percent=100 * min(overhead, 1.0))
