"""The learning rate of a step, as a scalar of the update."""

import numpy as np

from orchestrator.contract import schedule
from orchestrator.contract.recipe import Stage


def learning_rate(stage: Stage, *, update: int) -> np.float32:
    """``orchestrator.contract.schedule.learning_rate``, rounded to fp32 once."""
    return np.float32(schedule.learning_rate(stage, update=update))
