"""The machine's clock: what ends a wait."""

import subprocess
import sys
import time

from orchestrator.cli.run_controller import Commentary, _roused_by_signals
from orchestrator.controller.clock import HURRIED, HURRY_FOR, SystemClock
from orchestrator.store.memory import MemoryStore
from orchestrator.store.run_store import RunStore

LONG = 20.0


def seconds_of(clock: SystemClock, *, asked: float = LONG) -> float:
    """That a wait takes, which is not ended by ``stop``."""
    begin = time.monotonic()
    assert not clock.wait(asked)
    return time.monotonic() - begin


def test_a_wake_ends_one_wait_and_the_next_ones_are_short_for_a_while() -> None:
    clock = SystemClock()
    clock.wake()
    assert seconds_of(clock) < LONG / 2
    until = time.monotonic() + HURRY_FOR
    assert HURRIED <= seconds_of(clock) < LONG / 2
    while time.monotonic() <= until:
        clock.wait(HURRIED)
    assert seconds_of(clock, asked=4 * HURRIED) >= 4 * HURRIED


def test_a_stop_ends_all_waits() -> None:
    clock = SystemClock()
    clock.stop()
    assert [clock.wait(LONG) for _ in range(3)] == [True] * 3


def test_the_death_of_a_child_ends_the_wait_of_a_controller() -> None:
    clock = Commentary(RunStore(MemoryStore(), "demo"), say=lambda _: None)
    with _roused_by_signals(clock), subprocess.Popen([sys.executable, "-c", ""]) as child:
        assert seconds_of(clock) < LONG / 2
        assert child.wait() == 0
