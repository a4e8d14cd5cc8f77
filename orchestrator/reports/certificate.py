"""The certificate of a run: what was measured, claim by claim, and nothing beyond it.

A claim that could not be tested is not made: a run without a move says nothing about moves. The document carries the
SHA-256 of its own canonical bytes, so that a copy can be checked without the store, and a report from the same store
gives the same bytes.
"""

from typing import ClassVar, Self

from orchestrator.contract.base import Document, sha256_of
from orchestrator.reports.claims import Claim, Ending, Reference, claims_of, reference_of
from orchestrator.reports.episodes import Episode, episodes
from orchestrator.reports.facts import RunFacts, read_facts
from orchestrator.reports.goodput import Goodput, goodput
from orchestrator.reports.statement import statement_of
from orchestrator.reports.tokens import TokenCheck
from orchestrator.reports.verify import Verification, verify
from orchestrator.store.run_store import RunStore

UNSEALED = "0" * 64


class Certificate(Document):
    """Everything that can be shown of a run. Published as ``everstep certificate --json``."""

    KIND: ClassVar[str] = "certificate"

    run: str
    held: bool
    """The run is complete and every claim below holds."""
    statement: str
    """What was shown and what was not, in one sentence."""
    claims: tuple[Claim, ...]
    ending: Ending
    """The recipe's hash, the steps committed, and the last checkpoint with its ``params_sha256``."""
    reference: Reference | None
    """None: the run was not compared with another one."""
    fingerprints: tuple[str, ...]
    """``numerics:leaf`` of all programs that computed its steps, in the order of their first use."""
    versions: tuple[dict[str, str], ...]
    """Software that wrote its committed checkpoints, without repetitions, oldest first."""
    verification: Verification
    """Revisions, attempts with placements, replays, moves and checkpoints."""
    episodes: tuple[Episode, ...]
    goodput: Goodput
    certificate_sha256: str
    """Over the canonical bytes of this document with 64 zeros in this field."""

    def seal(self) -> Self:
        """The same certificate with its own hash."""
        return self.model_copy(update={"certificate_sha256": self._digest()})

    @property
    def intact(self) -> bool:
        """The hash is that of the content."""
        return self.certificate_sha256 == self._digest()

    def _digest(self) -> str:
        return sha256_of(self.model_copy(update={"certificate_sha256": UNSEALED}).to_bytes())


def certificate(
    run_store: RunStore, *, reference: RunStore | None = None, tokens: TokenCheck | None = None
) -> Certificate:
    """Certify a run, also one that is not complete (which then does not hold).

    ``reference`` is a run of the same recipe, such as one that nothing disturbed: final parameters are compared.
    ``tokens`` as for ``verify``.

    Raises:
        NotFound: a run is not in the store.
        ContractError: a recipe, ledger segment or document was changed after it was written.
    """
    facts = read_facts(run_store)
    found = verify(run_store, tokens=tokens)
    ending = _ending(run_store, facts)
    compared = _reference(ending, reference) if reference else None
    claims = claims_of(found, ending, compared)
    versions = {tuple(sorted(manifest.versions.items())): None for manifest in facts.lineage}
    return Certificate(
        run=run_store.name,
        held=all(claim.held for claim in claims),
        statement=statement_of(found, ending, compared, claims),
        claims=claims,
        ending=ending,
        reference=compared,
        fingerprints=tuple(dict.fromkeys(key for entry in found.attempt_records for key in entry.fingerprints)),
        versions=tuple(dict(items) for items in versions),
        verification=found,
        episodes=tuple(episodes(run_store)),
        goodput=goodput(run_store, now=None),
        certificate_sha256=UNSEALED,
    ).seal()


def _ending(run_store: RunStore, facts: RunFacts) -> Ending:
    recipe_sha256 = facts.revisions[facts.head.revision].recipe_sha256
    last = facts.lineage[-1] if facts.lineage else None
    return Ending(
        run=run_store.name,
        recipe_sha256=recipe_sha256,
        last_step=run_store.recipe(recipe_sha256).last_step,
        next_step=last.next_step if last else 0,
        manifest=last.name if last else None,
        params_sha256=last.params_sha256 if last else None,
        fingerprint=last.fingerprint.key if last else None,
        proven=last is not None and last.name in run_store.proven_names(),
    )


def _reference(own: Ending, reference: RunStore) -> Reference:
    facts = read_facts(reference)
    return reference_of(own, _ending(reference, facts), attempts=len(facts.specs))
