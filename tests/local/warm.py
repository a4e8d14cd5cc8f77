"""Trainers forked from a zygote of their own, as an agent forks them, so that a test need not wait for imports."""

import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

_PR_SET_CHILD_SUBREAPER = 36


class TrainerProcess(Protocol):
    """What tests do with a trainer, forked or fresh; ``subprocess.Popen`` has it."""

    pid: int

    def wait(self, timeout: float | None = None) -> int: ...

    def kill(self) -> None: ...

    def send_signal(self, sig: int) -> None: ...


class Forked:
    """A trainer that the zygote forked, now a child of this process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._handle = os.pidfd_open(pid)
        self._code: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        if self._code is None:
            poll = select.poll()
            poll.register(self._handle, select.POLLIN)
            if not poll.poll(None if timeout is None else timeout * 1000):
                raise TimeoutError(f"trainer {self.pid} still runs after {timeout} s")
            self._code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            os.close(self._handle)
        return self._code

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def send_signal(self, sig: int) -> None:
        if self._code is None:
            signal.pidfd_send_signal(self._handle, sig)


class Warm:
    """The talk with a zygote."""

    def __init__(self, talk: socket.socket) -> None:
        self._talk = talk

    def start(self, environment: Mapping[str, str], *, log: int) -> Forked:
        """Fork a trainer; ``log`` takes its output."""
        asked = {"start": {"arguments": [], "environment": dict(environment)}}
        socket.send_fds(self._talk, [json.dumps(asked).encode()], [log])
        return Forked(json.loads(self._talk.recv(1 << 16))["pid"])


@contextmanager
def zygote(trainer: str, *, preload: str, repository: Path) -> Iterator[Warm]:
    """A zygote that forks ``trainer``; this process adopts what it forks."""
    _adopt_orphans(True)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    modules = ["jax.experimental.multihost_utils", "trainer.attempt", preload]
    command = [sys.executable, "-m", "trainer.zygote", "--socket", str(theirs.fileno())]
    with theirs:
        process = subprocess.Popen(
            [*command, *(word for name in modules for word in ("--preload", name)), trainer],
            env={**os.environ, "JAX_PLATFORMS": "cpu", "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(repository)},
            pass_fds=(theirs.fileno(),),
        )
    try:
        with ours:
            ours.recv(1 << 16)  # it is ready
            yield Warm(ours)
    finally:
        process.wait()
        _adopt_orphans(False)


def _adopt_orphans(yes: bool) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(yes), 0, 0, 0)
