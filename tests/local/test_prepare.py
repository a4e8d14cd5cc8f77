"""What is compiled ahead is what a trainer of that placement then finds."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.contract.attempt import ExitCode
from orchestrator.contract.run import LeafPlan, Placement, Policy
from tests.local.attempts import REPOSITORY, SmallRun, small_recipe, stage_of, write_tokens

PAIR = Placement(name="pair", pool="pool", generation="cpu", hosts=2, devices_per_host=1)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[SmallRun]:
    recipe = small_recipe(stage_of(write_tokens(tmp_path / "tokens.u32"), steps=4))
    run = SmallRun(tmp_path, recipe, cache=tmp_path / "cache")
    run.store.create_policy(Policy(placements=(PAIR,)))
    run.store.create_leaf_plan(LeafPlan(generation="cpu", settings={"remat": "none"}))
    yield run
    run.stop_all()


def prepare(run: SmallRun, *, placement: str = "pair") -> subprocess.CompletedProcess[str]:
    asked = {
        "--store": run.store.objects.address,
        "--run": "small",
        "--revision": "1",
        "--stage": run.recipe.stages[0].name,
        "--placement": placement,
    }
    own = {
        "EVERSTEP_COMPILE_CACHE": str(run.cache),
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=1",
        "OPENBLAS_NUM_THREADS": "1",
        "PJRT_NPROC": "1",
        "PYTHONPATH": str(REPOSITORY),
    }
    return subprocess.run(
        [sys.executable, "-m", "trainer.prepare", *(word for pair in asked.items() for word in pair)],
        env={**os.environ, **own},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )


def test_trainers_find_what_was_compiled_ahead_and_nothing_is_compiled_twice(run: SmallRun) -> None:
    done = prepare(run)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines())[1:] == [
        f"everstep: process {process} of pair, stage {run.recipe.stages[0].name}: miss" for process in range(2)
    ]
    again = prepare(run)
    assert (again.returncode, again.stdout.count("process")) == (0, 0), again.stdout
    attempt = run.launch(hosts=2, cold=("-m", "trainer.train"))
    assert attempt.wait() == [ExitCode.LAST_STEP_COMMITTED] * 2, attempt.output()
    assert [attempt.progress(process).compile_cache for process in range(2)] == ["hit", "hit"]


def test_a_placement_that_the_run_does_not_have_is_one_line(run: SmallRun) -> None:
    done = prepare(run, placement="none")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "everstep: not compiled ahead: run small has no revision 1 or no placement none\n"
