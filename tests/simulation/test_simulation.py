"""Seeded fault schedules against the real planner and controller; conftest cuts the seeds into blocks."""

from tests.simulation.simulation import simulate


def test_invariants_hold_under_any_faults(seeds: range) -> None:
    for seed in seeds:
        simulate(seed)


def test_the_same_seed_gives_the_same_run() -> None:
    for seed in (3, 17, 58):
        first, second = simulate(seed), simulate(seed)
        assert [event.message for event in first.events] == [event.message for event in second.events]
        assert first.timeline.now == second.timeline.now
