"""Time, as something that is passed in."""

import threading
import time
from typing import Protocol


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
    """The machine's clocks; ``stop()`` ends any wait at once."""

    def __init__(self) -> None:
        self._stopped = threading.Event()

    def time(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    def wait(self, seconds: float) -> bool:
        return self._stopped.wait(seconds)

    def stop(self) -> None:
        self._stopped.set()
