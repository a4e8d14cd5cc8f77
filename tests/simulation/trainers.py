"""The simulated trainer: one ``Process`` a host, and what the processes of an attempt do together, its ``Gang``.

The state that is trained is a chain of hashes: state(s + 1) = H(state(s), bits of step s). Two states are equal only if
exactly the same steps were taken in the same order, so a step that was lost, repeated or computed with another recipe
shows in the next manifest.
"""

import hashlib
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING

from orchestrator.contract.attempt import AttemptSpec, ExitCode, OwnError, Phase, PhaseStart, Progress
from orchestrator.contract.base import ContractError
from orchestrator.contract.ledger import Fingerprint, Record
from orchestrator.contract.manifest import ArrayEntry, FileEntry, Head, Manifest, Proof, Quarantine
from orchestrator.store.objects import Conflict, StoreUnavailable
from orchestrator.store.run_store import RunStore
from tests.simulation.timeline import EPOCH

if TYPE_CHECKING:
    from tests.simulation.agents import Agent
    from tests.simulation.fleet import Host
    from tests.simulation.world import World

FINGERPRINT = Fingerprint(numerics="1" * 64, leaf="2" * 64)
RETRY = 1.0
BARRIER = 60.0
"""Seconds after which a process that waits for others before the first step gives up."""
FENCED = OwnError(type="Fenced", frame="trainer/checkpoint/commit.py:commit", message="another attempt may commit")
ECHO = OwnError(type="JaxRuntimeError", frame="trainer/step.py:step", message="Gloo AllGather failed")
NONE_RESTORES = OwnError(
    type="NoneRestores", frame="trainer/checkpoint/restore.py:restore", message="no candidate left"
)
_NO_ARRAYS: dict[str, ArrayEntry] = {}
_NO_FILES: dict[str, FileEntry] = {}


@lru_cache(maxsize=4096)
def bits_of_step(recipe_sha256: str, step: int) -> str:
    """The true loss bits of a step."""
    return hashlib.sha256(f"{recipe_sha256} {step}".encode()).hexdigest()[:8]


@lru_cache(maxsize=4096)
def after_step(state: str, bits: str) -> str:
    return hashlib.sha256(f"{state} {bits}".encode()).hexdigest()


def initial_state(recipe_sha256: str) -> str:
    return after_step("initial", recipe_sha256)


class Process:
    """A trainer process on a host."""

    def __init__(self, gang: "Gang", index: int, host: "Host", agent: "Agent") -> None:
        self.gang = gang
        self.index = index
        self.host = host
        self.agent = agent
        self.attempt = gang.spec.attempt
        self.alive = True
        self.stopped = False
        """SIGSTOP."""
        self.told = False
        """Its agent killed it because it was told to."""
        self.drain_sent = False
        self.hears_signals = False
        self.ready = False
        """Waits for the others before the first step."""
        self.status: tuple[int | None, int | None] = (None, None)
        self.error: OwnError | None = None
        self.died_at = 0.0
        self.excused = False
        """It lived on when there was evidence that it was gone: its host was not listed, or a person said so."""
        self.phase: Phase = "start"
        self.store = gang.world.store_for(f"trainer a{self.attempt}", gang.world.guard_of(host, "trainer"))
        self._phases: list[PhaseStart] = []
        self._counter = 0
        self._written_at = -1e9

    def terminate(self) -> None:
        """SIGTERM: remembered until there is a step to leave after."""
        self.gang.drain_wanted = True

    def die(
        self, *, signal: int | None = None, code: int | None = None, error: OwnError | None = None, seen: bool = True
    ) -> None:
        """End now; ``seen``: the agent lives and will hear of it."""
        if not self.alive:
            return
        self.alive = False
        self.status, self.error, self.died_at = (code, signal), error, self.gang.world.timeline.now
        self.host.trainers.remove(self)
        self.gang.world.say(
            f"trainer a{self.attempt}/{self.index} on {self.host.ref} ends: code {code} signal {signal}"
        )
        if seen:
            self.agent.ended(self)
        self.gang.lost(self)

    def enter(self, phase: Phase) -> None:
        self.phase = phase
        self._counter += 1
        self._phases.append(PhaseStart(phase=phase, at=EPOCH + self.gang.world.timeline.now))
        self.write_progress()

    def stepped(self, *, now: bool = False) -> None:
        self._counter += 1
        if now or self.gang.world.timeline.now - self._written_at > 2.0:
            self.write_progress()

    def write_progress(self) -> None:
        gang = self.gang
        self._written_at = gang.world.timeline.now
        try:
            self.store.write_progress(
                Progress(
                    attempt=self.attempt,
                    process=self.index,
                    pid=1000 + self.attempt,
                    phase=self.phase,
                    step=gang.last_step,
                    counter=self._counter,
                    phases=tuple(self._phases),
                    first_new_step_at=gang.first_new_step_at,
                    step_seconds=gang.step_seconds if gang.last_step is not None else None,
                    save_error="no space" if gang.save_failures else None,
                    save_failures=gang.save_failures,
                    at=EPOCH + gang.world.timeline.now,
                )
            )
        except StoreUnavailable:
            return


class Gang:
    """What the processes of one attempt do together."""

    def __init__(self, world: "World", spec: AttemptSpec) -> None:
        self.world = world
        self.spec = spec
        self.processes: dict[int, Process] = {}
        self.drain_wanted = False
        self.last_step: int | None = None
        self.first_new_step_at: float | None = None
        self.save_failures = 0
        random = world.random
        self.step_seconds = world.scenario.step_seconds
        self._echo_after = random.choice(((0.5, 3.0), (0.5, 3.0), (20.0, 40.0)))
        self._durations = {
            phase: random.uniform(0.3, most) for phase, most in (("start", 1.2), ("initialise", 1.5), ("compile", 2.5))
        }
        self._next_step = -1
        self._state = ""
        self._begun = False
        self._hanging = False
        self._prior: dict[int, list[Record]] = {}
        self._recorded_before = -1
        """The last step that an earlier attempt had recorded."""
        self._records: list[Record] = []
        self._closing: list[Record] = []
        """A segment that is being written: the same bytes are tried again."""
        self._segments = 0
        self.restored: str | None = None
        self.differed_at: int | None = None
        self.saver: Saver | None = None
        self._drain_at: int | None = None
        self._finished = False

    # ---- coming up
    def join(self, process: Process) -> None:
        self.processes[process.index] = process
        self._later(process, 0.2, lambda: self._hear(process))

    def _hear(self, process: Process) -> None:
        process.hears_signals = True
        process.enter("start")
        self._later(process, self._durations["start"], lambda: self._check_head(process))

    def _check_head(self, process: Process) -> None:
        try:
            head = process.store.head()
        except StoreUnavailable:
            self._later(process, RETRY, lambda: self._check_head(process))
            return
        if head.value.attempt != self.spec.attempt:
            process.die(code=ExitCode.OWN_ERROR, error=FENCED)
            return
        if process.index == 0:
            self.saver = Saver(self, process.store, head.generation)
        if self.spec.resume is None:
            self.world.watch.initialises(self.spec)
        process.enter("initialise")
        self._later(process, self._durations["initialise"], lambda: self._compile(process))

    def _compile(self, process: Process) -> None:
        process.enter("compile")
        self._later(process, self._durations["compile"], lambda: self._wait_for_others(process))

    def _wait_for_others(self, process: Process) -> None:
        process.ready = True
        self._later(process, BARRIER, lambda: None if self._begun else self._echo(process))
        if len(self._ready()) == len(self.spec.hosts) and not self._begun:
            self._begun = True
            if self.drain_wanted:
                self._leave(ExitCode.DRAINED_NOTHING_NEW)
            elif self.spec.resume is None:
                self._initialise()
            else:
                for each in self._ready():
                    each.enter("restore")
                self.after(self.world.random.uniform(0.2, 1.0), self._restore)

    def _ready(self) -> list[Process]:
        return [process for process in self.processes.values() if process.alive and process.ready]

    def _initialise(self) -> None:
        self._next_step, self._state = 0, initial_state(self.spec.recipe_sha256)
        self._save(then=self._go)

    def _restore(self) -> None:
        if not self._all_well(self._restore):
            return
        try:
            manifest = self._restored()
            if manifest is not None:
                self._read_prior()
        except StoreUnavailable:
            self.after(RETRY, self._restore)
            return
        if manifest is None:
            self._leave(ExitCode.OWN_ERROR, error=NONE_RESTORES)
            return
        assert self.saver is not None
        self.saver.parent = self.restored = manifest.name
        self.saver.committed = manifest.next_step
        self._next_step, self._state = manifest.next_step, manifest.params_sha256
        self._go()

    def _restored(self) -> Manifest | None:
        """The newest candidate that passes its checks; others are quarantined."""
        store = self._leader.store
        name = self.spec.resume
        tombstones, quarantined = store.tombstones(), store.quarantined()
        while name is not None:
            manifest = store.manifest(name)
            if name not in tombstones and name not in quarantined:
                now = EPOCH + self.world.timeline.now
                if name not in self.world.corrupt and self.world.data_of(name):
                    store.create_proof(Proof(manifest=name, how="restore", attempt=self.spec.attempt, arrays=1, at=now))
                    return manifest
                self.world.say(f"a{self.spec.attempt} cannot restore {name}")
                store.create_quarantine(
                    Quarantine(manifest=name, problem="checksum", attempt=self.spec.attempt, at=now)
                )
            name = manifest.parent
        return None

    def _read_prior(self) -> None:
        self._prior = {}
        for segment in self.spec.prior:
            for record in self._leader.store.read_prior(segment):
                if record.finite:
                    self._prior.setdefault(record.step, []).append(record)
        self._recorded_before = max(self._prior, default=-1)

    # ---- stepping
    def _go(self) -> None:
        for process in self.living:
            process.enter("replay" if self._next_step <= self._recorded_before else "train")
        self._schedule_step()

    def _schedule_step(self) -> None:
        slowest = max((process.host.slowness for process in self.processes.values()), default=1.0)
        self.after(self.step_seconds * slowest * self.world.random.uniform(0.9, 1.1), self._step)

    def _step(self) -> None:
        if self._finished or not self._all_well(self._step):
            return
        step = self._next_step
        if self._breaks_at(step):
            return
        record = self._compute(step)
        if not record.finite:
            self._note(record)
            self._leave(ExitCode.NOT_FINITE, step=step)
            return
        if len({record.total, *(earlier.total for earlier in self._prior.get(step, ()))}) > 1:
            self.differed_at = step
            self._note(record)
            self._leave(ExitCode.REPLAY_DIFFERS, step=step)
            return
        self._note(record)
        self._state = after_step(self._state, bits_of_step(self.spec.recipe_sha256, step))
        self._next_step = step + 1
        self.last_step = step
        if self.first_new_step_at is None and step > self._recorded_before:
            self.first_new_step_at = EPOCH + self.world.timeline.now
            for process in self.living:
                process.enter("train")
        for process in self.living:
            process.stepped()
        self._what_next()

    def _what_next(self) -> None:
        spec, step = self.spec, self._next_step
        if step >= spec.until_step:
            self._finish_when_saved()
            return
        if self.drain_wanted and self._drain_at is None:
            self._drain_at = step + 1
        if self._drain_at is not None and step >= self._drain_at:
            self._drain()
            return
        if step % spec.checkpoint.every_steps == 0:
            self._save()
        self._schedule_step()

    def _compute(self, step: int) -> Record:
        total = bits_of_step(self.spec.recipe_sha256, step)
        hosts = [process.host for process in self.living]
        if self.world.corrupts(hosts, replayed=step in self._prior):
            total = f"{int(total, 16) ^ 1:08x}"
        finite = not self.world.not_finite(step)
        return Record.model_construct(
            step=step,
            attempt=self.spec.attempt,
            ce=total,
            z_loss="00000000",
            total=total if finite else "7fc00000",
            ce_by_rank=(total,),
            grad_norm=total,
            gradient=total * 2,
            tokens=total * 2,
            learning_rate="00000000",
            skipped=False,
            finite=finite,
            fingerprint=FINGERPRINT.key,
            started=0.0,
            seconds=self.step_seconds,
            data_seconds=0.0,
        )

    def _breaks_at(self, step: int) -> bool:
        """The trainer's own error, when one is due."""
        error = self.world.own_error(step)
        if error is None:
            return False
        culprit = self.world.random.choice(self.living)
        culprit.stepped(now=True)
        culprit.die(code=ExitCode.OWN_ERROR, error=error)
        return True

    def _note(self, record: Record) -> None:
        self._records.append(record)
        if len(self._records) >= 2:
            self.close_segment()

    def close_segment(self) -> None:
        """Records that cannot be written wait on the host."""
        while (self._closing or self._records) and self._leader.alive:
            if not self._closing:
                self._closing, self._records = self._records, []
            try:
                self._leader.store.create_segment(self.spec.attempt, self._segments, self._closing)
            except StoreUnavailable:
                return
            self._closing = []
            self._segments += 1

    # ---- saving and leaving
    def _save(self, *, then: Callable[[], None] = lambda: None) -> None:
        assert self.saver is not None
        self.saver.save(self._next_step, self._state, then=then)

    def _finish_when_saved(self) -> None:
        assert self.saver is not None
        self.close_segment()
        if self.saver.committed is not None and self.saver.committed >= self.spec.until_step:
            for process in self.living:
                process.enter("end")
            self._leave(ExitCode.LAST_STEP_COMMITTED)
            return
        if not self.saver.busy:
            self._save()
        self.after(0.5, self._retry_finish)

    def _retry_finish(self) -> None:
        if not self._finished and self._all_well(self._retry_finish):
            self._finish_when_saved()

    def _drain(self) -> None:
        """Save at the agreed step; run on a little as a witness while the save commits."""
        assert self.saver is not None
        assert self._drain_at is not None
        if self._next_step == self._drain_at:
            for process in self.living:
                process.enter("drain")
            if self.saver.committed == self._next_step:
                self.close_segment()
                self._leave(ExitCode.DRAINED_NOTHING_NEW)
                return
            self._save()
        last = min(self._drain_at + self.spec.witness_steps, self.spec.until_step)
        if self._next_step < last:
            self._schedule_step()
        else:
            self.close_segment()
            self._drain_tries = 0
            self._leave_when_drained()

    def _leave_when_drained(self) -> None:
        assert self.saver is not None
        assert self._drain_at is not None
        if self._finished or not self._all_well(self._leave_when_drained):
            return
        if self.saver.committed is not None and self.saver.committed >= self._drain_at:
            self._leave(ExitCode.DRAINED)
        elif self.saver.busy or self._drain_tries > 2:
            if not self.saver.busy:
                self._leave(ExitCode.DRAIN_SAVE_FAILED)
                return
            self.after(0.3, self._leave_when_drained)
        else:
            self._drain_tries += 1
            self.saver.save_again()
            self.after(0.3, self._leave_when_drained)

    def fenced(self) -> None:
        """The swap of head failed: another attempt may commit."""
        leader = self._leader
        self._finished = True
        leader.die(code=ExitCode.DRAINED_NOTHING_NEW, error=FENCED)

    def _leave(self, code: int, *, error: OwnError | None = None, step: int | None = None) -> None:
        """All processes exit, each at its own moment."""
        self._finished = True
        if step is not None:
            self.last_step = step
        for process in self.living:
            process.stepped(now=True)
            delay = self.world.random.uniform(0.0, 0.3)
            self._later(process, delay, lambda process=process: process.die(code=code, error=error))  # type: ignore[misc]

    # ---- dying
    def lost(self, process: Process) -> None:
        """The others hang in a collective, and die of that in the end, unless all are leaving anyway."""
        if process.index == 0:
            self._records, self._closing = [], []
        if self._finished and process.status[0] is not None and process.error is not FENCED:
            return
        self._finished = True
        for other in self.living:
            delay = self.world.random.uniform(*self._echo_after)
            self._later(other, delay, lambda other=other: self._echo(other))  # type: ignore[misc]

    def _echo(self, process: Process) -> None:
        if self.world.random.random() < 0.7:
            process.die(signal=6)
        else:
            process.die(code=ExitCode.OWN_ERROR, error=ECHO)

    # ---- bookkeeping
    @property
    def living(self) -> list[Process]:
        return [process for process in self.processes.values() if process.alive]

    @property
    def _leader(self) -> Process:
        return self.processes[0]

    def _all_well(self, again: Callable[[], None]) -> bool:
        """Whether all can take part; a stopped process holds the others up until it goes on."""
        if len(self.living) < len(self.spec.hosts):
            return False
        if any(process.stopped for process in self.living):
            self.after(0.5, again)
            return False
        return True

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Unless nobody is left by then."""
        self.world.timeline.after(seconds, lambda: action() if self.living else None)

    def _later(self, process: Process, seconds: float, action: Callable[[], None]) -> None:
        """Something that one process does, when it is alive and running then."""

        def then() -> None:
            if process.alive and process.stopped:
                self.world.timeline.after(0.5, then)
            elif process.alive:
                action()

        self.world.timeline.after(seconds * process.host.slowness, then)


class Saver:
    """Process 0's saves: data, then the manifest, then the swap of head, one at a time."""

    def __init__(self, gang: Gang, store: RunStore, generation: str) -> None:
        self._gang = gang
        self._store = store
        self._generation = generation
        """Of head, as this attempt knows it."""
        self.parent: str | None = None
        self.committed: int | None = None
        """``next_step`` of the newest checkpoint of this lineage."""
        self.busy = False
        self._waiting: tuple[int, str, Callable[[], None]] | None = None
        self._unsure: tuple[Head, int] | None = None
        """A swap whose response was lost."""
        self._last: tuple[int, str, Callable[[], None]] | None = None

    def save(self, next_step: int, state: str, *, then: Callable[[], None] = lambda: None) -> None:
        """Start a save beside the training; one that comes while another is under way waits for it."""
        self._last = (next_step, state, then)
        if self.busy:
            self._waiting = self._last
            return
        self.busy = True
        seconds = self._gang.world.random.uniform(0.3, 2.0)
        self._gang.after(seconds, lambda: self._commit(next_step, state, then, tries=0))

    def save_again(self) -> None:
        assert self._last is not None
        self.save(self._last[0], self._last[1], then=self._last[2])

    def _commit(self, next_step: int, state: str, then: Callable[[], None], *, tries: int) -> None:
        if not self._gang.processes[0].alive:
            return
        if self._gang.processes[0].stopped:
            self._gang.after(0.5, lambda: self._commit(next_step, state, then, tries=tries))
            return
        try:
            if self._gang.world.saves_fail:
                raise StoreUnavailable("no space")
            if self._settle_unsure() and next_step != self.committed:
                self._write(next_step, state)
        except StoreUnavailable:
            if tries < 2 or next_step == 0:
                self._gang.after(RETRY, lambda: self._commit(next_step, state, then, tries=tries + 1))
                return
            self._gang.save_failures += 1
        except Conflict:
            self._gang.fenced()
            return
        else:
            then()
        self.busy = False
        if self._waiting is not None:
            waiting, self._waiting = self._waiting, None
            self.save(waiting[0], waiting[1], then=waiting[2])

    def _settle_unsure(self) -> bool:
        """Find out what became of a swap without a response. Raises Conflict when it lost."""
        if self._unsure is None:
            return True
        head, next_step = self._unsure
        now = self._store.head()
        if now.value.write_id == head.write_id:
            self._done(head, next_step, now.generation)
        elif now.generation != self._generation:
            raise Conflict("fenced")
        self._unsure = None
        return True

    def _write(self, next_step: int, state: str) -> None:
        manifest = self._manifest(next_step, state)
        world, name = self._gang.world, manifest.name
        folder = f"{world.run_name}/{manifest.folder}"
        self._store.objects.overwrite(f"{folder}/data", b"state")
        try:
            self._store.create_manifest(manifest)
        except ContractError as error:
            raise AssertionError(str(error)) from error
        if world.next_save_is_corrupt:
            world.next_save_is_corrupt = False
            world.corrupt.add(name)
        head = Head(
            attempt=self._gang.spec.attempt,
            manifest=name,
            next_step=next_step,
            revision=self._gang.spec.revision,
            write_id=f"{world.random.getrandbits(64):016x}",
        )
        try:
            generation = self._store.swap_head(head, generation=self._generation)
        except StoreUnavailable:
            self._unsure = (head, next_step)
            raise
        self._done(head, next_step, generation)

    def _done(self, head: Head, next_step: int, generation: str) -> None:
        self._generation = generation
        self.parent, self.committed = head.manifest, next_step

    def _manifest(self, next_step: int, state: str) -> Manifest:
        spec = self._gang.spec
        name = f"{next_step:012d}-a{spec.attempt:04d}"
        return Manifest(
            run=spec.run,
            attempt=spec.attempt,
            revision=spec.revision,
            recipe_sha256=spec.recipe_sha256,
            stage=spec.stage,
            next_step=next_step,
            parent=self.parent,
            folder=f"checkpoints/{name}",
            arrays=_NO_ARRAYS,
            files=_NO_FILES,
            params_sha256=state,
            fingerprint=FINGERPRINT,
            versions={},
            placement=spec.placement,
            data_sha256="3" * 64,
            save_seconds=1.0,
            at=0.0,
        )
