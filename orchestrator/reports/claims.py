"""The claims of a certificate: each with whether it held and the numbers that say so."""

from collections.abc import Sequence

from orchestrator.contract.base import Part
from orchestrator.reports.moves import Move
from orchestrator.reports.verdict import counted
from orchestrator.reports.verify import Verification


class Claim(Part):
    """One thing that was tested."""

    claim: str
    held: bool
    evidence: str


class Ending(Part):
    """How a run ended: its last committed checkpoint."""

    run: str
    recipe_sha256: str
    """Of its last revision."""
    last_step: int
    """Of that recipe."""
    next_step: int
    """Steps committed."""
    manifest: str | None
    params_sha256: str | None
    fingerprint: str | None
    """``numerics:leaf`` of the program that computed the checkpoint."""
    proven: bool

    @property
    def complete(self) -> bool:
        return self.next_step == self.last_step


class Reference(Part):
    """Another run of the same recipe, and whether it ended with the same parameters."""

    ending: Ending
    attempts: int
    """1 in each stage: nothing disturbed it."""
    same_recipe: bool
    same_fingerprint: bool
    """Both last checkpoints were computed under equal numerics and leaf fingerprints."""
    equal: bool
    """Same recipe, both complete, and equal ``params_sha256``."""


def reference_of(own: Ending, other: Ending, *, attempts: int) -> Reference:
    """Compare the endings of two runs."""
    same_recipe = own.recipe_sha256 == other.recipe_sha256
    both_complete = own.complete and other.complete
    return Reference(
        ending=other,
        attempts=attempts,
        same_recipe=same_recipe,
        same_fingerprint=own.fingerprint == other.fingerprint,
        equal=same_recipe and both_complete and own.params_sha256 == other.params_sha256,
    )


def claims_of(found: Verification, ending: Ending, reference: Reference | None) -> tuple[Claim, ...]:
    """Everything that was tested, and only that."""
    claims = [
        Claim(
            claim="every step of the recipe was committed",
            held=ending.complete,
            evidence=f"{ending.next_step:,} of {ending.last_step:,} steps",
        ),
        Claim(
            claim="every attempt and checkpoint carries the recipe hash of its revision",
            held=not found.recipe_problems,
            evidence=found.recipe_problems[0] if found.recipe_problems else _carriers(found),
        ),
        *_lineage(found),
        *_replays(found),
        *_moves(found),
        *_witnesses(found),
        *_tokens(found),
        *_proof(ending),
        *_reference(ending, reference),
    ]
    return tuple(claims)


def within_stages(moves: Sequence[Move]) -> list[Move]:
    """Moves that replayed steps can witness: not those at the end of a stage or revision."""
    return [move for move in moves if move.boundary == "none"]


def _carriers(found: Verification) -> str:
    attempts = counted(found.attempts, "attempt", "attempts")
    checkpoints = counted(len(found.checkpoints), "checkpoint", "checkpoints")
    revisions = counted(len(found.revisions), "revision", "revisions")
    return f"{attempts} and {checkpoints} of {revisions}; recipe {found.recipe_sha256}"


def _lineage(found: Verification) -> list[Claim]:
    if not found.next_step:
        return []
    missing = sum(gap.last - gap.first + 1 for gap in found.missing_steps)
    evidence = f"{found.next_step - missing:,} of {found.next_step:,} committed steps"
    if missing:
        evidence += f"; the first without a record is step {found.missing_steps[0].first:,}"
    return [
        Claim(
            claim="no step was skipped: each committed step has a record of the attempt whose state was committed",
            held=not missing,
            evidence=evidence,
        )
    ]


def _replays(found: Verification) -> list[Claim]:
    if not found.replayed_steps:
        return []
    claim = "every replayed step is equal in every bit"
    if found.steps_bounded:
        claim += " under equal fingerprints, and its loss within the bound asked for under others"
    steps = counted(found.replayed_steps, "replayed step", "replayed steps")
    comparisons = counted(found.comparisons, "comparison", "comparisons")
    evidence = f"{steps}, {comparisons}, {found.steps_differing:,} differing"
    if found.max_abs_delta_loss is not None:
        evidence += f", largest |Δ loss| {found.max_abs_delta_loss:.9g}"
    return [Claim(claim=claim, held=not found.steps_differing, evidence=evidence)]


def _moves(found: Verification) -> list[Claim]:
    moves = within_stages(found.moves)
    if not moves:
        return []
    witnessed = sum(move.witnessed for move in moves)
    evidence = f"{witnessed:,} of {counted(len(moves), 'move', 'moves')}"
    return [
        Claim(
            claim="every move within a stage was witnessed by replayed steps",
            held=witnessed == len(moves),
            evidence=evidence,
        )
    ]


def _witnesses(found: Verification) -> list[Claim]:
    if not found.witnesses:
        return []
    unequal = [witness for witness in found.witnesses if not witness.equal]
    evidence = counted(len(found.witnesses), "such group", "such groups")
    if unequal:
        evidence += f"; {' and '.join(unequal[0].manifests)} differ"
    return [
        Claim(
            claim="checkpoints that different attempts wrote at one step have equal arrays",
            held=not unequal,
            evidence=evidence,
        )
    ]


def _tokens(found: Verification) -> list[Claim]:
    if not found.tokens_recomputed:
        return []
    evidence = f"{found.tokens_recomputed:,} steps read again, {len(found.tokens_differing):,} differing"
    if found.token_differences:
        evidence += f"; the first is step {found.token_differences[0].step:,}"
        evidence += f" of attempt {found.token_differences[0].attempt}"
    return [
        Claim(
            claim="recorded tokens are those that recipe and token files give",
            held=not found.tokens_differing,
            evidence=evidence,
        )
    ]


def _proof(ending: Ending) -> list[Claim]:
    if ending.manifest is None:
        return []
    evidence = f"checkpoint {ending.manifest}, params_sha256 {ending.params_sha256}"
    return [
        Claim(
            claim="the last checkpoint was read back from the store with equal checksums",
            held=ending.proven,
            evidence=evidence,
        )
    ]


def _reference(ending: Ending, reference: Reference | None) -> list[Claim]:
    if reference is None:
        return []
    other = reference.ending
    evidence = f"params_sha256 {ending.params_sha256} here, {other.params_sha256} there"
    if not reference.same_recipe:
        evidence += f"; the recipes differ ({ending.recipe_sha256} here, {other.recipe_sha256} there)"
    if not other.complete:
        evidence += f"; run {other.run} has {other.next_step:,} of {other.last_step:,} steps"
    return [
        Claim(claim=f"the final parameters equal those of run {other.run}", held=reference.equal, evidence=evidence)
    ]
