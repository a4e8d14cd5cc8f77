"""A run's directory as controller, agents and trainers would have left it, built by hand on a clock that only it moves.

    run = RunFactory(steps=12)
    first = run.launch("full")
    first.train(4).commit().train(7)
    first.die(host=1)
    second = run.launch("quarter")
    second.train(12).commit(proven=True).finish()
    run.complete()

Every step of a recipe has one set of true bits; ``train(change=...)`` makes an attempt compute others. A step takes one
second. What is written goes through RunStore, so what a report reads here is what it reads of a real run.
"""

from collections.abc import Mapping
from typing import Any, Self

from orchestrator.contract.attempt import (
    AttemptSpec,
    Exit,
    HostRef,
    OwnError,
    Phase,
    PhaseStart,
    Progress,
    Segment,
    Started,
    StartOrder,
    StopOrder,
)
from orchestrator.contract.base import sha256_of
from orchestrator.contract.event import Action, Amend, Drain, Event, EventKind, Fence, Launch, Request, SetState
from orchestrator.contract.manifest import ArrayEntry, Head, Manifest, Proof
from orchestrator.contract.run import CheckpointPolicy, LeafPlan, Placement, Policy, Revision, Run
from orchestrator.store.memory import MemoryStore
from orchestrator.store.objects import ObjectStore
from orchestrator.store.run_store import RunStore
from tests.unit.run_documents import PLACEMENTS, RANKS, fingerprint, recipe_of, true_record

SUBMITTED_AT = 1_700_000_000.0


class RunFactory:
    """A run under construction; ``now`` is the time of whatever happens next."""

    def __init__(
        self,
        *,
        steps: int = 12,
        stages: Mapping[str, int] | None = None,
        name: str = "demo",
        seed: int = 0,
        policy: Policy | None = None,
        objects: ObjectStore | None = None,
        ranks: int = RANKS,
    ) -> None:
        self.store = RunStore(objects or MemoryStore(), name)
        self.now = SUBMITTED_AT
        self.seed = seed
        self.policy = policy or Policy(placements=tuple(PLACEMENTS.values()))
        self.revision = 1
        self.attempts: list[AttemptFactory] = []
        self.episode = 0
        self.episode_open = False
        self.recipe = recipe_of(stages or {"pretrain": steps}, seed=seed, ranks=ranks)
        self.recipe_sha256 = sha256_of(self.recipe.to_bytes())
        self._submit()

    @property
    def head(self) -> Head:
        return self.store.head().value

    def launch(self, placement: str = "full", *, cause: str | None = None, label: str = "a") -> "AttemptFactory":
        """Decide, order and start the next attempt from head's checkpoint; ``label`` names its fingerprint."""
        attempt = AttemptFactory(self, PLACEMENTS[placement], label=label, cause=cause)
        self.attempts.append(attempt)
        return attempt

    def event(self, message: str, *, kind: EventKind = "decision", disturbs: bool = False, **fields: Any) -> Event:
        """Write the next event; times, numbers and episodes are the controller's."""
        if disturbs and not self.episode_open:
            self.episode, self.episode_open = self.episode + 1, True
        number = len(self.store.events()) + 1
        fields.setdefault("episode", self.episode if self.episode_open else 0)
        fields.setdefault("attempt", len(self.attempts))
        event = Event(number=number, at=self.now, kind=kind, message=message, by="controller", **fields)
        assert self.store.create_event(event)
        if kind == "first-new-step":
            self.episode_open = False
        return event

    def state(self, state: str) -> Self:
        """Hold, pause, resume, stop."""
        self.event(state, action=SetState.model_validate({"state": state}), cause=f"request-{state}")
        return self

    def complete(self) -> Self:
        """Declare the run complete, a second after what happened last."""
        self.now += 1.0
        self.event(
            "complete: the last step is committed and proven", action=SetState(state="complete"), cause="complete"
        )
        return self

    def amend(self, *, seed: int = 1) -> Self:
        """Go on from head as a new revision, whose steps have other bits."""
        base, head = self.head, self.store.head()
        assert base.manifest is not None
        assert base.next_step is not None
        self.revision += 1
        self.seed = seed
        self.recipe = self.recipe.model_copy(update={"seed": seed})
        self.recipe_sha256 = sha256_of(self.recipe.to_bytes())
        action = Amend(
            revision=self.revision, base=base.manifest, from_step=base.next_step, recipe_sha256=self.recipe_sha256
        )
        self.event("ada asked for amend", action=action, cause="request-amend")
        self._create_revision(base.manifest, base.next_step)
        swapped = base.model_copy(update={"revision": self.revision, "write_id": f"amend-{self.revision}"})
        self.store.swap_head(swapped, generation=head.generation)
        return self

    def request(self, kind: str, *, ago: float = 0.5) -> str:
        """A person's request, made ``ago`` seconds before now; returns its name."""
        fields = {"kind": kind, "by": "ada", "reason": "test", "attempt_seen": len(self.attempts), "at": self.now - ago}
        return self.store.create_request(Request.model_validate(fields))

    def _submit(self) -> None:
        run = Run(
            name=self.store.name,
            recipe_sha256=self.recipe_sha256,
            fleet="/fleet",
            data_root="/data",
            trainer=("trainer",),
            submitted_at=self.now,
        )
        self.store.create_run(run)
        self._create_revision(None, 0)
        self.store.create_policy(self.policy)
        self.store.create_head(Head(attempt=0, manifest=None, next_step=None, revision=1, write_id="submit"))
        self.event("submitted", kind="submitted", cause="submit")
        self.now += 1.0

    def _create_revision(self, base: str | None, from_step: int) -> None:
        revision = Revision(
            number=self.revision,
            recipe_sha256=self.recipe_sha256,
            base_manifest=base,
            from_step=from_step,
            reason="test",
            by="ada",
            at=self.now,
        )
        self.store.create_revision(revision, self.recipe.to_bytes())


class AttemptFactory:
    """One attempt of a run; its methods go on in time and return the attempt."""

    def __init__(self, run: RunFactory, placement: Placement, *, label: str, cause: str | None) -> None:
        self.run = run
        self.store = run.store
        self.number = len(run.attempts) + 1
        self.placement = placement
        self.label = label
        self.hosts = tuple(HostRef(pool=placement.pool, host=f"h{index}") for index in range(placement.hosts))
        head = run.head
        self.parent = head.manifest
        self.next_step = head.next_step or 0
        stage = run.recipe.stage_at(self.next_step)
        assert stage is not None, "the recipe is finished"
        self.stage = stage
        self.until = run.recipe.first_step_of(stage) + stage.steps
        self.recorded_end = max((self._end_of(other) for other in run.attempts), default=0)
        self.cause = cause or ("submit" if self.number == 1 else "died")
        self.phases: list[PhaseStart] = []
        self.segments = 0
        self.step: int | None = None
        self.first_new_step_at: float | None = None
        self._launch()
        if head.manifest is None:
            self.commit()

    # ---- what the trainer does
    def train(self, until: int, *, change: Mapping[int, Mapping[str, Any]] | None = None) -> Self:
        """Take the steps up to ``next_step`` == until, in one closed segment; ``change`` replaces fields of records."""
        records = []
        for step in range(self.next_step, until):
            self._phase("replay" if step < self.recorded_end else "train")
            changed = {"seed": self.run.seed, **(change or {}).get(step, {})}
            records.append(true_record(step, attempt=self.number, label=self.label, started=self.run.now, **changed))
            self.run.now += 1.0
            self.step = step
            if step >= self.recorded_end and self.first_new_step_at is None:
                self.first_new_step_at = self.run.now
                self._write_progress()
                details = {"first_new_step_at": self.run.now}
                self.run.event(f"a{self.number} took its first new step", kind="first-new-step", details=details)
        self.segments += 1
        self.store.create_segment(self.number, self.segments, records)
        self.next_step = until
        self._write_progress()
        return self

    def commit(self, *, proven: bool = False, seconds: float = 0.5, **change: Any) -> Self:
        """Save for ``seconds``, write the manifest, swap head; ``change`` replaces fields of the manifest."""
        self.run.now += seconds
        manifest = self.witness(**change)
        stored = self.store.head()
        head = stored.value.model_copy(
            update={"manifest": manifest.name, "next_step": manifest.next_step, "write_id": manifest.name}
        )
        self.store.swap_head(head, generation=stored.generation)
        self.parent = manifest.name
        if proven:
            how = Proof(manifest=manifest.name, how="scrub", attempt=None, arrays=1, at=self.run.now)
            self.store.create_proof(how)
        return self

    def witness(self, **change: Any) -> Manifest:
        """A manifest at ``next_step`` that head does not reach."""
        params = sha256_of(f"{self.run.seed} {self.next_step}".encode())
        fields: dict[str, Any] = {
            "run": self.store.name,
            "attempt": self.number,
            "revision": self.run.revision,
            "recipe_sha256": self.run.recipe_sha256,
            "stage": self.stage.name,
            "next_step": self.next_step,
            "parent": self.parent,
            "folder": f"checkpoints/{self.next_step:012d}-a{self.number:04d}",
            "arrays": {"params/w": ArrayEntry(dtype="float32", shape=(8,), checksum=params[:16])},
            "files": {},
            "params_sha256": params,
            "fingerprint": fingerprint(self.label),
            "versions": {"jax": "0.12.0"},
            "placement": self.placement,
            "data_sha256": "2" * 64,
            "save_seconds": 0.5,
            "at": self.run.now,
        }
        manifest = Manifest.model_validate({**fields, **change})
        self.store.create_manifest(manifest)
        return manifest

    # ---- how it ends
    def die(self, *, host: int = 0, then: str = "relaunch", error: OwnError | None = None, **fields: Any) -> Self:
        """A process dies half a second from now; a quarter later the controller fences, and kills the rest."""
        self.run.now += 0.5
        fields.setdefault("signal", None if error else 9)
        fields.setdefault("code", 1 if error else None)
        self.exit(host, error=error, last_lines=(f"host {host} dies",), **fields)
        died_at = self.run.now
        self.run.now += 0.25
        cause = "own-error" if error else "died"
        self._decide(f"process {host} died; kill the rest", Fence.model_validate(self._stop(then)), cause=cause)
        self._order("kill", cause)
        self.run.now += 0.25
        for index in range(len(self.hosts)):
            if index != host:
                self.exit(index, signal=9, killed_by_us=True)
        self.run.now += 0.125
        self.ended(cause, {"first_death_at": died_at})
        return self

    def drain(
        self, *, cause: str = "return", then: str = "relaunch", witness: int = 2, request: str | None = None
    ) -> Self:
        """The controller asks the attempt to leave: it commits, trains ``witness`` steps more, and exits; with
        nothing new to commit it just exits."""
        fields = {**self._stop(then), "deadline": self.run.now + 600}
        self._decide("drain", Drain.model_validate(fields), cause=cause, request=request)
        self._order("drain", cause)
        self._phase("drain")
        if self.run.head.next_step == self.next_step:
            return self._leave(81, cause)
        self.commit()
        if witness:
            self.train(min(self.next_step + witness, self.until))
        return self._leave(80, cause)

    def finish(self) -> Self:
        """The stage's last step is committed: every process leaves with 0."""
        self._phase("end")
        last = self.until == self.run.recipe.last_step
        return self._leave(0, "last-step" if last else "stage-done")

    def _leave(self, code: int, cause: str) -> Self:
        self.run.now += 0.25
        for index in range(len(self.hosts)):
            self.exit(index, code=code)
        self.run.now += 0.125
        self.ended(cause)
        return self

    # ---- documents
    def _launch(self) -> None:
        run = self.run
        action = Launch(
            attempt=self.number,
            revision=run.revision,
            stage=self.stage.name,
            until_step=self.until,
            placement=self.placement,
            hosts=self.hosts,
            allocation=self.number,
            resume=self.parent,
        )
        run.event(
            f"launch a{self.number} on {self.placement.name}",
            action=action,
            attempt=self.number,
            cause=self.cause,
            disturbs=True,
        )
        stored = self.store.head()
        raised = stored.value.model_copy(update={"attempt": self.number, "write_id": f"a{self.number}"})
        self.store.swap_head(raised, generation=stored.generation)
        self.store.create_attempt(self._spec())
        run.now += 0.25
        self.store.create_start_order(StartOrder(attempt=self.number, hosts=self.hosts, at=run.now))
        for index, host in enumerate(self.hosts):
            started = Started(attempt=self.number, process=index, host=host, pid=100 + index, at=run.now)
            self.store.create_started(started)
        phases: dict[Phase, float] = {"start": 0.5, "initialise": 0.25, "compile": 2.0, "restore": 1.0}
        for phase, seconds in phases.items():
            self._phase(phase)
            run.now += seconds

    def _spec(self) -> AttemptSpec:
        run = self.run
        return AttemptSpec(
            run=self.store.name,
            attempt=self.number,
            revision=run.revision,
            recipe_sha256=run.recipe_sha256,
            store=self.store.objects.address,
            data_root="/data",
            stage=self.stage.name,
            until_step=self.until,
            allocation=f"{self.store.name}-g{self.number}",
            placement=self.placement,
            hosts=self.hosts,
            leaf_plan=LeafPlan(generation=self.placement.generation),
            resume=self.parent,
            prior=tuple(self._prior()),
            checkpoint=CheckpointPolicy(),
            comparison=run.policy.comparison,
            loss_bound=run.policy.loss_bound,
            trainer=("trainer",),
        )

    def _prior(self) -> list[Segment]:
        found = []
        for other in self.run.attempts:
            names = self.store.segment_names(other.number)
            for name in names if self.store.attempt(other.number).revision == self.run.revision else []:
                data, records = self.store.read_segment(name)
                if records and records[-1].step >= self.next_step:
                    ends = {"first_step": records[0].step, "last_step": records[-1].step}
                    found.append(
                        Segment(attempt=other.number, name=name, length=len(data), sha256=sha256_of(data), **ends)
                    )
        return found

    def _end_of(self, other: "AttemptFactory") -> int:
        return other.next_step if self.store.attempt(other.number).revision == self.run.revision else 0

    def _phase(self, phase: Phase) -> None:
        if not self.phases or self.phases[-1].phase != phase:
            self.phases.append(PhaseStart(phase=phase, at=self.run.now))
            self._write_progress()

    def _write_progress(self) -> None:
        for index in range(len(self.hosts)):
            self.store.write_progress(
                Progress(
                    attempt=self.number,
                    process=index,
                    pid=100 + index,
                    phase=self.phases[-1].phase,
                    step=self.step,
                    counter=len(self.phases) + self.next_step,
                    phases=tuple(self.phases),
                    first_new_step_at=self.first_new_step_at,
                    step_seconds=1.0 if self.step is not None else None,
                    compile_cache="hit",
                    at=self.run.now,
                )
            )

    def _stop(self, then: str) -> dict[str, Any]:
        return {"attempt": self.number, "then": then}

    def _decide(self, message: str, action: Action, *, cause: str, request: str | None = None) -> None:
        self.run.event(message, action=action, attempt=self.number, cause=cause, request=request, disturbs=True)
        self.run.now += 0.0625

    def _order(self, how: str, reason: str) -> None:
        fields = {"attempt": self.number, "how": how, "reason": reason, "at": self.run.now}
        self.store.create_stop_order(StopOrder.model_validate(fields))

    def exit(self, index: int, **fields: Any) -> None:
        """A process's exit document, of now; ``fields`` replace its fields."""
        known: dict[str, Any] = {
            "attempt": self.number,
            "process": index,
            "host": self.hosts[index],
            "code": None,
            "signal": None,
            "killed_by_us": False,
            "phase": self.phases[-1].phase,
            "step": self.step,
            "error": None,
            "last_lines": (),
            "at": self.run.now,
        }
        self.store.create_exit(Exit.model_validate({**known, **fields}))

    def ended(self, cause: str, details: dict[str, Any] | None = None) -> None:
        """The controller's word that all processes are gone."""
        disturbs = cause not in ("stage-done", "last-step")
        self.run.event(
            f"a{self.number} ended: {cause}",
            kind="ended",
            attempt=self.number,
            cause=cause,
            details=details or {},
            disturbs=disturbs,
        )
        self.run.now += 0.25
