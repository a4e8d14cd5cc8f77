"""Which hosts can be had, and which placement is the best on them."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from math import inf

from orchestrator.contract.attempt import HostRef
from orchestrator.contract.run import Budgets, Placement
from orchestrator.fleet.backend import Ahead
from orchestrator.fleet.observation import HostView
from orchestrator.planner.decision import Facts
from orchestrator.planner.history import History


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A placement and the hosts for it; process i runs on hosts[i]."""

    placement: Placement
    hosts: tuple[HostRef, ...]


def unavailable(facts: Facts, host: HostView, *, maintenance_after: float = inf) -> str | None:
    """Why a host cannot be used for the next launch; None when it can.

    Asked of every host of a fleet at every look, so nothing is worked out for sets that are empty.

    Args:
        maintenance_after: maintenance that begins later than this (seconds since the epoch) is put up with.
    """
    history, unconfirmed = facts.history, facts.seen.unconfirmed
    if history.declared_gone and str(host.ref) in history.declared_gone:
        return "stated to be gone"
    if host.condition != "ready":
        return f"{host.condition}: {host.evidence}"
    if host.maintenance_at is not None and host.maintenance_at <= maintenance_after:
        return "maintenance is announced"
    if host.agent is not None and host.agent.run != facts.run:
        return f"serves run {host.agent.run}"
    if unconfirmed and host.ref in unconfirmed:
        return "not confirmed free of an earlier attempt"
    until = backed_off_until(history, facts.policy.budgets, str(host.ref)) if history.failures else None
    if until is not None and until > facts.now:
        return f"left alone for {until - facts.now:.0f} s after repeated failures"
    return None


def backed_off_until(history: History, budgets: Budgets, host: str) -> float | None:
    """When a host that failed too often may be used again (seconds since the epoch).

    ``host_failures`` failures within ``failure_window`` without a newly proven checkpoint cost ``back_off``, and each
    further one doubles that, up to ``max_back_off``.
    """
    times = [failure.at for failure in history.failures if failure.host == host]
    recent = [at for at in times if at > times[-1] - budgets.failure_window] if times else []
    excess = len(recent) - budgets.host_failures
    if excess < 0:
        return None
    return float(times[-1] + min(budgets.back_off * 2**excess, budgets.max_back_off))


def best(
    facts: Facts,
    stage: str,
    *,
    avoid: Iterable[HostRef] = (),
    only: str | None = None,
    maintenance_after: float = inf,
) -> Choice | None:
    """The most preferred legal placement that can be had in full now, without the hosts in ``avoid``.

    The hosts of the newest attempt come first, so that a whole allocation is used again as it is.
    """
    avoided = frozenset(avoid)
    legal = facts.policy.legal_for(facts.recipe, stage)
    asked = [placement for placement in legal if only in (None, placement.name)]
    return _first_whole(facts, asked, avoided, maintenance_after)


def _first_whole(
    facts: Facts,
    placements: Iterable[Placement],
    avoided: frozenset[HostRef] = frozenset(),
    maintenance_after: float = inf,
) -> Choice | None:
    for placement in placements:
        hosts = usable(facts, placement, avoided, maintenance_after)
        if len(hosts) >= placement.hosts:
            return Choice(placement=placement, hosts=hosts[: placement.hosts])
    return None


def usable(
    facts: Facts, placement: Placement, avoided: frozenset[HostRef] = frozenset(), maintenance_after: float = inf
) -> tuple[HostRef, ...]:
    """Hosts that fit a placement and are available, those of the newest attempt first."""
    launch = facts.history.launch
    before = launch.hosts if launch else ()
    fitting = tuple(_fitting(facts, placement, avoided, maintenance_after))
    there, kept = frozenset(fitting), frozenset(before)
    return (*(ref for ref in before if ref in there), *(ref for ref in fitting if ref not in kept))


def _fitting(
    facts: Facts, placement: Placement, avoided: frozenset[HostRef] = frozenset(), maintenance_after: float = inf
) -> Iterator[HostRef]:
    """In the fleet's order."""
    return (
        host.ref
        for host in facts.seen.hosts
        if host.ref.pool == placement.pool
        and host.generation == placement.generation
        and host.devices >= placement.devices_per_host
        and not (avoided and host.ref in avoided)
        and unavailable(facts, host, maintenance_after=maintenance_after) is None
    )


def rank(facts: Facts, stage: str, placement: str) -> int:
    """Position of a placement in the order of preference for a stage; beyond all others when it is not legal."""
    names = [legal.name for legal in facts.policy.legal_for(facts.recipe, stage)]
    return names.index(placement) if placement in names else len(names)


def better_than_here(facts: Facts) -> Choice | None:
    """What can be had in full and is preferred to where the live attempt runs; None before its first new step."""
    attempt, history = facts.seen.attempt, facts.history
    if attempt is None or not history.live or not history.first_new_step:
        return None
    here = rank(facts, attempt.stage, attempt.placement.name)
    return _first_whole(facts, facts.policy.legal_for(facts.recipe, attempt.stage)[:here])


def may_come_next(facts: Facts) -> tuple[Ahead, ...]:
    """Launches that may follow the live attempt, this stage's first; none before its first new step."""
    attempt, history = facts.seen.attempt, facts.history
    if attempt is None or not history.live or not history.first_new_step or not facts.policy.prepare:
        return ()
    names = [stage.name for stage in facts.recipe.stages]
    here = names.index(attempt.stage)
    return tuple(
        Ahead(revision=history.revision, stage=stage, placement=placement)
        for stage in names[here : here + 2]
        for placement in facts.policy.legal_for(facts.recipe, stage)
        if (stage, placement) != (attempt.stage, attempt.placement)
    )


def whole_placements(facts: Facts) -> tuple[str, ...]:
    """Names of the placements for the current stage that could be had in full now."""
    stage = facts.recipe.stage_at(facts.seen.head.next_step or 0)
    if stage is None:
        return ()
    return tuple(
        placement.name
        for placement in facts.policy.legal_for(facts.recipe, stage.name)
        if len(tuple(islice(_fitting(facts, placement), placement.hosts))) == placement.hosts
    )
