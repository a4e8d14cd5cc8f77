"""The effects of what was decided: each looks at what is there and does what is missing.

Nothing here remembers what it did. A controller that is killed between any two effects is repaired by the next look of
the next one: the log says what should be, the store and the backend say what is.
"""

import secrets
from collections.abc import Callable, Sequence
from typing import Protocol

from orchestrator.contract.attempt import AttemptSpec, HostRef, StartOrder, StopOrder
from orchestrator.contract.event import Amend, Launch
from orchestrator.contract.manifest import Head
from orchestrator.contract.run import Policy, Revision, Run
from orchestrator.controller.clock import Clock
from orchestrator.controller.prior import freeze
from orchestrator.fleet.backend import Ahead, Backend
from orchestrator.fleet.observation import Observation
from orchestrator.planner.history import History
from orchestrator.store.objects import Conflict, NotFound
from orchestrator.store.run_store import RunStore


class Prover(Protocol):
    """Reads a checkpoint back beside the run and writes its proof or quarantine."""

    def prove(self, manifest: str) -> None:
        """Start it unless one is running; returns at once."""
        ...


class Preparer(Protocol):
    """Compiles beside the run what launches that may come would compile."""

    def prepare(self, wanted: Sequence[Ahead]) -> None:
        """Start the first that is not done, unless one is at work; returns at once."""
        ...


class Effects:
    """Brings store and fleet to where the log says they should be."""

    def __init__(
        self,
        *,
        run: Run,
        store: RunStore,
        backend: Backend,
        prover: Prover,
        preparer: Preparer,
        certify: Callable[[RunStore], None],
        clock: Clock,
    ) -> None:
        self._run = run
        self._store = store
        self._backend = backend
        self._prover = prover
        self._preparer = preparer
        self._certify = certify
        self._clock = clock

    def finish(self, history: History, seen: Observation, policy: Policy, *, last_step: int) -> None:
        """Do what is missing of everything that was decided. Repeating it changes nothing.

        Args:
            last_step: ``next_step`` at which the recipe is finished.

        Raises:
            StoreError, BackendUnavailable: an effect could not be done; the next look tries again.
        """
        if history.fence is not None and not history.ended:
            self._fence(history)
        self._kill_stuck(history, seen, policy)
        if history.amend is not None and seen.head.revision < history.revision:
            self._amend(history)
        if history.live and history.launch is not None:
            self._launch(history.launch, policy)
        if history.live and history.drain is not None:
            self._stop(history.attempt, "drain", history.drain_cause)
        if history.state in ("paused", "stopped", "complete") and not history.live:
            self._release(seen)
        if history.state == "complete":
            self._certify(self._store)
        self._prove(history, seen, policy, last_step)

    def prepare(self, hosts: Sequence[HostRef], *, from_attempt: int) -> None:
        """Bring up agents where an attempt may run next, so that the switch finds them ready."""
        self._backend.ensure_agents(hosts, from_attempt=from_attempt)

    def compile_ahead(self, wanted: Sequence[Ahead]) -> None:
        """Fill the compile cache for launches that may come; goes on beside the run."""
        self._preparer.prepare(wanted)

    def _fence(self, history: History) -> None:
        assert history.fence is not None
        number = history.fence.attempt
        self._raise_head(number + 1)
        self._stop(number, "kill", history.fence_cause)

    def _kill_stuck(self, history: History, seen: Observation, policy: Policy) -> None:
        """Hosts whose agents do not obey the kill order, whether or not an attempt runs elsewhere by now."""
        asked_at = history.fenced_at if history.fence is not None else history.launched_at
        if seen.unconfirmed and self._clock.time() > asked_at + policy.deadlines.kill / 3:
            self._backend.kill_agents(sorted(seen.unconfirmed, key=str))

    def _raise_head(self, attempt: int) -> bool:
        """The fence: head's attempt becomes at least ``attempt``. True when it is exactly that afterwards."""
        while True:
            stored = self._store.head()
            head = stored.value
            if head.attempt >= attempt:
                return head.attempt == attempt
            raised = head.model_copy(update={"attempt": attempt, "write_id": secrets.token_hex(8)})
            try:
                self._store.swap_head(raised, generation=stored.generation)
            except Conflict:
                continue

    def _launch(self, launch: Launch, policy: Policy) -> None:
        if self._store.start_order(launch.attempt) is not None:
            return
        if not self._raise_head(launch.attempt):
            return
        try:
            self._store.attempt(launch.attempt)
        except NotFound:
            self._store.create_attempt(self._spec(launch, policy))
        self._backend.ensure_agents(launch.hosts, from_attempt=launch.attempt)
        order = StartOrder(attempt=launch.attempt, hosts=launch.hosts, at=self._clock.time())
        self._store.create_start_order(order)

    def _spec(self, launch: Launch, policy: Policy) -> AttemptSpec:
        revision = self._store.revisions()[launch.revision - 1]
        resume_step = self._store.manifest(launch.resume).next_step if launch.resume else 0
        return AttemptSpec(
            run=self._run.name,
            attempt=launch.attempt,
            revision=launch.revision,
            recipe_sha256=revision.recipe_sha256,
            store=self._store.objects.address,
            data_root=self._run.data_root,
            stage=launch.stage,
            until_step=launch.until_step,
            allocation=f"{self._run.name}-g{launch.allocation}",
            placement=launch.placement,
            hosts=launch.hosts,
            leaf_plan=self._store.leaf_plan(launch.placement.generation),
            resume=launch.resume,
            prior=freeze(self._store, before=launch.attempt, revision=launch.revision, from_step=resume_step),
            checkpoint=policy.checkpoint,
            witness_steps=policy.witness_steps,
            comparison=policy.comparison,
            loss_bound=policy.loss_bound,
            trainer=self._run.trainer,
        )

    def _stop(self, attempt: int, how: str, reason: str) -> None:
        if self._store.stop_order(attempt, how) is None:
            order = StopOrder(attempt=attempt, how=how, reason=reason, at=self._clock.time())
            self._store.create_stop_order(order)

    def _amend(self, history: History) -> None:
        event = history.amend
        assert event is not None and isinstance(event.action, Amend)
        action = event.action
        if len(self._store.revisions()) < action.revision:
            revision = Revision(
                number=action.revision,
                recipe_sha256=action.recipe_sha256,
                base_manifest=action.base,
                from_step=action.from_step,
                reason=" ".join(event.evidence),
                by=event.message.partition(" asked for")[0],
                at=event.at,
            )
            self._store.create_revision(revision, self._store.recipe(action.recipe_sha256).to_bytes())
        stored = self._store.head()
        if stored.value.revision >= action.revision:
            return
        head = Head(
            attempt=stored.value.attempt,
            manifest=action.base,
            next_step=action.from_step,
            revision=action.revision,
            write_id=secrets.token_hex(8),
        )
        self._store.swap_head(head, generation=stored.generation)

    def _release(self, seen: Observation) -> None:
        ours = hosts_held(seen, self._run.name)
        if ours:
            self._backend.release(ours)

    def _prove(self, history: History, seen: Observation, policy: Policy, last_step: int) -> None:
        checkpoints = [checkpoint for checkpoint in seen.checkpoints if not checkpoint.quarantined]
        if not checkpoints or checkpoints[0].proven or history.state in ("paused", "stopped", "complete"):
            return
        proven = [index for index, checkpoint in enumerate(checkpoints) if checkpoint.proven]
        since = proven[0] if proven else len(checkpoints)
        last = not history.live and checkpoints[0].next_step >= last_step
        if last or since >= policy.checkpoint.prove_after:
            self._prover.prove(checkpoints[0].manifest)


def hosts_held(seen: Observation, run: str) -> list[HostRef]:
    """Hosts on which an agent of this run lives."""
    return [host.ref for host in seen.hosts if host.agent is not None and host.agent.run == run]
