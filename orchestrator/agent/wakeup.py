"""Waiting that ends at once when a child ends, a message arrives or the agent is asked to leave."""

import os
import select
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Protocol


class Waiter(Protocol):
    """How the agent lets time pass, and how it hears that it should leave."""

    @property
    def leave(self) -> bool:
        """Somebody asked the agent to end."""
        ...

    def wait(self, seconds: float) -> None:
        """Return after ``seconds``, or earlier when something happened."""
        ...

    def watch(self, handle: int) -> None:
        """Let input on this descriptor end a wait."""
        ...

    def forget(self, handle: int) -> None: ...


class SignalWaiter:
    """Woken by SIGCHLD and SIGTERM through the interpreter's wake-up descriptor, so that no signal is lost."""

    def __init__(self, wakeup: int) -> None:
        self._wakeup = wakeup
        self._asked_to_leave = False
        self._poll = select.poll()
        self._poll.register(wakeup, select.POLLIN)

    @classmethod
    @contextmanager
    def installed(cls) -> Iterator["SignalWaiter"]:
        """For the main thread of the agent's process; puts the earlier handlers back."""
        reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        waiter = cls(reader)
        before = {number: signal.signal(number, waiter._heard) for number in (signal.SIGTERM, signal.SIGCHLD)}
        earlier = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        try:
            yield waiter
        finally:
            signal.set_wakeup_fd(earlier)
            for number, handler in before.items():
                signal.signal(number, handler)
            os.close(reader)
            os.close(writer)

    @property
    def leave(self) -> bool:
        return self._asked_to_leave

    def wait(self, seconds: float) -> None:
        self._poll.poll(max(0.0, seconds) * 1000)
        try:
            while os.read(self._wakeup, 4096):
                continue
        except BlockingIOError:
            return

    def watch(self, handle: int) -> None:
        self._poll.register(handle, select.POLLIN)

    def forget(self, handle: int) -> None:
        self._poll.unregister(handle)

    def _heard(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGTERM:
            self._asked_to_leave = True
