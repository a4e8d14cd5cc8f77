"""Compiling ahead on this machine: a child process beside the run, for one placement at a time."""

from collections.abc import Callable, Sequence
from pathlib import Path

from orchestrator.backends.local.background import Background
from orchestrator.backends.local.fleet_file import read_fleet
from orchestrator.backends.local.trainer_environment import trainer_environment
from orchestrator.fleet.backend import Ahead
from orchestrator.fleet.local_fleet import LocalPool

BACK_OFF = 600.0
"""Seconds after a failed try before the same is tried again."""


class LocalPreparer:
    """Runs a command with what a placement's trainers will have in their environment; it fills the compile cache.

    Args:
        command: called with ``--store``, ``--run``, ``--revision``, ``--stage`` and ``--placement``; empty: never.
        fleet: the fleet's folder, in which the compile cache is.
        log: where the command's output goes.
        monotonic: seconds of a clock that never jumps.
    """

    def __init__(
        self,
        *,
        command: Sequence[str],
        store_address: str,
        run: str,
        fleet: Path,
        log: Path,
        monotonic: Callable[[], float],
    ) -> None:
        self._command = (*command, "--store", store_address, "--run", run) if command else ()
        self._fleet = fleet
        self._monotonic = monotonic
        self._child = Background(log)
        self._at: Ahead | None = None
        """The child's, or the last one's."""
        self._not_before: dict[Ahead, float] = {}
        """On the monotonic clock; infinity when it is done."""

    def prepare(self, wanted: Sequence[Ahead]) -> None:
        """Start the first that is not done, unless a child is at work; returns at once.

        Raises:
            ContractError: the fleet's description cannot be read.
        """
        if not self._command:
            return
        code = self._child.reap()
        if code is not None and self._at is not None:
            self._not_before[self._at] = self._monotonic() + BACK_OFF if code else float("inf")
        if self._child.pid is not None:
            return
        pools = {pool.name: pool for pool in read_fleet(self._fleet).pools}
        for ahead in wanted:
            pool = pools.get(ahead.placement.pool)
            if pool is not None and self._not_before.get(ahead, 0.0) <= self._monotonic():
                self._start(ahead, pool)
                return

    def close(self) -> None:
        """End the child; what it has compiled stays in the cache."""
        self._child.close()

    def _start(self, ahead: Ahead, pool: LocalPool) -> None:
        self._at = ahead
        command = [*self._command, "--revision", str(ahead.revision), "--stage", ahead.stage]
        command += ["--placement", ahead.placement.name]
        environment = trainer_environment(pool, fleet=self._fleet)
        if not self._child.start(command, environment=environment):
            self._not_before[ahead] = self._monotonic() + BACK_OFF
