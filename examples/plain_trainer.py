"""Another trainer, in plain numpy: a bigram model that obeys the contract and survives what Everstep's own survives.

In run.yaml, for placements of one host:

    trainer: [python, /path/to/examples/plain_trainer.py]
    scrub:   [python, /path/to/examples/plain_trainer.py]

Started by an agent it trains; started with --store, --run and --manifest it reads a checkpoint back. All that it shares
with Everstep are the contract's documents; another language would read them by their JSON Schemas.
"""

import argparse
import hashlib
import io
import os
import secrets
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestrator.contract import attempt, manifest
from orchestrator.contract.attempt import AttemptSpec, ExitCode, PhaseStart, Progress
from orchestrator.contract.checksum import checksum, line, params_sha256, words
from orchestrator.contract.ledger import Fingerprint, Record, bits_of
from orchestrator.order.global_order import GlobalOrder, data_sha256
from orchestrator.order.token_files import opened
from orchestrator.store.objects import Conflict, NotFound
from orchestrator.store.opening import open_objects
from orchestrator.store.run_store import RunStore

PARAMS = "params/logits"
RATE = np.float32(0.5)
Array = NDArray[np.float32]


def kind() -> Fingerprint:
    """Bits are comparable between processes that have these in common."""
    text = f"plain numpy {np.__version__} {os.uname().machine} {Path(__file__).read_text()}"
    digest = hashlib.sha256(text.encode()).hexdigest()
    return Fingerprint(numerics=digest, leaf=digest)


class Trainer:
    """One attempt, in one process."""

    def __init__(self, spec: AttemptSpec) -> None:
        self.spec, self.store = spec, RunStore(open_objects(spec.store), spec.run)
        self.generation = self.store.head().generation  # read first: whoever raises head later fences this attempt
        self.committed: int | None = None
        self.parent: str | None = None
        self.recipe = self.store.recipe(spec.recipe_sha256)
        self.stage = self.recipe.stage_named(spec.stage)
        self.first_step, self.order = self.recipe.first_step_of(self.stage), GlobalOrder(self.stage)
        self.files = opened(self.stage.data.files, data_root=spec.data_root)
        self.earlier = [record for segment in spec.prior for record in self.store.read_prior(segment)]
        self.kind, self.records, self.segments = kind(), list[Record](), 0
        self.phases, self.told = list[PhaseStart](), 0.0
        self.step: int | None = None
        self.drained = False
        signal.signal(signal.SIGTERM, self._drain)

    def run(self) -> ExitCode:
        self._tell("restore")
        logits, next_step = self._start()
        while True:
            done, new = next_step == self.spec.until_step, next_step != self.committed
            if new and (done or self.drained):
                self._commit(logits, next_step)
            if done:
                return ExitCode.LAST_STEP_COMMITTED
            if self.drained:
                return self._leave(logits, next_step) if new else ExitCode.DRAINED_NOTHING_NEW
            before, (logits, problem) = logits, self._train(logits, next_step)
            if problem is not None:
                self._close_segment()
                return problem
            if new and next_step % self.spec.checkpoint.every_steps == 0:
                self._commit(before, next_step)  # only now: the record of the step beyond it witnesses the next move
            next_step += 1

    def _start(self) -> tuple[Array, int]:
        """The newest checkpoint that is whole, one that is not is put aside for good; or, for the first attempt of all
        and for no other, the initial state, committed before any step."""
        if self.spec.resume is None:
            logits: Array = np.zeros((self.recipe.model.vocab_size,) * 2, np.float32)
            self._commit(logits, 0)
            return logits, 0
        for found in self.store.lineage(self.spec.resume):
            whole = None if found.name in self.store.quarantined() else proven(self.store, found, by=self.spec.attempt)
            if whole is not None:
                self.committed, self.parent = found.next_step, found.name
                return whole, found.next_step
        raise SystemExit("checkpoints exist and none is whole")

    def _leave(self, logits: Array, next_step: int) -> ExitCode:
        """Two more steps, which the next attempt will compute again: witnesses of the move."""
        for step in range(next_step, min(next_step + self.spec.witness_steps, self.spec.until_step)):
            logits, _ = self._train(logits, step)
        self._close_segment()
        return ExitCode.DRAINED

    def _train(self, logits: Array, step: int) -> tuple[Array, ExitCode | None]:
        """A step: its record is kept, and compared with those that earlier attempts made of it."""
        self._tell("replay" if any(record.step == step for record in self.earlier) else "train")
        started, stage, begin = time.time(), self.stage, time.perf_counter()
        places = [self.order.place(int(one)) for one in self.order.batch(step - self.first_step)]
        rows = [self.files[place.file][place.token : place.token + stage.sequence_length] for place in places]
        tokens = np.stack(rows).astype(np.uint32).reshape(stage.virtual_ranks, -1, stage.sequence_length)
        losses, gradients = zip(*(leaf(logits, rank) for rank in tokens), strict=True)
        loss, gradient = pairwise(losses) / np.float32(len(tokens)), pairwise(gradients) / np.float32(len(tokens))
        norm = np.sqrt(np.sum(gradient * gradient, dtype=np.float64)).astype(np.float32)
        record = Record(
            step=step,
            attempt=self.spec.attempt,
            ce=bits_of(float(loss)),
            z_loss=bits_of(0.0),
            total=bits_of(float(loss)),
            ce_by_rank=tuple(bits_of(float(one)) for one in losses),
            grad_norm=bits_of(float(norm)),
            gradient=words(checksum(gradient)),
            tokens=words(checksum(tokens)),
            learning_rate=bits_of(float(RATE)),
            skipped=False,
            finite=bool(np.isfinite(loss) and np.isfinite(norm)),
            fingerprint=self.kind.key,
            started=started,
            seconds=time.perf_counter() - begin,
        )
        self.records.append(record)
        self.step = step
        if not record.finite:
            return logits, ExitCode.NOT_FINITE
        before = [one for one in self.earlier if (one.step, one.fingerprint) == (step, record.fingerprint)]
        differs = any(record.differs_from(one) for one in before)
        return logits - RATE * gradient, ExitCode.REPLAY_DIFFERS if differs else None

    def _commit(self, logits: Array, next_step: int) -> None:
        """Files, then the manifest, then head; whoever was fenced fails at the last."""
        self._close_segment()
        begin, name = time.time(), manifest.manifest_name(next_step, self.spec.attempt)
        folder, data = f"checkpoints/{name}", io.BytesIO()
        np.save(data, logits)
        self.store.objects.create(f"{self.spec.run}/{folder}/logits.npy", data.getvalue())
        pair = checksum(logits)
        entry = manifest.ArrayEntry(dtype="float32", shape=logits.shape, checksum=words(pair))
        described = line(PARAMS, dtype="float32", shape=logits.shape, checksum=pair)
        self.store.create_manifest(
            manifest.Manifest(
                run=self.spec.run,
                attempt=self.spec.attempt,
                revision=self.spec.revision,
                recipe_sha256=self.spec.recipe_sha256,
                stage=self.stage.name,
                next_step=next_step,
                parent=self.parent,
                folder=folder,
                arrays={PARAMS: entry},
                files=self.store.checkpoint_files(folder),
                params_sha256=params_sha256([described]),
                fingerprint=self.kind,
                versions={"numpy": np.__version__},
                placement=self.spec.placement,
                data_sha256=data_sha256(self.stage.data),
                save_seconds=time.time() - begin,
                at=time.time(),
            )
        )
        head = manifest.Head(
            attempt=self.spec.attempt,
            manifest=name,
            next_step=next_step,
            revision=self.spec.revision,
            write_id=secrets.token_hex(8),
        )
        generation = self.store.swap_head(head, generation=self.generation)
        self.generation, self.committed, self.parent = generation, next_step, name

    def _close_segment(self) -> None:
        if self.records:
            self.store.create_segment(self.spec.attempt, self.segments, self.records)
            self.segments, self.records = self.segments + 1, []

    def _tell(self, phase: attempt.Phase) -> None:
        """Progress, twice a second; closed with it are the records, so that a kill loses little."""
        turned = not self.phases or self.phases[-1].phase != phase
        if turned:
            self.phases.append(PhaseStart(phase=phase, at=now()))
        if not turned and now() - self.told < 0.5:
            return
        self._close_segment()
        self.told = now()
        self.store.write_progress(
            Progress(
                attempt=self.spec.attempt,
                process=0,
                pid=os.getpid(),
                phase=phase,
                step=self.step,
                counter=len(self.phases) + (0 if self.step is None else self.step + 1),
                phases=tuple(self.phases),
                first_new_step_at=next((start.at for start in self.phases if start.phase == "train"), None),
                at=self.told,
            )
        )

    def _drain(self, *_: Any) -> None:
        self.drained = True


def leaf(logits: Array, tokens: NDArray[np.uint32]) -> tuple[np.float32, Array]:
    """Mean cross entropy of one virtual rank's sequences, and its gradient: a function of the rank alone."""
    context, target = tokens[:, :-1].reshape(-1), tokens[:, 1:].reshape(-1)
    chosen = logits[context]
    weights = np.exp(chosen - chosen.max(axis=1, keepdims=True))
    probability = weights / weights.sum(axis=1, keepdims=True)
    loss = -np.log(probability[np.arange(len(target)), target]).mean(dtype=np.float32)
    probability[np.arange(len(target)), target] -= 1
    gradient = np.zeros_like(logits)
    np.add.at(gradient, context, probability / np.float32(len(target)))
    return loss, gradient


def pairwise(values: Any) -> Any:
    """(0 + 1) + (2 + 3) …: the same order of sums wherever the ranks are computed."""
    while len(values) > 1:
        values = [one + other for one, other in zip(values[::2], values[1::2], strict=True)]
    return values[0]


def read_back(store: RunStore, found: manifest.Manifest) -> tuple[str | None, Array]:
    """What is wrong with a checkpoint, and what it holds."""
    try:
        data = store.objects.read(f"{store.name}/{found.folder}/logits.npy").data
        logits: Array = np.load(io.BytesIO(data))
    except (NotFound, ValueError) as error:
        return f"logits.npy: {error}", np.zeros(0, np.float32)
    if store.checkpoint_files(found.folder)["logits.npy"].differs(found.files["logits.npy"]):
        return "logits.npy has other bytes than were written", logits
    return (None if words(checksum(logits)) == found.arrays[PARAMS].checksum else "another checksum"), logits


def proven(store: RunStore, found: manifest.Manifest, *, by: int | None) -> Array | None:
    """Read a checkpoint back and write what came of it; ``by``: the attempt that restores it, None: a scrub.

    Returns what it holds; None: it is not whole.
    """
    problem, logits = read_back(store, found)
    if problem is None:
        how = "restore" if by else "scrub"
        store.create_proof(manifest.Proof(manifest=found.name, how=how, attempt=by, arrays=1, at=now()))
    else:
        store.create_quarantine(manifest.Quarantine(manifest=found.name, problem=problem, attempt=by, at=now()))
    return logits if problem is None else None


def now() -> float:
    return time.time()


def main() -> int:
    parser = argparse.ArgumentParser(description="a trainer; or, with all three options, a reader of checkpoints")
    for option in ("--store", "--run", "--manifest"):
        parser.add_argument(option)
    asked = parser.parse_args()
    if asked.manifest:
        store = RunStore(open_objects(asked.store), asked.run)
        return 1 if proven(store, store.manifest(asked.manifest), by=None) is None else 0
    path = Path(os.environ[attempt.ATTEMPT_VARIABLE])
    try:
        return Trainer(AttemptSpec.from_bytes(path.read_bytes(), where=str(path))).run()
    except Conflict:  # a later attempt may commit now, and this one no more
        return ExitCode.DRAINED_NOTHING_NEW


if __name__ == "__main__":
    sys.exit(main())
