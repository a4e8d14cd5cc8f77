"""The numerics fingerprint: what can change a bit is in it, what cannot is not."""

from collections.abc import Callable
from pathlib import Path

import pytest

from trainer import versions

ENVIRONMENT = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2 --xla_a=1 --xla_b=2", "PJRT_NPROC": "2"}


def fingerprint(**environment: str) -> str:
    return versions.numerics_fingerprint({"remat": True}, processor="cpu:cpu", environment=ENVIRONMENT | environment)


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
        versions.numerics_fingerprint({"remat": remat}, processor=processor, environment=ENVIRONMENT)
        for remat in (True, False)
        for processor in ("cpu:cpu", "tpu:TPU v5", "tpu:TPU7x")
    }
    assert len(found) == 6


def test_package_versions_are_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(of: str) -> Callable[[str], str]:
        return lambda package: "9.9" if package == of else "1.0"

    found = set()
    for package in versions.NUMERIC_PACKAGES:
        monkeypatch.setattr(versions, "_version", answer(package))
        found.add(fingerprint())
    assert len(found) == len(versions.NUMERIC_PACKAGES)


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
    found = versions.versions()
    assert found["jax"] != "none"
    assert {"jax", "jaxlib", "flax", "optax", "libtpu", "numpy", "orbax-checkpoint", "python"} == found.keys()
