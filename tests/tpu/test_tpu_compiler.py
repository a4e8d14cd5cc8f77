"""The real TPU compiler, which needs no TPU: a step fits or is refused, and its leaf does not depend on the placement.

The model is small, since a compile takes a minute; what holds at the size of 7B is in docs/preflight.md.
"""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from orchestrator.contract.preflight import Compiled, PreflightReport, Refused
from trainer.preflight.search import CANDIDATES

ROOT = Path(__file__).parents[2]
SMALL = {
    "vocab_size": 1024,
    "d_model": 256,
    "n_layers": 4,
    "n_heads": 2,
    "n_kv_heads": 1,
    "head_dim": 128,
    "d_ff": 768,
    "sliding_window": 256,
    "global_every": 2,
}
PLAN = {**CANDIDATES[0], "attention_chunk": 256}


def preflight(folder: Path, *places: str, **model: int) -> subprocess.CompletedProcess[str]:
    """``everstep preflight`` for a small recipe; answers are kept in the folder."""
    recipe = {
        "name": "small",
        "seed": 1,
        "model": SMALL | model,
        "stages": [
            {
                "name": "pretrain",
                "steps": 10,
                "virtual_ranks": 16,
                "sequence_length": 512,
                "data": {"files": [{"path": "text.u32"}]},
                "schedule": {"peak": 1e-3},
            }
        ],
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    command = [sys.executable, "-m", "orchestrator.cli.main", "preflight", str(folder / "recipe.yaml"), "--json"]
    command += [word for place in places for word in ("--on", place)]
    command += [word for name, value in PLAN.items() for word in ("--set", f"{name}={value}")]
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> PreflightReport:
    """One leaf a device, and two."""
    done = preflight(tmp_path_factory.mktemp("preflight"), "tpu7x:2x2x2", "tpu7x:2x2x1")
    assert done.returncode == 0, done.stderr[-2000:]
    return PreflightReport.from_bytes(done.stdout.encode(), where="standard output")


def outcomes(report: PreflightReport) -> list[Compiled]:
    found = [place.answer.outcome for place in report.placements]
    assert all(isinstance(outcome, Compiled) for outcome in found)
    return [outcome for outcome in found if isinstance(outcome, Compiled)]


def test_the_leaf_is_the_same_program_on_half_the_devices(report: PreflightReport) -> None:
    whole, half = report.placements
    assert (whole.answer.devices, half.answer.devices) == (16, 8)
    assert (whole.answer.micro_steps, half.answer.micro_steps) == (1, 2)
    assert (half.only_here, half.only_there) == ((), ())
    assert (half.bits, half.equal_units) == ("equal", whole.units)
    assert whole.units > 50


def test_nothing_that_costs_a_product_is_computed_again(report: PreflightReport) -> None:
    """But attention's scores, which its backward kernel needs."""
    for outcome in outcomes(report):
        assert 1.0 <= outcome.flops / outcome.model_flops < 1.1
    whole, half = outcomes(report)
    assert half.flops == 2 * whole.flops


def test_weights_are_gathered_and_gradients_exchanged_beside_the_computation(report: PreflightReport) -> None:
    for outcome in outcomes(report):
        large = [one for one in outcome.collectives if one.bytes > 1_000_000]
        assert {one.kind for one in large} == {"all-gather", "all-to-all"}
        assert all(one.asynchronous for one in large)


def test_a_step_that_does_not_fit_is_refused_and_said_to_be(tmp_path: Path) -> None:
    """Logits alone would take 137 GB."""
    done = preflight(tmp_path, "tpu7x:2x2x1", vocab_size=67_108_864, n_layers=1, global_every=1)
    assert done.returncode == 1, done.stderr[-2000:]
    (place,) = PreflightReport.from_bytes(done.stdout.encode(), where="standard output").placements
    assert isinstance(place.answer.outcome, Refused)
    assert place.answer.outcome.out_of_memory
    assert place.bits == "reference"


@pytest.mark.parametrize("place", ["tpu7x:3x3x3", "tpu99:2x2x1"])
def test_a_topology_that_does_not_exist_is_one_line(tmp_path: Path, place: str) -> None:
    done = preflight(tmp_path, place)
    assert done.returncode == 2
    assert done.stdout == ""
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("everstep: ")
    assert "knows no such topology" in last
    assert not list(tmp_path.rglob("*.json"))
