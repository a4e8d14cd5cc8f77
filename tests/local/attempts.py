"""Attempts of real trainer processes on a small run, started as an agent starts them, without agent or controller.

    run = SmallRun(tmp_path, steps=8)
    first = run.launch(hosts=2)
    assert first.wait() == [0, 0]

Nothing waits for time to pass: tests wait for a process to end (pidfd), or for a line of its progress.
"""

import os
import secrets
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from orchestrator.contract.attempt import AttemptSpec, HostRef, OwnError, Progress, Segment
from orchestrator.contract.base import sha256_of
from orchestrator.contract.ledger import Record
from orchestrator.contract.manifest import Head
from orchestrator.contract.recipe import Data, Model, Optimizer, Recipe, Schedule, Stage, TokenFile
from orchestrator.contract.run import CheckpointPolicy, LeafPlan, Placement, Revision
from orchestrator.store.local import LocalStore
from orchestrator.store.objects import Conflict
from orchestrator.store.run_store import RunStore
from tests.local.warm import TrainerProcess, Warm

REPOSITORY = Path(__file__).parents[2]
VOCABULARY = 64
LIMIT = 240.0
"""Seconds for anything that a test waits for."""
MODEL = Model(
    vocab_size=VOCABULARY,
    d_model=16,
    n_layers=2,
    n_heads=4,
    n_kv_heads=4,
    head_dim=4,
    d_ff=32,
    sliding_window=8,
    global_every=2,
    compute_dtype="float32",
)
STAND_IN = ("-m", "tests.local.stand_in_trainer")
REAL = ("-m", "trainer.train")


def write_tokens(path: Path, *, vocabulary: int = VOCABULARY, count: int = 4096) -> TokenFile:
    """Random tokens; the path in the result is the file's name."""
    np.random.default_rng(0).integers(0, vocabulary, count).astype("<u4").tofile(path)
    return TokenFile(path=path.name, sha256=sha256_of(path.read_bytes()), tokens=count)


def stage_of(file: TokenFile, *, name: str = "pretrain", steps: int = 8, peak: float = 1e-3, **optimizer: Any) -> Stage:
    return Stage(
        name=name,
        steps=steps,
        virtual_ranks=4,
        sequence_length=16,
        data=Data(files=(file,), seed=7),
        schedule=Schedule(peak=peak, warmup_steps=2),
        optimizer=Optimizer(**{"skip_window": 8, "skip_after": 4, **optimizer}),
    )


@dataclass
class Attempt:
    """The processes of one attempt."""

    number: int
    processes: list[TrainerProcess]
    folder: Path
    store: RunStore

    def wait(self) -> list[int]:
        """Exit codes, by process; negative: a signal."""
        deadline = time.monotonic() + LIMIT
        return [process.wait(timeout=max(0.1, deadline - time.monotonic())) for process in self.processes]

    def send(self, number: signal.Signals, *, process: int = 0) -> None:
        self.processes[process].send_signal(number)

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()

    def output(self, process: int = 0) -> str:
        return (self.folder / f"{process}.log").read_text(errors="replace")

    def error(self, process: int = 0) -> OwnError | None:
        path = self.folder / f"{process}.error.json"
        return OwnError.from_bytes(path.read_bytes(), where=str(path)) if path.exists() else None

    def progress(self, process: int = 0) -> Progress:
        return self.store.progress(self.number)[process]

    def ledger(self) -> dict[int, Record]:
        return {record.step: record for record in self.store.ledger(self.number)}

    def until(self, look: Callable[[Progress], bool], *, process: int = 0) -> Progress:
        """The first progress that ``look`` accepts; fails with the output when the process ends before it."""
        deadline = time.monotonic() + LIMIT
        handle = os.pidfd_open(self.processes[process].pid)
        try:
            poll = select.poll()
            poll.register(handle, select.POLLIN)
            while time.monotonic() < deadline:
                ended = bool(poll.poll(20))
                found = self.store.progress(self.number).get(process)
                if found is not None and look(found):
                    return found
                assert not ended, self.output(process)
        finally:
            os.close(handle)
        raise AssertionError(f"not seen within {LIMIT} s: {self.output(process)}")


@dataclass
class SmallRun:
    """A run's directory, token files, and the means to launch attempts on it."""

    folder: Path
    recipe: Recipe
    every_steps: int = 4
    cache: Path | None = None
    warm: Warm | None = None
    """Where trainers are forked; None: each is a fresh interpreter."""
    revision: int = 1
    attempts: list[Attempt] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.store = RunStore(LocalStore(self.folder / "store"), "small")
        self.store.create_revision(self._revision_document(None), self.recipe.to_bytes())
        self.store.create_head(Head(attempt=0, manifest=None, next_step=None, revision=1, write_id="start"))

    @property
    def head(self) -> Head:
        return self.store.head().value

    def fence(self) -> int:
        """Raise head to the next attempt, as a controller does before it launches; returns its number."""
        while True:
            stored = self.store.head()
            number = stored.value.attempt + 1
            raised = stored.value.model_copy(update={"attempt": number, "write_id": secrets.token_hex(8)})
            try:
                self.store.swap_head(raised, generation=stored.generation)
            except Conflict:  # the attempt that is to be fenced has just committed
                continue
            return number

    def launch(
        self,
        *,
        hosts: int = 1,
        devices: int = 1,
        environment: Mapping[str, str] | None = None,
        cold: tuple[str, ...] | None = None,
        absent: int = 0,
        **changes: Any,
    ) -> Attempt:
        """Fence, write the spec (``changes`` replace its fields), start one process a host.

        ``cold``: arguments of a fresh interpreter, instead of a fork. The last ``absent`` hosts never start.
        """
        number = self.fence()
        spec = self.spec(number, hosts=hosts, devices=devices).model_copy(update=changes)
        self.store.create_attempt(spec)
        folder = self.folder / f"attempt-{number}"
        folder.mkdir()
        (folder / "spec.json").write_bytes(spec.to_bytes())
        started = [
            self._start(folder, process, devices=devices, environment=environment or {}, cold=cold)
            for process in range(hosts - absent)
        ]
        attempt = Attempt(number=number, processes=started, folder=folder, store=self.store)
        self.attempts.append(attempt)
        return attempt

    def spec(self, number: int, *, hosts: int, devices: int) -> AttemptSpec:
        head = self.head
        stage = self.recipe.stage_at(head.next_step or 0) or self.recipe.stages[-1]
        return AttemptSpec(
            run="small",
            attempt=number,
            revision=self.revision,
            recipe_sha256=sha256_of(self.recipe.to_bytes()),
            store=self.store.objects.address,
            data_root=str(self.folder),
            stage=stage.name,
            until_step=self.recipe.first_step_of(stage) + stage.steps,
            allocation="small-g1",
            placement=Placement(
                name=f"hosts-{hosts}", pool="pool", generation="cpu", hosts=hosts, devices_per_host=devices
            ),
            hosts=tuple(HostRef(pool="pool", host=f"host-{process}") for process in range(hosts)),
            leaf_plan=LeafPlan(generation="cpu", settings={"remat": "none"}),
            resume=head.manifest,
            prior=self.prior(number, head.next_step or 0),
            checkpoint=CheckpointPolicy(every_steps=self.every_steps),
            trainer=("python", "-m", "trainer.train"),
        )

    def prior(self, number: int, from_step: int) -> tuple[Segment, ...]:
        """Segments of earlier attempts at and beyond a step."""
        found = []
        for earlier in range(1, number):
            for name in self.store.segment_names(earlier):
                data, records = self.store.read_segment(name)
                if records[-1].step >= from_step:
                    found.append(
                        Segment(
                            attempt=earlier,
                            name=name,
                            length=len(data),
                            sha256=sha256_of(data),
                            first_step=records[0].step,
                            last_step=records[-1].step,
                        )
                    )
        return tuple(found)

    def amend(self, recipe: Recipe) -> None:
        """A new revision with another recipe."""
        self.recipe, self.revision = recipe, self.revision + 1
        self.store.create_revision(self._revision_document(self.head.manifest), recipe.to_bytes())

    def stop_all(self) -> None:
        for attempt in self.attempts:
            attempt.kill()

    def _revision_document(self, base: str | None) -> Revision:
        return Revision(
            number=self.revision,
            recipe_sha256=sha256_of(self.recipe.to_bytes()),
            base_manifest=base,
            from_step=0,
            reason="test",
            by="test",
            at=0.0,
        )

    def _start(
        self,
        folder: Path,
        process: int,
        *,
        devices: int,
        environment: Mapping[str, str],
        cold: tuple[str, ...] | None,
    ) -> TrainerProcess:
        own = {
            "EVERSTEP_ATTEMPT": str(folder / "spec.json"),
            "EVERSTEP_PROCESS": str(process),
            "EVERSTEP_ERROR": str(folder / f"{process}.error.json"),
            "EVERSTEP_PROGRESS_SECONDS": "0.1",
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
            "OPENBLAS_NUM_THREADS": "1",
            "PJRT_NPROC": "1",
            "PYTHONPATH": str(REPOSITORY),
        }
        if self.cache is not None:
            own["EVERSTEP_COMPILE_CACHE"] = str(self.cache)
        own |= environment
        with (folder / f"{process}.log").open("wb") as log:
            if self.warm is not None and cold is None:
                return self.warm.start(own, log=log.fileno())
            return subprocess.Popen(
                [sys.executable, *(cold or STAND_IN)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **own},
                cwd=folder,
            )


def small_recipe(*stages: Stage) -> Recipe:
    return Recipe(name="small", seed=3, model=MODEL, stages=stages)
