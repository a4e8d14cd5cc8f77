"""The learning rate of an update, as the recipe defines it: without an accelerator, for trainers and people alike."""

import math

from orchestrator.contract.recipe import Decay, Stage


def learning_rate(stage: Stage, *, update: int) -> float:
    """The rate of the stage's update u = ``update`` = 1, 2, …, in float64; a trainer rounds it to fp32 once.

    Raises:
        ValueError: u < 1.
    """
    if update < 1:
        raise ValueError(f"stage {stage.name}: updates count from 1, not {update}")
    schedule = stage.schedule
    for part in reversed(schedule.continuations):
        if update > part.after:
            return schedule.peak * _remaining(part.kind, (update - part.after) / part.decay_steps, part.final_fraction)
    warmup = schedule.warmup_steps
    if update < warmup:
        return schedule.peak * update / warmup
    decay = schedule.decay_steps or max(1, stage.steps - warmup)
    return schedule.peak * _remaining(schedule.kind, (update - warmup) / decay, schedule.final_fraction)


def _remaining(kind: Decay, progress: float, final: float) -> float:
    """Fraction of the peak after ``progress`` (0 … 1, and flat beyond) of the decay."""
    if kind == "constant":
        return 1.0
    if progress >= 1:
        return final
    if kind == "linear":
        return 1.0 + (final - 1.0) * progress
    turned = (1.0 + progress) / 2 if kind == "half-cosine" else progress
    return final + (1.0 - final) * 0.5 * (1.0 + math.cos(math.pi * turned))
