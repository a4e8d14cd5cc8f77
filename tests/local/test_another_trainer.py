"""The trainer of examples/: anybody's, without JAX; what obeys the contract survives."""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.local.attempts import REPOSITORY
from tests.local.person import Person

TRAINER = REPOSITORY / "examples" / "plain_trainer.py"
EVERY = 250  # steps between checkpoints; at some 10 ms a step seconds lie between the first record and the first commit
RUN = f"""\
name: bigram
store: store
fleet: fleet
data_root: data
recipe: recipe.yaml
trainer: ["{sys.executable}", "{TRAINER}"]
scrub: ["{sys.executable}", "{TRAINER}"]
policy:
  placements:
    - {{name: one, pool: main, generation: any, hosts: 1, devices_per_host: 1}}
  checkpoint: {{every_steps: {EVERY}, max_unproven: 1000}}
"""
RECIPE = """\
name: bigram
model: {vocab_size: 256, d_model: 16, n_layers: 2, global_every: 2, n_heads: 2, n_kv_heads: 2, head_dim: 8, d_ff: 32,
        sliding_window: 8}
stages:
  - name: only
    steps: 800
    virtual_ranks: 8
    sequence_length: 256
    data: {files: [{path: some.tokens}]}
    schedule: {peak: 0.5}
"""


@pytest.fixture
def person(tmp_path: Path) -> Iterator[Person]:
    for name in ("data", "fleet"):
        (tmp_path / name).mkdir()
    (tmp_path / "fleet" / "fleet.yaml").write_text(
        "pools: [{name: main, generation: any, hosts: 2, devices_per_host: 1}]\n"
    )
    (tmp_path / "run.yaml").write_text(RUN)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    np.random.default_rng(7).integers(0, 256, 256 * 500).astype("<u4").tofile(tmp_path / "data" / "some.tokens")
    person = Person(tmp_path, "bigram")
    yield person
    person.leaves()


def test_another_trainer_survives_a_killed_host_and_leaves_before_maintenance_bit_for_bit(person: Person) -> None:
    person.types("submit", "run.yaml")
    person.waits(lambda row: row["next_step"] >= 50)
    person.types("drill", "kill-host", "main/h0", "--fleet", "fleet")
    person.waits(lambda now: now["attempt"] == 2 and now["phase"] == "train")
    person.types("drill", "maintenance", "main/h0", "--in", "60", "--fleet", "fleet")
    person.waits(lambda now: now["state"] == "complete")
    person.types("submit", "run.yaml", "--name", "reference")
    Person(person.folder, "reference").waits(lambda now: now["state"] == "complete")

    certificate = person.reads("certificate", "bigram", "--reference", "reference")
    assert certificate["held"], certificate["claims"]
    proof = certificate["verification"]
    assert proof["verdict"] == "equal", proof["sentence"]
    assert proof["tokens_recomputed"] > 0
    causes = [episode["cause"] for episode in certificate["episodes"]]
    assert causes == ["submit", "host-lost", "maintenance"]
    assert [move["witnessed"] for move in proof["moves"]] == [True, True]


def test_a_damaged_checkpoint_is_put_aside_and_what_it_held_is_computed_again(person: Person) -> None:
    person.types("submit", "run.yaml")
    person.waits(lambda row: row["next_step"] >= 150)
    person.types("pause", "bigram", "--reason", "test")
    row = person.waits(lambda row: row["state"] == "paused" and not row["live"])
    said = person.types("drill", "corrupt-checkpoint", "bigram")
    damaged = f"{row['committed_step']:012d}-a0001"
    assert said.startswith(f"checkpoint {damaged}: flipped a bit of byte ")
    person.types("resume", "bigram", "--reason", "test")
    person.waits(lambda row: row["state"] == "complete")
    proof = person.reads("verify", "bigram")
    assert proof["verdict"] == "equal", proof["sentence"]
    assert proof["replayed_steps"] >= row["committed_step"] % EVERY
    messages = [event["message"] for event in person.reads("events", "bigram")["events"]]
    assert f"checkpoint {damaged} failed its checks and is not tried again" in messages
