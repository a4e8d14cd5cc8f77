"""Trainers forked by a zygote, a child of the agent that has imported the trainer already; cold whenever it cannot.

The zygote is a cache: it may die, hang or refuse at any moment, and the attempt is then started in a fresh interpreter.
While it still imports, a start waits for it, because a fresh interpreter would have to import the same from the
beginning. A trainer that it forks is a child of the agent (which adopts orphans) and does not notice its end.
"""

import json
import logging
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.agent.launch import ColdProcesses, Launch
from orchestrator.agent.process import (
    ProcessIdentity,
    children_of,
    die_with_parent,
    identity_of_child,
    kill_and_wait,
)
from orchestrator.agent.wakeup import Waiter

REPLY_SECONDS = 5.0
"""For a fork; it takes some milliseconds."""
IMPORT_SECONDS = 300.0
"""After which a zygote that still imports is given up."""
MOST_FAILURES = 3
"""Ends of zygotes in a row, none of which was ever ready, after which no other is started."""

SAFE_PATH = "-P"
"""Python's option to import nothing from the working folder, which may hold anything."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ZygoteCommand:
    """How to start a zygote, and what it can fork."""

    module: str
    """Started as ``python -P -m <module> --socket FD <serves>``."""
    serves: str
    """The trainer's module: a trainer command ``python -m <serves> …`` is forked, any other one starts cold."""

    def start(self, *, fileno: int) -> list[str]:
        """The command that starts it."""
        return [sys.executable, SAFE_PATH, "-m", self.module, "--socket", str(fileno), self.serves]

    def arguments_of(self, command: Sequence[str]) -> list[str] | None:
        """What a trainer's command passes to the module; None when a zygote cannot stand for that command."""
        words = [word for word in command[:4] if word != SAFE_PATH]
        if len(words) < 3 or words[1:3] != ["-m", self.serves] or shutil.which(words[0]) != sys.executable:
            return None
        return list(command[command.index(self.serves) + 1 :])


@dataclass(kw_only=True)
class _Zygote:
    identity: ProcessIdentity
    talk: socket.socket
    started_at: float
    ready: bool = False


class _NoFork(Exception):
    """The zygote did not give a trainer."""


class WarmProcesses:
    """Trainers from a zygote, or cold."""

    def __init__(
        self,
        command: ZygoteCommand,
        *,
        environment: Mapping[str, str],
        lock: int,
        waiter: Waiter,
        monotonic: Callable[[], float],
    ) -> None:
        self._command = command
        self._environment = environment
        self._lock = lock
        self._waiter = waiter
        self._monotonic = monotonic
        self._cold = ColdProcesses()
        self._zygote: _Zygote | None = None
        self._failures = 0
        self._revive()

    @property
    def ready(self) -> bool:
        return self._zygote is None or self._zygote.ready

    def start(self, launch: Launch) -> ProcessIdentity:
        arguments = self._command.arguments_of(launch.command)
        if self._zygote is not None and self._zygote.ready and arguments is not None:
            try:
                return self._cold.adopt(self._fork(self._zygote, launch, arguments))
            except (OSError, ValueError, KeyError, _NoFork) as error:
                self._drop(str(error))
        return self._cold.start(launch)

    def terminate(self, trainer: ProcessIdentity) -> None:
        self._cold.terminate(trainer)

    def kill(self, trainer: ProcessIdentity) -> None:
        self._cold.kill(trainer)

    def ended(self) -> dict[int, int]:
        self._listen()
        self._revive()
        return self._cold.ended()

    # ---- the talk
    def _fork(self, zygote: _Zygote, launch: Launch, arguments: list[str]) -> int:
        asked = {"start": {"arguments": arguments, "environment": dict(launch.environment)}}
        zygote.talk.settimeout(REPLY_SECONDS)
        with launch.log.open("wb") as log:
            socket.send_fds(zygote.talk, [json.dumps(asked).encode()], [log.fileno()])
        reply = json.loads(zygote.talk.recv(1 << 16) or b"{}")
        if "pid" not in reply:
            raise _NoFork(reply.get("refused", "it ended"))
        return int(reply["pid"])

    def _listen(self) -> None:
        """Hear that the zygote is ready, or gone."""
        zygote = self._zygote
        if zygote is None:
            return
        zygote.talk.settimeout(0)
        try:
            message = zygote.talk.recv(1 << 16)
        except BlockingIOError:
            if not zygote.ready and self._monotonic() - zygote.started_at > IMPORT_SECONDS:
                self._drop(f"it still imports after {IMPORT_SECONDS:.0f} s")
            return
        except OSError as error:
            self._drop(str(error))
            return
        if zygote.ready or not message:
            self._drop("it ended" if not message else "it spoke without being asked")
            return
        zygote.ready = True
        self._failures = 0
        _log.info("the zygote is ready: %s", message.decode(errors="replace"))

    # ---- its life
    def _revive(self) -> None:
        if self._zygote is not None or self._failures >= MOST_FAILURES:
            return
        try:
            self._zygote = self._start_zygote()
        except (OSError, subprocess.SubprocessError) as error:
            self._failures += 1
            _log.warning("no zygote, trainers start cold: %s", error)
            return
        self._waiter.watch(self._zygote.talk.fileno())

    def _start_zygote(self) -> _Zygote:
        agent = os.getpid()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            child = subprocess.Popen(
                self._command.start(fileno=theirs.fileno()),
                stdin=subprocess.DEVNULL,
                env={**os.environ, **self._environment},
                pass_fds=(theirs.fileno(), self._lock),
                preexec_fn=lambda: die_with_parent(agent),  # safe: the agent has one thread
            )
        child.returncode = 0  # ended() waits for it
        return _Zygote(identity=identity_of_child(child.pid), talk=ours, started_at=self._monotonic())

    def _drop(self, why: str) -> None:
        """Do without the zygote, and without whatever it forked that has no name here."""
        assert self._zygote is not None
        zygote, self._zygote = self._zygote, None
        self._failures += 1
        _log.warning("the zygote is given up, trainers start cold until the next one is ready: %s", why)
        self._waiter.forget(zygote.talk.fileno())
        zygote.talk.close()
        kill_and_wait([zygote.identity], timeout=REPLY_SECONDS)
        kill_and_wait([who for who in children_of(os.getpid()) if not self._cold.knows(who)], timeout=REPLY_SECONDS)
