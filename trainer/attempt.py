"""The story of a run on one attempt: meet, compile, restore, train, leave.

Every process of the attempt runs it, in step with the others. What is written once for all is written by process 0.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax

from orchestrator.contract.attempt import ExitCode
from orchestrator.contract.base import ContractError
from orchestrator.contract.ledger import Fingerprint
from orchestrator.contract.manifest import Head
from orchestrator.order.global_order import data_sha256
from orchestrator.store.objects import StoreError
from orchestrator.store.run_store import Versioned
from trainer import versions
from trainer.checkpoint.commit import Committer, Origin, own_head
from trainer.checkpoint.restore import Restored, Restorer
from trainer.checkpoint.saver import Saver
from trainer.compile_cache import Outcome, built, compile_or_load
from trainer.convert.weights import HuggingFaceWeights, verify_files
from trainer.data.token_files import StageBatches
from trainer.drain import Drain
from trainer.launch import Launch
from trainer.ledger import LedgerWriter
from trainer.loop import Stopped, Training
from trainer.peers import Peers, connect
from trainer.profile import Profiler
from trainer.progress import ProgressReport
from trainer.replay import Replay
from trainer.step import Program

versions.confirm_loaded(versions.LOADED)  # it was the first of these imports

COMPILE_SECONDS = 3600.0
"""For all processes to compile; gloo would give the slowest 30 s at the first collective."""
LEDGER_SECONDS = 120.0
"""For the store to take the last records; an attempt that fails gives it a few seconds only."""


def run_attempt(launch: Launch, progress: ProgressReport, drain: Drain) -> ExitCode:
    """One process's part of an attempt, up to the code that all its processes end with.

    Raises:
        Fenced: a later attempt may commit.
        Exception: an error of its own; the process must end without waiting for the others.
    """
    head = own_head(launch.store, launch.spec)
    batches = batches_of(launch)

    progress.enter("initialise")
    peers = connect(launch)
    if any(peers.gather("drain", "asked" if drain.asked_early else "", seconds=COMPILE_SECONDS)):
        return leave(ExitCode.DRAINED_NOTHING_NEW, progress, peers)

    progress.enter("compile")
    program = built(launch.recipe.model, launch.stage, leaf_plan=launch.spec.leaf_plan)
    restorer = restorer_of(launch, peers, program=program, head=head.value)
    if restorer is not None:
        restorer.begin()
    with preparing(launch, batches):
        progress.set_compile_cache(compile_program(launch, program))
        peers.barrier("compile", seconds=COMPILE_SECONDS)

    progress.enter("restore")
    restored = restorer.newest() if restorer is not None else None
    fingerprint = fingerprint_of(launch, jax.devices()[0])
    with open_ledger(launch) as ledger, profiler_of(launch, program, progress=progress) as profiler:
        training = Training(
            spec=launch.spec,
            stage=launch.stage,
            first_step=launch.first_step,
            fingerprint=fingerprint,
            program=program,
            batches=batches,
            replay=Replay(launch.store, launch.spec),
            saver=saver_of(launch, peers, head=head, restored=restored, fingerprint=fingerprint, ledger=ledger),
            ledger=ledger,
            drain=drain,
            progress=progress,
            profiler=profiler,
        )
        code = train(training, restored, initial=lambda: initial_state(launch, program))
    return leave(code, progress, peers)


def batches_of(launch: Launch) -> StageBatches:
    """Raises ContractError: a token file is not as the recipe says."""
    vocab_size = launch.recipe.model.vocab_size
    return StageBatches(launch.stage, vocab_size=vocab_size, data_root=launch.spec.data_root)


@contextlib.contextmanager
def preparing(launch: Launch, batches: StageBatches) -> Iterator[None]:
    """Make ready to read, beside what is done meanwhile; process 0 also hashes the token files.

    Raises:
        ContractError: at its end, when a file has other bytes than those the run was submitted with.
    """
    resume = launch.spec.resume
    next_step = launch.store.manifest(resume).next_step if resume else 0
    with ThreadPoolExecutor(1, thread_name_prefix="data") as beside:
        tasks = [beside.submit(batches.prepare, max(0, next_step - launch.first_step))]
        if launch.is_first:
            tasks.append(beside.submit(batches.verify_hashes, turn=launch.spec.attempt))
        yield
        for task in tasks:
            task.result()


def compile_program(launch: Launch, program: Program) -> Outcome:
    """The update, for this placement's devices."""
    spec = launch.spec
    return compile_or_load(
        program,
        launch.recipe.model,
        launch.stage,
        leaf_plan=spec.leaf_plan,
        placement=spec.placement,
        process=launch.process,
        cache=launch.compile_cache,
    )


def restorer_of(launch: Launch, peers: Peers, *, program: Program, head: Head) -> Restorer | None:
    """What finds the newest checkpoint that is whole; None: this is the attempt that initialises.

    Raises:
        ContractError: the spec names none although one was committed.
    """
    spec = launch.spec
    if spec.resume is None:
        if head.manifest is not None:
            raise ContractError(
                f"attempt {spec.attempt} names no checkpoint to resume from, but head has {head.manifest}; only an "
                "attempt before the first commit initialises"
            )
        return None
    return Restorer(
        store=launch.store,
        spec=spec,
        stage_first_step=launch.first_step,
        program=program,
        peers=peers,
        log=lambda text: print(f"everstep: {text}", flush=True),
    )


def fingerprint_of(launch: Launch, device: jax.Device) -> Fingerprint:
    """Of this attempt's program on devices of this kind."""
    processor = versions.processor_of(device)
    return versions.fingerprint(launch.spec, model=launch.recipe.model, stage=launch.stage, processor=processor)


@contextlib.contextmanager
def open_ledger(launch: Launch) -> Iterator[LedgerWriter | None]:
    """Process 0's ledger; all records are in the store when it ends well."""
    if not launch.is_first:
        yield None
        return
    ledger = LedgerWriter(launch.store, attempt=launch.spec.attempt)
    try:
        yield ledger
    except BaseException:
        with contextlib.suppress(StoreError):  # the error that is on its way says more
            ledger.close(seconds=LEDGER_SECONDS / 20)
        raise
    ledger.close(seconds=LEDGER_SECONDS)


@contextlib.contextmanager
def profiler_of(launch: Launch, program: Program, *, progress: ProgressReport) -> Iterator[Profiler]:
    """Traces of this process; orders are looked for as often as progress is written."""
    profiler = Profiler(
        launch.store, attempt=launch.spec.attempt, process=launch.process, program_text=program.program_text
    )
    profiler.look()
    progress.beside = profiler.look
    yield profiler
    profiler.close()


def saver_of(
    launch: Launch,
    peers: Peers,
    *,
    head: Versioned[Head],
    restored: Restored | None,
    fingerprint: Fingerprint,
    ledger: LedgerWriter | None,
) -> Saver:
    """Saves for this attempt; those of process 0, which has the ledger, also commit."""
    committer = None
    if ledger is not None:
        committer = Committer(
            launch.store,
            origin=Origin(
                spec=launch.spec,
                fingerprint=fingerprint,
                versions=dict(versions.LOADED.packages),
                data_sha256=data_sha256(launch.stage.data),
            ),
            head=head,
            parent=restored.manifest.name if restored else None,
            close_ledger=lambda witness: ledger.flush(seconds=LEDGER_SECONDS, witness=witness),
        )
    return Saver(peers, store=launch.store, attempt=launch.spec.attempt, committer=committer)


def initial_state(launch: Launch, program: Program) -> Any:
    """The state before step 0.

    Raises:
        ContractError: the recipe's initial weights are not those that the run was submitted with.
    """
    seed, initial = launch.recipe.seed, launch.recipe.initial
    if initial is None:
        return program.init_state(seed)
    folder = Path(launch.spec.data_root, initial.folder)
    with HuggingFaceWeights(folder, launch.recipe.model) as opened:
        if launch.is_first:
            verify_files(folder, initial.files)
        return program.init_state(seed, weights=opened.read)


def train(training: Training, restored: Restored | None, *, initial: Callable[[], Any]) -> ExitCode:
    """The steps, from the restored state; or from the initial one, committed before the first of them."""
    try:
        if restored is not None:
            training.committed = restored.manifest.next_step
            return training.run(restored.state, restored.manifest.next_step)
        state = initial()
        training.save_now(state, 0)
        return training.run(state, 0)
    except Stopped as stop:
        print(f"everstep: {stop}", file=sys.stderr, flush=True)
        return stop.code


def leave(code: ExitCode, progress: ProgressReport, peers: Peers) -> ExitCode:
    """Say goodbye to the store and to the other processes."""
    progress.enter("end")
    progress.stop()
    peers.leave()
    return code
