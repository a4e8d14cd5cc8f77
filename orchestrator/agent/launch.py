"""Starting a trainer and reaping what ends; nothing here knows the store.

A trainer leads a session of its own, so that it and all it started can be ended together, and the kernel kills it when
the agent dies. The agent adopts orphans: whatever a trainer leaves behind is reaped here and never stays a zombie.
"""

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from orchestrator.agent.process import (
    ProcessIdentity,
    die_with_parent,
    identity_of_child,
    kill_and_wait,
    send_signal,
    session_members,
)

SWEEP_TIMEOUT = 1.0
"""Seconds until what a trainer left behind must be gone after SIGKILL."""


class CannotStart(Exception):
    """The trainer's command cannot be run; the text is one line."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One trainer process to start."""

    command: Sequence[str]
    environment: Mapping[str, str]
    """Added to the agent's own."""
    log: Path
    """Takes the standard output and error, from its beginning."""
    lock: int
    """Descriptor of the host's lock, which the trainer inherits."""


class TrainerProcesses(Protocol):
    """The trainers of one agent, as children of its process."""

    @property
    def ready(self) -> bool:
        """False while a start would only have to wait; looked at again before each."""
        ...

    def start(self, launch: Launch) -> ProcessIdentity:
        """The trainer leads a session of its own. Raises CannotStart."""
        ...

    def terminate(self, trainer: ProcessIdentity) -> None:
        """SIGTERM to the trainer alone."""
        ...

    def kill(self, trainer: ProcessIdentity) -> None:
        """SIGKILL to the trainer and its process group; for one that ``ended()`` has not named yet."""
        ...

    def ended(self) -> dict[int, int]:
        """Wait statuses, by pid, of the trainers that ended since the last call; nothing of them is left."""
        ...


class ColdProcesses:
    """Runs the trainer's command in a fresh interpreter."""

    def __init__(self) -> None:
        self._trainers: dict[int, ProcessIdentity] = {}

    @property
    def ready(self) -> bool:
        return True

    def start(self, launch: Launch) -> ProcessIdentity:
        agent = os.getpid()
        try:
            with launch.log.open("wb") as log:
                child = subprocess.Popen(
                    launch.command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env={**os.environ, **launch.environment},
                    pass_fds=(launch.lock,),
                    start_new_session=True,
                    preexec_fn=lambda: die_with_parent(agent),  # safe: the agent has one thread
                )
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            raise CannotStart(f"cannot run {' '.join(launch.command)!r}: {error}") from error
        child.returncode = 0  # ended() waits for it; this keeps subprocess from doing so at some later moment
        return self.adopt(child.pid)

    def adopt(self, pid: int) -> ProcessIdentity:
        """Take care of a child that leads its own session, however it was started."""
        self._trainers[pid] = identity_of_child(pid)
        return self._trainers[pid]

    def knows(self, child: ProcessIdentity) -> bool:
        return self._trainers.get(child.pid) == child

    def terminate(self, trainer: ProcessIdentity) -> None:
        send_signal(trainer, signal.SIGTERM)

    def kill(self, trainer: ProcessIdentity) -> None:
        for send in (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError):
                send(trainer.pid, signal.SIGKILL)

    def ended(self) -> dict[int, int]:
        statuses = _reap_children()
        trainers = {pid: status for pid, status in statuses.items() if pid in self._trainers}
        for pid in trainers:
            kill_and_wait(session_members(self._trainers.pop(pid)), timeout=SWEEP_TIMEOUT)
        return trainers


def _reap_children() -> dict[int, int]:
    """All children that have ended, adopted orphans too: their wait statuses, by pid."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = status
