"""What must hold between recipe, placements and fleet before a run may begin or its policy may change."""

import difflib
from collections.abc import Iterable, Mapping
from itertools import combinations
from typing import Any

from orchestrator.cli.errors import BadInput
from orchestrator.contract.recipe import Recipe, Stage, is_power_of_two
from orchestrator.contract.run import Placement, Policy
from orchestrator.fleet.local_fleet import LocalFleet, LocalPool

LeafPlans = Mapping[str, Mapping[str, Any]]
"""Settings by generation."""


def check(policy: Policy, *, recipe: Recipe, fleet: LocalFleet, leaf_plans: LeafPlans, where: str) -> None:
    """All of them.

    Raises:
        BadInput: names the file ``where`` the policy is, the placements and the remedy; one line.
    """
    generations = {placement.generation for placement in policy.placements}
    for generation in leaf_plans:
        if generation not in generations:
            raise BadInput(f"{where}: leaf_plans.{generation}: {_no_such('generation', generation, generations)}")
    stages = [stage.name for stage in recipe.stages]
    for placement in policy.placements:
        for stage_name in placement.stages or ():
            if stage_name not in stages:
                raise BadInput(f"{where}: placement {placement.name}: {_no_such('stage', stage_name, stages)}")
        _check_pool(placement, fleet, where)
    for stage in recipe.stages:
        legal = policy.legal_for(recipe, stage.name)
        if not legal:
            raise BadInput(f"{where}: {_nothing_legal(policy, stage)}")
        if policy.comparison == "bitwise":
            _check_comparison(legal, stage, fleet=fleet, leaf_plans=leaf_plans, where=where)
    for placement in policy.placements:
        _check_usable(placement, recipe, where)


def why_illegal(placement: Placement, stage: Stage) -> str | None:
    """Why a placement cannot run a stage; None when it can."""
    if not placement.serves(stage.name):
        return f"serves only {', '.join(placement.stages or ())}"
    if not is_power_of_two(placement.devices):
        return f"P = {placement.devices} devices is not a power of two, so they do not divide V = {stage.virtual_ranks}"
    if placement.devices > stage.virtual_ranks:
        return f"P = {placement.devices} devices is more than V = {stage.virtual_ranks} virtual ranks"
    return None


def _nothing_legal(policy: Policy, stage: Stage) -> str:
    reasons = "; ".join(f"{placement.name}: {why_illegal(placement, stage)}" for placement in policy.placements)
    return (
        f"no placement can run stage {stage.name} ({reasons}); change hosts x devices_per_host to a power of two of at "
        f"most {stage.virtual_ranks}, or the stage's virtual_ranks"
    )


def _check_usable(placement: Placement, recipe: Recipe, where: str) -> None:
    reasons = {stage.name: why_illegal(placement, stage) for stage in recipe.stages}
    served = {name: reason for name, reason in reasons.items() if placement.serves(name)}
    if served and all(served.values()):
        why = "; ".join(f"stage {name}: {reason}" for name, reason in served.items())
        raise BadInput(f"{where}: placement {placement.name} can run no stage ({why}); change or remove it")


def _check_pool(placement: Placement, fleet: LocalFleet, where: str) -> None:
    place = f"{where}: placement {placement.name}"
    pool = fleet.pool(placement.pool)
    if pool is None:
        raise BadInput(f"{place}: {_no_such('pool', placement.pool, [pool.name for pool in fleet.pools])}")
    if placement.generation != pool.generation:
        raise BadInput(
            f"{place}: generation {placement.generation}, but pool {pool.name} is {pool.generation}; make them equal"
        )
    if placement.hosts > pool.hosts:
        raise BadInput(
            f"{place}: {placement.hosts} hosts, but pool {pool.name} has {pool.hosts}; ask for fewer, or enlarge it"
        )
    if placement.devices_per_host != pool.devices_per_host:
        raise BadInput(
            f"{place}: {placement.devices_per_host} devices a host, but hosts of pool {pool.name} have "
            f"{pool.devices_per_host}; make them equal"
        )
    if placement.hosts % placement.slices:
        raise BadInput(f"{place}: {placement.hosts} hosts are not {placement.slices} equal slices; correct one of them")


def _check_comparison(
    legal: Iterable[Placement], stage: Stage, *, fleet: LocalFleet, leaf_plans: LeafPlans, where: str
) -> None:
    """Bits can only be asked for between placements that compute the same leaf in the same number of threads."""
    for one, other in combinations(legal, 2):
        differs = _difference(one, other, fleet=fleet, leaf_plans=leaf_plans)
        if differs is not None:
            raise BadInput(
                f"{where}: stage {stage.name} asks for bitwise comparison, but placements {one.name} and {other.name} "
                f"cannot give equal bits: {differs}; make these equal, limit the placements' stages, or set "
                "comparison: bounded"
            )


def _difference(one: Placement, other: Placement, *, fleet: LocalFleet, leaf_plans: LeafPlans) -> str | None:
    plans = [dict(leaf_plans.get(placement.generation, {})) for placement in (one, other)]
    if plans[0] != plans[1]:
        return f"generations {one.generation} and {other.generation} have different leaf plans"
    pools = [fleet.pool(placement.pool) for placement in (one, other)]
    threads = [pool.threads_per_host for pool in pools if isinstance(pool, LocalPool)]
    if threads[0] != threads[1]:
        return f"pools {one.pool} and {other.pool} have threads_per_host {threads[0]} and {threads[1]}"
    return None


def _no_such(what: str, name: str, known: Iterable[str]) -> str:
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1)
    return f"no {what} {name!r}; " + (f"did you mean {close[0]!r}?" if close else f"there are {', '.join(names)}")
