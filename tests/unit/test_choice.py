"""Which hosts can be had, and which placement is the best on them."""

from math import inf
from typing import NoReturn

import pytest

from orchestrator.contract.run import Budgets
from orchestrator.fleet.observation import AgentView, HostView
from orchestrator.planner.choice import (
    backed_off_until,
    best,
    better_than_here,
    may_come_next,
    rank,
    unavailable,
    usable,
    whole_placements,
)
from orchestrator.planner.history import Failure, History
from orchestrator.planner.noticed import noticed
from tests.unit.facts_factory import FULL, HALF, OTHER, POLICY, QUARTER, START, Case, host, hosts, ref


@pytest.mark.parametrize(
    ("view", "why"),
    [
        (host(0), None),
        (host(0, agent=None), None),
        (host(0, condition="unknown", evidence="silent"), "unknown: silent"),
        (host(0, condition="gone", evidence="deleted"), "gone: deleted"),
        (host(0, maintenance_at=START + 9999.0), "maintenance is announced"),
        (host(0, agent=AgentView(run="another", from_attempt=1)), "serves run another"),
    ],
)
def test_why_a_host_cannot_be_had(view: HostView, why: str | None) -> None:
    assert unavailable(Case().facts(), view) == why


def test_a_host_that_is_not_confirmed_free_cannot_be_had() -> None:
    facts = Case().facts(unconfirmed=frozenset({ref(0)}))
    assert unavailable(facts, host(0)) == "not confirmed free of an earlier attempt"
    assert unavailable(facts, host(1)) is None


def test_maintenance_that_is_late_enough_can_be_put_up_with() -> None:
    view = host(0, maintenance_at=START + 100.0)
    assert unavailable(Case().facts(), view, maintenance_after=START + 99.0) is None
    assert unavailable(Case().facts(), view, maintenance_after=START + 100.0) is not None
    assert unavailable(Case().facts(), view, maintenance_after=inf) is not None


BUDGETS = Budgets(host_failures=3, failure_window=3600.0, back_off=1800.0, max_back_off=8 * 3600.0)


def failing(*times: float, host_name: str = "first/h0") -> History:
    return History(failures=tuple(Failure(host=host_name, at=at) for at in times))


@pytest.mark.parametrize(
    ("times", "until"),
    [
        ((), None),
        ((0.0, 10.0), None),
        ((0.0, 10.0, 20.0), 20.0 + 1800.0),
        ((0.0, 10.0, 20.0, 30.0), 30.0 + 3600.0),
        (tuple(float(at) for at in range(12)), 11.0 + 8 * 3600.0),
        ((0.0, 3000.0, 6000.0), None),
        ((0.0, 3000.0, 3599.0), 3599.0 + 1800.0),
        ((0.0, 3000.0, 3600.0), None),
    ],
)
def test_a_host_that_fails_too_often_is_left_alone_for_longer_each_time(
    times: tuple[float, ...], until: float | None
) -> None:
    assert backed_off_until(failing(*times), BUDGETS, "first/h0") == until
    assert backed_off_until(failing(*times), BUDGETS, "first/h1") is None


def test_a_host_that_is_left_alone_is_not_used_until_then() -> None:
    case = Case().launch()
    for _ in range(3):
        case.ended("died", host="first/h0").launch()
    case.ended("host-lost")
    assert "left alone for 1800 s" in str(unavailable(case.facts(), host(0)))
    assert unavailable(case.after(1800.0).facts(), host(0)) is None


def test_the_most_preferred_placement_that_can_be_had_in_full_is_the_best() -> None:
    case = Case()
    assert best(case.facts(), "pretrain").placement == FULL  # type: ignore[union-attr]
    assert best(case.facts(hosts=hosts(3)), "pretrain").placement == HALF  # type: ignore[union-attr]
    assert best(case.facts(hosts=hosts(1)), "pretrain").placement == QUARTER  # type: ignore[union-attr]
    assert best(case.facts(hosts=hosts(2, "second")), "pretrain").placement == OTHER  # type: ignore[union-attr]
    assert best(case.facts(hosts=()), "pretrain") is None


def test_hosts_to_avoid_are_not_used() -> None:
    choice = best(Case().facts(), "pretrain", avoid=[ref(0)])
    assert choice is not None
    assert (choice.placement, choice.hosts) == (HALF, (ref(1), ref(2)))


def test_only_one_placement_can_be_asked_for() -> None:
    assert best(Case().facts(hosts=hosts(3)), "pretrain", only="full") is None
    assert best(Case().facts(), "pretrain", only="quarter").placement == QUARTER  # type: ignore[union-attr]


def test_a_placement_takes_hosts_of_its_pool_and_generation_with_enough_devices() -> None:
    views = (host(0, generation="g9"), host(1, devices=0), host(2), *hosts(2, "second"))
    assert usable(Case().facts(hosts=views), HALF) == (ref(2),)


def test_the_hosts_of_the_newest_attempt_come_first_in_their_order() -> None:
    case = Case().launch(HALF, on=(3, 1)).ended("died")
    assert usable(case.facts(), HALF) == (ref(3), ref(1), ref(0), ref(2))


def test_better_than_here_is_only_what_is_preferred_to_here() -> None:
    case = Case().launch(HALF, on=(2, 3)).stepping()
    better = better_than_here(case.facts())
    assert better is not None
    assert better.placement == FULL
    assert better_than_here(case.facts(hosts=hosts(3))) is None


def test_nothing_goes_through_the_fleet_for_what_cannot_be() -> None:
    class Unread(tuple[HostView, ...]):
        def __iter__(self) -> NoReturn:
            raise AssertionError("a fleet may have ten thousand hosts, and a look comes every second")

    facts = Case().launch(FULL).stepping().facts(hosts=Unread(hosts()))
    assert better_than_here(facts) is None, "nothing is preferred to the best placement"
    assert noticed(facts) is None, "nobody stated that a host is gone"


def test_rank_is_the_order_of_preference_among_legal_placements() -> None:
    facts = Case().facts()
    assert [rank(facts, "pretrain", name) for name in ("full", "half", "quarter", "other")] == [0, 1, 2, 3]
    assert rank(facts, "pretrain", "nowhere") == 4


def test_what_is_whole_is_what_could_be_had_for_the_stage_that_comes_next() -> None:
    case = Case()
    assert whole_placements(case.facts(hosts=hosts(3))) == ("half", "quarter")
    assert whole_placements(case.facts(head=case.head(120))) == ()


ALONE = POLICY.model_copy(update={"prepare": False})


def test_what_may_come_next_is_every_other_placement_of_this_stage_then_those_of_the_next() -> None:
    case = Case().launch().stepping()
    found = [(ahead.stage, ahead.placement.name) for ahead in may_come_next(case.facts())]
    this = [("pretrain", name) for name in ("half", "quarter", "other")]
    assert found == this + [("anneal", name) for name in ("full", "half", "quarter", "other")]


def test_nothing_is_compiled_ahead_before_the_first_new_step_nor_when_the_policy_forbids_it() -> None:
    assert may_come_next(Case().facts()) == ()
    assert may_come_next(Case().launch().facts()) == ()
    assert may_come_next(Case(policy=ALONE).launch().stepping().facts()) == ()
