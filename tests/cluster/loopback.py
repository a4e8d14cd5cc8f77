"""Addresses on this machine's loopback that nobody else uses: a small network for each cluster."""

import contextlib
import itertools
import random
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field

_CLAIM_PORT = 10250  # the kubelet's own, which ours does not serve


@dataclass(frozen=True)
class LoopbackNetwork:
    """127.x.y.0/24: the control plane has its first address, hosts those from .10 on."""

    prefix: str
    _last: Iterator[int] = field(default_factory=lambda: itertools.count(10))

    @property
    def control_plane(self) -> str:
        return f"{self.prefix}.1"

    def next_host(self) -> str:
        number = next(self._last)
        assert number < 254, "this network is full"
        return f"{self.prefix}.{number}"

    def free_port(self) -> int:
        """On the control plane's address; nobody but that control plane takes ports of it."""
        with socket.socket() as probe:
            probe.bind((self.control_plane, 0))
            return int(probe.getsockname()[1])


@contextlib.contextmanager
def claimed() -> Iterator[LoopbackNetwork]:
    """A network that no other test process of this machine has meanwhile."""
    chance = random.SystemRandom()
    while True:
        prefix = f"127.{chance.randrange(64, 192)}.{chance.randrange(256)}"
        with socket.socket() as claim:
            try:
                claim.bind((f"{prefix}.254", _CLAIM_PORT))
            except OSError:  # taken
                continue
            yield LoopbackNetwork(prefix)
            return
