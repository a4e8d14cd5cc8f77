"""Writing the ledger: records in order, in segments that are closed about once a second.

A record is in the store for good once its segment is closed; a process that is killed loses the last second at most. A
store that does not answer loses nothing: the segment is tried again, unchanged, and later records wait in memory.
"""

import threading
import time
from collections import deque

from orchestrator.contract.ledger import Record
from orchestrator.store.objects import StoreError, StoreUnavailable
from orchestrator.store.run_store import RunStore

CLOSE_AFTER = 1.0
"""Seconds that a record may wait."""
CLOSE_AT = 100
"""Records of a full segment."""
TRY_AGAIN_AFTER = 1.0
"""Seconds between two tries while the store does not answer."""
WITNESS_SECONDS = 60.0
"""That a checkpoint waits for the step beyond it: it is worth more than a witness of the next move."""


class LedgerWriter:
    """The ledger of one attempt; written by process 0 alone, from a thread of its own."""

    def __init__(
        self,
        store: RunStore,
        *,
        attempt: int,
        close_after: float = CLOSE_AFTER,
        close_at: int = CLOSE_AT,
        try_again_after: float = TRY_AGAIN_AFTER,
        witness_seconds: float = WITNESS_SECONDS,
    ) -> None:
        self._store = store
        self._attempt = attempt
        self._close_after = close_after
        self._close_at = close_at
        self._try_again_after = try_again_after
        self._witness_seconds = witness_seconds
        self._changed = threading.Condition()
        self._waiting: deque[Record] = deque()
        self._oldest_at = 0.0
        self._newest = -1
        self._segments = 0
        self._in_hand: list[Record] = []
        """The segment that is being closed; it does not grow when it has to be tried again."""
        self._urgent = False
        self._stopped = False
        self._problem: StoreError | None = None
        self._thread = threading.Thread(target=self._keep_closing, name="ledger", daemon=True)
        self._thread.start()

    def add(self, record: Record) -> None:
        """Take a record; returns at once.

        Raises:
            StoreError: an earlier segment can never be written (its name is taken by other content).
        """
        with self._changed:
            self._raise_if_lost()
            if not self._waiting:
                self._oldest_at = time.monotonic()
            self._waiting.append(record)
            self._newest = record.step
            self._changed.notify_all()

    @property
    def problem(self) -> str | None:
        """Why records are waiting; None when the store takes them."""
        found = self._problem
        return None if found is None else str(found)

    def flush(self, *, seconds: float, witness: int | None = None) -> None:
        """Return when all records taken so far are in closed segments; ``witness``: a step whose record is waited for.

        A step that hangs keeps nobody waiting for long: what is there is written without it.

        Raises:
            StoreUnavailable: the store took them not within this time; they go on waiting.
            StoreError: they can never be written.
        """
        with self._changed:
            if witness is not None:
                self._changed.wait_for(lambda: self._newest >= witness, timeout=self._witness_seconds)
            self._urgent = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._empty or self._lost, timeout=seconds)
            self._urgent = False
            self._raise_if_lost()
            if not self._empty:
                raise StoreUnavailable(
                    f"ledger: {len(self._waiting) + len(self._in_hand)} records wait: {self._problem}"
                )

    def close(self, *, seconds: float) -> None:
        """Flush, then take no more. Raises as ``flush`` does, and is closed all the same."""
        try:
            self.flush(seconds=seconds)
        finally:
            with self._changed:
                self._stopped = True
                self._changed.notify_all()
            self._thread.join(timeout=seconds)

    @property
    def _empty(self) -> bool:
        return not self._waiting and not self._in_hand

    @property
    def _lost(self) -> bool:
        return self._problem is not None and not isinstance(self._problem, StoreUnavailable)

    def _raise_if_lost(self) -> None:
        if self._lost:
            assert self._problem is not None
            raise self._problem

    def _keep_closing(self) -> None:
        while self._take_segment():
            while not self._close_segment():
                with self._changed:
                    if self._stopped or self._lost:
                        return
                    self._changed.wait(self._try_again_after)

    def _take_segment(self) -> bool:
        """Wait until a segment is due and take it in hand; False when there will be none."""
        with self._changed:
            while not self._due():
                if self._stopped:
                    return False
                left = self._oldest_at + self._close_after - time.monotonic() if self._waiting else None
                self._changed.wait(left)
            self._in_hand = [self._waiting.popleft() for _ in range(min(self._close_at, len(self._waiting)))]
            self._oldest_at = time.monotonic()
            return True

    def _due(self) -> bool:
        if not self._waiting:
            return False
        aged = time.monotonic() >= self._oldest_at + self._close_after
        return aged or self._urgent or self._stopped or len(self._waiting) >= self._close_at

    def _close_segment(self) -> bool:
        try:
            self._store.create_segment(self._attempt, self._segments, self._in_hand)
        except StoreError as error:
            self._problem = error
            done = False
        else:
            self._problem, self._segments = None, self._segments + 1
            done = True
        with self._changed:
            if done:
                self._in_hand = []
            self._changed.notify_all()
        return done
