"""Virtual time: what happens next happens at once, and nobody waits."""

import heapq
from collections.abc import Callable

EPOCH = 1_700_000_000.0
"""Seconds since the epoch at the beginning of every simulation."""


class Timeline:
    """Actions in order of time. Running it may be nested: an action may run the timeline on, and then go on itself."""

    def __init__(self) -> None:
        self.now = 0.0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._added = 0

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        self.at(self.now + seconds, action)

    def at(self, when: float, action: Callable[[], None]) -> None:
        self._added += 1
        heapq.heappush(self._queue, (max(when, self.now), self._added, action))

    def run_until(self, until: float, *, or_when: Callable[[], bool] = lambda: False) -> None:
        """Do all that is due until then, or until a condition holds."""
        while self._queue and self._queue[0][0] <= until:
            if or_when():
                return
            when, _, action = heapq.heappop(self._queue)
            self.now = max(self.now, when)
            action()
        if or_when():
            return
        self.now = max(self.now, until)


class SimClock:
    """A controller's clocks: its wall clock may be wrong and jump, its monotonic clock is right."""

    def __init__(self, timeline: Timeline, *, booted: float) -> None:
        self._timeline = timeline
        self._booted = booted
        self.wrong_by = 0.0

    def time(self) -> float:
        return EPOCH + self._timeline.now + self.wrong_by

    def monotonic(self) -> float:
        return self._timeline.now - self._booted + 1000.0

    def wait(self, seconds: float) -> bool:
        raise AssertionError("a simulated controller is woken by the timeline")
