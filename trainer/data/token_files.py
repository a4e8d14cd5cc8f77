"""The batches of a stage from its token files, which are checked against the recipe.

Checked are: length, before anything else; SHA-256, of as much as is read in some seconds, in the background while the
program compiles, of other files at each start; and every token id that goes into a batch.
"""

import hashlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from orchestrator.contract.base import ContractError
from orchestrator.contract.recipe import Stage
from orchestrator.order.global_order import GlobalOrder
from orchestrator.order.token_files import mapped

HASHED_BYTES = 1 << 30
"""A start hashes files up to this size: under a second each."""
HASHED_IN_ALL = 4 << 30
"""And so much of them together: a corpus of terabytes would take hours."""


class StageBatches:
    """The batches of a stage, read from its files below ``data_root``.

    Raises:
        ContractError: a file that is missing, or is not as long as the recipe says; in one line.
    """

    def __init__(self, stage: Stage, *, vocab_size: int, data_root: Path) -> None:
        self._stage = stage
        self._vocab_size = vocab_size
        self._root = data_root
        self._order = GlobalOrder(stage, data_root=data_root)
        self._files = [mapped(file, data_root=data_root) for file in stage.data.files]

    def read(self, index: int, rows: NDArray[np.int64]) -> NDArray[np.uint32]:
        """Tokens of some rows of batch ``index`` of the stage, [rows, sequence_length].

        Raises:
            ContractError: a token id that the model does not have.
        """
        instances = self._order.batch(index)
        out = np.empty((len(rows), self._stage.sequence_length), np.uint32)
        for target, row in zip(out, rows, strict=True):
            self._read_instance(int(instances[row]), target)
        return out

    def prepare(self, index: int) -> None:
        """Make the permutation that batch ``index`` needs: for a real corpus it takes longer than a compile."""
        self._order.batch(index)

    def verify_hashes(self, *, turn: int) -> None:
        """Hash files that are small enough, as many as a start has time for; each ``turn`` begins with another one.

        Raises:
            ContractError: other bytes than those the run was submitted with.
        """
        pairs = list(zip(self._stage.data.files, self._files, strict=True))
        begin, left = turn % len(pairs), HASHED_IN_ALL
        for file, tokens in pairs[begin:] + pairs[:begin]:
            if file.sha256 is None or tokens.nbytes > min(HASHED_BYTES, left):
                continue
            left -= tokens.nbytes
            found = hashlib.sha256(tokens.data).hexdigest()
            if found != file.sha256:
                raise ContractError(
                    f"{self._root / file.path}: its SHA-256 is {found[:12]}…, the recipe says {file.sha256[:12]}…; "
                    "restore the file that the run was submitted with"
                )

    def _read_instance(self, instance: int, target: NDArray[np.uint32]) -> None:
        place = self._order.place(instance)
        target[:] = self._files[place.file][place.token : place.token + len(target)]
        largest = int(target.max())
        if largest >= self._vocab_size:
            offset = place.token + int(target.argmax())
            raise ContractError(
                f"{self._root / self._stage.data.files[place.file].path}: token {offset} is {largest}, but the model's "
                f"vocab_size is {self._vocab_size}; tokenize again with this vocabulary, or correct the recipe"
            )
