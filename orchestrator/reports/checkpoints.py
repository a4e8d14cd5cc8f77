"""Checkpoints as a report sees them: reachable or not, proven or not, equal to their witnesses or not."""

from collections import defaultdict
from collections.abc import Sequence

from orchestrator.contract.base import Part
from orchestrator.contract.manifest import Manifest
from orchestrator.reports.facts import RunFacts
from orchestrator.store.run_store import RunStore


class Checkpoint(Part):
    """One manifest."""

    manifest: str
    next_step: int
    attempt: int
    revision: int
    placement: str
    params_sha256: str
    committed: bool
    """Reachable from head; else it is a witness only."""
    proven: bool
    """Read back from the store with equal array checksums."""
    quarantined: bool
    deleted: bool
    """Retention has deleted its data; the manifest stays."""


class Witness(Part):
    """Checkpoints of one step, revision and fingerprint that different attempts wrote: their arrays must be equal."""

    next_step: int
    revision: int
    fingerprint: str
    manifests: tuple[str, ...]
    equal: bool
    arrays_differing: tuple[str, ...]
    """Paths of arrays that are not the same in all of them: dtype, shape or checksum, or missing in one."""


def read_manifests(run_store: RunStore) -> list[Manifest]:
    """All that were ever written, in order of steps."""
    return [run_store.manifest(name) for name in run_store.manifest_names()]


def checkpoints_of(run_store: RunStore, facts: RunFacts, manifests: Sequence[Manifest]) -> tuple[Checkpoint, ...]:
    committed = {manifest.name for manifest in facts.lineage}
    proven = run_store.proven_names()
    quarantined = run_store.quarantined()
    deleted = run_store.tombstones()
    return tuple(
        Checkpoint(
            manifest=manifest.name,
            next_step=manifest.next_step,
            attempt=manifest.attempt,
            revision=manifest.revision,
            placement=manifest.placement.name,
            params_sha256=manifest.params_sha256,
            committed=manifest.name in committed,
            proven=manifest.name in proven,
            quarantined=manifest.name in quarantined,
            deleted=manifest.name in deleted,
        )
        for manifest in manifests
    )


def witnesses_of(manifests: Sequence[Manifest]) -> tuple[Witness, ...]:
    """Every group of two or more checkpoints that must be equal."""
    groups: defaultdict[tuple[int, int, str], list[Manifest]] = defaultdict(list)
    for manifest in manifests:
        groups[manifest.next_step, manifest.revision, manifest.fingerprint.key].append(manifest)
    return tuple(_witness(group) for _, group in sorted(groups.items(), key=lambda item: item[0]) if len(group) > 1)


def _witness(group: Sequence[Manifest]) -> Witness:
    first = group[0]
    paths = sorted({path for manifest in group for path in manifest.arrays})
    differing = [
        path for path in paths if any(manifest.arrays.get(path) != first.arrays.get(path) for manifest in group)
    ]
    equal = not differing and all(manifest.params_sha256 == first.params_sha256 for manifest in group)
    return Witness(
        next_step=first.next_step,
        revision=first.revision,
        fingerprint=first.fingerprint.key,
        manifests=tuple(manifest.name for manifest in group),
        equal=equal,
        arrays_differing=tuple(differing),
    )


def recipe_problems(facts: RunFacts, manifests: Sequence[Manifest]) -> tuple[str, ...]:
    """Where a recipe hash is not the one its revision was submitted with, a line each."""
    carriers = [("run.json", 1, facts.run.recipe_sha256)]
    carriers += [(f"attempt {number}", spec.revision, spec.recipe_sha256) for number, spec in facts.specs.items()]
    carriers += [(f"checkpoint {entry.name}", entry.revision, entry.recipe_sha256) for entry in manifests]
    problems = []
    for what, number, sha256 in carriers:
        revision = facts.revisions.get(number)
        if revision is None:
            problems.append(f"{what} is of revision {number}, which the run does not have")
        elif revision.recipe_sha256 != sha256:
            problems.append(f"{what} carries recipe {sha256[:12]}, revision {number} is {revision.recipe_sha256[:12]}")
    return tuple(problems)
