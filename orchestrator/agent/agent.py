"""The agent's loop: look at the orders of one run, act on this host, say what happened.

Whatever the store does, the loop goes on: an unreachable store is asked again with growing pauses and never costs a
trainer its life, and a document that could not be written waits in order. A start order that is newer than the running
attempt means that the running one was fenced, so its trainer is ended before anything else starts.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from orchestrator.agent.exit_document import Ending, Outbox, last_lines, own_error
from orchestrator.agent.host_folder import HostFolder
from orchestrator.agent.launch import CannotStart, Launch, TrainerProcesses
from orchestrator.agent.process import ProcessIdentity
from orchestrator.agent.wakeup import Waiter
from orchestrator.contract.attempt import (
    ATTEMPT_VARIABLE,
    ERROR_VARIABLE,
    PROCESS_VARIABLE,
    AttemptSpec,
    HostRef,
    Progress,
    Started,
    StartOrder,
)
from orchestrator.contract.base import ContractError
from orchestrator.store.objects import AlreadyExists, NotFound, StoreUnavailable
from orchestrator.store.run_store import RunStore

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How often the agent looks, in seconds."""

    look: float = 0.05
    longest_pause: float = 1.0
    """Between two tries while the store is unreachable; the pause doubles from ``look`` up to this."""
    farewell: float = 5.0
    """How long an agent that leaves goes on trying to write its last documents."""


@dataclass(kw_only=True)
class Running:
    """The trainer that lives on this host."""

    attempt: int
    process: int
    identity: ProcessIdentity
    started_at: float
    told_to_end: bool = False
    drain_sent: bool = False


class Agent:
    """One host, one run, one trainer at a time."""

    def __init__(
        self,
        *,
        store: RunStore,
        host: HostRef,
        from_attempt: int,
        folder: HostFolder,
        lock: int,
        processes: TrainerProcesses,
        environment: Mapping[str, str],
        waiter: Waiter,
        now: Callable[[], float],
        monotonic: Callable[[], float],
        pace: Pace,
    ) -> None:
        self._store = store
        self._host = host
        self._from_attempt = from_attempt
        self._folder = folder
        self._lock = lock
        self._processes = processes
        self._environment = environment
        self._waiter = waiter
        self._now = now
        self._monotonic = monotonic
        self._pace = pace
        self._running: Running | None = None
        self._settled: set[int] = set()
        """Attempts whose start order was answered; no number is answered twice."""
        self._newest_order = 0
        self._outbox = Outbox()
        self._pause = pace.look
        self._warned: set[str] = set()

    # ---- the loop
    def run(self) -> None:
        """Until it is asked to leave or its host is taken away."""
        while not self._waiter.leave and not self._taken_away():
            self._look_once()
            self._waiter.wait(self._pause)
        self._say_goodbye()

    def _look_once(self) -> None:
        try:
            self._look()
        except (StoreUnavailable, NotFound) as error:  # NotFound: all of it is away, an unmounted folder for instance
            if self._pause == self._pace.look:
                _log.warning("the store is unreachable, going on without it: %s", error)
            self._pause = min(self._pace.longest_pause, self._pause * 2)
            return
        if self._pause != self._pace.look:
            _log.info("the store answers again")
        self._pause = self._pace.look

    def _look(self) -> None:
        self._reap()
        self._outbox.flush()
        self._obey_stop_orders()
        orders = self._new_orders()
        self._newest_order = max([self._newest_order, *orders])
        if self._running is not None and self._running.attempt < self._newest_order:
            self._end_trainer(told_to=True, why=f"attempt {self._newest_order} was ordered, so this one is fenced")
            return  # its end wakes the loop, and only then the next one starts
        for attempt in sorted(orders):
            self._answer(attempt, orders[attempt])
        self._outbox.flush()

    def _taken_away(self) -> bool:
        if not self._folder.is_locked_by(self._lock):
            _log.warning("the host's folder was removed: leaving")
            return True
        try:
            present = self._folder.state().present
        except (OSError, ContractError) as error:
            self._warn_once(f"the host's state cannot be read, assuming that it is still there: {error}")
            return False
        if not present:
            _log.warning("the host was taken away: leaving")
        return not present

    def _say_goodbye(self) -> None:
        """End the trainer, write what is left to say, give up on a store that stays away."""
        self._end_trainer(told_to=self._waiter.leave, why="the agent leaves")
        give_up = self._monotonic() + self._pace.farewell
        pause = self._pace.look
        while self._monotonic() < give_up:
            self._reap()
            try:
                self._outbox.flush()
            except (StoreUnavailable, NotFound) as error:
                _log.warning("the store is unreachable, last words wait: %s", error)
                pause = min(self._pace.longest_pause, pause * 2)
            if self._running is None and self._outbox.empty:
                return
            self._waiter.wait(pause)
        _log.error("left with last words unwritten; the host's free lock has to do as evidence")

    # ---- start orders
    def _new_orders(self) -> dict[int, StartOrder]:
        """Start orders that were not answered yet, by attempt."""
        found: dict[int, StartOrder] = {}
        for attempt in self._store.attempt_numbers():
            if attempt < self._from_attempt or attempt in self._settled:
                continue
            try:
                order = self._store.start_order(attempt)
            except ContractError as error:
                _log.error("attempt %d: its start order is ignored: %s", attempt, error)
                self._settled.add(attempt)
                continue
            if order is not None:
                found[attempt] = order
        return found

    def _answer(self, attempt: int, order: StartOrder) -> None:
        self._settled.add(attempt)
        if self._host not in order.hosts:
            return
        process = order.hosts.index(self._host)
        try:
            reason = self._reason_against(attempt, process)
            if reason is not None:
                self._refuse(attempt, process, reason, told_to=True)
            elif self._processes.ready:
                self._start(self._store.attempt(attempt), process)
            else:
                self._settled.discard(attempt)
        except (StoreUnavailable, NotFound):
            self._settled.discard(attempt)  # nothing was started: answer it at the next look
            raise
        except (ContractError, CannotStart, OSError) as error:
            self._refuse(attempt, process, str(error), told_to=False)

    def _reason_against(self, attempt: int, process: int) -> str | None:
        if attempt < self._newest_order:
            return f"attempt {self._newest_order} was ordered before it could start"
        if self._stop_ordered(attempt, "kill"):
            return "it was ordered to be killed before it could start"
        if process in self._store.started(attempt):
            return "an earlier agent on this host had started it and died, and its trainer with it"
        return None

    def _start(self, spec: AttemptSpec, process: int) -> None:
        assert self._running is None, "an order older than the running attempt is refused, a newer one ended it"
        error_file = self._folder.error_file(spec.attempt)
        error_file.unlink(missing_ok=True)
        attempt_file = self._folder.attempt_file(spec.attempt)
        attempt_file.write_bytes(spec.to_bytes())
        variables = {
            ATTEMPT_VARIABLE: str(attempt_file),
            PROCESS_VARIABLE: str(process),
            ERROR_VARIABLE: str(error_file),
        }
        at = self._now()
        identity = self._processes.start(
            Launch(
                command=spec.trainer,
                environment={**self._environment, **variables},
                log=self._folder.trainer_log(spec.attempt),
                lock=self._lock,
            )
        )
        self._running = Running(attempt=spec.attempt, process=process, identity=identity, started_at=at)
        self._record_trainer(identity)
        started = Started(attempt=spec.attempt, process=process, host=self._host, pid=identity.pid, at=at)
        self._say(lambda: self._store.create_started(started))
        _log.info("attempt %d: started process %d, pid %d", spec.attempt, process, identity.pid)

    def _record_trainer(self, identity: ProcessIdentity) -> None:
        try:
            record = self._folder.record()
            if record is not None:
                self._folder.write_record(record.model_copy(update={"trainer": identity}))
        except (OSError, ContractError) as error:
            _log.warning("the trainer's pid is not recorded; it ends with the agent all the same: %s", error)

    def _refuse(self, attempt: int, process: int, reason: str, *, told_to: bool) -> None:
        _log.warning("attempt %d: never started: %s", attempt, reason)
        self._write_exit(
            Ending(
                attempt=attempt,
                process=process,
                host=self._host,
                status=None,
                told_to=told_to,
                error=None,
                last_lines=(f"never started: {reason}",),
                at=self._now(),
            )
        )

    # ---- stop orders
    def _obey_stop_orders(self) -> None:
        running = self._running
        if running is None or running.told_to_end:
            return
        if self._stop_ordered(running.attempt, "kill"):
            self._end_trainer(told_to=True, why="kill was ordered")
        elif not running.drain_sent and self._stop_ordered(running.attempt, "drain") and self._hears_signals(running):
            running.drain_sent = True
            _log.info("attempt %d: asking the trainer to drain", running.attempt)
            self._processes.terminate(running.identity)

    def _stop_ordered(self, attempt: int, how: str) -> bool:
        try:
            return self._store.stop_order(attempt, how) is not None
        except ContractError as error:
            self._warn_once(f"attempt {attempt}: taking an unreadable order for one to {how}: {error}")
            return True

    def _hears_signals(self, running: Running) -> bool:
        """A trainer's first progress comes after its handler; before that, SIGTERM would just end it."""
        progress = self._progress(running.attempt, running.process)
        return progress is not None and progress.at >= running.started_at

    # ---- ends
    def _end_trainer(self, *, told_to: bool, why: str) -> None:
        running = self._running
        if running is None or running.told_to_end:
            return
        running.told_to_end = told_to
        _log.info("attempt %d: killing the trainer: %s", running.attempt, why)
        self._processes.kill(running.identity)

    def _reap(self) -> None:
        ended = self._processes.ended()
        running = self._running
        if running is None or running.identity.pid not in ended:
            return
        at = self._now()
        self._running = None
        _log.info("attempt %d: the trainer ended", running.attempt)
        self._write_exit(
            Ending(
                attempt=running.attempt,
                process=running.process,
                host=self._host,
                status=ended[running.identity.pid],
                told_to=running.told_to_end,
                error=own_error(self._folder.error_file(running.attempt)),
                last_lines=last_lines(self._folder.trainer_log(running.attempt)),
                at=at,
            )
        )

    # ---- documents
    def _write_exit(self, ending: Ending) -> None:
        def write() -> None:
            never_started = ending.status is None
            progress = None if never_started else self._progress(ending.attempt, ending.process)
            self._store.create_exit(ending.document(progress))

        self._say(write)

    def _progress(self, attempt: int, process: int) -> Progress | None:
        try:
            return self._store.progress(attempt).get(process)
        except ContractError as error:
            self._warn_once(f"attempt {attempt}: its progress is unreadable: {error}")
            return None

    def _say(self, write: Callable[[], None]) -> None:
        """Write a create-only document as soon as the store takes it."""

        def once() -> None:
            try:
                write()
            except AlreadyExists as error:
                _log.warning("somebody has said this before: %s", error)

        self._outbox.put(once)

    def _warn_once(self, text: str) -> None:
        """For what would be said again at every look."""
        if text not in self._warned:
            self._warned.add(text)
            _log.warning("%s", text)
