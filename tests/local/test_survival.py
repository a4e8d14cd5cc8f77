"""A whole run on real processes, by commands only: submitted, disturbed, completed, proven."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.local.person import Person

pytestmark = pytest.mark.timeout(900)

RUN = """\
name: survivor
store: store
fleet: fleet
data_root: data
recipe: recipe.yaml
policy:
  placements:
    - {name: full, pool: main, generation: local-a, hosts: 2, devices_per_host: 2}
    - {name: half, pool: main, generation: local-a, hosts: 1, devices_per_host: 2}
  checkpoint: {every_steps: 40, prove_after: 200, max_unproven: 1000}
  moves: {hold_off: 100000}
"""
RECIPE = """\
name: survivor
model: {vocab_size: 64, d_model: 16, n_layers: 2, global_every: 2, n_heads: 2, n_kv_heads: 2, head_dim: 8, d_ff: 32,
        sliding_window: 8, compute_dtype: float32}
stages:
  - name: only
    steps: 1500
    virtual_ranks: 4
    sequence_length: 32
    data: {files: [{path: some.tokens}]}
    schedule: {peak: 3.0e-3}
"""


@pytest.fixture
def person(tmp_path: Path) -> Iterator[Person]:
    for name in ("data", "fleet"):
        (tmp_path / name).mkdir()
    (tmp_path / "fleet" / "fleet.yaml").write_text(
        "pools: [{name: main, generation: local-a, hosts: 2, devices_per_host: 2}]\n"
    )
    (tmp_path / "run.yaml").write_text(RUN)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    tokens = np.random.default_rng(7).integers(0, 64, 32 * 500).astype("<u4")
    tokens.tofile(tmp_path / "data" / "some.tokens")
    person = Person(tmp_path, "survivor")
    yield person
    person.leaves()


def test_a_run_survives_the_loss_of_its_controller_of_a_host_and_of_half_its_hosts_bit_for_bit(person: Person) -> None:
    person.types("submit", "run.yaml")
    row = person.waits(lambda row: row["placement"] == "full" and row["next_step"] >= 12)
    leader = person.leader()
    assert leader is not None
    os.kill(leader, signal.SIGKILL)
    assert person.types("submit", "run.yaml").startswith("run survivor was submitted before")
    adopted = person.waits(lambda now: now["next_step"] >= row["next_step"] + 12)
    assert (adopted["attempt"], adopted["live"]) == (1, True), "a controller that starts adopts what runs"
    person.types("drill", "kill-host", "main/h1", "--fleet", "fleet")
    person.waits(lambda row: row["attempt"] == 2 and row["phase"] == "train")
    person.types("drill", "shrink", "main", "--keep", "1", "--fleet", "fleet")
    person.waits(lambda row: row["state"] == "complete")

    proof = person.reads("verify", "survivor")
    assert proof["verdict"] == "equal", proof["sentence"]
    assert proof["replayed_steps"] > 0
    assert (proof["steps_differing"], proof["max_abs_delta_loss"]) == (0, 0.0)
    placements = [entry["placement"] for entry in proof["attempt_records"]]
    assert placements[0] == "full"
    assert placements[-1] == "half"
    certificate = person.reads("certificate", "survivor")
    assert certificate["held"], certificate["claims"]
