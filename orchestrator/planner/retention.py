"""Which checkpoints' data may go. Pure; the controller deletes, tombstone first."""

from collections.abc import Collection
from dataclasses import dataclass

from orchestrator.contract.recipe import Recipe
from orchestrator.contract.run import CheckpointPolicy


@dataclass(frozen=True, kw_only=True)
class Kept:
    """A checkpoint whose data is in the store."""

    manifest: str
    next_step: int
    attempt: int
    proven: bool
    reachable: bool
    quarantined: bool
    left_by: int | None = None
    """The revision that it is of, when a later one began before it; None: it is reachable, or was a loser's commit."""


def expendable(
    checkpoints: Collection[Kept],
    *,
    policy: CheckpointPolicy,
    recipe: Recipe,
    pins: Collection[str],
    in_use: Collection[str],
    current_attempt: int,
) -> tuple[str, ...]:
    """Manifests whose data is kept by no rule, oldest first.

    Kept are, of those reachable from head: the newest ``keep_newest``, the newest ``keep_proven`` proven ones,
    multiples of ``keep_every`` and ends of stages. Of those that an amendment or a rewind left behind: the newest
    proven one of each revision, so that its result is not lost. Kept in any case: pins, quarantined ones (evidence),
    what a live attempt started from, and what the current attempt wrote (it may be about to commit it).
    """
    good = sorted((one for one in checkpoints if one.reachable and not one.quarantined), key=lambda one: -one.next_step)
    ends = {recipe.first_step_of(stage) + stage.steps for stage in recipe.stages}
    keep = {one.manifest for one in good[: policy.keep_newest]}
    keep |= {one.manifest for one in [one for one in good if one.proven][: policy.keep_proven]}
    keep |= {one.manifest for one in good if one.next_step in ends}
    if policy.keep_every is not None:
        keep |= {one.manifest for one in good if one.next_step % policy.keep_every == 0}
    left = sorted((one for one in checkpoints if one.left_by is not None and one.proven), key=lambda one: one.next_step)
    keep |= set({one.left_by: one.manifest for one in left}.values())
    keep |= {one.manifest for one in checkpoints if one.quarantined or one.manifest in pins or one.manifest in in_use}
    gone = [one for one in checkpoints if one.manifest not in keep and (one.reachable or one.attempt < current_attempt)]
    return tuple(one.manifest for one in sorted(gone, key=lambda one: one.manifest))
