"""Time, as something that is passed in."""

import time
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Protocol

HURRY_FOR, HURRIED = 0.5, 0.03
"""Seconds after a wake in which waits are short, and how short: what a dead process held is free a moment after it."""


class Clock(Protocol):
    """Wall time for records, monotonic time for durations, and waiting that can be ended."""

    def time(self) -> float:
        """Seconds since the epoch."""
        ...

    def monotonic(self) -> float:
        """Seconds of a clock that never jumps."""
        ...

    def wait(self, seconds: float) -> bool:
        """Wait; True when it was ended early because the controller must stop."""
        ...


class SystemClock:
    """The machine's clocks; ``stop()`` ends any wait at once, ``wake()`` the one that goes on, or else the next.

    Both may be called by a signal's handler: a put never waits for what the interrupted thread holds.
    """

    def __init__(self) -> None:
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._stopped = False
        self._hurry_until = 0.0

    def time(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    def wait(self, seconds: float) -> bool:
        if self.monotonic() < self._hurry_until:
            seconds = min(seconds, HURRIED)
        if not self._stopped:
            with suppress(Empty):
                self._bell.get(timeout=seconds)
                self._hurry_until = self.monotonic() + HURRY_FOR
        return self._stopped

    def wake(self) -> None:
        self._bell.put(None)

    def stop(self) -> None:
        self._stopped = True
        self.wake()
