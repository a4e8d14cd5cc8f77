"""Saving while training goes on: one save at a time, and a failed one is an event, not an exit.

All processes start a save at the same step. Whether it may start is process 0's word, so that no process waits in
Orbax for one that cannot; how it ended is process 0's word too, since that one commits. A process that fails to write
its part says so at once, and the others stop waiting for it.
"""

import threading
import time
from dataclasses import asdict, dataclass
from json import dumps, loads
from typing import Any, Protocol

from orchestrator.contract.manifest import manifest_name
from orchestrator.store.objects import StoreError
from orchestrator.store.run_store import RunStore
from trainer.checkpoint import orbax_files
from trainer.checkpoint.commit import Committer, Fenced, Written
from trainer.parallel.state_checksums import ReadChecksums

SAVE_SECONDS = 2.0 * orbax_files.SAVE_SECONDS
"""For a save to end one way or the other."""
READY_SECONDS = 300.0
WRITE, COMMIT = "write", "commit"


class Agreement(Protocol):
    """What ``trainer.peers.Peers`` does for a save."""

    @property
    def process(self) -> int: ...

    def from_first(self, what: str, text: str, *, seconds: float) -> str: ...

    def meet(self, label: str, point: str, *, seconds: float) -> None: ...

    def give_up(self, label: str, problem: str) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a save ended: with a manifest, or with a problem in one line."""

    next_step: int
    manifest: str | None = None
    problem: str | None = None
    fenced: bool = False


@dataclass(frozen=True, kw_only=True)
class _Save:
    """One that goes on in the background."""

    next_step: int
    label: str
    started: float
    pending: orbax_files.PendingSave | None
    """None: only the swap of head is missing."""
    checksums: ReadChecksums
    witness: int | None

    def written(self) -> Written:
        """Once it is; waits for the checksums."""
        return Written(
            next_step=self.next_step, checksums=self.checksums(), save_started=self.started, witness=self.witness
        )


class Saver:
    """The saves of one attempt in one process; ``committer`` is process 0's."""

    def __init__(self, peers: Agreement, *, store: RunStore, attempt: int, committer: Committer | None) -> None:
        self._peers = peers
        self._store = store
        self._attempt = attempt
        self._committer = committer
        self._thread: threading.Thread | None = None
        self._outcome: Outcome | None = None
        self._saves = 0

    @property
    def busy(self) -> bool:
        """A save was started and not finished by ``finish``."""
        return self._thread is not None or self._outcome is not None

    def poll(self) -> Outcome | None:
        """This process's view of the save that has just ended, once; never waits, agrees on nothing."""
        if self._thread is None or self._thread.is_alive():
            return None
        self._thread = None
        return self._outcome

    def start(self, next_step: int, state: Any, checksums: ReadChecksums, *, witness: int | None = None) -> None:
        """Begin to save; returns when the state may be donated. All processes call it, after ``finish``.

        ``checksums``, of ``state`` on the devices, are waited for beside the training that goes on. ``witness`` is as
        in ``Written``.
        """
        assert not self.busy
        self._saves += 1
        started = time.time()
        ready = self._peers.from_first("save", self._prepare(next_step), seconds=READY_SECONDS)
        if ready not in (WRITE, COMMIT):
            self._outcome = Outcome(next_step=next_step, problem=ready)
            return
        label = f"{manifest_name(next_step, self._attempt)}-{self._saves}"
        try:
            pending = self._write(next_step, state, label=label) if ready == WRITE else None
        except Exception as error:  # noqa: BLE001 - see _complete
            self._fail(next_step, label, error)
            return
        save = _Save(
            next_step=next_step, label=label, started=started, pending=pending, checksums=checksums, witness=witness
        )
        self._thread = threading.Thread(target=self._complete, args=(save,), name="save", daemon=True)
        self._thread.start()

    def finish(self) -> Outcome:
        """Wait for the save that was started, and tell all processes how it ended.

        Raises:
            PeersMissing: process 0 does not say.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        assert self._outcome is not None
        own, self._outcome = self._outcome, None
        if own.problem is not None and self._committer is None:
            print(f"everstep: save of step {own.next_step}: {own.problem}", flush=True)
        said = self._peers.from_first("save outcome", dumps(asdict(own)), seconds=SAVE_SECONDS)
        return Outcome(**loads(said))

    def _folder(self, next_step: int) -> str:
        return f"checkpoints/{manifest_name(next_step, self._attempt)}"

    def _prepare(self, next_step: int) -> str:
        """Process 0 makes room, and says in one word or line whether all may go on."""
        if self._committer is None:
            return ""
        if self._committer.has_manifest(next_step):
            return COMMIT
        folder = self._folder(next_step)
        try:
            if self._store.checkpoint_sizes(folder):  # of a save of this attempt that failed
                self._store.delete_checkpoint(folder)
            orbax_files.prepare(self._store.checkpoint_address(folder))
        except (OSError, StoreError) as error:
            return _one_line(error)
        return WRITE

    def _write(self, next_step: int, state: Any, *, label: str) -> orbax_files.PendingSave:
        def meet(point: str, seconds: float) -> None:
            self._peers.meet(label, point, seconds=seconds)

        return orbax_files.save(self._store.checkpoint_address(self._folder(next_step)), state, label=label, meet=meet)

    def _complete(self, save: _Save) -> None:
        step = save.next_step
        try:
            if save.pending is not None:
                save.pending.wait()
            manifest = self._committer.commit(save.written()) if self._committer else None
            self._outcome = Outcome(next_step=step, manifest=manifest)
        except Fenced as error:
            self._outcome = Outcome(next_step=step, problem=str(error), fenced=True)
        except Exception as error:  # noqa: BLE001 - whatever a save fails of is an event, not an exit
            self._fail(step, save.label, error)

    def _fail(self, next_step: int, label: str, error: Exception) -> None:
        self._outcome = Outcome(next_step=next_step, problem=_one_line(error))
        self._peers.give_up(label, str(self._outcome.problem))


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split()):.500}"
