"""``python -m orchestrator.agent``: started by a backend, which hands over the host's lock."""

import argparse
import logging
import os
import time
from collections.abc import Sequence
from pathlib import Path

from orchestrator.agent.agent import Agent, Pace
from orchestrator.agent.host_folder import AgentRecord, HostFolder
from orchestrator.agent.launch import ColdProcesses, TrainerProcesses
from orchestrator.agent.process import adopt_orphans, identity_of
from orchestrator.agent.wakeup import SignalWaiter
from orchestrator.agent.zygote import WarmProcesses, ZygoteCommand
from orchestrator.contract.attempt import HostRef
from orchestrator.store.opening import is_bucket, open_objects
from orchestrator.store.run_store import RunStore

_log = logging.getLogger(__name__)

LOOK_AT_FOLDER, LOOK_AT_BUCKET = 0.05, 1.0
"""Seconds between two looks at a store's orders."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve one run on one host until asked to leave."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    host = HostRef(pool=options.pool, host=options.host)
    folder = HostFolder.of(options.fleet, host)
    os.set_inheritable(options.lock_fd, False)  # only a trainer gets it, by name
    adopt_orphans()
    with SignalWaiter.installed() as waiter:
        _sign(folder, options)
        _log.info("agent of run %s on %s, from attempt %d on", options.run, host, options.from_attempt)
        Agent(
            store=RunStore(open_objects(options.store), options.run),
            host=host,
            from_attempt=options.from_attempt,
            folder=folder,
            lock=options.lock_fd,
            processes=_processes(options, waiter),
            environment=dict(options.env),
            waiter=waiter,
            now=time.time,
            monotonic=time.monotonic,
            pace=Pace(look=options.look_every or (LOOK_AT_BUCKET if is_bucket(options.store) else LOOK_AT_FOLDER)),
        ).run()
    _log.info("left")


def _processes(options: argparse.Namespace, waiter: SignalWaiter) -> TrainerProcesses:
    if options.zygote is None:
        return ColdProcesses()
    module, _, serves = options.zygote.partition(":")
    return WarmProcesses(
        ZygoteCommand(module=module, serves=serves),
        environment=dict(options.env),
        lock=options.lock_fd,
        waiter=waiter,
        monotonic=time.monotonic,
    )


def _sign(folder: HostFolder, options: argparse.Namespace) -> None:
    """Say who holds the lock; the backend that started this process may have died before it could."""
    folder.write_record(
        AgentRecord(
            run=options.run, store=options.store, from_attempt=options.from_attempt, process=identity_of(os.getpid())
        )
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m orchestrator.agent", description=__doc__)
    parser.add_argument("--store", required=True, help="absolute path or gs:// address of the object store")
    parser.add_argument("--run", required=True, help="the run whose orders it takes")
    parser.add_argument("--fleet", required=True, type=Path, help="the folder of the local fleet")
    parser.add_argument("--pool", required=True)
    parser.add_argument("--host", required=True)
    parser.add_argument("--from-attempt", required=True, type=int, help="orders below this number are not for it")
    parser.add_argument("--lock-fd", required=True, type=int, help="inherited descriptor that holds the host's lock")
    parser.add_argument("--env", action="append", default=[], type=_assignment, metavar="NAME=VALUE")
    parser.add_argument("--zygote", metavar="MODULE:TRAINER", help="start MODULE once and let it fork TRAINER")
    parser.add_argument("--look-every", type=float, metavar="SECONDS")
    return parser


def _assignment(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


if __name__ == "__main__":
    main()
