"""The batches of a stage from its token files, which are checked against the recipe.

Checked are: length, before anything else; SHA-256, of as much as is read in some seconds, in the background while the
program compiles, of other files at each start; and every token id that goes into a batch. Files in buckets are read by
range, a batch ahead; meanwhile what the service says of all of them is compared, and each answer is of the generation
that the run was submitted with.
"""

import hashlib

import numpy as np
from numpy.typing import NDArray

from orchestrator.contract.base import ContractError
from orchestrator.contract.recipe import Stage
from orchestrator.order.global_order import GlobalOrder, Place
from orchestrator.order.token_files import BucketTokens, DataRoot, address_of, compare_objects, opened, read_rows
from trainer.data.ahead import ReadAhead

HASHED_BYTES = 1 << 30
"""A start hashes files up to this size: under a second each."""
HASHED_IN_ALL = 4 << 30
"""And so much of them together: a corpus of terabytes would take hours."""


class StageBatches:
    """The batches of a stage, read from its files below ``data_root``.

    Raises:
        ContractError: a file that is missing, or is not as long as the recipe says; in one line.
        StoreUnavailable: files are in a bucket, and there are no credentials, or its client is not installed.
    """

    def __init__(self, stage: Stage, *, vocab_size: int, data_root: DataRoot) -> None:
        self._stage = stage
        self._vocab_size = vocab_size
        self._root = data_root
        self._order = GlobalOrder(stage, data_root=data_root)
        self._files = opened(stage.data.files, data_root=data_root)
        away = any(isinstance(tokens, BucketTokens) for tokens in self._files)
        self._ahead = ReadAhead(self._read, batches=stage.steps) if away else None

    def read(self, index: int, rows: NDArray[np.int64]) -> NDArray[np.uint32]:
        """Tokens of some rows of batch ``index`` of the stage, [rows, sequence_length].

        Raises:
            ContractError: a token id that the model does not have, or a file in a bucket that is not as it was.
            StoreUnavailable: a bucket does not answer for some time.
        """
        return self._ahead.read(index, rows) if self._ahead else self._read(index, rows)

    def _read(self, index: int, rows: NDArray[np.int64]) -> NDArray[np.uint32]:
        instances = self._order.batch(index)
        places = [self._order.place(int(instances[row])) for row in rows]
        length = self._stage.sequence_length
        found = read_rows([(self._files[place.file], place.token) for place in places], length=length)
        for place, tokens in zip(places, found, strict=True):
            self._check(place, tokens)
        return np.stack(found).astype(np.uint32)

    def prepare(self, index: int) -> None:
        """Make the permutation that batch ``index`` needs: for a real corpus it takes longer than a compile."""
        self._order.batch(index)

    def verify_hashes(self, *, turn: int) -> None:
        """Hash files that are small enough, as many as a start has time for; each ``turn`` begins with another one.

        Of files in buckets all hashes are compared, which the service knows.

        Raises:
            ContractError: other bytes than those the run was submitted with.
            StoreUnavailable: a bucket cannot be asked.
        """
        compare_objects([*self._stage.data.files, *self._stage.data.orders], data_root=self._root)
        pairs = list(zip(self._stage.data.files, self._files, strict=True))
        begin, left = turn % len(pairs), HASHED_IN_ALL
        for file, tokens in pairs[begin:] + pairs[:begin]:
            if file.sha256 is None or not isinstance(tokens, np.memmap) or tokens.nbytes > min(HASHED_BYTES, left):
                continue
            left -= tokens.nbytes
            found = hashlib.sha256(tokens.data).hexdigest()
            if found != file.sha256:
                where = address_of(file, data_root=self._root)
                raise ContractError(
                    f"{where}: its SHA-256 is {found[:12]}…, the recipe says {file.sha256[:12]}…; "
                    "restore the file that the run was submitted with"
                )

    def _check(self, place: Place, tokens: NDArray[np.uint32]) -> None:
        largest = int(tokens.max())
        if largest >= self._vocab_size:
            offset = place.token + int(tokens.argmax())
            where = address_of(self._stage.data.files[place.file], data_root=self._root)
            raise ContractError(
                f"{where}: token {offset} is {largest}, but the model's vocab_size is {self._vocab_size}; tokenize "
                "again with this vocabulary, or correct the recipe"
            )
