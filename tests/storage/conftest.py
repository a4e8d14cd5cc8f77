"""One server for all tests of this folder; each has a part of its bucket, and a healthy network to begin with."""

import itertools
from collections.abc import Iterator

import pytest

from tests.storage.fault_proxy import none_at_all
from tests.storage.gcs_server import GcsServer, serving

BUCKET = "everstep-tests"


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GcsServer]:
    with serving(tmp_path_factory.mktemp("buckets")) as server:
        server.make_bucket(BUCKET)
        yield server


@pytest.fixture(scope="session")
def numbers() -> Iterator[int]:
    return itertools.count(1)


@pytest.fixture
def server(running: GcsServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[GcsServer]:
    """The server, its proxy healthy again at the end, and this process's clients led to it."""
    for name, value in running.environment().items():
        monkeypatch.setenv(name, value)
    running.proxy.seen.clear()
    yield running
    running.proxy.choose = none_at_all


@pytest.fixture
def address(server: GcsServer, numbers: Iterator[int]) -> str:
    """Of an empty store."""
    return f"gs://{BUCKET}/test-{next(numbers)}"
