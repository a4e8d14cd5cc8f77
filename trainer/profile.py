"""A trace of steps that a person asked for, and the program that computed them; no bit depends on it.

The order is an object in the store. The thread that writes the progress reads it (``look``), so that no step ever waits
for the store; the steps compare two numbers (``before``, ``after``). Each process traces itself into a folder of its
machine, whose files go to the store after the last of the steps; process 0 also writes the compiled update as HLO text.
An order that is learnt of late is followed from then on, and whatever fails here is printed and does not end the run.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path

import jax

from orchestrator.contract.attempt import ProfileOrder
from orchestrator.contract.base import ContractError
from orchestrator.store.objects import StoreError
from orchestrator.store.run_store import RunStore

PROGRAM_FILE = "program.hlo.txt"
FAILS = (OSError, RuntimeError, StoreError, ContractError)
"""What ends a trace, and not the run."""


class Profiler:
    """The traces of one process of an attempt.

    Args:
        program_text: the compiled update, as text.
    """

    def __init__(self, store: RunStore, *, attempt: int, process: int, program_text: Callable[[], str]) -> None:
        self._store = store
        self._attempt = attempt
        self._process = process
        self._program_text = program_text
        self._ordered: ProfileOrder | None = None
        """As ``look`` last read it; set by one thread, read by the other."""
        self._taken: ProfileOrder | None = None
        """What was begun, or could not be."""
        self._tracing: ProfileOrder | None = None
        self._traces: tempfile.TemporaryDirectory[str] | None = None
        self._problem = ""

    def look(self) -> None:
        """Learn of an order."""
        try:
            self._ordered = self._store.profile_order(self._attempt)
        except (StoreError, ContractError) as error:
            self._say_once(f"orders to profile are not read: {error}")

    def before(self, step: int) -> None:
        """``step`` is about to begin."""
        order = self._ordered
        if order is None or order == self._taken or self._tracing is not None or step < order.first_step:
            return
        self._taken = order
        if step > order.last_step:
            self._say_once(f"steps {order.steps} had passed when their profile was asked for; the next step is {step}")
            return
        try:
            self._begin(order)
        except FAILS as error:
            self._say_once(f"steps {order.steps} are not profiled: {error}")

    def after(self, step: int) -> None:
        """``step`` was computed."""
        if self._tracing is not None and step >= self._tracing.last_step:
            self.close()

    def close(self) -> None:
        """End what is being traced."""
        if self._tracing is None or self._traces is None:
            return
        order, self._tracing = self._tracing, None
        with self._traces as traces:
            try:
                jax.profiler.stop_trace()
                self._keep(order, Path(traces))
            except FAILS as error:
                self._say_once(f"the profile of steps {order.steps} is not written: {error}")
            else:
                print(f"everstep: profiled steps {order.steps}", flush=True)

    def _begin(self, order: ProfileOrder) -> None:
        """Raises as ``FAILS`` says: something cannot be written, or somebody else is tracing."""
        if self._process == 0:
            self._store.create_profile_file(order, PROGRAM_FILE, self._program_text().encode())
        traces = tempfile.TemporaryDirectory(prefix="everstep-profile-", ignore_cleanup_errors=True)
        try:
            jax.profiler.start_trace(traces.name)
        except BaseException:
            traces.cleanup()
            raise
        self._tracing, self._traces = order, traces

    def _keep(self, order: ProfileOrder, traces: Path) -> None:
        for file in sorted(path for path in traces.rglob("*") if path.is_file()):
            name = f"host-{self._process:03d}/{file.relative_to(traces).as_posix()}"
            self._store.create_profile_file(order, name, file.read_bytes())

    def _say_once(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            print(f"everstep: {problem}", flush=True)
