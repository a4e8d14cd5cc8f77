"""Which ledger records of earlier attempts a new attempt must reproduce, frozen by name, length and hash."""

from orchestrator.contract.attempt import ExitCode, Segment
from orchestrator.contract.base import sha256_of
from orchestrator.store.objects import NotFound
from orchestrator.store.run_store import RunStore


def freeze(store: RunStore, *, before: int, revision: int, from_step: int) -> tuple[Segment, ...]:
    """Segments of the revision's attempts below ``before`` that hold steps at or beyond ``from_step``.

    Called after those attempts were fenced: whatever one of them might still close is not counted. An attempt that
    ended because a replayed step differed does not count: up to that step its records are those of the attempts before
    it, and with the differing one no later attempt could agree with both.
    """
    found = []
    for number in store.attempt_numbers():
        if number >= before or not _counts(store, number, revision):
            continue
        for name in store.segment_names(number):
            data, records = store.read_segment(name)
            if not records or records[-1].step < from_step:
                continue
            segment = Segment(
                attempt=number,
                name=name,
                length=len(data),
                sha256=sha256_of(data),
                first_step=records[0].step,
                last_step=records[-1].step,
            )
            found.append(segment)
    return tuple(found)


def _counts(store: RunStore, number: int, revision: int) -> bool:
    try:
        of_revision = store.attempt(number).revision == revision
    except NotFound:
        return False
    return of_revision and all(end.code != ExitCode.REPLAY_DIFFERS for end in store.exits(number).values())
