"""Where this process is, written over and over into the store so that others can tell slow from stuck.

The counter rises with steps and phases only, never with time, so a process that hangs looks like one. A store that does
not answer is no reason to stop: the newest state is written when it answers again.
"""

import os
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Literal

from orchestrator.contract.attempt import Phase, PhaseStart, Progress
from orchestrator.store.objects import StoreError
from orchestrator.store.run_store import RunStore

SKIPPED_SHOWN = 20
"""Skipped steps that a report names."""
MEDIAN_OF = 32
"""Steps that the median step time is taken over."""


class ProgressReport:
    """The progress file of one process. The first write is made by the first ``enter``, before it returns."""

    def __init__(
        self,
        store: RunStore,
        *,
        attempt: int,
        process: int,
        interval: float = 1.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._attempt = attempt
        self._process = process
        self._interval = interval
        self._clock = clock
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._wake = threading.Event()
        self._stopped = False
        self._thread: threading.Thread | None = None
        self._counter = 0
        self._phases: list[PhaseStart] = []
        self._step: int | None = None
        self._seconds: deque[float] = deque(maxlen=MEDIAN_OF)
        self._first_new_step_at: float | None = None
        self._compile_cache: Literal["hit", "miss", "off"] | None = None
        self._save_error: str | None = None
        self._save_failures = 0
        self._skipped: deque[int] = deque(maxlen=SKIPPED_SHOWN)
        self.beside: Callable[[], None] = lambda: None
        """Called after each write of the thread that writes: for what also looks at the store at this pace."""

    @property
    def step(self) -> int | None:
        """The last step that was computed."""
        return self._step

    def enter(self, phase: Phase) -> None:
        """A new phase; written at once. Entering the phase that one is in changes nothing."""
        with self._lock:
            if self._phases and self._phases[-1].phase == phase:
                return
            self._phases.append(PhaseStart(phase=phase, at=self._clock()))
            self._counter += 1
        self._write()
        if self._thread is None:
            self._thread = threading.Thread(target=self._keep_writing, name="progress", daemon=True)
            self._thread.start()

    def finish_step(self, step: int, *, seconds: float, new: bool) -> None:
        """A step was computed; ``new``: it counts, and no earlier attempt had recorded it."""
        with self._lock:
            self._step = step
            self._counter += 1
            self._seconds.append(seconds)
            if new and self._first_new_step_at is None:
                self._first_new_step_at = self._clock()
                self._wake.set()

    def set_compile_cache(self, found: Literal["hit", "miss", "off"]) -> None:
        with self._lock:
            self._compile_cache = found

    def step_skipped(self, step: int) -> None:
        """A step was left out."""
        with self._lock:
            self._skipped.append(step)
        self._wake.set()

    def save_failed(self, problem: str) -> None:
        with self._lock:
            self._save_error = problem
            self._save_failures += 1
        self._wake.set()

    def records_wait(self, problem: str) -> None:
        """The store does not take the ledger; nothing is lost while this process lives."""
        with self._lock:
            self._save_error = f"ledger: {problem}"

    def save_committed(self) -> None:
        """What had gone wrong is over; the count stays."""
        with self._lock:
            self._save_error = None

    def stop(self) -> None:
        """Write the last state and no more after it."""
        self._stopped = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
        self._write()

    def snapshot(self) -> Progress:
        with self._lock:
            return Progress(
                attempt=self._attempt,
                process=self._process,
                pid=os.getpid(),
                phase=self._phases[-1].phase,
                step=self._step,
                counter=self._counter,
                phases=tuple(self._phases),
                first_new_step_at=self._first_new_step_at,
                step_seconds=statistics.median(self._seconds) if self._seconds else None,
                compile_cache=self._compile_cache,
                save_error=self._save_error,
                save_failures=self._save_failures,
                skipped=tuple(self._skipped),
                at=self._clock(),
            )

    def _write(self) -> None:
        with self._writing:
            try:
                self._store.write_progress(self.snapshot())
            except StoreError as error:
                print(f"everstep: progress is not written: {error}", flush=True)

    def _keep_writing(self) -> None:
        while not self._stopped:
            self._wake.wait(self._interval)
            self._wake.clear()
            if not self._stopped:
                self._write()
                self.beside()
