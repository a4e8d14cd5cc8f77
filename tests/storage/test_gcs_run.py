"""A whole run whose store and token files are in a bucket, on a network that fails now and then."""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from orchestrator.store.gcs import GcsStore
from tests.local.person import Person
from tests.local.test_survival import RECIPE, RUN
from tests.storage.fault_proxy import none_at_all, now_and_then
from tests.storage.gcs_server import GcsServer

pytestmark = pytest.mark.timeout(900)

SEED = 20261130


@pytest.fixture
def person(server: GcsServer, address: str, tmp_path: Path) -> Iterator[Person]:
    (tmp_path / "fleet").mkdir()
    (tmp_path / "fleet" / "fleet.yaml").write_text(
        "pools: [{name: main, generation: local-a, hosts: 2, devices_per_host: 2}]\n"
    )
    data_root = f"{address}-data"
    run = RUN.replace("store: store", f"store: {address}").replace("data_root: data", f"data_root: {data_root}")
    (tmp_path / "run.yaml").write_text(run)
    (tmp_path / "recipe.yaml").write_text(re.sub("steps: [0-9]+", "steps: 240", RECIPE))
    tokens = np.random.default_rng(7).integers(0, 64, 32 * 500).astype("<u4")
    GcsStore(data_root).create("some.tokens", tokens.tobytes())
    person = Person(tmp_path, "survivor", store=address)
    yield person
    server.proxy.choose = none_at_all
    person.leaves()


def test_a_run_in_a_bucket_survives_a_lost_host_and_lost_responses_bit_for_bit(
    person: Person, server: GcsServer
) -> None:
    server.proxy.choose = now_and_then(SEED, share=0.02, kinds=("429", "503", "lost", "cut", "refused"))
    person.types("submit", "run.yaml")
    person.waits(lambda row: row["placement"] == "full" and row["next_step"] >= 12)
    person.types("drill", "shrink", "main", "--keep", "1", "--fleet", "fleet")
    person.waits(lambda row: row["state"] == "complete")

    assert len(server.proxy.faults()) >= 5, "the network was not bad enough to show anything"
    certificate = person.reads("certificate", "survivor")
    assert certificate["held"], certificate["claims"]
    proof = certificate["verification"]
    assert proof["verdict"] == "equal", proof["sentence"]
    assert proof["replayed_steps"] > 0
    assert [entry["placement"] for entry in proof["attempt_records"]] == ["full", "half"]
    assert proof["tokens_recomputed"] > 16  # first, last and a sample of each attempt, read from the bucket again
