"""Compiling for a placement before it is needed, beside the run that may need it.

    python -m trainer.prepare --store <address> --run <name> --revision <n> --stage <name> --placement <name>

An executable belongs to a process of a placement: to how many processes there are, and which one it is. So as many
processes start here as the placement has hosts, meet, and compile what a trainer would, into the compile cache that
their environment names. Nothing is run, nothing of the run is read but its documents, and nothing is written to it.
What was compiled once with these packages, sources and settings is not compiled again.

Exit 0: the cache has it; 1: it has not, and the line that is printed says why.
"""

import argparse
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from orchestrator.contract.base import ContractError
from orchestrator.contract.recipe import Recipe, Stage
from orchestrator.contract.run import LeafPlan, Placement
from orchestrator.store.objects import StoreError
from orchestrator.store.opening import open_objects
from orchestrator.store.run_store import RunStore
from trainer.launch import CACHE_VARIABLE
from trainer.versions import LOADED, confirm_loaded, executables_key

MEET_SECONDS = 300
"""For all processes to import what they need, and to compile once they have met."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is to be compiled."""

    recipe: Recipe
    stage: Stage
    placement: Placement
    leaf_plan: LeafPlan

    @classmethod
    def read(cls, store: RunStore, *, revision: int, stage: str, placement: str) -> "Task":
        """Raises ContractError, StoreError: the run has no such revision, stage or placement, or it cannot be read."""
        revisions = {one.number: one.recipe_sha256 for one in store.revisions()}
        found = store.policy().value.placement_named(placement)
        if revision not in revisions or found is None:
            raise ContractError(f"run {store.name} has no revision {revision} or no placement {placement}")
        recipe = store.recipe(revisions[revision])
        try:
            return cls(
                recipe=recipe,
                stage=recipe.stage_named(stage),
                placement=found,
                leaf_plan=store.leaf_plan(found.generation),
            )
        except KeyError as error:
            raise ContractError(f"run {store.name}: revision {revision} has no stage {stage}") from error

    def key(self, environment: Mapping[str, str]) -> str:
        """A hash of all that decides which executables are made."""
        return executables_key(
            self.leaf_plan.settings,
            model=self.recipe.model,
            stage=self.stage,
            processor="",
            placement=self.placement,
            process=None,
            environment=environment,
        )


def compile_here(task: Task, *, cache: Path, process: int, coordinator: str) -> None:
    """One process's part."""
    import jax

    from trainer.compile_cache import built, compile_or_load

    confirm_loaded(LOADED)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        coordinator_address=coordinator,
        num_processes=task.placement.hosts,
        process_id=process,
        cluster_detection_method="deactivate",
        initialization_timeout=MEET_SECONDS,
    )
    outcome = compile_or_load(
        built(task.recipe.model, task.stage, leaf_plan=task.leaf_plan),
        task.recipe.model,
        task.stage,
        leaf_plan=task.leaf_plan,
        placement=task.placement,
        process=process,
        cache=cache,
    )
    print(f"everstep: process {process} of {task.placement.name}, stage {task.stage.name}: {outcome}")
    jax.distributed.shutdown()  # waits for the others: process 0, to whom all are connected, leaves last


def compile_everywhere(command: Sequence[str], *, processes: int) -> bool:
    """One process for each host; True when all have compiled. When one fails the others end too."""
    with closing(socket.socket()) as reserved:  # the coordinator shares the port, as gRPC does
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        reserved.bind(("127.0.0.1", 0))
        there = ["--coordinator", f"127.0.0.1:{reserved.getsockname()[1]}"]
        children = [
            subprocess.Popen([*command, *there, "--process", str(process)], stdin=subprocess.DEVNULL)
            for process in range(processes)
        ]
        with ThreadPoolExecutor(processes) as pool:
            for ended in as_completed([pool.submit(child.wait) for child in children]):
                if ended.result():
                    for child in children:
                        child.kill()
    return not any(child.returncode for child in children)


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    asked = _parser().parse_args(given)
    folder = os.environ.get(CACHE_VARIABLE)
    if not folder:
        print(f"everstep: {CACHE_VARIABLE} names no compile cache: there is nothing to fill", file=sys.stderr)
        return 1
    cache = Path(folder)
    try:
        store = RunStore(open_objects(asked.store), asked.run)
        task = Task.read(store, revision=asked.revision, stage=asked.stage, placement=asked.placement)
    except (StoreError, ContractError) as error:
        print(f"everstep: not compiled ahead: {error}", file=sys.stderr)
        return 1
    if asked.process is not None:
        compile_here(task, cache=cache, process=asked.process, coordinator=asked.coordinator)
        return 0
    mark = cache.with_name(f"{cache.name}-prepared") / task.key(os.environ)
    if not mark.exists():
        command = [sys.executable, "-P", "-m", "trainer.prepare", *given]
        if not compile_everywhere(command, processes=task.placement.hosts):
            print(f"everstep: {task.placement.name} is not compiled ahead; the reason is above", file=sys.stderr)
            return 1
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()
    print(f"everstep: {task.placement.name}, stage {task.stage.name}, is compiled")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m trainer.prepare", description=__doc__)
    for name, what in (("store", "folder or gs:// address"), ("run", "the run"), ("stage", "of the recipe")):
        parser.add_argument(f"--{name}", required=True, help=what)
    parser.add_argument("--placement", required=True, help="of the run's policy")
    parser.add_argument("--revision", required=True, type=int, help="of the recipe")
    parser.add_argument("--process", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--coordinator", help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
