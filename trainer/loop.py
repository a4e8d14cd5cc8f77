"""The steps of an attempt: read, compute, record, compare; and between them, save, or leave together."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from jax import Array
from numpy.typing import NDArray
from tenacity import Retrying, retry_if_result, stop_after_attempt, wait_exponential

from orchestrator.contract.attempt import AttemptSpec, ExitCode
from orchestrator.contract.checksum import words
from orchestrator.contract.ledger import Fingerprint, Record, bits_of
from orchestrator.contract.recipe import Stage
from trainer.checkpoint.saver import Outcome, Saver
from trainer.drain import Drain
from trainer.ledger import LedgerWriter
from trainer.optim.schedule import learning_rate
from trainer.parallel.state_checksums import ReadChecksums
from trainer.profile import Profiler
from trainer.progress import ProgressReport
from trainer.replay import Replay
from trainer.step import Metrics, StepResult

Tree = Any
"""A nested dict with string keys."""
ReadRows = Callable[[NDArray[np.int64]], NDArray[np.uint32]]
LAST_SAVE_TRIES = 4
"""At the last step there is no next interval at which a failed save is tried again."""


class Program(Protocol):
    """What the loop needs of ``trainer.step.Program``."""

    def tokens_array(self, read: ReadRows) -> Array: ...

    def step(self, state: Tree, tokens: Array, learning_rate: np.float32) -> tuple[Tree, Metrics]: ...

    def checksums(self, state: Tree) -> ReadChecksums: ...


class Batches(Protocol):
    """What the loop needs of ``trainer.data.token_files.StageBatches``."""

    def read(self, index: int, rows: NDArray[np.int64]) -> NDArray[np.uint32]: ...


class Stopped(Exception):
    """The attempt ends here, in all processes alike; the text is one line for a person."""

    def __init__(self, code: ExitCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class SaveFailed(Exception):
    """A checkpoint without which the attempt cannot end, or begin, could not be saved."""


@dataclass(kw_only=True)
class Training:
    """The loop of one attempt in one process; ``ledger`` is process 0's."""

    spec: AttemptSpec
    stage: Stage
    first_step: int
    """At which the stage starts."""
    fingerprint: Fingerprint
    program: Program
    batches: Batches
    replay: Replay
    saver: Saver
    ledger: LedgerWriter | None
    drain: Drain
    progress: ProgressReport
    profiler: Profiler
    committed: int | None = None
    """``next_step`` of the newest committed checkpoint; None before the first."""
    _noted: Outcome | None = field(default=None, init=False)

    def run(self, state: Tree, next_step: int) -> ExitCode:
        """Train from ``next_step`` to the attempt's last step, or until all agree to leave.

        Raises:
            Stopped: a replayed step differs, a step is not finite, or another attempt has taken over.
            SaveFailed: the last checkpoint cannot be saved.
        """
        if self.drain.agreed():
            return ExitCode.DRAINED_NOTHING_NEW
        while next_step < self.spec.until_step:
            self.progress.enter("train" if self.replay.is_new(next_step) else "replay")
            state = self.take_step(state, next_step)
            next_step += 1
            if next_step == self.spec.until_step:
                break
            self.note_what_ended()
            if self.drain.agreed():
                return self.leave(state, next_step)
            if next_step % self.spec.checkpoint.every_steps == 0:
                self.start_save(state, next_step, witness=next_step)
        return self.save_last(state, next_step)

    def take_step(self, state: Tree, step: int) -> Tree:
        """From ``step`` to ``step + 1``; recorded, and compared with what earlier attempts recorded of it."""
        self.profiler.before(step)
        started, begin = time.time(), time.perf_counter()
        index = step - self.first_step
        rate = learning_rate(self.stage, update=index + 1)
        tokens = self.program.tokens_array(lambda rows: self.batches.read(index, rows))
        data_seconds = time.perf_counter() - begin
        state, metrics = self.program.step(state, tokens, rate)
        result = metrics.read()
        record = record_of(
            result,
            step=step,
            attempt=self.spec.attempt,
            rate=rate,
            fingerprint=self.fingerprint,
            started=started,
            seconds=time.perf_counter() - begin,
            data_seconds=data_seconds,
        )
        self.profiler.after(step)
        if self.ledger is not None:
            self.ledger.add(record)
        # before it is judged: the exit document of a step that does not pass names that step
        self.progress.finish_step(step, seconds=record.seconds, new=record.finite and self.replay.is_new(step))
        if record.skipped:
            self.progress.step_skipped(step)
        self._judge(record, result)
        return state

    def note_what_ended(self) -> None:
        """Show a save that has ended, and a store that takes no records."""
        outcome = self.saver.poll()
        if outcome is not None and self.ledger is not None:
            self._note(outcome)
            if outcome.fenced:
                self.drain.request()  # so that all processes leave at one step
        if self.ledger is not None and self.ledger.problem is not None:
            self.progress.records_wait(self.ledger.problem)

    def start_save(self, state: Tree, next_step: int, *, witness: int | None = None) -> None:
        """Begin to save; the save before it is waited for. ``witness``: as in ``trainer.checkpoint.commit.Written``.

        Raises:
            Stopped: another attempt has taken over.
        """
        if self.saver.busy:
            begin = time.perf_counter()
            outcome = self._finish_save()
            waited = time.perf_counter() - begin
            if waited > 1:
                print(
                    f"everstep: step {next_step} waited {waited:.1f} s for the save of {outcome.next_step}", flush=True
                )
            if outcome.fenced:
                raise Stopped(ExitCode.DRAINED_NOTHING_NEW, str(outcome.problem))
        self._noted = None
        self.saver.start(next_step, state, self.program.checksums(state), witness=witness)

    def leave(self, state: Tree, next_step: int) -> ExitCode:
        """Save, and run the witness steps while the save commits."""
        self.progress.enter("drain")
        if self.committed == next_step:
            return ExitCode.DRAINED_NOTHING_NEW
        self.start_save(state, next_step)
        for step in range(next_step, min(next_step + self.spec.witness_steps, self.spec.until_step)):
            state = self.take_step(state, step)
        outcome = self._finish_save()
        if outcome.manifest is not None:
            return ExitCode.DRAINED
        return ExitCode.DRAINED_NOTHING_NEW if outcome.fenced else ExitCode.DRAIN_SAVE_FAILED

    def save_last(self, state: Tree, next_step: int) -> ExitCode:
        """Save and wait for the commit."""
        if self.committed != next_step:
            self.save_now(state, next_step)
        return ExitCode.LAST_STEP_COMMITTED

    def save_now(self, state: Tree, next_step: int) -> None:
        """Save and wait for the commit, several times if need be.

        Raises:
            SaveFailed: it was not committed.
            Stopped: another attempt has taken over.
        """

        def once() -> Outcome:
            self.start_save(state, next_step)
            return self._finish_save()

        outcome: Outcome = Retrying(
            retry=retry_if_result(lambda outcome: outcome.manifest is None and not outcome.fenced),
            stop=stop_after_attempt(LAST_SAVE_TRIES),
            wait=wait_exponential(multiplier=0.5, max=30),
            retry_error_callback=lambda state: state.outcome and state.outcome.result(),
        )(once)
        if outcome.fenced:
            raise Stopped(ExitCode.DRAINED_NOTHING_NEW, str(outcome.problem))
        if outcome.manifest is None:
            raise SaveFailed(f"the checkpoint of step {next_step} cannot be saved: {outcome.problem}")

    def _judge(self, record: Record, result: StepResult) -> None:
        if not record.finite:
            raise Stopped(
                ExitCode.NOT_FINITE,
                f"step {record.step}: the total loss is {result.total}, the gradient norm {result.grad_norm}; such a "
                "step is neither applied nor committed",
            )
        difference = self.replay.difference(record)
        if difference is not None:
            raise Stopped(ExitCode.REPLAY_DIFFERS, f"a replayed step differs: {difference}; nothing more is committed")

    def _finish_save(self) -> Outcome:
        outcome = self.saver.finish()
        self._note(outcome)
        return outcome

    def _note(self, outcome: Outcome) -> None:
        if outcome == self._noted:
            return
        self._noted = outcome
        if outcome.manifest is not None:
            self.committed = outcome.next_step
            self.progress.save_committed()
            print(f"everstep: committed {outcome.manifest}", flush=True)
        else:
            self.progress.save_failed(f"step {outcome.next_step}: {outcome.problem}")
            print(f"everstep: the save of step {outcome.next_step} failed: {outcome.problem}", flush=True)


def record_of(
    result: StepResult,
    *,
    step: int,
    attempt: int,
    rate: np.float32,
    fingerprint: Fingerprint,
    started: float,
    seconds: float,
    data_seconds: float,
) -> Record:
    """The ledger's record of a step."""
    return Record(
        step=step,
        attempt=attempt,
        ce=bits_of(float(result.ce)),
        z_loss=bits_of(float(result.z_loss)),
        total=bits_of(float(result.total)),
        ce_by_rank=tuple(bits_of(float(loss)) for loss in result.ce_by_rank),
        grad_norm=bits_of(float(result.grad_norm)),
        gradient=words(result.grad_checksum),
        tokens=words(result.token_checksum),
        learning_rate=bits_of(float(rate)),
        skipped=result.skipped,
        finite=result.finite,
        fingerprint=fingerprint.key,
        started=started,
        seconds=seconds,
        data_seconds=data_seconds,
    )
