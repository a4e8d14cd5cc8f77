"""Hearing that this attempt should leave, and agreeing with the other processes on the step at which all do.

SIGTERM to any one process is enough. Until ``jax.distributed.initialize`` a handler of ours only remembers it; then
JAX's preemption service takes the signal over (a handler installed *after* it would silence the service). The service
makes all processes agree on the number of a *call* of ``reached_preemption_sync_point``: one more than the highest any
has made, and true only on equality. So calls are counted from the attempt's start: counting global steps would make a
signal that comes before the first call agree on call 1, which an attempt that resumes at step 500 would never make.
"""

import os
import signal
from types import FrameType


class Drain:
    """The request to leave, as this process knows it."""

    def __init__(self) -> None:
        self._asked_early = False
        self._calls = 0

    def listen(self) -> None:
        """From now on a SIGTERM is remembered and does not kill."""
        signal.signal(signal.SIGTERM, self._remember)

    @property
    def asked_early(self) -> bool:
        """SIGTERM came before the preemption service took over."""
        return self._asked_early

    def request(self) -> None:
        """Ask for a drain from within, as an outside SIGTERM would."""
        os.kill(os.getpid(), signal.SIGTERM)

    def agreed(self) -> bool:
        """True at the one call at which all processes leave; each must call it equally often."""
        from jax.experimental import multihost_utils

        self._calls += 1
        return bool(multihost_utils.reached_preemption_sync_point(self._calls))

    def _remember(self, _number: int, _frame: FrameType | None) -> None:
        self._asked_early = True
