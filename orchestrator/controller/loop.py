"""The loop: catch up with the log, observe, finish what was decided, decide, record. One run, one controller.

Two controllers on one run are safe: the number of the next event is the arbiter, and every effect of a recorded
decision can be repeated by anyone.
"""

from dataclasses import replace
from typing import Literal

from orchestrator.contract.base import ContractError
from orchestrator.contract.event import Event
from orchestrator.contract.recipe import Recipe
from orchestrator.contract.run import Policy
from orchestrator.controller.clock import Clock
from orchestrator.controller.effects import Effects, hosts_held
from orchestrator.controller.observe import Observer
from orchestrator.controller.sweep import Sweeper
from orchestrator.fleet.backend import BackendUnavailable
from orchestrator.fleet.observation import Observation
from orchestrator.planner.choice import better_than_here, may_come_next, whole_placements
from orchestrator.planner.decide import decide
from orchestrator.planner.decision import Decision, Facts, Wait
from orchestrator.planner.history import History, fold
from orchestrator.store.objects import StoreError
from orchestrator.store.run_store import RunStore

HURRY = 0.25
"""Of the usual time between two looks."""

Looked = Literal["acted", "waiting", "blind", "outrun"]
"""``blind``: something could not be read; ``outrun``: another controller wrote the next event first."""


class Controller:
    """Leads one run until it is complete or told to stop."""

    def __init__(
        self, *, name: str, store: RunStore, observer: Observer, effects: Effects, sweeper: Sweeper, clock: Clock
    ) -> None:
        self._name = name
        self._store = store
        self._observer = observer
        self._effects = effects
        self._sweeper = sweeper
        self._clock = clock
        self._recipes: dict[int, Recipe] = {}
        self._whole_since: dict[str, float] = {}
        self.history = History()
        self.waiting: Wait | None = None
        """Why nothing is being done; None after a look that acted."""
        self.done = False
        """The run needs no controller: it is complete or stopped, and none of its hosts is left to be given back."""

    def run(self, *, every: float) -> None:
        """Look again and again, ``every`` seconds apart when there is nothing to do, until the run needs no controller
        or the clock is told to stop; more often while a killed attempt is on its way out, since all wait for that."""
        while True:
            looked = self.look()
            if looked == "acted":
                continue
            if looked == "waiting" and self.done:
                return
            dying = self.history.fence is not None and not self.history.ended
            if self._clock.wait(every * HURRY if dying else every):
                return

    def look(self) -> Looked:
        """One look; at most one decision."""
        try:
            return self._look()
        except (StoreError, ContractError, BackendUnavailable) as error:
            self._observer.lost_sight()
            self._whole_since.clear()
            self.waiting = Wait(key=f"cannot-see: {error}", reason=f"nothing is decided: {error}")
            return "blind"

    def facts(self) -> Facts:
        """What a decision would be made from now, without acting: for ``decide --dry-run``."""
        self.history = fold(self._store.events(after=self.history.last_number), self.history)
        return self._facts(self._observer.look(self.history), self._store.policy().value)

    def _look(self) -> Looked:
        self.history = fold(self._store.events(after=self.history.last_number), self.history)
        policy = self._store.policy().value
        seen = self._observer.look(self.history)
        self._finish(seen, policy)
        facts = self._facts(seen, policy)
        answer = decide(facts)
        if isinstance(answer, Wait):
            return self._wait(answer, facts)
        event = self._event(answer)
        if not self._store.create_event(event):
            return "outrun"
        self.history = self.history.after(event)
        self.waiting = None
        self._finish(seen, policy)
        return "acted"

    def _finish(self, seen: Observation, policy: Policy) -> None:
        last_step = self._recipe(self.history.revision).last_step
        self._effects.finish(self.history, seen, policy, last_step=last_step)

    def _wait(self, wait: Wait, facts: Facts) -> Looked:
        self.waiting = wait
        self.done = self._is_done(facts.seen)
        self._prepare(facts)
        deleted = self._sweeper.decision(facts)
        if deleted is None and (not wait.record or wait.key == self.history.waiting):
            self._sweeper.finish(self.history)
            return "waiting"
        noted = deleted or Decision(kind="waiting", message=f"waiting: {wait.reason}", details={"key": wait.key})
        event = self._event(noted)
        if not self._store.create_event(event):
            return "outrun"
        self.history = self.history.after(event)
        if deleted is not None:
            self._sweeper.delete(deleted)
        return "acted"

    def _is_done(self, seen: Observation) -> bool:
        over = self.history.state in ("complete", "stopped") and self.history.ended
        return over and not seen.unconfirmed and not hosts_held(seen, self._store.name)

    def _facts(self, seen: Observation, policy: Policy) -> Facts:
        facts = Facts(
            run=self._store.name,
            recipe=self._recipe(self.history.revision),
            policy=policy,
            seen=seen,
            history=self.history,
            now=self._clock.time(),
        )
        whole = whole_placements(facts)
        now = self._clock.monotonic()
        self._whole_since = {name: self._whole_since.get(name, now) for name in whole}
        whole_for = tuple((name, now - since) for name, since in self._whole_since.items())
        return replace(facts, seen=replace(seen, whole_for=whole_for))

    def _recipe(self, revision: int) -> Recipe:
        if revision not in self._recipes:
            sha256 = (
                self.history.amend.action.recipe_sha256  # type: ignore[union-attr]
                if self.history.amend is not None
                else self._store.run().recipe_sha256
            )
            self._recipes[revision] = self._store.recipe(sha256)
        return self._recipes[revision]

    def _prepare(self, facts: Facts) -> None:
        """Make before break: agents of a better placement come up while the attempt still runs elsewhere, and what any
        next launch would compile is compiled."""
        choice = better_than_here(facts)
        if choice is not None:
            self._effects.prepare(choice.hosts, from_attempt=facts.history.next_attempt)
        self._effects.compile_ahead(may_come_next(facts))

    def _event(self, decision: Decision) -> Event:
        history = self.history
        opens = decision.disturbs and not history.episode_open
        episode = history.episode + 1 if opens else (history.episode if history.episode_open else 0)
        return Event(
            number=history.last_number + 1,
            at=self._clock.time(),
            kind=decision.kind,
            message=decision.message,
            episode=episode,
            cause=decision.cause,
            attempt=getattr(decision.action, "attempt", history.attempt),
            evidence=decision.evidence,
            action=decision.action,
            request=decision.request,
            details=decision.details,
            by=self._name,
        )
