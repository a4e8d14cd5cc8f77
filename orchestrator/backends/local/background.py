"""Work beside a run on this machine: one child process at a time, which yields to training."""

import contextlib
import logging
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

_log = logging.getLogger(__name__)

END_TIMEOUT = 5.0
"""Seconds that a child has to end when it is asked to."""
NICENESS = 10


class Background:
    """At most one child, with all that it starts; ``log`` is where its output goes."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Of the child that has not been reaped."""
        return None if self._child is None else self._child.pid

    def reap(self) -> int | None:
        """The exit code of a child that has ended, once."""
        code = self._child.poll() if self._child is not None else None
        if code is not None:
            self._child = None
        return code

    def start(self, command: Sequence[str], *, environment: Mapping[str, str]) -> bool:
        """Start a child, when there is none; False when that cannot be done, which a run must not suffer from."""
        assert self._child is None
        try:
            self._log.parent.mkdir(parents=True, exist_ok=True)
            with self._log.open("ab") as log:
                self._child = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    env={**os.environ, **environment},
                )
        except OSError as error:
            _log.warning("cannot start %s: %s", command[0], error)
            return False
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.setpriority(os.PRIO_PROCESS, self._child.pid, NICENESS)
        return True

    def close(self) -> None:
        """End the child and all that it started."""
        child, self._child = self._child, None
        if child is None or child.poll() is not None:
            return
        self._signal(child, signal.SIGTERM)
        try:
            child.wait(END_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._signal(child, signal.SIGKILL)
            child.wait()

    def _signal(self, child: subprocess.Popen[bytes], number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, number)
