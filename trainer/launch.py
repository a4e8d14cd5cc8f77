"""What a trainer process is told: the AttemptSpec, its own index, and the run's directory. No jax here."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from orchestrator.contract.attempt import (
    ATTEMPT_VARIABLE,
    PROCESS_VARIABLE,
    AttemptSpec,
)
from orchestrator.contract.base import ContractError
from orchestrator.contract.recipe import Recipe, Stage
from orchestrator.store.opening import is_bucket, open_objects
from orchestrator.store.run_store import RunStore

CACHE_VARIABLE = "EVERSTEP_COMPILE_CACHE"
"""Environment variable: folder of the compile cache; unset: none."""
ADDRESS_VARIABLE = "EVERSTEP_ADDRESS"
"""Environment variable: address of this host that the attempt's other hosts can reach; unset: loopback."""
PROGRESS_VARIABLE = "EVERSTEP_PROGRESS_SECONDS"
"""Environment variable: seconds between two writes of the progress file."""


@dataclass(frozen=True)
class Launch:
    """One process of an attempt."""

    spec: AttemptSpec
    process: int
    compile_cache: Path | None
    address: str
    progress_seconds: float

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> "Launch":
        """Raises ContractError: a variable or document that is missing or does not fit."""
        spec = _read_spec(environment)
        process = environment.get(PROCESS_VARIABLE, "")
        if not process.isdigit() or int(process) >= len(spec.hosts):
            raise ContractError(
                f"{PROCESS_VARIABLE}: {process!r} is not the index of one of the attempt's {len(spec.hosts)} hosts; "
                "start the trainer through an agent"
            )
        cache = environment.get(CACHE_VARIABLE)
        return cls(
            spec=spec,
            process=int(process),
            compile_cache=Path(cache) if cache else None,
            address=environment.get(ADDRESS_VARIABLE, "127.0.0.1"),
            progress_seconds=float(environment.get(PROGRESS_VARIABLE, "5" if is_bucket(spec.store) else "1")),
        )

    @property
    def is_first(self) -> bool:
        """Process 0 writes what is written once for an attempt."""
        return self.process == 0

    @cached_property
    def store(self) -> RunStore:
        return RunStore(open_objects(self.spec.store), self.spec.run)

    @cached_property
    def recipe(self) -> Recipe:
        """Raises ContractError: the stored bytes are not those of the spec's hash."""
        return self.store.recipe(self.spec.recipe_sha256)

    @cached_property
    def stage(self) -> Stage:
        """Raises ContractError: the recipe has no such stage, or the attempt would pass its end."""
        spec = self.spec
        try:
            stage = self.recipe.stage_named(spec.stage)
        except KeyError:
            known = ", ".join(stage.name for stage in self.recipe.stages)
            raise ContractError(f"attempt {spec.attempt}: the recipe has no stage {spec.stage}, only {known}") from None
        end = self.recipe.first_step_of(stage) + stage.steps
        if spec.until_step > end:
            raise ContractError(
                f"attempt {spec.attempt}: until_step {spec.until_step} is past the end of {stage.name}, {end}"
            )
        return stage

    @property
    def first_step(self) -> int:
        """The step count at which the stage starts."""
        return self.recipe.first_step_of(self.stage)


def _read_spec(environment: Mapping[str, str]) -> AttemptSpec:
    path = environment.get(ATTEMPT_VARIABLE)
    if not path:
        raise ContractError(f"{ATTEMPT_VARIABLE} is not set; start the trainer through an agent")
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise ContractError(f"{ATTEMPT_VARIABLE}: {path}: {error.strerror or error}") from error
    return AttemptSpec.from_bytes(data, where=path)
