"""The numerics fingerprint: what can change a bit is in it, what cannot is not."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.contract.recipe import Stage
from orchestrator.contract.run import Placement
from tests.unit.run_documents import recipe_of
from trainer import versions

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2 --xla_a=1 --xla_b=2", "PJRT_NPROC": "2"}


SOFTWARE = versions.Software(packages=dict.fromkeys(versions.NUMERIC_PACKAGES, "1.0"), sources="0" * 64)


def fingerprint(software: versions.Software = SOFTWARE, **environment: str) -> str:
    return versions.numerics_fingerprint(
        software, {"remat": "layer"}, processor="cpu:cpu", environment=ENVIRONMENT | environment
    )


@pytest.mark.parametrize(
    "environment",
    [
        {"XLA_FLAGS": "--xla_a=1 --xla_b=2"},
        {"XLA_FLAGS": "--xla_b=2 --xla_force_host_platform_device_count=8 --xla_a=1 --xla_dump_to=/tmp/x"},
        {"JAX_PLATFORMS": "cpu"},
        {"HOME": "/elsewhere"},
    ],
)
def test_what_cannot_change_a_bit_is_not_in_it(environment: dict[str, str]) -> None:
    assert fingerprint(**environment) == fingerprint()


@pytest.mark.parametrize(
    "environment",
    [
        {"XLA_FLAGS": "--xla_a=1"},
        {"XLA_FLAGS": "--xla_a=1 --xla_b=3"},
        {"PJRT_NPROC": "1"},
        {"LIBTPU_INIT_ARGS": "--xla_tpu_x"},
        {"JAX_DEFAULT_MATMUL_PRECISION": "highest"},
    ],
)
def test_flags_and_threads_are_in_it(environment: dict[str, str]) -> None:
    assert fingerprint(**environment) != fingerprint()


def test_leaf_plan_and_processor_are_in_it() -> None:
    found = {
        versions.numerics_fingerprint(SOFTWARE, {"remat": remat}, processor=processor, environment=ENVIRONMENT)
        for remat in ("layer", "none")
        for processor in ("cpu:cpu", "tpu:TPU v5", "tpu:TPU7x")
    }
    assert len(found) == 6


def test_packages_and_sources_are_in_it() -> None:
    found = {fingerprint()}
    for package in versions.NUMERIC_PACKAGES:
        found.add(fingerprint(replace(SOFTWARE, packages={**SOFTWARE.packages, package: "1.1"})))
    found.add(fingerprint(replace(SOFTWARE, sources="1" * 64)))
    assert len(found) == len(versions.NUMERIC_PACKAGES) + 2


def test_sources_that_compute_are_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "TRAINER", tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "a.py").write_text("x = 1\n")
    (tmp_path / "step.py").write_text("y = 1\n")

    def found() -> str:
        return versions.source_sha256([tmp_path / "model", tmp_path / "step.py"])

    seen = {found()}
    (tmp_path / "model" / "a.py").write_text("x = 2\n")
    seen.add(found())
    (tmp_path / "model" / "b.py").write_text("")
    seen.add(found())
    (tmp_path / "step.py").write_text("y = 2\n")
    seen.add(found())
    assert len(seen) == 4
    (tmp_path / "model" / "a.pyc").write_text("x")
    assert found() in seen


def test_versions_name_everything_that_a_manifest_should() -> None:
    found = versions.LOADED.packages
    assert found["jax"] != "none"
    assert {"jax", "jaxlib", "flax", "optax", "libtpu", "numpy", "orbax-checkpoint", "python"} == found.keys()


def test_change_on_the_disk_during_the_imports_is_seen() -> None:
    versions.confirm_loaded(versions.Software.on_disk())
    with pytest.raises(RuntimeError, match="changed while they were imported"):
        versions.confirm_loaded(replace(versions.Software.on_disk(), sources="0" * 64))


def test_software_is_looked_at_before_anything_that_computes_is_imported() -> None:
    code = "import sys, trainer.attempt; print(*[name for name in sys.modules if name.startswith('trainer.')])"
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    order = found.stdout.split()
    computing = [name for name in order if name.split(".")[1] in ("model", "optim", "parallel", "step")]
    assert len(computing) > 4
    assert order.index("trainer.versions") < min(order.index(name) for name in computing)


def test_executables_are_those_of_one_process_of_one_placement_on_one_kind_of_cpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recipe = recipe_of({"only": 10})
    stage = recipe.stages[0]
    quarter = Placement(name="quarter", pool="a", generation="x", hosts=2, devices_per_host=4)

    def key(*, stage: Stage = stage, placement: Placement = quarter, process: int | None = 0) -> str:
        return versions.executables_key(
            {"remat": "layer"},
            model=recipe.model,
            stage=stage,
            processor="cpu:cpu",
            placement=placement,
            process=process,
            environment=ENVIRONMENT,
        )

    same = key(
        stage=stage.model_copy(update={"name": "other", "steps": 7}),
        placement=quarter.model_copy(update={"name": "twin", "pool": "b"}),
    )
    assert same == key()
    others = {
        key(process=1),
        key(process=None),
        key(placement=quarter.model_copy(update={"hosts": 4, "devices_per_host": 2})),
        key(stage=stage.model_copy(update={"sequence_length": 2 * stage.sequence_length})),
        key(stage=stage.model_copy(update={"optimizer": stage.optimizer.model_copy(update={"z_loss": 0.5})})),
    }
    monkeypatch.setattr(versions, "cpu_kind", lambda: "another")
    others.add(key())
    assert len(others - {same}) == 6
