"""What the time of a run is booked to: intervals from ledgers, phases, events and states.

``goodput`` says what the buckets mean and which of two overlapping bookings wins.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from orchestrator.contract.attempt import Exit, Phase, Progress
from orchestrator.contract.manifest import Manifest
from orchestrator.reports.episodes import Moments, ended_attempt, grouped, moments_of
from orchestrator.reports.facts import RunFacts
from orchestrator.reports.logs import first_failure
from orchestrator.reports.state import State
from orchestrator.reports.steps import StepTime, StepTimes
from orchestrator.reports.timeline import Interval, interval
from orchestrator.store.run_store import RunStore


@dataclass(frozen=True, kw_only=True)
class StepBookings:
    """Where each recorded step's time goes."""

    productive: list[Interval]
    data: list[Interval]
    """The beginning of productive steps, in which they waited for their batch."""
    replayed: list[Interval]
    wasted: list[Interval]


@dataclass(frozen=True, kw_only=True)
class Bookings:
    """All bookings of a run's time; ``end`` is where what has not ended is cut off, in seconds since the epoch."""

    run_store: RunStore
    facts: RunFacts
    times: StepTimes
    end: float

    @cached_property
    def steps(self) -> StepBookings:
        found = StepBookings(productive=[], data=[], replayed=[], wasted=[])
        live = {time.step for time in self._times[self.live_attempt]} if self.live_attempt else set()
        for revision in self.facts.revisions:
            seen: set[int] = set()
            for attempt in self.facts.attempts_of(revision):
                for time in self._times[attempt]:
                    self._book_step(found, time, repeated=time.step in seen, stands=self._stands(time, revision, live))
                    seen.add(time.step)
        return found

    @cached_property
    def live_attempt(self) -> int | None:
        """The attempt that may still commit; None when there is none, or the run is over."""
        newest = self.facts.head.attempt
        over = self.facts.over_at is not None or newest in self.facts.ended
        return newest if newest in self.facts.specs and not over else None

    def _stands(self, time: StepTime, revision: int, live: set[int]) -> bool:
        span = self.facts.span_of(time.step)
        if span is not None:
            return span.revision == revision
        return revision == self.facts.head.revision and time.step in live

    def _book_step(self, found: StepBookings, time: StepTime, *, repeated: bool, stands: bool) -> None:
        whole = interval(time.started, time.ended)
        if not stands:
            found.wasted.append(whole)
        elif repeated:
            found.replayed.append(whole)
        else:
            found.productive.append(whole)
            found.data.append(interval(time.started, time.started + min(time.data_seconds, time.seconds)))

    def saves(self, manifests: list[Manifest]) -> Iterator[Interval]:
        """What saves kept the next step waiting.

        From the end of the step before a checkpoint to the start of the step after it, or to the commit when the
        attempt took no step after it.
        """
        for attempt in self.facts.specs:
            times = {time.step: time for time in self._times[attempt]}
            for manifest in (manifest for manifest in manifests if manifest.attempt == attempt):
                before, after = times.get(manifest.next_step - 1), times.get(manifest.next_step)
                start = before.ended if before else manifest.at - manifest.save_seconds
                yield interval(start, after.started if before and after else manifest.at)

    def phase(self, phase: Phase) -> Iterator[Interval]:
        """A phase of every process of every attempt."""
        for attempt in self.facts.specs:
            for process, progress in self._progress[attempt].items():
                ends = [start.at for start in progress.phases[1:]] + [self._process_end(attempt, process)]
                for start, end in zip(progress.phases, ends, strict=False):
                    if start.phase == phase:
                        yield interval(start.at, end)

    def launch(self, *, first: bool) -> Iterator[Interval]:
        """From the decision to launch to the first sign of a process: of the first attempt, or of all later ones."""
        for attempt, event in self.facts.launches.items():
            if first == (attempt == min(self.facts.launches)):
                starts = [entry.phases[0].at for entry in self._progress.get(attempt, {}).values() if entry.phases]
                yield interval(event.at, min(starts, default=self._attempt_end(attempt)))

    def decisions(self) -> Iterator[Interval]:
        """From each disturbance to the stop order, or to the event that says what to do when nothing had to stop."""
        for _, moments in self._episodes:
            if moments.happened is not None:
                yield interval(moments.happened, moments.stop_ordered or moments.noticed)

    def stops(self) -> Iterator[Interval]:
        """From each stop order to the end of the old attempt."""
        for _, moments in self._episodes:
            if moments.stop_ordered is not None:
                yield interval(moments.stop_ordered, moments.ended or moments.first_launch or self.end)

    def in_flight(self) -> Iterator[Interval]:
        """From the last recorded step of an attempt that died to its death."""
        for attempt in self.facts.specs:
            times = self._times[attempt]
            died_at = self._died_at(attempt)
            if times and died_at is not None:
                yield interval(times[-1].ended, died_at)

    def in_states(self, *wanted: State) -> Iterator[Interval]:
        """When the run was in one of these states."""
        changes = self.facts.changes
        ends = [change.at for change in changes[1:]] + [self.end]
        for change, until in zip(changes, ends, strict=True):
            if change.state in wanted:
                yield interval(change.at, until)

    def _died_at(self, attempt: int) -> float | None:
        """When an attempt failed or was killed; None when it left as asked, or lives."""
        failure = first_failure(self._exits[attempt].values())
        if failure:
            return failure.at
        kill = self.run_store.stop_order(attempt, "kill")
        if kill is None:
            return None
        drained = self.run_store.stop_order(attempt, "drain") is not None
        happened = [moments.happened for old, moments in self._episodes if old == attempt]
        return kill.at if drained or not happened or happened[0] is None else happened[0]

    @cached_property
    def _progress(self) -> dict[int, dict[int, Progress]]:
        return {attempt: self.run_store.progress(attempt) for attempt in self.facts.specs}

    @cached_property
    def _exits(self) -> dict[int, dict[int, Exit]]:
        return {attempt: self.run_store.exits(attempt) for attempt in self.facts.specs}

    @cached_property
    def _times(self) -> dict[int, list[StepTime]]:
        return {attempt: self.times.of(attempt) for attempt in self.facts.specs}

    @cached_property
    def _episodes(self) -> list[tuple[int | None, Moments]]:
        """The attempt that each episode ended, and its turns."""
        groups = grouped(self.facts.events).values()
        return [(ended_attempt(events), moments_of(self.run_store, events)) for events in groups]

    def _process_end(self, attempt: int, process: int) -> float:
        exit_document = self._exits[attempt].get(process)
        return exit_document.at if exit_document else self._attempt_end(attempt)

    def _attempt_end(self, attempt: int) -> float:
        """When an attempt was known to have ended, at the latest when a later one was launched."""
        ended = self.facts.ended.get(attempt)
        later = [event.at for number, event in self.facts.launches.items() if number > attempt]
        return ended.at if ended else min(later, default=self.end)
