"""Episodes: each part is counted between the two moments that the module names, or is None."""

import pytest

from orchestrator.contract.attempt import OwnError
from orchestrator.reports.episodes import Episode, EpisodePhases, episodes
from tests.unit.run_factory import RunFactory


def sum_of(phases: EpisodePhases) -> float:
    return float(sum(seconds for seconds in phases.model_dump().values() if seconds is not None))


def test_the_first_launch_is_an_episode_that_ended_no_attempt() -> None:
    run = RunFactory(steps=8)
    run.launch().train(2)
    (first,) = episodes(run.store)
    assert (first.cause, first.how, first.from_attempt, first.to_attempt, first.attempts) == (
        "submit",
        None,
        None,
        1,
        (1,),
    )
    assert first.phases == EpisodePhases(start=0.75, initialise=0.25, compile=2.0, restore=1.5, first_new_step=1.0)
    assert first.total_seconds == 0.75 + 0.25 + 2.0 + 1.5 + 1.0
    assert first.began_at == run.store.events()[1].at


def test_a_kill_by_its_parts() -> None:
    run = RunFactory(steps=12)
    run.launch("full").train(4).commit().train(7).die(host=2)
    run.launch("quarter").train(12).commit()
    second = episodes(run.store)[1]
    assert (second.cause, second.how) == ("died", "kill")
    assert (second.from_attempt, second.from_placement) == (1, "full")
    assert (second.to_attempt, second.to_placement) == (2, "quarter")
    assert second.phases == EpisodePhases(
        detect=0.25,
        decide=0.0625,
        stop=0.25 + 0.125,
        wait=0.25,
        start=0.75,
        initialise=0.25,
        compile=2.0,
        restore=1.0,
        replay=3.0,
        first_new_step=1.0,
    )
    assert sum_of(second.phases) == second.total_seconds
    assert (second.steps_lost, second.steps_replayed) == (3, 3)
    assert second.compile_cache == "hit"


def test_a_drain_counts_from_the_persons_request() -> None:
    run = RunFactory(steps=12)
    attempt = run.launch("full").train(4)
    attempt.drain(cause="request-drain", request=run.request("drain", ago=1.5))
    run.launch("full").train(12)
    second = episodes(run.store)[1]
    assert (second.how, second.phases.detect) == ("drain", 1.5)
    assert second.phases.stop == 0.5 + 2 * 1.0 + 0.25 + 0.125
    assert (second.steps_lost, second.steps_replayed) == (2, 2)


def test_what_has_not_happened_yet_is_none() -> None:
    run = RunFactory(steps=12)
    run.launch("full").train(4).die()
    open_episode = episodes(run.store)[1]
    assert (open_episode.to_attempt, open_episode.total_seconds, open_episode.steps_lost) == (None, None, None)
    assert open_episode.phases.wait is None
    assert open_episode.phases.detect == 0.25
    run.launch("full")
    launched = episodes(run.store)[1]
    assert (launched.phases.wait, launched.phases.restore, launched.phases.replay) == (0.25, None, None)
    assert (launched.steps_lost, launched.steps_replayed) == (4, 0)


def test_an_attempt_that_ends_by_itself_has_no_stop_order() -> None:
    run = RunFactory(steps=12)
    attempt = run.launch("quarter").train(4)
    died_at = run.now = run.now + 0.5
    attempt.exit(0, code=1)
    run.now += 2.0
    attempt.ended("died", {"first_death_at": died_at})
    found = episodes(run.store)[1]
    assert (found.how, found.from_attempt, found.began_at) == ("ended", 1, died_at)
    assert (found.phases.detect, found.phases.decide, found.phases.stop) == (2.0, None, None)


def test_launches_that_fail_are_retries_of_one_episode() -> None:
    run = RunFactory(steps=12)
    run.launch("full").train(4).commit().die()
    first_launch = run.now
    run.launch("full").die()
    last_launch = run.now
    run.launch("quarter").train(12)
    found = episodes(run.store)
    assert len(found) == 2
    assert (found[1].attempts, found[1].to_attempt) == ((2, 3), 3)
    assert found[1].phases.retries == last_launch - first_launch
    assert found[1].total_seconds == pytest.approx(
        sum(p for p in found[1].phases.model_dump().values() if p is not None)
    )


def test_the_controllers_word_on_when_it_happened_comes_first() -> None:
    run = RunFactory(steps=12)
    attempt = run.launch("quarter").train(4)
    run.now += 60
    happened_at = run.now - 42
    run.event("stalled", disturbs=True, cause="stalled-train", details={"happened_at": happened_at})
    attempt.exit(0, code=1)
    assert episodes(run.store)[1].phases.detect == 42


def test_a_host_clock_that_is_ahead_makes_no_negative_part() -> None:
    run = RunFactory(steps=12)
    run.launch("quarter").train(4)
    run.event("died", disturbs=True, details={"happened_at": run.now + 30})
    found = episodes(run.store)[1]
    assert (found.phases.detect, found.began_at) == (0.0, run.now)


def test_a_host_clock_that_is_set_back_in_a_phase_makes_it_no_negative_part() -> None:
    run = RunFactory(steps=12)
    run.launch("quarter").train(4)
    for progress in run.store.progress(1).values():
        phases = [
            start.model_copy(update={"at": start.at - 60.0 * (start.phase == "restore")}) for start in progress.phases
        ]
        run.store.write_progress(progress.model_copy(update={"phases": tuple(phases)}))
    assert episodes(run.store)[0].phases.compile == 0.0


def test_a_phase_lasts_as_long_as_its_slowest_process_takes() -> None:
    run = RunFactory(steps=12)
    attempt = run.launch("full")
    (progress,) = {entry.phases for entry in run.store.progress(1).values()}
    late = [start.model_copy(update={"at": start.at + 0.5 * index}) for index, start in enumerate(progress)]
    slow = run.store.progress(1)[2].model_copy(update={"phases": tuple(late)})
    run.store.write_progress(slow)
    phases = episodes(run.store)[0].phases
    assert (phases.start, phases.initialise, phases.compile) == (0.75 + 0.5, 0.25 + 0.5, 2.0 + 0.5)
    run.store.write_progress(slow.model_copy(update={"phase": "start", "phases": progress[:1]}))
    assert episodes(run.store)[0].phases.start is None, "a process of four has not left its start"
    assert attempt.number == 1


def test_an_own_error_is_the_cause() -> None:
    run = RunFactory(steps=12)
    error = OwnError(type="ValueError", frame="data.py:read", message="no such file")
    run.launch("full").train(4).die(error=error)
    assert episodes(run.store)[1].cause == "own-error"


def test_a_stage_hand_over_disturbs_nothing_and_says_from_where_to_where() -> None:
    run = RunFactory(stages={"pretrain": 2, "anneal": 2})
    run.launch("full").train(2).commit().finish()
    run.launch("quarter", cause="stage").train(4).commit().finish()
    found = episodes(run.store)
    assert [(entry.cause, entry.how, entry.steps_lost) for entry in found] == [
        ("submit", None, 0),
        ("stage", "ended", 0),
    ]
    assert [(entry.from_placement, entry.to_placement) for entry in found] == [(None, "full"), ("full", "quarter")]


def test_an_attempt_that_was_fenced_before_it_had_a_spec_still_has_its_placement() -> None:
    run = RunFactory(steps=12)
    attempt = run.launch("quarter").train(4)
    run.store.objects.delete(f"demo/attempts/{attempt.number:04d}/attempt.json")
    (found,) = episodes(run.store)
    assert (found.to_placement, found.steps_lost) == ("quarter", None)


def test_an_episode_survives_its_own_json() -> None:
    run = RunFactory(steps=12)
    run.launch("full").train(4).die()
    for found in episodes(run.store):
        assert Episode.from_bytes(found.to_bytes(), where="here") == found
