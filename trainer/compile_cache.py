"""The executables of a program, kept for the next process that stands where this one stands.

JAX has a compile cache too. It spares a restart the compiler, but neither tracing nor lowering, which here take several
times as long as the rest; and on CPU, where each process has entries of its own, it lets process 0 alone write.
"""

import hashlib
import os
import pickle
import stat
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Literal

import jax
from jax.experimental.serialize_executable import deserialize_and_load, serialize

from orchestrator.contract.recipe import Model, Stage
from orchestrator.contract.run import LeafPlan, Placement
from trainer.parallel.state_checksums import Executables
from trainer.step import Program, StepPlan, build_program
from trainer.versions import executables_key, processor_of

Outcome = Literal["hit", "miss", "off"]
"""``hit``: nothing was compiled."""
DIGEST = hashlib.sha256().digest_size


class CompileCache:
    """Where one program's executables on these devices are, all in one file; ``folder`` None: nowhere.

    Such a file is code, so one is read only that belongs to this user and that nobody else can write. Whatever is
    wrong with it is said in a line, and the program is compiled.
    """

    def __init__(self, folder: Path | None, *, key: str, devices: Sequence[jax.Device]) -> None:
        self._devices = devices
        self.outcome: Outcome = "off" if folder is None else "miss"
        self._file = None if folder is None else folder / f"{key}.executables"
        # an executable that came out of JAX's cache runs once, but cannot be serialised again
        jax.config.update("jax_enable_compilation_cache", False)

    def load(self) -> Executables | None:
        """What was kept; None: compile, and ``keep``."""
        if self._file is None:
            return None
        try:
            found = _read(self._file, self._devices)
        except FileNotFoundError:
            return None
        except Exception as error:  # noqa: BLE001 - a start that compiles always works
            print(f"everstep: {self._file} is not used: {error}", flush=True)
            return None
        self.outcome = "hit"
        return found

    def keep(self, executables: Executables) -> None:
        """Write them, or say in a line why not."""
        if self._file is None:
            return
        try:
            _write(self._file, executables)
        except Exception as error:  # noqa: BLE001 - the next start will compile again
            print(f"everstep: {self._file} is not written: {error}", flush=True)


def built(model: Model, stage: Stage, *, leaf_plan: LeafPlan) -> Program:
    """A stage's program on all devices, to be compiled."""
    return build_program(StepPlan.from_leaf_settings(model, stage, settings=leaf_plan.settings), jax.devices())


def compile_or_load(
    program: Program,
    model: Model,
    stage: Stage,
    *,
    leaf_plan: LeafPlan,
    placement: Placement,
    process: int,
    cache: Path | None,
) -> Outcome:
    """What ``built`` gave, compiled for this process of its placement; out of the cache where it is there."""
    devices = jax.devices()
    key = executables_key(
        leaf_plan.settings,
        model=model,
        stage=stage,
        processor=processor_of(devices[0]),
        placement=placement,
        process=process,
        environment=os.environ,
    )
    kept = CompileCache(cache, key=key, devices=devices)
    found = kept.load()
    executables = program.compile(found)
    if found is None:
        kept.keep(executables)
    return kept.outcome


def _read(file: Path, devices: Sequence[jax.Device]) -> Executables:
    with file.open("rb") as opened:
        status = os.fstat(opened.fileno())
        if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise PermissionError("it is another user's, or others can write it")
        data = opened.read()
    if hashlib.sha256(data[DIGEST:]).digest() != data[:DIGEST]:
        raise ValueError("it is damaged")
    kept = pickle.loads(data[DIGEST:])
    with ThreadPoolExecutor(len(kept), thread_name_prefix="executables") as side_by_side:
        loading = {
            name: side_by_side.submit(deserialize_and_load, body, inputs, outputs, execution_devices=devices)
            for name, (body, inputs, outputs) in kept.items()
        }
        return {name: loaded.result() for name, loaded in loading.items()}


def _write(file: Path, executables: Executables) -> None:
    """Whole or not at all."""
    body = pickle.dumps({name: serialize(executable) for name, executable in executables.items()})
    file.parent.mkdir(parents=True, exist_ok=True)
    number, name = tempfile.mkstemp(dir=file.parent, prefix=".new-")
    try:
        with open(number, "wb") as opened:
            opened.write(hashlib.sha256(body).digest() + body)
        os.replace(name, file)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(name)
        raise
