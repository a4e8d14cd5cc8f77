"""One program of the control plane, that tests start, stop, kill, pause and start again."""

import signal
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.cluster.mortal import mortal
from tests.cluster.waiting import wait_until

STOP_SECONDS = 30.0
SHOWN_OF_LOG = 4000


class NotReady(Exception):
    """A program ended or was silent for too long; with the end of its log."""


@dataclass
class Component:
    name: str
    command: Sequence[str | Path]
    log: Path
    ready: Callable[[], bool]
    """Whether it answers as ready now; a question that may be asked at any time."""
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def start(self) -> None:
        """Begin; ``wait_until_ready`` waits."""
        assert not self.running, f"{self.name} runs already"
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                mortal(self.command), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def wait_until_ready(self) -> None:
        """Raises NotReady."""
        try:
            wait_until(self._ready_or_ended, f"{self.name} is ready", story=self._end_of_log)
        except TimeoutError as error:
            raise NotReady(str(error)) from error
        if not self.running:
            raise NotReady(f"{self.name} ended with {self._process and self._process.returncode}; {self._end_of_log()}")

    def _ready_or_ended(self) -> bool:
        return not self.running or self.ready()

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} was never started"
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def stop(self) -> None:
        """As an administrator does; killed if that takes too long."""
        if self._process is None or not self.running:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """At once, whether paused or not."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def pause(self) -> None:
        """It keeps its connections and answers nothing: what a hung machine looks like."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None, f"{self.name} was never started"
        self._process.send_signal(number)

    def _end_of_log(self) -> str:
        return f"the end of {self.log}:\n{self.log.read_text(errors='replace')[-SHOWN_OF_LOG:]}"
