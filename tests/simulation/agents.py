"""The simulated host agent: the contract of ``orchestrator.agent``, with the same order of reads and refusals."""

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from orchestrator.contract.attempt import Exit, OwnError, Started, StartOrder
from orchestrator.store.objects import AlreadyExists, StoreUnavailable
from tests.simulation.timeline import EPOCH
from tests.simulation.trainers import Process

if TYPE_CHECKING:
    from tests.simulation.fleet import Host
    from tests.simulation.world import World

RETRY = 1.0


class Agent:
    """One host, one trainer at a time."""

    def __init__(self, world: "World", host: "Host", from_attempt: int) -> None:
        self._world = world
        self._host = host
        self.run = world.run_name
        self.from_attempt = from_attempt
        self._store = world.store_for(f"agent of {host.ref}", world.guard_of(host, "agent"))
        self._alive = True
        self._leaving = False
        self._running: Process | None = None
        self._settled: set[int] = set()
        self._newest_order = 0
        self._outbox: list[Callable[[], None]] = []
        self._retrying = False
        self.excused = False
        """It lived on while its host was not listed, so nobody knew that it had to be given back."""
        self.hung = False
        """It lives, and does nothing."""

    def wake(self) -> None:
        """Look soon."""
        self._world.timeline.after(self._world.random.uniform(0.02, 0.4), self._look_once)

    def die(self) -> None:
        """Killed, without a word; its trainer is ended by the kernel, which may take a moment."""
        if self._alive:
            self._alive = False
            self._host.agent = None

    def leave(self) -> None:
        """Asked to end its trainer, say so, and go."""
        self._leaving = True
        self._end_trainer()
        self.wake()

    def ended(self, process: Process) -> None:
        """The trainer ended; the agent hears of it in a moment."""
        self._world.timeline.after(self._world.random.uniform(0.01, 0.15), lambda: self._reap(process))

    def _look_once(self) -> None:
        if not self._alive or self.hung:
            return
        try:
            self._look()
        except StoreUnavailable:
            if not self._retrying:
                self._retrying = True
                self._world.timeline.after(RETRY, self._retry)

    def _retry(self) -> None:
        self._retrying = False
        self._look_once()

    def _look(self) -> None:
        self._flush()
        if self._leaving:
            if self._running is None:
                self.die()
            return
        self._obey_stop_orders()
        orders = self._new_orders()
        self._newest_order = max([self._newest_order, *orders])
        if self._running is not None and self._running.attempt < self._newest_order:
            self._end_trainer()
            return
        for attempt in sorted(orders):
            if self._running is None:
                self._answer(attempt, orders[attempt])
        self._flush()

    def _new_orders(self) -> dict[int, StartOrder]:
        found = {}
        for attempt in self._store.attempt_numbers():
            if attempt < self.from_attempt or attempt in self._settled:
                continue
            order = self._store.start_order(attempt)
            if order is not None:
                found[attempt] = order
        return found

    def _answer(self, attempt: int, order: StartOrder) -> None:
        self._settled.add(attempt)
        if self._host.ref not in order.hosts:
            return
        process = order.hosts.index(self._host.ref)
        try:
            if self._must_refuse(attempt, process):
                self._write_exit(attempt, process, code=None, signal=None, told=True, error=None, at=self._now)
                return
            spec = self._store.attempt(attempt)
        except StoreUnavailable:
            self._settled.discard(attempt)
            raise
        self._running = self._world.start_trainer(self._host, self, spec, process)
        started = Started(attempt=attempt, process=process, host=self._host.ref, pid=1000 + attempt, at=self._now)
        self._say(lambda: self._store.create_started(started))

    def _must_refuse(self, attempt: int, process: int) -> bool:
        return (
            attempt < self._newest_order
            or self._store.stop_order(attempt, "kill") is not None
            or process in self._store.started(attempt)
        )

    def _obey_stop_orders(self) -> None:
        running = self._running
        if running is None or running.told:
            return
        if self._store.stop_order(running.attempt, "kill") is not None:
            self._end_trainer()
        elif not running.drain_sent and self._store.stop_order(running.attempt, "drain") is not None:
            if running.hears_signals:
                running.drain_sent = True
                running.terminate()
            else:
                self.wake()

    def _end_trainer(self) -> None:
        if self._running is not None and not self._running.told:
            self._running.told = True
            self._running.die(signal=9)

    def _reap(self, process: Process) -> None:
        if not self._alive or self._running is not process:
            return
        if self.hung:
            self._world.timeline.after(RETRY, lambda: self._reap(process))
            return
        self._running = None
        code, signal = process.status
        self._write_exit(
            process.attempt,
            process.index,
            code=code,
            signal=signal,
            told=process.told and code is None,
            error=process.error,
            at=EPOCH + process.died_at,
        )
        self._look_once()

    def _write_exit(
        self,
        attempt: int,
        process: int,
        *,
        code: int | None,
        signal: int | None,
        told: bool,
        error: OwnError | None,
        at: float,
    ) -> None:
        def write() -> None:
            never_started = code is None and signal is None
            progress = None if never_started else self._store.progress(attempt).get(process)
            self._store.create_exit(
                Exit(
                    attempt=attempt,
                    process=process,
                    host=self._host.ref,
                    code=code,
                    signal=signal,
                    killed_by_us=told,
                    phase=progress.phase if progress else None,
                    step=progress.step if progress else None,
                    error=error,
                    last_lines=(),
                    at=at,
                )
            )

        self._say(write)

    def _say(self, write: Callable[[], None]) -> None:
        self._outbox.append(write)

    def _flush(self) -> None:
        while self._outbox:
            with contextlib.suppress(AlreadyExists):  # somebody has said this before
                self._outbox[0]()
            del self._outbox[0]

    @property
    def _now(self) -> float:
        return EPOCH + self._world.timeline.now
