"""Which instances make up which batch of a stage: a function of the recipe and of nothing else.

An instance is ``sequence_length`` consecutive tokens of one file; what is left over at a file's end is dropped.
Instances are numbered through the files in the recipe's order. Epoch e is the permutation that
``PCG64(seed + e).shuffle`` makes of ``arange(N, uint32)``, e = 0, 1, …; OLMo-core orders them so too, but its epochs
start at 1, so that its seed 34521 is 34522 here. Batch k of an epoch is
``order[k·B : (k+1)·B]``, B sequences for all devices together, and the N mod B instances at the end of an epoch are
left out. Row r of a batch belongs to virtual rank r // sequences_per_rank, so neither hosts nor devices come into it.
"""

import hashlib
import json
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from orchestrator.contract.recipe import Data, Stage
from orchestrator.order.token_files import DataRoot, opened


@dataclass(frozen=True)
class Place:
    """Where an instance is: a file of the recipe and the first token in it."""

    file: int
    """Index in ``Data.files``."""
    token: int


class GlobalOrder:
    """The batches of one stage. With a ``data_root`` written orders are read there; else they are computed.

    Raises:
        ValueError: a token file whose length is not known yet, or fewer instances than one batch needs.
        ContractError: a written order is missing, or is not as long as the recipe says.
        StoreUnavailable: it is in a bucket that cannot be asked.
    """

    def __init__(self, stage: Stage, *, data_root: DataRoot | None = None) -> None:
        self._stage = stage
        self._written = [] if data_root is None else opened(stage.data.orders, data_root=data_root)
        counts = [_tokens_of(stage, index) // stage.sequence_length for index in range(len(stage.data.files))]
        self._firsts = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        """First instance of each file, and N at the end."""
        if self.batches_an_epoch < 1:
            raise ValueError(
                f"stage {stage.name}: its token files hold {self.instances} instances of {stage.sequence_length} "
                f"tokens, and one batch takes {stage.global_batch}; add data or make the batch smaller"
            )
        self._epoch: tuple[int, NDArray[np.uint32]] | None = None

    @property
    def instances(self) -> int:
        """N: instances of one epoch, those that are left out at its end included."""
        return int(self._firsts[-1])

    @property
    def batches_an_epoch(self) -> int:
        return self.instances // self._stage.global_batch

    def batch(self, index: int) -> NDArray[np.uint32]:
        """Instance numbers of the stage's batch ``index`` = 0, 1, …, [global_batch], in the order of its rows.

        Of a written order only these are read; else the newest epoch's permutation is kept: 4 N bytes.
        """
        epoch, within = divmod(index, self.batches_an_epoch)
        size = self._stage.global_batch
        if epoch < len(self._written):
            return np.array(self._written[epoch][within * size : (within + 1) * size])
        if self._epoch is None or self._epoch[0] != epoch:
            self._epoch = (epoch, permutation(self.instances, seed=self._stage.data.seed + epoch))
        return self._epoch[1][within * size : (within + 1) * size]

    def place(self, instance: int) -> Place:
        """Raises IndexError: no such instance."""
        if not 0 <= instance < self.instances:
            raise IndexError(f"instance {instance} of {self.instances}")
        file = int(np.searchsorted(self._firsts, instance, side="right")) - 1
        return Place(file=file, token=(instance - int(self._firsts[file])) * self._stage.sequence_length)


def permutation(instances: int, *, seed: int) -> NDArray[np.uint32]:
    """The order of one epoch, [instances]."""
    order = np.arange(instances, dtype=np.uint32)
    np.random.Generator(np.random.PCG64(seed)).shuffle(order)
    return order


def data_sha256(data: Data) -> str:
    """What a stage reads, in one hash: its token files (names, lengths, hashes, in order) and the order's seed."""
    files = [[file.path, file.tokens, file.sha256 or f"{file.crc32c} {file.generation}"] for file in data.files]
    return hashlib.sha256(json.dumps({"files": files, "seed": data.seed}).encode()).hexdigest()


def _tokens_of(stage: Stage, index: int) -> int:
    file = stage.data.files[index]
    if file.tokens is None:
        raise ValueError(f"stage {stage.name}: the length of {file.path} is not in the recipe; submit fills it in")
    return file.tokens
