"""The trainer's comparison, repeated from the store, and what else must be equal for the run to be one run.

Three things are checked. Every step that was computed more than once has the same bits each time (``comparison`` has
the rule). Checkpoints that different attempts wrote at the same step, under the same fingerprint, have equal arrays.
And the committed lineage is whole: each step from 0 to head has a record of the attempt whose state was committed, and
every attempt and checkpoint carries the recipe hash of its revision. Records beyond a fence do not count for training,
but they are witnesses like all others.
"""

from typing import ClassVar

from orchestrator.contract.attempt import AttemptSpec
from orchestrator.contract.base import Document, Part
from orchestrator.contract.run import Revision
from orchestrator.reports.checkpoints import (
    Checkpoint,
    Witness,
    checkpoints_of,
    read_manifests,
    recipe_problems,
    witnesses_of,
)
from orchestrator.reports.facts import RunFacts, read_facts
from orchestrator.reports.moves import Move, moves_of
from orchestrator.reports.steps import FrozenSegments, by_step, frozen_segments, lost_segments
from orchestrator.reports.tally import Difference, Tally
from orchestrator.reports.tokens import StepSample, TokenAudit, TokenCheck, TokenDifference, audit
from orchestrator.reports.verdict import Findings, Verdict
from orchestrator.store.run_store import RunStore


class StepRange(Part):
    """Steps ``first`` … ``last``, both included."""

    first: int
    last: int


class AttemptRecords(Part):
    """What one attempt recorded."""

    attempt: int
    revision: int
    stage: str
    placement: str
    generation: str
    devices: int
    first_step: int | None
    """None: it recorded no step."""
    last_step: int | None
    fingerprints: tuple[str, ...]
    """``numerics:leaf`` of the programs that computed its steps."""


class RevisionLine(Part):
    number: int
    recipe_sha256: str
    from_step: int
    reason: str


class Verification(Document):
    """What of a run's replays, checkpoints and lineage is equal. Published as ``everstep verify --json``."""

    KIND: ClassVar[str] = "verification"

    run: str
    verdict: Verdict
    """``differs``: something that must be equal is not. ``incomplete``: all that was compared is equal, but a committed
    step has no record, or records are lost. ``nothing-replayed``: no step was computed twice, so nothing is shown.
    ``bounded``: some replays were held to a bound of the loss only. ``equal``: every replay is equal in every bit."""
    sentence: str
    """What was proven, in one sentence."""
    recipe_sha256: str
    """Of head's revision."""
    revisions: tuple[RevisionLine, ...]
    next_step: int
    """Steps committed: head's ``next_step``; 0 before the first commit."""
    attempts: int
    attempt_records: tuple[AttemptRecords, ...]
    replayed_steps: int
    """Steps that were computed more than once."""
    comparisons: int
    """Pairs of records of one step that were compared."""
    steps_differing: int
    """Replayed steps at which a record is not what it must be."""
    max_abs_delta_loss: float | None
    """Largest |Δ total loss| of all comparisons whose Δ is a number; None when nothing was replayed."""
    steps_bounded: int
    """Replayed steps whose bits differ within the bound that was asked for."""
    first_difference: Difference | None
    moves: tuple[Move, ...]
    moves_witnessed: int
    checkpoints: tuple[Checkpoint, ...]
    witnesses: tuple[Witness, ...]
    missing_steps: tuple[StepRange, ...]
    """Committed steps without a record of the attempt whose state was committed."""
    lost_segments: tuple[str, ...] = ()
    """Ledger segments that a later attempt was told to reproduce and that are not in the store any more."""
    recipe_problems: tuple[str, ...]
    """Attempts and checkpoints that carry another recipe hash than their revision."""
    tokens_recomputed: int
    """Steps whose token checksum was computed again from the token files."""
    tokens_differing: tuple[int, ...]
    """Of these, steps whose records have another one."""
    token_differences: tuple[TokenDifference, ...] = ()
    """The first such step of each attempt, in order of steps: what its loader should have read."""


def verify(run_store: RunStore, *, tokens: TokenCheck | None = None) -> Verification:
    """Compare everything that a run recorded more than once.

    Raises:
        NotFound: the run is not in the store.
        ContractError: a recipe, ledger segment or document was changed after it was written.
    """
    facts = read_facts(run_store)
    manifests = read_manifests(run_store)
    tally = Tally(facts=facts, sample=StepSample(run_store.name, tokens.sample if tokens else 0))
    frozen = frozen_segments(facts.specs.values())
    lost = lost_segments(run_store, frozen)
    _stream(run_store, facts, tally, frozen)
    moves = moves_of(facts, tally.recorded, tally.shared)
    witnesses = witnesses_of(manifests)
    missing = tuple(StepRange(first=gap.start, last=gap.stop - 1) for gap in tally.missing())
    problems = recipe_problems(facts, manifests)
    read_again = _read_again(run_store, facts, tally, tokens) if tokens else TokenAudit()
    findings = Findings(
        replayed_steps=tally.replayed_steps,
        steps_differing=tally.steps_differing,
        steps_bounded=tally.steps_bounded,
        max_abs_delta_loss=tally.max_delta,
        first_difference=tally.first_difference,
        witnesses_differing=sum(not witness.equal for witness in witnesses),
        recipe_problems=len(problems),
        tokens_differing=len(read_again.differing),
        first_token_difference=next(iter(read_again.differences), None),
        missing_steps=sum(gap.last - gap.first + 1 for gap in missing),
        lost_segments=len(lost),
    )
    return Verification(
        run=run_store.name,
        verdict=findings.verdict,
        sentence=findings.sentence,
        recipe_sha256=facts.revisions[facts.head.revision].recipe_sha256,
        revisions=tuple(_revision_line(revision) for revision in facts.revisions.values()),
        next_step=facts.head.next_step or 0,
        attempts=len(facts.specs),
        attempt_records=tuple(_attempt_records(spec, tally) for spec in facts.specs.values()),
        replayed_steps=tally.replayed_steps,
        comparisons=tally.comparisons,
        steps_differing=tally.steps_differing,
        max_abs_delta_loss=tally.max_delta,
        steps_bounded=tally.steps_bounded,
        first_difference=tally.first_difference,
        moves=moves,
        moves_witnessed=sum(move.witnessed for move in moves),
        checkpoints=checkpoints_of(run_store, facts, manifests),
        witnesses=witnesses,
        missing_steps=missing,
        lost_segments=lost,
        recipe_problems=problems,
        tokens_recomputed=read_again.recomputed,
        tokens_differing=read_again.differing,
        token_differences=read_again.differences,
    )


def _stream(run_store: RunStore, facts: RunFacts, tally: Tally, frozen: FrozenSegments) -> None:
    """Show every recorded step to the tally, revision after revision."""
    for number, revision in facts.revisions.items():
        run_store.recipe(revision.recipe_sha256)  # its bytes have the hash that everything else carries
        for _, records in by_step(run_store, facts.attempts_of(number), frozen=frozen):
            tally.add(records)


def _read_again(run_store: RunStore, facts: RunFacts, tally: Tally, tokens: TokenCheck) -> TokenAudit:
    """Of the first and last step of each attempt and of the sample: are their tokens those of recipe and files?"""
    return audit(
        [*tally.sample.records, *(record for ends in tally.ends.values() for record in ends)],
        tokens.source,
        revision_of={attempt: spec.revision for attempt, spec in facts.specs.items()},
        recipes={number: run_store.recipe(entry.recipe_sha256) for number, entry in facts.revisions.items()},
    )


def _revision_line(revision: Revision) -> RevisionLine:
    return RevisionLine(
        number=revision.number,
        recipe_sha256=revision.recipe_sha256,
        from_step=revision.from_step,
        reason=revision.reason,
    )


def _attempt_records(spec: AttemptSpec, tally: Tally) -> AttemptRecords:
    ends = tally.ends.get(spec.attempt)
    return AttemptRecords(
        attempt=spec.attempt,
        revision=spec.revision,
        stage=spec.stage,
        placement=spec.placement.name,
        generation=spec.placement.generation,
        devices=spec.placement.devices,
        first_step=ends[0].step if ends else None,
        last_step=ends[1].step if ends else None,
        fingerprints=tuple(tally.fingerprints.get(spec.attempt, ())),
    )
