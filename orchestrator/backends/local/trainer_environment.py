"""The environment that makes JAX on a CPU stand for a TPU host; agents pass it on without knowing what it means."""

from pathlib import Path

from orchestrator.fleet.local_fleet import LocalPool


def trainer_environment(pool: LocalPool, *, fleet: Path) -> dict[str, str]:
    """Depends on the pool alone: the same flags in every attempt are a condition for equal bits."""
    environment = {
        "JAX_PLATFORMS": "cpu",
        # replaces whatever the person's shell holds, which may differ at the next start of the controller
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={pool.devices_per_host}",
        "EVERSTEP_COMPILE_CACHE": str(fleet / "compile-cache"),
        "OPENBLAS_NUM_THREADS": "1",  # one thread before a backend is up, which makes forking safe
    }
    if pool.threads_per_host is not None:
        environment["PJRT_NPROC"] = str(pool.threads_per_host)
    return environment
