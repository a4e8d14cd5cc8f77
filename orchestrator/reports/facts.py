"""What every report starts from: the run, its revisions, its attempts and the lineage that head stands for."""

import bisect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from orchestrator.contract.attempt import AttemptSpec
from orchestrator.contract.base import ContractError
from orchestrator.contract.event import Event, Launch
from orchestrator.contract.manifest import Head, Manifest
from orchestrator.contract.run import Revision, Run
from orchestrator.reports.state import StateChange, states
from orchestrator.store.objects import NotFound
from orchestrator.store.run_store import RunStore


@dataclass(frozen=True, kw_only=True)
class Span:
    """Steps ``first`` … ``end`` - 1 of the committed lineage, all computed by one attempt."""

    first: int
    end: int
    attempt: int
    revision: int


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """One look at a run's documents; ledgers are left out, because they are large."""

    run: Run
    head: Head
    revisions: Mapping[int, Revision]
    specs: Mapping[int, AttemptSpec]
    """By attempt, in order. An attempt that was fenced before it was begun has none."""
    lineage: tuple[Manifest, ...]
    """Reachable from head, oldest first."""
    events: tuple[Event, ...]

    def attempts_of(self, revision: int) -> list[int]:
        return [attempt for attempt, spec in self.specs.items() if spec.revision == revision]

    @cached_property
    def spans(self) -> tuple[Span, ...]:
        """Which attempt computed which committed steps, in order of steps.

        A manifest's attempt computed every step from its parent on: it restored the parent, or committed it itself.
        """
        return tuple(
            Span(first=parent.next_step, end=child.next_step, attempt=child.attempt, revision=child.revision)
            for parent, child in pairwise(self.lineage)
            if child.next_step > parent.next_step
        )

    def span_of(self, step: int) -> Span | None:
        """The span of a committed step; None for one that is not committed."""
        index = bisect.bisect_right(self.spans, step, key=lambda span: span.first) - 1
        return self.spans[index] if index >= 0 and step < self.spans[index].end else None

    @cached_property
    def launches(self) -> Mapping[int, Event]:
        """The decision that launched each attempt."""
        return {event.action.attempt: event for event in self.events if isinstance(event.action, Launch)}

    @cached_property
    def ended(self) -> Mapping[int, Event]:
        """The first word that all processes of an attempt had ended, by attempt."""
        return {event.attempt: event for event in reversed(self.events) if event.kind == "ended"}

    @cached_property
    def changes(self) -> tuple[StateChange, ...]:
        """Every state that the run was in, oldest first."""
        return tuple(states(self.run.submitted_at, self.events))

    @property
    def over_at(self) -> float | None:
        """When the run was complete or stopped; None when it goes on."""
        last = self.changes[-1]
        return last.at if last.state in ("complete", "stopped") else None

    def placement_of(self, attempt: int) -> str:
        """Name of the placement that an attempt was launched on."""
        spec = self.specs.get(attempt)
        if spec is not None:
            return spec.placement.name
        launch = self.launches[attempt].action
        assert isinstance(launch, Launch)
        return launch.placement.name


def read_facts(run_store: RunStore) -> RunFacts:
    """Read them all, head first, so that what it names is there.

    Raises:
        NotFound: the run is not in the store.
        ContractError: a document is damaged.
    """
    head = run_store.head().value
    revisions = {revision.number: revision for revision in run_store.revisions()}
    if head.revision not in revisions:
        raise ContractError(
            f"run {run_store.name}: head says revision {head.revision}, which is not in the store; restore "
            f"revisions/{head.revision:04d}.json from a copy"
        )
    return RunFacts(
        run=run_store.run(),
        head=head,
        revisions=revisions,
        specs=dict(_specs(run_store)),
        lineage=tuple(reversed(run_store.lineage(head.manifest))),
        events=tuple(run_store.events()),
    )


def _specs(run_store: RunStore) -> Iterator[tuple[int, AttemptSpec]]:
    for number in sorted(run_store.attempt_numbers()):
        try:
            yield number, run_store.attempt(number)
        except NotFound:
            continue
