"""A proxy before an HTTP server that fails as networks and services do.

Whoever asks for a fault says of which kind and for which requests; all others pass unchanged. Faults are of six kinds:

    429, 503      the service refuses, and the request never reaches it
    lost          the request is done, its response never arrives
    cut           the request is done, half of the response arrives
    refused       the connection is closed before the request is read
    stall         nothing arrives until the client gives up; the request is not done
"""

import http.client
import random
import socket
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal, get_args

Fault = Literal["429", "503", "lost", "cut", "refused", "stall"]
FAULTS: tuple[Fault, ...] = get_args(Fault)
HOP_HEADERS = {"connection", "keep-alive", "transfer-encoding", "content-length"}


@dataclass(frozen=True)
class Asked:
    """A request, before anything is done with it."""

    method: str
    path: str


Choice = Callable[[Asked], Fault | None]


def none_at_all(_: Asked) -> None:
    """The choice of a healthy network."""


def first(fault: Fault, *, times: int, method: str | None = None) -> Choice:
    """The first requests (of one method) get a fault, later ones none."""
    lock, left = threading.Lock(), [times]

    def choose(asked: Asked) -> Fault | None:
        with lock:
            if left[0] == 0 or (method is not None and asked.method != method):
                return None
            left[0] -= 1
            return fault

    return choose


def now_and_then(seed: int, *, share: float, kinds: tuple[Fault, ...] = FAULTS) -> Choice:
    """A share of all requests gets faults of random kinds."""
    lock, chance = threading.Lock(), random.Random(seed)

    def choose(_: Asked) -> Fault | None:
        with lock:
            return chance.choice(kinds) if chance.random() < share else None

    return choose


@dataclass
class FaultProxy:
    """Listens on loopback while it is entered; ``upstream`` is ``host:port``."""

    upstream: str
    choose: Choice = none_at_all
    seen: list[tuple[Asked, Fault | None]] = field(default_factory=list)

    def __enter__(self) -> "FaultProxy":
        proxy = self

        class Handler(_Handler):
            owner = proxy

        self._closing = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def address(self) -> str:
        host, port = self._server.server_address[:2]
        return f"{host!s}:{port}"

    def faults(self) -> list[Fault]:
        """Those that were given, in order."""
        return [fault for _, fault in self.seen if fault is not None]

    def wait_until_left(self, connection: socket.socket) -> None:
        """Return when the client has closed its end, or the proxy is being closed."""
        connection.settimeout(0.1)
        while not self._closing.is_set():
            try:
                if not connection.recv(1):
                    return
            except TimeoutError:
                continue
            except OSError:
                return


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    owner: FaultProxy

    def handle_one_request(self) -> None:
        """As the base class, for every method."""
        try:
            self.raw_requestline = self.rfile.readline(65537)
            if not self.raw_requestline or not self.parse_request():
                self.close_connection = True
                return
            self._serve()
        except ConnectionError:
            self.close_connection = True

    def _serve(self) -> None:
        asked = Asked(self.command, self.path)
        fault = self.owner.choose(asked)
        self.owner.seen.append((asked, fault))
        if fault == "refused":
            self.close_connection = True
            return
        body = self._body()
        if fault == "stall":
            self.owner.wait_until_left(self.connection)
            self.close_connection = True
        elif fault in ("429", "503"):
            self._answer(int(fault), {}, b'{"error": {"message": "busy"}}')
        else:
            self._forward(body, fault)

    def _forward(self, body: bytes, fault: Fault | None) -> None:
        with closing(http.client.HTTPConnection(self.owner.upstream)) as upstream:
            upstream.request(self.command, self.path, body=body or None, headers=self._passed_on())
            response = upstream.getresponse()
            content = response.read()
        if fault == "lost":
            self.close_connection = True
            return
        headers = {name: value for name, value in response.getheaders() if name.lower() not in HOP_HEADERS}
        self._answer(response.status, headers, content, cut=fault == "cut")

    def _passed_on(self) -> dict[str, str]:
        return {name: value for name, value in self.headers.items() if name.lower() not in HOP_HEADERS}

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _answer(self, status: int, headers: dict[str, str], content: bytes, *, cut: bool = False) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: len(content) // 2] if cut else content)
        self.close_connection = self.close_connection or cut

    def log_message(self, *_: object) -> None:
        """Requests are in ``seen``."""
