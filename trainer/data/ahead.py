"""Reading a batch while the one before it is computed, from files that do not answer at once."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

ReadRows = Callable[[int, NDArray[np.int64]], NDArray[np.uint32]]


class ReadAhead:
    """Reads batch after batch in one thread, always one more than was asked for.

    Args:
        read: tokens of some rows of a batch.
        batches: how many there are; none beyond is read ahead.
    """

    def __init__(self, read: ReadRows, *, batches: int) -> None:
        self._read = read
        self._batches = batches
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="ahead")
        self._next: tuple[tuple[int, bytes], Future[NDArray[np.uint32]]] | None = None

    def read(self, index: int, rows: NDArray[np.int64]) -> NDArray[np.uint32]:
        """Raises what ``read`` raises, at the batch that it was raised for."""
        key = (index, rows.tobytes())
        ready = self._next is not None and self._next[0] == key
        found = self._next[1] if self._next is not None and ready else self._pool.submit(self._read, index, rows)
        tokens = found.result()
        self._next = None
        if index + 1 < self._batches:
            self._next = ((index + 1, key[1]), self._pool.submit(self._read, index + 1, rows))
        return tokens
