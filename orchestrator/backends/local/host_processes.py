"""The agent and the trainer of one host, found by the record beside the lock and ended by identity."""

import signal
from collections.abc import Callable

import tenacity

from orchestrator.agent.host_folder import AgentRecord, HostFolder
from orchestrator.agent.process import ProcessIdentity, kill_and_wait, send_signal, session_members

END_TIMEOUT = 5.0
"""Seconds until processes that were sent SIGKILL must be gone; longer than that they hang in the kernel."""


def holder(folder: HostFolder, *, run: str | None = None) -> AgentRecord | None:
    """The record of whoever holds the host's lock; None when it is free or held for another run than ``run``.

    Raises:
        OSError, ContractError: lock or record cannot be read.
    """
    if not folder.lock_is_held():
        return None
    record = folder.record()
    return record if record is not None and run in (None, record.run) else None


def kill_host_processes(folder: HostFolder, *, run: str | None = None, timeout: float = END_TIMEOUT) -> bool:
    """SIGKILL the agent, then all that its trainer started; True when they are gone.

    The agent first, so that it can start nothing more; its trainer follows by the kernel's doing, the rest of the
    trainer's session by ours. A holder that is just being started is waited for and ended too.

    Raises:
        OSError, ContractError: lock or record cannot be read.
    """
    return _repeat(lambda: _kill_once(folder, run=run, timeout=timeout), timeout=timeout)


def terminate_agent(folder: HostFolder, *, run: str, timeout: float = END_TIMEOUT) -> bool:
    """Ask the agent to leave; True when it was asked or there is none. Raises OSError, ContractError."""
    return _repeat(lambda: _terminate_once(folder, run=run), timeout=timeout)


def trainer_processes(folder: HostFolder) -> list[ProcessIdentity]:
    """The last trainer of the lock's holder and all that it started, if alive. Raises OSError, ContractError."""
    record = holder(folder)
    return session_members(record.trainer) if record is not None and record.trainer is not None else []


def _kill_once(folder: HostFolder, *, run: str | None, timeout: float) -> bool:
    record = holder(folder, run=run)
    if record is None:
        return True
    if record.process is not None:
        family = session_members(record.process)  # the agent and its zygote
        kill_and_wait([record.process], timeout=timeout)
        kill_and_wait(family, timeout=timeout)
        kill_and_wait(trainer_processes(folder), timeout=timeout)
    return holder(folder, run=run) is None


def _terminate_once(folder: HostFolder, *, run: str) -> bool:
    record = holder(folder, run=run)
    if record is None:
        return True
    return record.process is not None and send_signal(record.process, signal.SIGTERM)


def _repeat(once: Callable[[], bool], *, timeout: float) -> bool:
    """Until it returns true, for ``timeout`` seconds: an agent that is being started has no pid in its record yet."""
    attempts = tenacity.Retrying(
        stop=tenacity.stop_after_delay(timeout),
        wait=tenacity.wait_fixed(0.01),
        retry=tenacity.retry_if_result(lambda done: not done),
        retry_error_callback=lambda _: False,
    )
    return bool(attempts(once))
