"""The newest decisions and facts of a run, in the words they were written in."""

from typing import ClassVar

from orchestrator.contract.base import Document, Part
from orchestrator.store.run_store import RunStore


class WhyLine(Part):
    """One event."""

    number: int
    at: float
    kind: str
    message: str
    episode: int
    """0: outside any episode."""
    cause: str
    attempt: int
    """0: of no attempt."""
    evidence: tuple[str, ...]
    opens_episode: bool
    """The first event of its episode."""


class Why(Document):
    """The newest events, oldest of them first."""

    KIND: ClassVar[str] = "why"

    run: str
    lines: tuple[WhyLine, ...]
    left_out: int
    """Older events that are not shown."""


def why(run_store: RunStore, *, count: int) -> Why:
    """The newest ``count`` events of a run."""
    run_store.run()
    events = run_store.events()
    opening: dict[int, int] = {}
    for event in events:
        opening.setdefault(event.episode, event.number)
    shown = events[max(len(events) - count, 0) :]
    lines = tuple(
        WhyLine(
            number=event.number,
            at=event.at,
            kind=event.kind,
            message=event.message,
            episode=event.episode,
            cause=event.cause,
            attempt=event.attempt,
            evidence=event.evidence,
            opens_episode=event.episode > 0 and opening[event.episode] == event.number,
        )
        for event in shown
    )
    return Why(run=run_store.name, lines=lines, left_out=len(events) - len(shown))
