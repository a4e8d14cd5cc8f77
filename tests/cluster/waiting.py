"""Waiting for what is seen: look, and look again until a deadline."""

import time
from collections.abc import Callable
from typing import TypeVar

POLL_SECONDS = 0.05
SECONDS = 120.0
"""A machine with two cores that compiles at the same time is slow."""

T = TypeVar("T")


def wait_until(
    look: Callable[[], T | None], what: str, *, seconds: float = SECONDS, story: Callable[[], str] = lambda: ""
) -> T:
    """What ``look`` returned when it was true. Raises TimeoutError, with ``story``."""
    deadline = time.monotonic() + seconds
    while not (seen := look()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds:.0f} s: {what}\n{story()}")
        time.sleep(POLL_SECONDS)
    return seen
