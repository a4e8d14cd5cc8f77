"""A step's token checksum, computed again from the recipe and the token files, without a device.

The trainer sums over the token ids as they lie on its devices; the same words come from the batch as an array
[virtual ranks, sequences of a rank, sequence length], because the checksum does not depend on where parts are.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from orchestrator.contract.checksum import checksum, words
from orchestrator.contract.recipe import Recipe, Stage
from orchestrator.order.global_order import GlobalOrder
from orchestrator.order.token_files import mapped


@dataclass(frozen=True, kw_only=True)
class TokenCheck:
    """How to compute a step's token checksum again, and of which steps."""

    checksum_of: Callable[[Recipe, int], str]
    """The words of a step, as the ledger has them."""
    every: int = 1000
    """Besides the first and last step of each attempt, each step that is a multiple of this."""


@dataclass(frozen=True)
class TokenFiles:
    """The token files below a ``data_root``; ``TokenCheck(checksum_of=TokenFiles(root).checksum_of)``."""

    data_root: Path
    _stages: dict[Stage, tuple[GlobalOrder, list[NDArray[np.uint32]]]] = field(default_factory=dict)

    def checksum_of(self, recipe: Recipe, step: int) -> str:
        """The words of step ``step``.

        Raises:
            ContractError: a token file is missing, or is not as long as the recipe says.
            ValueError: the recipe has no such step.
        """
        stage = recipe.stage_at(step)
        if stage is None:
            raise ValueError(f"step {step} is beyond the recipe's last step {recipe.last_step}")
        if stage not in self._stages:
            files = [mapped(file, data_root=self.data_root) for file in stage.data.files]
            self._stages[stage] = GlobalOrder(stage), files
        order, files = self._stages[stage]
        places = [order.place(int(instance)) for instance in order.batch(step - recipe.first_step_of(stage))]
        rows = [files[place.file][place.token : place.token + stage.sequence_length] for place in places]
        shape = (stage.virtual_ranks, stage.sequences_per_rank, stage.sequence_length)
        return words(checksum(np.stack(rows).astype(np.uint32).reshape(shape)))
