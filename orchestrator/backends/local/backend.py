"""One machine as a fleet: each host is a folder with a lock, an agent and at most one trainer.

Nothing is remembered here. What is true of a host is in its folder and in the kernel (who holds the lock), so any
number of controllers, and one that was started again, see the same.
"""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from orchestrator.agent.host_folder import AgentRecord, HostFolder
from orchestrator.agent.process import is_alive
from orchestrator.backends.local.fleet_file import read_fleet
from orchestrator.backends.local.host_processes import kill_host_processes, terminate_agent
from orchestrator.backends.local.trainer_environment import trainer_environment
from orchestrator.contract.attempt import HostRef
from orchestrator.contract.base import ContractError
from orchestrator.fleet.backend import BackendUnavailable
from orchestrator.fleet.local_fleet import LocalPool
from orchestrator.fleet.observation import AgentView, HostView

Condition = Literal["ready", "gone", "unknown"]


class LocalBackend:
    """The hosts of a local fleet, for one run.

    Args:
        fleet: folder with a ``fleet.yaml``; the hosts' folders are made below it.
        store_address: absolute path of the object store that the agents read.
        run: name of the run.
        python: command of the interpreter that runs the agents; by default one that imports nothing from the working
            folder.
        zygote: ``<module>:<trainer module>``: agents start the module once and let it fork trainers whose command is
            ``python -m <trainer module>``; None: every trainer starts in a fresh interpreter.

    Raises:
        ContractError: the fleet's description is missing or wrong.
    """

    def __init__(
        self,
        *,
        fleet: Path,
        store_address: str,
        run: str,
        python: Sequence[str] = (sys.executable, "-P"),
        zygote: str | None = None,
    ) -> None:
        self._fleet = fleet.absolute()
        self._store_address = store_address
        self._run = run
        self._python = tuple(python)
        self._zygote = zygote
        self._children: set[int] = set()
        """Agents started by this object; they outlive it, and are waited for so that none stays a zombie."""
        read_fleet(self._fleet)

    def hosts(self) -> tuple[HostView, ...]:
        self._reap()
        return tuple(self._view(pool, ref) for pool, ref in self._listed())

    def ensure_agents(self, hosts: Sequence[HostRef], *, from_attempt: int) -> None:
        self._reap()
        wanted = set(hosts)
        for pool, ref in self._listed():
            if ref in wanted:
                with _reaching(str(ref)):
                    self._ensure_agent(pool, ref, from_attempt)

    def kill_agents(self, hosts: Sequence[HostRef]) -> None:
        for ref in hosts:
            with _reaching(str(ref)):
                kill_host_processes(self._host(ref), run=self._run)
        self._reap()

    def release(self, hosts: Sequence[HostRef]) -> None:
        for ref in hosts:
            with _reaching(str(ref)):
                terminate_agent(self._host(ref), run=self._run)
        self._reap()

    def _listed(self) -> list[tuple[LocalPool, HostRef]]:
        with _reaching(str(self._fleet)):
            return [(pool, ref) for pool in read_fleet(self._fleet).pools for ref in pool.refs()]

    def _host(self, ref: HostRef) -> HostFolder:
        return HostFolder.of(self._fleet, ref)

    # ---- looking
    def _view(self, pool: LocalPool, ref: HostRef) -> HostView:
        folder = self._host(ref)
        maintenance_at = died_at = None
        agent: AgentView | None = None
        try:
            state = folder.state()
            held = folder.lock_is_held()
            record = folder.record() if held else None
            maintenance_at = state.maintenance_at
            died_at = None if held else folder.died_at()
            agent = _agent_view(record)
            condition, evidence = _judged(held, record) if state.present else ("gone", "not in the fleet's list")
        except (OSError, ContractError) as error:
            condition, evidence = "unknown", f"its folder cannot be read: {error}"
        return HostView(
            ref=ref,
            generation=pool.generation,
            devices=pool.devices_per_host,
            condition=condition,
            evidence=evidence,
            maintenance_at=maintenance_at,
            agent=agent,
            died_at=died_at,
        )

    # ---- starting
    def _ensure_agent(self, pool: LocalPool, ref: HostRef, from_attempt: int) -> None:
        folder = self._host(ref)
        if not folder.state().present:
            return
        lock = folder.take_lock()
        if lock is None:
            return
        try:
            folder.write_record(
                AgentRecord(run=self._run, store=self._store_address, from_attempt=from_attempt, process=None)
            )
            self._start_agent(self._agent_command(pool, ref, from_attempt, lock), folder, lock)
        finally:
            os.close(lock)  # the agent has its own copy, and writes itself into the record

    def _agent_command(self, pool: LocalPool, ref: HostRef, from_attempt: int, lock: int) -> list[str]:
        command = [*self._python, "-m", "orchestrator.agent"]
        command += ["--store", self._store_address, "--run", self._run, "--fleet", str(self._fleet)]
        command += ["--pool", ref.pool, "--host", ref.host, "--from-attempt", str(from_attempt), "--lock-fd", str(lock)]
        if self._zygote is not None:
            command += ["--zygote", self._zygote]
        for name, value in trainer_environment(pool, fleet=self._fleet).items():
            command += ["--env", f"{name}={value}"]
        return command

    def _start_agent(self, command: Sequence[str], folder: HostFolder, lock: int) -> None:
        with folder.agent_log.open("ab") as log:
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=(lock,), start_new_session=True
            )
        child.returncode = 0  # it outlives this object; _reap() waits for it, not subprocess
        self._children.add(child.pid)

    def _reap(self) -> None:
        for pid in tuple(self._children):
            try:
                ended, _ = os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                ended = pid
            if ended:
                self._children.discard(pid)


def _judged(held: bool, record: AgentRecord | None) -> tuple[Condition, str]:
    """Condition and evidence of a listed host. A held lock is never read as a dead host."""
    if not held:
        return "ready", "listed, agent's lock is free"
    if record is None:
        return "unknown", "agent's lock is held, but agent.json, which says by whom, is missing"
    if record.process is None:
        return "ready", "listed, an agent is being started"
    if not is_alive(record.process):
        return "unknown", f"agent {record.process.pid} is dead, but something that it started still holds its lock"
    return "ready", f"listed, agent {record.process.pid} holds its lock"


def _agent_view(record: AgentRecord | None) -> AgentView | None:
    return None if record is None else AgentView(run=record.run, from_attempt=record.from_attempt)


@contextlib.contextmanager
def _reaching(what: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ContractError) as error:
        raise BackendUnavailable(f"{what}: {error}") from error
