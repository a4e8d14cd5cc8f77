"""What a save and a restore cost, Everstep's beside plain Orbax's, of one state on the same devices in one run.

    python benchmarks/checkpoint_cost.py --mib 256

The state of an Olmo 3 model, parameters and both moments, is saved and read back in turn by Everstep (checksums of all
arrays, files hashed, manifest, head; a restore compares all checksums) and by Orbax's CheckpointManager (StandardSave,
StandardRestore), in its own chunks and in Everstep's. Between a save's call and its end the loop takes a step, which
donates the state, as in training. Seconds, of the slowest process:

    blocked    from the call until the loop may go on
    stepped    from the call until the step behind it is done: shows what a save only puts off
    committed  from the call until the checkpoint counts
    restored   until all arrays are on the devices, and compared where they are

The bar is on blocked, stepped and restored: Everstep's median at most 1.05 times that of Orbax in its own chunks.
Exit 1 when one is missed.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

BAR = 1.05
SHAPES = ((2, 2), (1, 1))  # processes x devices of each
EVERSTEP, ORBAX, OUR_CHUNKS = "everstep", "orbax", "orbax, our chunks"
FIGURES = ("blocked", "stepped", "committed", "restored")
BARRED = ("blocked", "stepped", "restored")
ALONE = "checksums alone"
STEP = "a step alone"
PATIENCE = 600.0  # seconds for all processes to meet between two measurements

Tree = Any
Samples = dict[str, list[float]]  # by what was measured, one a round


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=256, help="size of the state (default 256)")
    parser.add_argument("--rounds", type=int, default=7, help="of each way, after one that does not count (default 7)")
    parser.add_argument("--json", action="store_true", help="one document instead of tables")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if asked.part is not None:
        return _part(**json.loads(asked.part))
    try:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        found = {f"{p} x {d} devices": _measure(p, d, mib=asked.mib, rounds=asked.rounds) for p, d in SHAPES}
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    missed = [
        f"{shape} {figure}" for shape, one in found.items() for figure in BARRED if _ratio(one, ORBAX, figure) > BAR
    ]
    if asked.json:
        print(json.dumps({"mib": asked.mib, "bar": BAR, "missed": missed, "samples": found}, indent=2))
    else:
        for shape, one in found.items():
            _print(shape, one)
        print(f"missed: {', '.join(missed) or 'none'}; bar: {BAR}")
    return 1 if missed else 0


def _print(shape: str, found: Samples) -> None:
    print(f"{shape:18} " + " ".join(f"{figure:>10}" for figure in FIGURES))
    for way in (EVERSTEP, ORBAX, OUR_CHUNKS):
        print(f"{way:18} " + " ".join(f"{median(found[f'{way} {figure}']):10.3f}" for figure in FIGURES))
    for way in (ORBAX, OUR_CHUNKS):
        print(f"ratio, {way[:17]:11}".ljust(19) + " ".join(f"{_ratio(found, way, figure):10.2f}" for figure in FIGURES))
    for part in (ALONE, STEP):
        print(f"{part:18} {median(found[part]):10.3f}")


def _ratio(found: Samples, way: str, figure: str) -> float:
    return median(found[f"{EVERSTEP} {figure}"]) / median(found[f"{way} {figure}"])


def _measure(processes: int, devices: int, *, mib: int, rounds: int) -> Samples:
    """Of each round the slowest process."""
    with tempfile.TemporaryDirectory(prefix="everstep-checkpoint-", ignore_cleanup_errors=True) as folder:
        _together(1, devices, what="order", folder=folder, mib=mib, processes=processes, devices=devices)
        said = _together(processes, devices, what="measure", folder=folder, rounds=rounds)
    samples = [json.loads(line) for line in said]
    return {key: [max(of) for of in zip(*(one[key] for one in samples), strict=True)] for key in samples[0]}


def _together(count: int, local_devices: int, *, folder: str, **settings: Any) -> list[str]:
    """What each of so many processes prints last."""
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={local_devices}",
        "PYTHONPATH": str(Path(__file__).resolve().parents[1]),
        "EVERSTEP_ATTEMPT": f"{folder}/spec.json",
    }
    command = [sys.executable, __file__, "--part", json.dumps({"folder": folder, **settings})]
    with ExitStack() as running:
        own = [environment | {"EVERSTEP_PROCESS": str(process)} for process in range(count)]
        children = [running.enter_context(_child(command, one)) for one in own]
        said = [child.communicate()[0] for child in children]
    if any(child.returncode for child in children):
        raise SystemExit(f"{settings['what']} failed; the reason is above")
    return [text.splitlines()[-1] if text else "" for text in said]


@contextmanager
def _child(command: Sequence[str], environment: Mapping[str, str]) -> Iterator["subprocess.Popen[str]"]:
    """Out of a terminal's reach: an interrupt is this program's alone, and takes the child with it."""
    child = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        yield child
    finally:
        child.kill()
        child.wait()


def _part(*, what: str, **settings: Any) -> int:
    if what == "order":
        _order(**settings)
    else:
        print(json.dumps(_rounds(**settings)), flush=True)
    sys.stdout.flush()
    os._exit(0)  # as a trainer ends: JAX's clean-up aborts when another process has left before


def _order(*, folder: str, mib: int, processes: int, devices: int) -> None:
    """Write a run and an attempt on it: 6 layers, as wide as makes the state so large."""
    from orchestrator.contract.recipe import Model
    from tests.local.attempts import SmallRun, small_recipe, stage_of, write_tokens

    width = round(512 * (mib / 256) ** 0.5 / 64) * 64
    heads = {"n_heads": width // 64, "n_kv_heads": width // 64, "head_dim": 64}
    model = Model(
        vocab_size=4096,
        d_model=width,
        n_layers=6,
        global_every=3,
        d_ff=width * 11 // 4,
        compute_dtype="float32",
        **heads,
    )
    stage = stage_of(write_tokens(Path(folder) / "tokens.u32"), steps=1_000_000)
    run = SmallRun(Path(folder), small_recipe(stage).model_copy(update={"model": model}))
    spec = run.spec(run.fence(), hosts=processes, devices=devices)
    run.store.create_attempt(spec)
    (Path(folder) / "spec.json").write_bytes(spec.to_bytes())


@dataclass(frozen=True)
class Way:
    """One way to save and restore."""

    save: Callable[[int, Tree], Callable[[], None]]  # back when the loop may go on, with a call that awaits the commit
    restore: Callable[[int], Tree]


def _everstep(launch: Any, peers: Any, program: Any, saver: Any) -> Way:
    """As ``trainer.loop`` saves, and ``trainer.attempt`` restores."""
    from orchestrator.contract.manifest import manifest_name
    from trainer.checkpoint.restore import Restorer

    def save(step: int, state: Tree) -> Callable[[], None]:
        saver.start(step, state, program.checksums(state))
        return commit

    def commit() -> None:
        outcome = saver.finish()
        if outcome.manifest is None:
            raise RuntimeError(outcome.problem)

    def restore(step: int) -> Tree:
        spec = launch.spec.model_copy(update={"resume": manifest_name(step, launch.spec.attempt)})
        surroundings = {"program": program, "peers": peers, "log": lambda _: None}
        return Restorer(store=launch.store, spec=spec, stage_first_step=0, **surroundings).newest().state

    return Way(save, restore)


def _orbax(folder: Path, abstract: Tree, *, chunk: int | None) -> Way:
    """A CheckpointManager, as its documentation uses it; ``chunk``: bytes, or None for its own."""
    import jax
    import orbax.checkpoint as ocp

    how = None if chunk is None else jax.tree.map(lambda _: ocp.SaveArgs(chunk_byte_size=chunk), abstract)
    manager = ocp.CheckpointManager(folder)

    def save(step: int, state: Tree) -> Callable[[], None]:
        manager.save(step, args=ocp.args.StandardSave(state, save_args=how))
        return manager.wait_until_finished

    def restore(step: int) -> Tree:
        return manager.restore(step, args=ocp.args.StandardRestore(abstract))

    return Way(save, restore)


@dataclass(frozen=True)
class Loop:
    """Steps, saves and restores of one process, in time with the others."""

    meet: Callable[[], None]
    checksums: Callable[[Tree], Any]  # waited for
    step: Callable[[Tree], Tree]  # waited for; the state is donated
    clean: Callable[[int], None]  # deletes what was saved at a step
    found: Samples = field(default_factory=dict)

    def round(self, ways: Mapping[str, Way], number: int, state: Tree) -> Tree:
        """Every way once, each time another first."""
        self._timed(ALONE, lambda: self.checksums(state))
        state = self._timed(STEP, lambda: self.step(state))
        names = list(ways)
        for turn in range(len(names)):
            name = names[(number + turn) % len(names)]
            state = self._save(ways[name], name, number, state)
            self._timed(f"{name} restored", lambda name=name: ways[name].restore(number))
            self.meet()
            self.clean(number)
        return state

    def _save(self, way: Way, name: str, number: int, state: Tree) -> Tree:
        self.meet()
        begin = time.perf_counter()

        def note(figure: str) -> None:
            self.found.setdefault(f"{name} {figure}", []).append(time.perf_counter() - begin)

        commit = way.save(number, state)
        note("blocked")
        state = self.step(state)
        note("stepped")
        commit()
        note("committed")
        return state

    def _timed(self, what: str, do: Callable[[], Tree]) -> Tree:
        import jax

        self.meet()
        begin = time.perf_counter()
        result = jax.block_until_ready(do())
        self.found.setdefault(what, []).append(time.perf_counter() - begin)
        return result


def _rounds(*, folder: str, rounds: int) -> Samples:
    import jax
    import numpy as np

    from trainer import attempt
    from trainer.checkpoint.commit import own_head
    from trainer.checkpoint.orbax_files import CHUNK_BYTES
    from trainer.compile_cache import built
    from trainer.launch import Launch
    from trainer.progress import ProgressReport

    launch = Launch.read(os.environ)
    ProgressReport(launch.store, attempt=launch.spec.attempt, process=launch.process).enter("initialise")
    head = own_head(launch.store, launch.spec)
    peers = attempt.connect(launch)
    program = built(launch.recipe.model, launch.stage, leaf_plan=launch.spec.leaf_plan)
    attempt.compile_program(launch, program)
    peers.barrier("compile", seconds=attempt.COMPILE_SECONDS)

    def clean(number: int) -> None:
        if launch.is_first:
            for leftover in (*Path(folder).glob("store/*/checkpoints/*"), *Path(folder).glob(f"{ORBAX}*/{number}")):
                shutil.rmtree(leftover)

    def step(state: Tree) -> Tree:
        state, metrics = program.step(state, tokens, np.float32(1e-3))
        metrics.read()
        return state

    tokens = program.tokens_array(lambda rows: np.zeros((len(rows), launch.stage.sequence_length), np.uint32))
    loop = Loop(lambda: peers.barrier("meet", seconds=PATIENCE), lambda state: program.checksums(state)(), step, clean)
    with attempt.open_ledger(launch) as ledger:
        fingerprint = attempt.fingerprint_of(launch, jax.devices()[0])
        saver = attempt.saver_of(launch, peers, head=head, restored=None, fingerprint=fingerprint, ledger=ledger)
        ways = {EVERSTEP: _everstep(launch, peers, program, saver)}
        for name, chunk in ((ORBAX, None), (OUR_CHUNKS, CHUNK_BYTES)):
            ways[name] = _orbax(Path(folder) / name, program.abstract_state, chunk=chunk)
        state = program.init_state(launch.recipe.seed)
        for number in range(rounds + 1):
            if launch.is_first:
                print(f"{len(jax.devices())} devices: round {number} of {rounds}", file=sys.stderr, flush=True)
            state = loop.round(ways, number, state)
    return {what: samples[1:] for what, samples in loop.found.items()}


if __name__ == "__main__":
    sys.exit(main())
