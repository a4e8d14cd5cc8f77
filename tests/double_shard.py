"""A loader that shards twice: each host takes its rows of the global order, and samples again inside that shard.

Every host still reads only what is its own, and batches look like batches; but they are not those of the recipe, and
where the second sampling draws with replacement a quarter of the corpus is seen twice or more while a third is not
seen at all.
"""

from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from orchestrator.contract.recipe import Stage
from orchestrator.order.global_order import GlobalOrder, permutation

Again = Literal["permuted", "drawn"]
"""The order is applied to the shard once more; or the shard is drawn from, with replacement."""


class OrderedTwice(GlobalOrder):
    """The first epoch of a stage as hosts with one device each read it after they have sharded twice."""

    def __init__(self, stage: Stage, *, hosts: int, again: Again, data_root: Path | None = None) -> None:
        super().__init__(stage, data_root=data_root)
        self._seed = stage.data.seed
        self._host_of_row = np.arange(stage.global_batch) // stage.sequences_per_rank % hosts
        """Virtual rank v is on device v mod P."""
        self._hosts = hosts
        self._again = again

    def batch(self, index: int) -> NDArray[np.uint32]:
        return self.epoch[index]

    @cached_property
    def epoch(self) -> NDArray[np.uint32]:
        """Instance numbers, [batches, global_batch]."""
        honest = super().batch
        found = np.stack([honest(index) for index in range(self.batches_an_epoch)])
        for host in range(self._hosts):
            rows = self._host_of_row == host
            shard = found[:, rows].reshape(-1)
            found[:, rows] = shard[self._places(len(shard), host)].reshape(len(found), -1)
        return found

    def _places(self, length: int, host: int) -> NDArray[np.int64]:
        if self._again == "permuted":
            return permutation(length, seed=self._seed).astype(np.int64)
        return np.random.default_rng([self._seed, host]).integers(0, length, length)
