"""What must be equal for bits to be equal: the numerics fingerprint, the leaf fingerprint, and versions by name.

A process computes with the sources and packages that it has loaded, which need not be those on the disk by now: a
zygote lives for days, and somebody may edit a file between an import and a fingerprint. So both are looked at when this
module is imported (``LOADED``), which must come before the import of anything that computes, and once more after that
(``confirm_loaded``): unchanged in between, they are what was loaded.
"""

import hashlib
import importlib.metadata
import json
import os
import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from orchestrator.contract.attempt import AttemptSpec
from orchestrator.contract.ledger import Fingerprint
from orchestrator.contract.recipe import Model, Stage
from orchestrator.contract.run import Placement

NUMERIC_PACKAGES = ("jax", "jaxlib", "libtpu", "flax", "optax")
"""Their versions are in the numerics fingerprint; ``none`` where one is not installed."""
OTHER_PACKAGES = ("orbax-checkpoint", "numpy")
NUMERIC_SOURCES = ("model", "optim", "parallel", "step.py")
"""Parts of this package that compute."""
NUMERIC_VARIABLES = (
    "LIBTPU_INIT_ARGS",
    "JAX_DEFAULT_MATMUL_PRECISION",
    "JAX_ENABLE_X64",
    "JAX_NUMPY_DTYPE_PROMOTION",
    "JAX_DEFAULT_DTYPE_BITS",
)
"""Environment variables besides XLA_FLAGS through which a host could compute something else."""
FLAGS_WITHOUT_BITS = ("--xla_force_host_platform_device_count", "--xla_dump_")
TRAINER = Path(__file__).parent


@dataclass(frozen=True, kw_only=True)
class Software:
    """What computes."""

    packages: Mapping[str, str]
    """Versions by name, ``python`` among them."""
    sources: str
    """SHA-256 over the parts of this package that compute."""

    @classmethod
    def on_disk(cls) -> "Software":
        """As it would be imported now."""
        packages = {name: _version(name) for name in NUMERIC_PACKAGES + OTHER_PACKAGES}
        return cls(
            packages={**packages, "python": platform.python_version()},
            sources=source_sha256(TRAINER / part for part in NUMERIC_SOURCES),
        )


def confirm_loaded(loaded: Software) -> None:
    """Called when everything is imported.

    Raises:
        RuntimeError: something changed on the disk meanwhile, so that nobody knows what was loaded.
    """
    if Software.on_disk() != loaded:
        raise RuntimeError("the trainer's sources or packages changed while they were imported; start it again")


def fingerprint(spec: AttemptSpec, *, model: Model, stage: Stage, processor: str) -> Fingerprint:
    """Of this attempt's program; ``processor`` is the kind of its devices, as JAX names it."""
    return Fingerprint(
        numerics=numerics_fingerprint(LOADED, spec.leaf_plan.settings, processor=processor, environment=os.environ),
        leaf=leaf_fingerprint(spec.leaf_plan.settings, model=model, stage=stage),
    )


def numerics_fingerprint(
    software: Software, settings: Mapping[str, Any], *, processor: str, environment: Mapping[str, str]
) -> str:
    """Everything outside the recipe that can change a bit: packages, sources, leaf plan, flags, processor, threads."""
    return _hash(
        {
            "packages": {name: software.packages[name] for name in NUMERIC_PACKAGES},
            "sources": software.sources,
            "leaf_plan": dict(settings),
            "flags": numeric_flags(environment.get("XLA_FLAGS", "")),
            "variables": {name: environment.get(name, "") for name in NUMERIC_VARIABLES},
            "processor": [processor, cpu_model() if processor.startswith("cpu") else ""],
            "threads": intra_op_threads(environment) if processor.startswith("cpu") else 0,
        }
    )


def leaf_fingerprint(settings: Mapping[str, Any], *, model: Model, stage: Stage) -> str:
    """What the leaf is compiled from: leaf plan, model, and the shapes that the stage gives it.

    This stands in for a hash of the compiled leaf, which the preflight for TPU placements takes from the program
    itself; on CPUs of one kind the same source compiles to the same leaf.
    """
    shapes = [stage.virtual_ranks, stage.sequences_per_rank, stage.sequence_length, stage.optimizer.z_loss]
    return _hash({"leaf_plan": dict(settings), "model": model.model_dump(mode="json"), "shapes": shapes})


def executables_key(
    settings: Mapping[str, Any],
    *,
    model: Model,
    stage: Stage,
    processor: str,
    placement: Placement,
    process: int | None,
    environment: Mapping[str, str],
) -> str:
    """Of the executables of one process of a placement: equal keys, interchangeable files. None: of all processes."""
    return _hash(
        {
            "numerics": numerics_fingerprint(LOADED, settings, processor=processor, environment=environment),
            "python": LOADED.packages["python"],
            "model": model.model_dump(mode="json"),
            "stage": stage.model_dump(mode="json", exclude={"name", "data", "schedule", "steps"}),
            "place": [placement.hosts, placement.devices_per_host, process],
            "cpu": cpu_kind(),
        }
    )


def source_sha256(paths: Iterable[Path]) -> str:
    """Over the names and bytes of all Python files in these folders and files."""
    digest = hashlib.sha256()
    for path in paths:
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            digest.update(f"{file.relative_to(TRAINER).as_posix()}\0".encode())
            digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def numeric_flags(flags: str) -> list[str]:
    """XLA_FLAGS without those that cannot change a bit: the number of host devices, where to dump."""
    return sorted(flag for flag in flags.split() if not flag.startswith(FLAGS_WITHOUT_BITS))


def intra_op_threads(environment: Mapping[str, str]) -> int:
    """Threads that XLA cuts an operation over on a CPU."""
    return int(environment.get("PJRT_NPROC") or len(os.sched_getaffinity(0)))


class Device(Protocol):
    """Of JAX."""

    platform: str
    device_kind: str


def processor_of(device: Device) -> str:
    """The kind of a device, as JAX names it."""
    return f"{device.platform}:{device.device_kind}"


def cpu_model() -> str:
    """The processor's name as the kernel gives it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def cpu_kind() -> str:
    """A name for processors that can run each other's executables: same model, same instructions."""
    told = Path("/proc/cpuinfo").read_text().splitlines()
    instructions = {word for line in told if line.startswith(("flags", "Features")) for word in line.split()}
    return hashlib.sha256(" ".join([cpu_model(), *sorted(instructions)]).encode()).hexdigest()[:16]


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "none"


def _hash(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


LOADED = Software.on_disk()
