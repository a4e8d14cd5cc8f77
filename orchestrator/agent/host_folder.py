"""A host's folder in a local fleet, and the lock that proves life.

The lock is an *open file description* lock (``fcntl(2)``): it belongs to the opened file, not to a process, goes on to
every process that inherits the descriptor, and ends when the last copy is closed, which the kernel does at their death.
The backend takes it and starts the agent with it; the agent starts its trainer with it. So a free lock proves that
agent and trainer are both dead, and at no moment of a hand-over is it free. Asking about it (``F_OFD_GETLK``) does not
take it, so a look never gets in the way of a start, as a probe with ``flock`` would.
"""

import contextlib
import fcntl
import os
import secrets
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field

from orchestrator.agent.process import ProcessIdentity
from orchestrator.contract.attempt import HostRef
from orchestrator.contract.base import Document
from orchestrator.contract.names import Location, Name

_LOCK_LAYOUT = "hhqqi4x"
"""``struct flock`` with 64-bit offsets: type, whence, start, length, pid, padding."""


class AgentRecord(Document):
    """Who holds a host's lock; counts only while the lock is held."""

    KIND: ClassVar[str] = "agent"

    run: Name
    store: Location
    from_attempt: Annotated[int, Field(gt=0)]
    process: ProcessIdentity | None
    """None: the lock is taken and the agent is about to be started."""
    trainer: ProcessIdentity | None = None
    """The trainer that it started last; it leads a session of its own."""


class HostState(Document):
    """What stands for the cloud's word about a host."""

    KIND: ClassVar[str] = "host"

    present: bool = True
    maintenance_at: float | None = None
    """Seconds since the epoch; None: nothing announced."""


class HostDeath(Document):
    """Somebody's word that the agent was killed, and when."""

    KIND: ClassVar[str] = "host-death"

    process: ProcessIdentity
    """The agent."""
    at: float
    """Seconds since the epoch."""


@dataclass(frozen=True)
class HostFolder:
    """Paths and files of one host, ``<fleet>/hosts/<pool>/<host>``."""

    path: Path

    @classmethod
    def of(cls, fleet: Path, host: HostRef) -> "HostFolder":
        return cls(fleet.absolute() / "hosts" / host.pool / host.host)

    @property
    def agent_log(self) -> Path:
        return self.path / "agent.log"

    def trainer_log(self, attempt: int) -> Path:
        return self.path / f"attempt-{attempt:04d}.log"

    def attempt_file(self, attempt: int) -> Path:
        """The trainer's own copy of its AttemptSpec."""
        return self.path / f"attempt-{attempt:04d}.json"

    def error_file(self, attempt: int) -> Path:
        return self.path / f"attempt-{attempt:04d}.error.json"

    # ---- the lock
    def take_lock(self) -> int | None:
        """The locked descriptor; None when an agent or trainer has it. Raises OSError: the folder cannot be used."""
        self.path.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.path / "agent.lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.fcntl(handle, fcntl.F_OFD_SETLK, _whole_file(fcntl.F_WRLCK))
        except (BlockingIOError, PermissionError):
            os.close(handle)
            return None
        return handle

    def lock_is_held(self) -> bool:
        """False proves that neither agent nor trainer is alive on this host. Raises OSError when it cannot be asked."""
        try:
            handle = os.open(self.path / "agent.lock", os.O_RDWR)
        except FileNotFoundError:
            return False
        try:
            answer = fcntl.fcntl(handle, fcntl.F_OFD_GETLK, _whole_file(fcntl.F_WRLCK))
        finally:
            os.close(handle)
        return bool(struct.unpack(_LOCK_LAYOUT, answer)[0] != fcntl.F_UNLCK)

    def is_locked_by(self, handle: int) -> bool:
        """Whether an open descriptor is still this folder's lock, not one of a folder that was removed or replaced."""
        try:
            return os.path.samestat(os.fstat(handle), os.stat(self.path / "agent.lock"))
        except OSError:
            return False

    # ---- the documents
    def record(self) -> AgentRecord | None:
        """None when there is none. Raises OSError or ContractError when it cannot be read."""
        data = _read(self.path / "agent.json")
        return None if data is None else AgentRecord.from_bytes(data, where=str(self.path / "agent.json"))

    def write_record(self, record: AgentRecord) -> None:
        self._replace("agent.json", record.to_bytes())

    def died_at(self) -> float | None:
        """When the last agent was killed; None when nobody said so. It counts only while the lock is free. Raises
        OSError or ContractError."""
        data, record = _read(self.path / "death.json"), self.record()
        if data is None or record is None:
            return None
        death = HostDeath.from_bytes(data, where=str(self.path / "death.json"))
        return death.at if death.process == record.process else None

    def write_death(self, death: HostDeath) -> None:
        self._replace("death.json", death.to_bytes())

    def state(self) -> HostState:
        """A host that nobody has said anything about is present. Raises OSError or ContractError."""
        data = _read(self.path / "state.json")
        return HostState() if data is None else HostState.from_bytes(data, where=str(self.path / "state.json"))

    def write_state(self, state: HostState) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        self._replace("state.json", state.to_bytes())

    def _replace(self, name: str, data: bytes) -> None:
        temporary = self.path / f".{name}.{secrets.token_hex(8)}"
        try:
            temporary.write_bytes(data)
            os.replace(temporary, self.path / name)
        finally:
            with contextlib.suppress(FileNotFoundError):
                temporary.unlink()


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _whole_file(kind: int) -> bytes:
    return struct.pack(_LOCK_LAYOUT, kind, os.SEEK_SET, 0, 0, 0)
