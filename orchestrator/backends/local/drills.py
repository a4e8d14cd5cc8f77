"""Faults on purpose, for ``everstep drill``: each does one thing to a local fleet and says in a line what it was.

Raises, all of them: ContractError when the fleet has no such pool or host; OSError when a folder cannot be used.
"""

import signal
from pathlib import Path

from orchestrator.agent.host_folder import HostDeath, HostFolder
from orchestrator.agent.process import send_signal, session_members, wait_for_end
from orchestrator.backends.local.fleet_file import read_fleet
from orchestrator.backends.local.host_processes import (
    END_TIMEOUT,
    holder,
    kill_host_processes,
    trainer_processes,
)
from orchestrator.contract.attempt import HostRef
from orchestrator.contract.base import ContractError
from orchestrator.fleet.local_fleet import LocalPool


def kill_host(fleet: Path, host: HostRef, *, now: float) -> str:
    """SIGKILL agent and trainer; the host stays in the fleet, as after an instant reboot."""
    folder = _folder(fleet, host)
    if not folder.lock_is_held():
        return f"host {host}: nothing runs there, nothing was killed"
    if not _kill(folder, now=now):
        return f"host {host}: sent SIGKILL, but its lock is still held"
    return f"host {host}: killed agent and trainer; the host stays in the fleet"


def lose_agent(fleet: Path, host: HostRef, *, now: float) -> str:
    """SIGKILL the agent alone. The kernel has its trainer follow, so that none goes on without an agent."""
    folder = _folder(fleet, host)
    record = holder(folder)
    if record is None or record.process is None:
        return f"host {host}: no agent runs there, nothing was killed"
    others = [*session_members(record.process)[1:], *trainer_processes(folder)]
    folder.write_death(HostDeath(process=record.process, at=now))
    send_signal(record.process, signal.SIGKILL)
    left = [str(who.pid) for who in (record.process, *others) if not wait_for_end(who, timeout=END_TIMEOUT)]
    if left:
        return f"host {host}: killed agent {record.process.pid} alone; still running: {', '.join(left)}"
    return f"host {host}: killed agent {record.process.pid} alone; what it had started ended with it"


def stop_host(fleet: Path, host: HostRef) -> str:
    """SIGSTOP the trainer: alive, but it does nothing any more."""
    folder = _folder(fleet, host)
    stopped = [who.pid for who in trainer_processes(folder) if send_signal(who, signal.SIGSTOP)]
    if not stopped:
        return f"host {host}: no trainer runs there, nothing was stopped"
    return f"host {host}: stopped trainer {stopped[0]} (SIGSTOP); it is alive and stuck"


def shrink(fleet: Path, pool: str, *, keep: int, now: float) -> str:
    """Take all but the first ``keep`` hosts of a pool away, and end what runs on them."""
    refs = _pool(fleet, pool).refs()
    if not 0 <= keep <= len(refs):
        raise ContractError(f"pool {pool}: keep {keep} of {len(refs)} hosts? use 0 … {len(refs)}")
    for ref in refs[keep:]:
        folder = HostFolder.of(fleet, ref)
        folder.write_state(folder.state().model_copy(update={"present": False}))
    stuck = [str(ref) for ref in refs[keep:] if not _kill(HostFolder.of(fleet, ref), now=now)]
    also = f"; still running: {', '.join(stuck)}" if stuck else ""
    return f"pool {pool}: {len(refs) - keep} of {len(refs)} hosts taken away, {keep} left{also}"


def grow(fleet: Path, pool: str) -> str:
    """Give all hosts of a pool back."""
    refs = _pool(fleet, pool).refs()
    away = [ref for ref in refs if not HostFolder.of(fleet, ref).state().present]
    for ref in away:
        folder = HostFolder.of(fleet, ref)
        folder.write_state(folder.state().model_copy(update={"present": True}))
    return f"pool {pool}: {len(away)} hosts given back, all {len(refs)} present"


def announce_maintenance(fleet: Path, host: HostRef, *, at: float, now: float) -> str:
    """Announce that a host will be taken away ``at`` seconds since the epoch."""
    folder = _folder(fleet, host)
    folder.write_state(folder.state().model_copy(update={"maintenance_at": at}))
    return f"host {host}: maintenance announced in {at - now:.0f} s"


def clear_maintenance(fleet: Path, host: HostRef) -> str:
    """Withdraw an announcement."""
    folder = _folder(fleet, host)
    folder.write_state(folder.state().model_copy(update={"maintenance_at": None}))
    return f"host {host}: no maintenance announced"


def end_everything(fleet: Path) -> str:
    """Kill all agents and trainers of a fleet, whatever its ``fleet.yaml`` says now.

    Raises:
        TimeoutError: a host's lock is still held.
    """
    folders = [HostFolder(path) for path in sorted(fleet.absolute().glob("hosts/*/*")) if path.is_dir()]
    busy = [folder for folder in folders if folder.lock_is_held()]
    stuck = [str(folder.path) for folder in busy if not kill_host_processes(folder)]
    if stuck:
        raise TimeoutError(f"still running after SIGKILL: {', '.join(stuck)}; see agent.log there")
    return f"{len(busy)} hosts ended, all {len(folders)} locks are free"


def _kill(folder: HostFolder, *, now: float) -> bool:
    """Kill and say when, since nobody on the host can."""
    record = holder(folder)
    if record is not None and record.process is not None:
        folder.write_death(HostDeath(process=record.process, at=now))
    return kill_host_processes(folder)


def _pool(fleet: Path, name: str) -> LocalPool:
    described = read_fleet(fleet)
    pool = described.pool(name)
    if pool is None:
        raise ContractError(f"{fleet}: no pool {name!r}; there are {', '.join(pool.name for pool in described.pools)}")
    return pool


def _folder(fleet: Path, host: HostRef) -> HostFolder:
    pool = _pool(fleet, host.pool)
    if host not in pool.refs():
        raise ContractError(f"pool {host.pool}: no host {host.host!r}; there are h0 … h{pool.hosts - 1}")
    return HostFolder.of(fleet, host)
