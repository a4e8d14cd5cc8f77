"""A trainer's process: it hears, says that it is there, runs its part of an attempt, and ends with the agreed code.

    EVERSTEP_ATTEMPT=<path of the AttemptSpec> EVERSTEP_PROCESS=<index> python -m trainer.train

``trainer.attempt`` is the story itself. It is imported here only when SIGTERM is heard and the first progress is
written: JAX and Orbax take seconds to import, and an agent sends SIGTERM from the first progress on.
"""

import io
import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn, TextIO

from orchestrator.contract.attempt import ERROR_VARIABLE, ExitCode
from trainer import own_error
from trainer.checkpoint.commit import Fenced
from trainer.drain import Drain
from trainer.launch import Launch
from trainer.progress import ProgressReport

RunAttempt = Callable[[Launch, ProgressReport, Drain], ExitCode]


class Log(io.FileIO):
    """A log whose disk may be full: its lines are lost then, and training goes on."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError:
            return len(data)


def log_to(handle: int) -> TextIO:
    """A text stream onto an open descriptor, which stays open."""
    log = io.BufferedWriter(Log(handle, "wb", closefd=False))
    return io.TextIOWrapper(log, encoding="utf-8", errors="replace", line_buffering=True)


def load_story() -> RunAttempt:
    """Import what is heavy."""
    from trainer.attempt import run_attempt

    return run_attempt


def main(load: Callable[[], RunAttempt] = load_story) -> NoReturn:
    """Run the attempt that the environment names, and end the process with its exit code."""
    sys.stdout, sys.stderr = log_to(1), log_to(2)
    drain = Drain()
    drain.listen()
    progress: ProgressReport | None = None
    code = ExitCode.OWN_ERROR
    try:
        launch = Launch.read(os.environ)
        progress = ProgressReport(
            launch.store, attempt=launch.spec.attempt, process=launch.process, interval=launch.progress_seconds
        )
        progress.enter("start")
        code = load()(launch, progress, drain)
    except Fenced as error:
        print(f"everstep: {error}", flush=True)
        code = ExitCode.DRAINED_NOTHING_NEW
    except Exception as error:  # noqa: BLE001 - the top: whatever it is, the agent gets a document
        own_error.report(error, step=progress.step if progress else None, document=os.environ.get(ERROR_VARIABLE))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a normal exit would run JAX's clean-up, which aborts when another process has left before


if __name__ == "__main__":
    main()
