"""The learning rate of a step, as the recipe defines it."""

import math

import numpy as np

from orchestrator.contract.recipe import Stage


def learning_rate(stage: Stage, *, update: int) -> np.float32:
    """The rate of the stage's update u = ``update`` = 1, 2, …; computed on the host in float64, rounded once to fp32.

    Raises:
        ValueError: u < 1.
    """
    if update < 1:
        raise ValueError(f"stage {stage.name}: updates count from 1, not {update}")
    schedule = stage.schedule
    warmup = schedule.warmup_steps
    if update < warmup:
        return np.float32(schedule.peak * update / warmup)
    decay = schedule.decay_steps or max(1, stage.steps - warmup)
    return np.float32(schedule.peak * _remaining(schedule.kind, (update - warmup) / decay, schedule.final_fraction))


def _remaining(kind: str, progress: float, final: float) -> float:
    """Fraction of the peak after ``progress`` (0 … 1, and flat beyond) of the decay."""
    if kind == "constant":
        return 1.0
    if progress >= 1:
        return final
    if kind == "linear":
        return 1.0 + (final - 1.0) * progress
    return final + (1.0 - final) * 0.5 * (1.0 + math.cos(math.pi * progress))
