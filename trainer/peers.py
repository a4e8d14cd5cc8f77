"""The processes of an attempt: how they find one another, agree on small things, and leave together.

What they agree on goes through the key-value store of JAX's coordination service, never through a collective of the
devices: a wait there has a deadline, and can say who is missing. Calls must come in the same order in all processes.
"""

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import jax
from jax._src import distributed

from orchestrator.contract.attempt import Rendezvous
from orchestrator.contract.base import ContractError
from trainer.launch import Launch

INITIALISE_SECONDS = 300
"""For all hosts to start and import."""
HEARTBEAT_SECONDS = 10
"""JAX's own detection of a dead process: the backstop; agents see a death in milliseconds. JAX's default is 100."""
CONNECT_SECONDS = 60
"""For all to connect once they are known to be there. JAX kills the process when it takes longer, without a word of
who is missing, so that is found out before."""
LEAVE_SECONDS = 60
FIRST_POLL, LONGEST_POLL = 0.02, 1.0
"""Seconds between two looks into the store: at first, and when it takes long."""

Found = TypeVar("Found")


class PeersMissing(Exception):
    """Some processes did not come in time; the text names their hosts."""


class Peers:
    """All processes of the attempt, once they are connected."""

    def __init__(self, launch: Launch) -> None:
        self._hosts = [str(host) for host in launch.spec.hosts]
        self._process = launch.process
        self._calls = 0

    @property
    def process(self) -> int:
        return self._process

    @property
    def count(self) -> int:
        return len(self._hosts)

    def gather(self, what: str, text: str, *, seconds: float) -> list[str]:
        """What every process says, by process; returns when all have said it.

        Raises:
            PeersMissing: some did not within this time.
        """
        if self.count == 1:
            return [text]
        key = self._next_key(what)
        _client().key_value_set(f"{key}/{self._process}", text)
        try:
            _client().wait_at_barrier(key, int(seconds * 1000))
        except jax.errors.JaxRuntimeError as error:
            raise PeersMissing(f"{what}: {self._missing(key)} within {seconds:.0f} s") from error
        said = self._said(key)
        return [said[process] for process in range(self.count)]

    def barrier(self, what: str, *, seconds: float) -> None:
        """Wait for all. Raises PeersMissing."""
        self.gather(what, "", seconds=seconds)

    def from_first(self, what: str, text: str, *, seconds: float) -> str:
        """What process 0 says; the others' ``text`` does not count.

        Raises:
            PeersMissing: it said nothing within this time.
        """
        if self.count == 1:
            return text
        key = self._next_key(what)
        if self._process == 0:
            _client().key_value_set(key, text)
            return text
        try:
            return str(_client().blocking_key_value_get(key, int(seconds * 1000)))
        except jax.errors.JaxRuntimeError as error:
            raise PeersMissing(f"{what}: nothing from {self._hosts[0]} within {seconds:.0f} s") from error

    def meet(self, label: str, point: str, *, seconds: float) -> None:
        """Wait for all at a point of something that each may give up; from any thread, once a label and point.

        Raises:
            PeersMissing: some process gave up, or did not come within this time.
        """
        if self.count == 1:
            return
        key = f"everstep/{label}/{point}"
        _client().key_value_set(f"{key}/{self._process}", "")
        _poll(
            lambda: self._all_there(key, label),
            seconds=seconds,
            what=lambda: f"{label}: {self._missing(key)}",
        )

    def give_up(self, label: str, problem: str) -> None:
        """Say that this process will not come to any point of ``label``, so that nobody waits for it."""
        if self.count > 1:
            _client().key_value_set(f"everstep/{label}/given-up/{self._process}", problem)

    def leave(self) -> None:
        """Disconnect; process 0, to whom all are connected, is the last. Raises PeersMissing."""
        self.barrier("leave", seconds=LEAVE_SECONDS)
        jax.distributed.shutdown()

    def _all_there(self, key: str, label: str) -> bool | None:
        if len(self._said(key)) == self.count:
            return True
        for process, problem in self._said(f"everstep/{label}/given-up").items():
            raise PeersMissing(f"{self._hosts[process]} gave up: {problem}")
        return None

    def _next_key(self, what: str) -> str:
        self._calls += 1
        return f"everstep/{self._calls:08d}-{what.replace(' ', '-')}"

    def _said(self, key: str) -> dict[int, str]:
        return {int(name.rpartition("/")[2]): str(text) for name, text in _client().key_value_dir_get(f"{key}/")}

    def _missing(self, key: str) -> str:
        missing = [host for process, host in enumerate(self._hosts) if process not in self._said(key)]
        return f"nothing from {', '.join(missing)}" if missing else "the coordinator did not answer"


def connect(launch: Launch) -> Peers:
    """Meet at the rendezvous and initialise JAX over all hosts, also when there is only one: drains need it.

    Raises:
        PeersMissing: the others did not come; names them.
        ContractError: this host has other devices than the placement says.
    """
    spec = launch.spec
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    with _own_address(launch) if launch.is_first else _given_address(launch) as address:
        jax.distributed.initialize(
            coordinator_address=address,
            num_processes=len(spec.hosts),
            process_id=launch.process,
            cluster_detection_method="deactivate",
            initialization_timeout=CONNECT_SECONDS,
            heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
            shutdown_timeout_seconds=LEAVE_SECONDS,
            coordinator_bind_address=address,
        )
    _check_devices(launch)
    return Peers(launch)


@contextmanager
def _own_address(launch: Launch) -> Iterator[str]:
    """Where process 0 will listen, told to the others once all are there.

    The port is kept from other programs until the coordinator has it (gRPC shares the ports that it binds).
    """
    store, attempt = launch.store, launch.spec.attempt
    _poll(lambda: None if _not_there(launch) else True, seconds=INITIALISE_SECONDS, what=lambda: _not_there(launch))
    with socket.socket() as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        reserved.bind((launch.address, 0))
        address = f"{launch.address}:{reserved.getsockname()[1]}"
        store.create_rendezvous(attempt, Rendezvous(address=address))
        yield address


@contextmanager
def _given_address(launch: Launch) -> Iterator[str]:
    """Process 0's address, once it listens: a client that comes too early backs off for a second."""
    store, attempt, first = launch.store, launch.spec.attempt, launch.spec.hosts[0]
    patience = INITIALISE_SECONDS + CONNECT_SECONDS  # process 0, which can say who is missing, shall give up first
    found = _poll(
        lambda: store.rendezvous(attempt), seconds=patience, what=lambda: f"initialise: no rendezvous from {first}"
    )
    _poll(
        lambda: _listens(found.address),
        seconds=CONNECT_SECONDS,
        what=lambda: f"initialise: no answer at {found.address}",
    )
    yield found.address


def _poll(look: Callable[[], Found | None], *, seconds: float, what: Callable[[], str]) -> Found:
    """What ``look`` finds; or, after so long, PeersMissing with ``what``."""
    deadline, pause = time.monotonic() + seconds, FIRST_POLL
    while (found := look()) is None:
        if time.monotonic() > deadline:
            raise PeersMissing(f"{what()} within {seconds:.0f} s")
        time.sleep(pause)
        pause = min(1.5 * pause, LONGEST_POLL)
    return found


def _listens(address: str) -> bool | None:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=1):
            return True
    except OSError:
        return None


def _not_there(launch: Launch) -> str:
    """Hosts whose processes have not imported everything yet, in one line; empty: none."""
    progress = launch.store.progress(launch.spec.attempt)
    there = {process for process, report in progress.items() if report.phase != "start"}
    missing = [str(host) for process, host in enumerate(launch.spec.hosts) if process not in there]
    return f"initialise: nothing from {', '.join(missing)}" if missing else ""


def _check_devices(launch: Launch) -> None:
    found, wanted = jax.local_device_count(), launch.spec.placement.devices_per_host
    if found != wanted:
        raise ContractError(
            f"host {launch.spec.hosts[launch.process]}: JAX sees {found} devices, placement "
            f"{launch.spec.placement.name} says {wanted}; correct devices_per_host, or XLA_FLAGS on this host"
        )


def _client() -> Any:
    return distributed.global_state.client
