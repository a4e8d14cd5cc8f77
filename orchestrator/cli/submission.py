"""Submitting a run: everything is checked, then its documents are created, ``run.json`` last.

A run exists when its run.json does. All that comes before it can be repeated, so a submit that was killed anywhere is
finished by the same command, and a repeated submit of the same run changes nothing.
"""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.cli import leaf_plan_checks, placement_checks, token_files
from orchestrator.cli.errors import BadInput
from orchestrator.cli.hashes import Hashing
from orchestrator.cli.run_file import RunDescription
from orchestrator.cli.yaml_files import read_yaml
from orchestrator.contract.base import sha256_of
from orchestrator.contract.event import Event
from orchestrator.contract.manifest import Head
from orchestrator.contract.recipe import Recipe
from orchestrator.contract.run import LeafPlan, Policy, Revision, Run
from orchestrator.fleet.local_fleet import LocalFleet
from orchestrator.store.objects import AlreadyExists, NotFound, ObjectStore
from orchestrator.store.run_store import RunStore

FLEET_FILE = "fleet.yaml"


@dataclass(frozen=True, kw_only=True)
class Submission:
    """A run that may be created."""

    run: Run
    recipe: Recipe
    """With everything resolved."""
    policy: Policy
    leaf_plans: tuple[LeafPlan, ...]
    """One for each generation of the placements."""

    @property
    def recipe_bytes(self) -> bytes:
        return self.recipe.to_bytes()


def check(description: RunDescription, *, by: str, now: float, hashing: Hashing | None = None) -> Submission:
    """Check all that a run.yaml says against recipe, data and fleet; reads only.

    Raises:
        BadInput: one line.
    """
    check_placements(description)
    plans = _leaf_plans(description.policy, description.file.leaf_plans)
    leaf_plan_checks.check(
        plans,
        command=description.check,
        recipe=description.recipe,
        policy=description.policy,
        data_root=description.data_root,
        where=str(description.where),
    )
    recipe = token_files.resolve(description.recipe, data_root=description.data_root, hashing=hashing)
    run = Run(
        name=description.name,
        recipe_sha256=sha256_of(recipe.to_bytes()),
        fleet=str(description.fleet),
        data_root=description.data_root,
        trainer=description.trainer,
        check=description.check,
        scrub=description.scrub,
        prepare=description.prepare,
        zygote=description.zygote,
        submitted_at=now,
        by=by,
    )
    return Submission(run=run, recipe=recipe, policy=description.policy, leaf_plans=plans)


def check_placements(description: RunDescription) -> None:
    """What can be checked without reading data. Raises BadInput."""
    placement_checks.check(
        description.policy,
        recipe=description.recipe,
        fleet=read_yaml(description.fleet / FLEET_FILE, LocalFleet),
        leaf_plans=description.file.leaf_plans,
        where=str(description.where),
    )


def probe(objects: ObjectStore) -> None:
    """Write and delete an object. Raises StoreUnavailable: the store cannot be written."""
    name = f"probe-{secrets.token_hex(8)}"
    objects.create(name, b"everstep submit\n")
    objects.delete(name)


def create(submission: Submission, objects: ObjectStore) -> bool:
    """Create what is missing of a run; False when all of it was there already.

    Raises:
        BadInput: a run of that name was submitted with something else; it is left as it is.
    """
    store = RunStore(objects, submission.run.name)
    there = _existing(store)
    if there is None:
        _create_documents(submission, store)
        store.create_run(submission.run)
    else:
        _compare(submission, store, there)
    return _note_submitted(submission, store) or there is None


def _existing(store: RunStore) -> Run | None:
    try:
        return store.run()
    except NotFound:
        return None


def _create_documents(submission: Submission, store: RunStore) -> None:
    run = submission.run
    try:
        _create_revision(submission, store)
        for plan in submission.leaf_plans:
            store.create_leaf_plan(plan)
        store.create_policy(submission.policy)
        store.create_head(Head(attempt=0, manifest=None, next_step=None, revision=1, write_id="submit"))
    except AlreadyExists as error:
        raise BadInput(
            f"{error}: left by an unfinished submit of something else; delete folder {store.address} if nobody is "
            f"submitting {run.name} now, or choose another name"
        ) from error


def _create_revision(submission: Submission, store: RunStore) -> None:
    """An unfinished submit of the same recipe has left one with another time: it stays."""
    if any(revision.recipe_sha256 == submission.run.recipe_sha256 for revision in store.revisions()):
        return
    revision = Revision(
        number=1,
        recipe_sha256=submission.run.recipe_sha256,
        base_manifest=None,
        from_step=0,
        reason="submit",
        by=submission.run.by,
        at=submission.run.submitted_at,
    )
    store.create_revision(revision, submission.recipe_bytes)


def _note_submitted(submission: Submission, store: RunStore) -> bool:
    """Event 1, if there is no event yet."""
    if store.events():
        return False
    recipe, run = submission.recipe, submission.run
    placements = ", ".join(placement.name for placement in submission.policy.placements)
    message = (
        f"submitted by {run.by}: recipe {run.recipe_sha256[:12]}, {recipe.last_step:,} steps in stages "
        f"{', '.join(stage.name for stage in recipe.stages)}; placements {placements}"
    )
    event = Event(number=1, at=run.submitted_at, kind="submitted", message=message, cause="submit", by=run.by)
    return store.create_event(event)


def _compare(submission: Submission, store: RunStore, there: Run) -> None:
    """Raises BadInput: what was submitted under this name is something else."""
    name = there.name
    if there.recipe_sha256 != submission.run.recipe_sha256:
        fields = ", ".join(differences(store.recipe(there.recipe_sha256), submission.recipe)) or "its bytes"
        raise BadInput(
            f"run {name} was submitted with another recipe (changed: {fields}); to change a run on purpose: "
            f"everstep amend {name} --recipe FILE --reason TEXT; for another run choose another name"
        )
    changed = [
        field
        for field in ("fleet", "data_root", "trainer", "check", "scrub", "prepare", "zygote")
        if getattr(there, field) != getattr(submission.run, field)
    ]
    changed += [f"leaf_plans.{plan.generation}" for plan in submission.leaf_plans if not _same_plan(store, plan)]
    if changed:
        raise BadInput(
            f"run {name} was submitted with another {', '.join(changed)}, which cannot change; put the old value back, "
            "or choose another name"
        )
    if store.policy().value != submission.policy:
        raise BadInput(
            f"run {name} has another policy now; to replace it: everstep policy {name} --from run.yaml --reason TEXT"
        )


def differences(before: Any, after: Any, *, at: str = "", most: int = 5) -> list[str]:
    """Fields of two documents that differ, as ``stages.0.steps``; at most ``most``."""
    one, other = (value.model_dump(mode="json") if hasattr(value, "model_dump") else value for value in (before, after))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        found = [
            line
            for key in sorted(one.keys() | other.keys())
            for line in differences(one.get(key), other.get(key), at=f"{at}.{key}" if at else str(key), most=most)
        ]
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        found = [
            line
            for index, (left, right) in enumerate(zip(one, other, strict=True))
            for line in differences(left, right, at=f"{at}.{index}", most=most)
        ]
    else:
        found = [] if one == other else [at]
    return found[:most]


def _same_plan(store: RunStore, plan: LeafPlan) -> bool:
    try:
        return store.leaf_plan(plan.generation) == plan
    except NotFound:
        return False


def _leaf_plans(policy: Policy, settings: Mapping[str, Mapping[str, Any]]) -> tuple[LeafPlan, ...]:
    generations = sorted({placement.generation for placement in policy.placements})
    return tuple(LeafPlan(generation=name, settings=dict(settings.get(name, {}))) for name in generations)
