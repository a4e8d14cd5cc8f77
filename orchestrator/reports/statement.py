"""One sentence for a certificate: what was shown, what failed, and what was not shown."""

from collections.abc import Sequence

from orchestrator.reports.claims import Claim, Ending, Reference, within_stages
from orchestrator.reports.verdict import counted
from orchestrator.reports.verify import Verification


def statement_of(found: Verification, ending: Ending, reference: Reference | None, claims: Sequence[Claim]) -> str:
    """The sentence; parts are set apart by semicolons."""
    parts = [_progress(found, ending), found.sentence, *_moves(found)]
    if reference is not None and reference.equal:
        parts.append(f"its final parameters equal those of run {reference.ending.run} in every bit")
    failed = [f"{claim.claim} ({claim.evidence})" for claim in claims if not claim.held]
    if failed:
        parts.append(f"what does not hold: {', '.join(failed)}")
    not_shown = _not_shown(found, reference)
    if not_shown:
        parts.append(f"not shown: {', '.join(not_shown)}")
    return "; ".join(parts) + "."


def _progress(found: Verification, ending: Ending) -> str:
    placements = list(dict.fromkeys(entry.placement for entry in found.attempt_records))
    attempts = counted(found.attempts, "attempt", "attempts")
    where = f" on {' and '.join(placements)}" if placements else ""
    return (
        f"Run {found.run} committed {ending.next_step:,} of {ending.last_step:,} steps of recipe "
        f"{ending.recipe_sha256[:12]} in {attempts}{where}"
    )


def _moves(found: Verification) -> list[str]:
    moves = within_stages(found.moves)
    if not moves:
        return []
    witnessed = sum(move.witnessed for move in moves)
    return [f"{witnessed:,} of {counted(len(moves), 'move was', 'moves were')} witnessed by replayed steps"]


def _not_shown(found: Verification, reference: Reference | None) -> list[str]:
    """What a reader might take for granted, and nothing here says."""
    not_shown = [
        f"the move from attempt {move.from_attempt} to {move.to_attempt} ({move.why_not})"
        for move in found.moves
        if not move.witnessed
    ]
    if found.steps_bounded:
        not_shown.append("equal bits under unequal fingerprints")
    if len(found.revisions) > 1:
        not_shown.append(f"equal bits across its {len(found.revisions)} revisions")
    if not found.tokens_recomputed:
        not_shown.append("that the recorded tokens are those of the files, which were not read again")
    if reference is None:
        not_shown.append("that an undisturbed run ends with the same parameters, as none was given")
    elif not reference.equal:
        not_shown.append(f"that run {reference.ending.run} ends with the same parameters")
    return not_shown
