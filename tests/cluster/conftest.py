"""One control plane for all tests of this folder; each has a namespace and pools of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import control_plane, fabric
from tests.cluster.control_plane import ControlPlane
from tests.cluster.fabric import Fabric


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with control_plane.running(tmp_path_factory.mktemp("control-plane")) as plane:
        yield plane


@pytest.fixture
def cluster(plane: ControlPlane, tmp_path: Path) -> Iterator[Fabric]:
    with fabric.running(plane, tmp_path) as cluster:
        yield cluster
