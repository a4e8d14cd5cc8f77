"""A Google Cloud Storage server on loopback, in a folder of its own, reached through a proxy that can fail."""

import contextlib
import http.client
import json
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.programs.build import built
from tests.storage.fault_proxy import FaultProxy

START_SECONDS = 30.0


@dataclass(frozen=True)
class GcsServer:
    """One that runs."""

    proxy: FaultProxy
    process: subprocess.Popen[bytes]

    def environment(self) -> dict[str, str]:
        """What leads every client of a process to the proxy."""
        url = f"http://{self.proxy.address}"
        return {"STORAGE_EMULATOR_HOST": url, "TENSORSTORE_GCS_HTTP_URL": url}

    def make_bucket(self, name: str) -> None:
        with contextlib.closing(http.client.HTTPConnection(self.proxy.address)) as connection:
            connection.request("POST", "/storage/v1/b?project=tests", json.dumps({"name": name}))
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[GcsServer]:
    """A server with its objects in ``folder``."""
    binary = built("gcs_server")
    with FaultProxy("") as proxy:
        process, proxy.upstream = _started(binary, folder, public=proxy.address)
        try:
            yield GcsServer(proxy=proxy, process=process)
        finally:
            process.kill()
            process.wait()


def _started(binary: Path, folder: Path, *, public: str) -> tuple[subprocess.Popen[bytes], str]:
    deadline = time.monotonic() + START_SECONDS
    while True:
        port = _free_port()
        process = subprocess.Popen(
            [
                *(binary, "-scheme", "http", "-host", "127.0.0.1", "-port", str(port)),
                *("-backend", "filesystem", "-filesystem-root", folder, "-log-level", "error"),
                *("-public-host", public, "-external-url", f"http://{public}"),
            ]
        )
        while process.poll() is None:  # another process may have taken the port meanwhile: then the next one
            with contextlib.suppress(ConnectionError), socket.create_connection(("127.0.0.1", port)):
                return process, f"127.0.0.1:{port}"
            if time.monotonic() > deadline:
                process.kill()
                process.wait()
                raise TimeoutError(f"{binary} did not listen within {START_SECONDS:.0f} s")
            time.sleep(0.01)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
