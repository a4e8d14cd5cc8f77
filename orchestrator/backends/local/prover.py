"""Reading checkpoints back on this machine: a child process beside the run, one at a time."""

from collections.abc import Callable, Sequence
from pathlib import Path

from orchestrator.backends.local.background import Background

BACK_OFF = 30.0
"""Seconds after a failed reading of a checkpoint before it is tried again."""
ONE_DEVICE = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
"""Arrays' checksums do not depend on the mesh."""


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
        self._monotonic = monotonic
        self._child = Background(log)
        self._manifest = ""
        """Of the child, or of the last one."""
        self._not_before = 0.0
        """On the monotonic clock, for that manifest."""

    def prove(self, manifest: str) -> None:
        """Start it unless one is running, or the last try of this checkpoint failed a moment ago; returns at once."""
        if not self._command:
            return
        code = self._child.reap()
        if code is not None:
            self._not_before = self._monotonic() + (BACK_OFF if code else 0.0)
        if self._child.pid is not None or (manifest == self._manifest and self._monotonic() < self._not_before):
            return
        self._manifest = manifest
        command = [*self._command, "--store", self._store_address, "--run", self._run, "--manifest", manifest]
        if not self._child.start(command, environment=ONE_DEVICE):
            # a run must not wait for its proofs: it goes on, and is held when too many are missing
            self._not_before = self._monotonic() + BACK_OFF

    def close(self) -> None:
        """End the child; its checkpoint stays unproven and will be read again."""
        self._child.close()
