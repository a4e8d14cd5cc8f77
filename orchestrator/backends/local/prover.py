"""Reading checkpoints back on this machine: a child process beside the run, one at a time."""

import contextlib
import logging
import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

_log = logging.getLogger(__name__)

BACK_OFF = 30.0
"""Seconds after a failed reading of a checkpoint before it is tried again."""
END_TIMEOUT = 5.0
"""Seconds that a child has to end when it is asked to."""
NICENESS = 10
"""Proving yields to training."""


class LocalProver:
    """Runs a command with ``--store``, ``--run`` and ``--manifest``; it writes the proof or the quarantine itself.

    Args:
        command: what to run; empty: nothing is ever read back.
        log: where the command's output goes.
        monotonic: seconds of a clock that never jumps.
    """

    def __init__(
        self, *, command: Sequence[str], store_address: str, run: str, log: Path, monotonic: Callable[[], float]
    ) -> None:
        self._command = tuple(command)
        self._store_address = store_address
        self._run = run
        self._log = log
        self._monotonic = monotonic
        self._child: subprocess.Popen[bytes] | None = None
        self._manifest = ""
        """Of the child, or of the last one."""
        self._not_before = 0.0
        """On the monotonic clock, for that manifest."""

    def prove(self, manifest: str) -> None:
        """Start it unless one is running, or the last try of this checkpoint failed a moment ago; returns at once."""
        if not self._command or self._running():
            return
        if manifest == self._manifest and self._monotonic() < self._not_before:
            return
        self._start(manifest)

    def close(self) -> None:
        """End the child; its checkpoint stays unproven and will be read again."""
        child, self._child = self._child, None
        if child is None or child.poll() is not None:
            return
        child.terminate()
        try:
            child.wait(END_TIMEOUT)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()

    def _running(self) -> bool:
        if self._child is None:
            return False
        code = self._child.poll()
        if code is None:
            return True
        self._child = None
        self._not_before = self._monotonic() + (BACK_OFF if code else 0.0)
        return False

    def _start(self, manifest: str) -> None:
        self._manifest = manifest
        command = [*self._command, "--store", self._store_address, "--run", self._run, "--manifest", manifest]
        try:
            self._log.parent.mkdir(parents=True, exist_ok=True)
            with self._log.open("ab") as log:
                self._child = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    env=_environment(),
                )
        except OSError as error:
            # a run must not wait for its proofs: it goes on, and is held when too many are missing
            _log.warning("cannot start %s: %s", command[0], error)
            self._not_before = self._monotonic() + BACK_OFF
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.setpriority(os.PRIO_PROCESS, self._child.pid, NICENESS)


def _environment() -> dict[str, str]:
    """One CPU device: arrays' checksums do not depend on the mesh."""
    return {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
