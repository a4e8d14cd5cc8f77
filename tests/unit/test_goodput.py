"""goodput: every nanosecond of wall time is in exactly one bucket, whatever clocks and people do."""

import json
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.contract.attempt import PhaseStart, Progress
from orchestrator.reports.goodput import BUCKETS, Goodput, goodput
from orchestrator.reports.steps import StepTimes
from orchestrator.reports.timeline import NANOSECONDS, Interval, Layer, allocate, hundredths
from orchestrator.store.run_store import RunStore
from tests.unit.run_documents import true_record
from tests.unit.run_factory import SUBMITTED_AT, AttemptFactory, RunFactory


def seconds_of(found: Goodput) -> dict[str, float]:
    """The buckets that are not empty."""
    return {bucket.name: bucket.seconds for bucket in found.buckets if bucket.nanoseconds}


def assert_whole(found: Goodput) -> None:
    spent = [bucket.nanoseconds for bucket in found.buckets]
    assert sum(spent) == found.wall_nanoseconds, found
    assert min(spent) >= 0, found
    shares = sum(bucket.hundredths for bucket in found.buckets)
    assert shares == (10_000 if found.wall_nanoseconds else 0), found
    assert round(sum(bucket.percent for bucket in found.buckets), 2) == shares / 100
    assert tuple(bucket.name for bucket in found.buckets) == BUCKETS


def test_records_from_before_the_wait_for_data_was_recorded_count_as_without_one() -> None:
    run = RunFactory(steps=4)
    attempt = run.launch().train(3)
    fields = true_record(3, started=run.now).model_dump(mode="json", exclude={"data_seconds"})
    name = f"demo/attempts/{attempt.number:04d}/ledger/000009.jsonl"
    run.store.objects.create(name, (json.dumps(fields) + "\n").encode())
    attempt.next_step = 4
    run.now += 1.0
    attempt.commit().finish()
    found = goodput(run.complete().store, now=None)
    assert_whole(found)
    spent = seconds_of(found)
    assert (spent["DATA_LOADING_SYNC"], spent["PRODUCTIVE"]) == (3 * 0.125, 3 * 0.875 + 1.0)


# ---- whole histories
def test_an_undisturbed_run_by_bucket() -> None:
    run = RunFactory(steps=4)
    run.launch().train(4).commit().finish()
    run.complete()
    found = goodput(run.store, now=None)
    assert_whole(found)
    assert seconds_of(found) == {
        "WAITING": 1.0,  # submitted, not yet launched
        "TRAINING_PREP": 0.25 + 0.5,  # the launch, then the phase start
        "TPU_INITIALIZATION": 0.25,
        "PROGRAM_STARTUP": 2.0,
        "UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME": 1.0,
        "UNPRODUCTIVE_CHECKPOINT_SAVE_TIME": 0.5 + 0.5,
        "PRODUCTIVE": 4 * 0.875,
        "DATA_LOADING_SYNC": 4 * 0.125,
        "OTHER": 0.375 + 1.25,  # the processes leave, and the run is declared complete
    }


def test_a_killed_run_books_the_loss_after_the_disruption() -> None:
    run = RunFactory(steps=12)
    run.launch("full").train(4).commit().train(7).die()
    run.launch("quarter").train(12).commit().finish()
    found = goodput(run.complete().store, now=None)
    assert_whole(found)
    spent = seconds_of(found)
    assert spent["PRODUCTIVE"] + spent["DATA_LOADING_SYNC"] == 12.0  # each step once, when it was first computed
    assert spent["REPLAY"] == 3.0
    assert spent["WASTED_PROGRESS_FROM_DISRUPTION"] == 0.5  # from the last recorded step to the death
    assert spent["DETECTION_AND_DECISION"] == 0.25 + 0.0625


def test_steps_beyond_head_stand_while_their_attempt_lives_and_are_wasted_when_it_ends() -> None:
    run = RunFactory(steps=12)
    attempt = run.launch("full").train(4).commit().train(7)
    live = seconds_of(goodput(run.store, now=run.now))
    assert live["PRODUCTIVE"] + live["DATA_LOADING_SYNC"] == 7.0
    attempt.die()
    dead = seconds_of(goodput(run.store, now=run.now))
    assert dead["PRODUCTIVE"] + dead["DATA_LOADING_SYNC"] == 4.0
    assert dead["WASTED_PROGRESS_FROM_DISRUPTION"] == 3.5


def test_steps_that_a_revision_gave_up_are_wasted() -> None:
    run = RunFactory(steps=8)
    run.launch().train(4).drain(witness=2, then="amend")
    run.amend()
    run.launch().train(8).commit()
    spent = seconds_of(goodput(run.store, now=run.now))
    assert spent["WASTED_PROGRESS_FROM_DISRUPTION"] == 2.0
    assert spent["PRODUCTIVE"] + spent["DATA_LOADING_SYNC"] == 8.0


def test_people_and_missing_hardware_have_buckets_of_their_own() -> None:
    run = RunFactory(steps=8)
    run.launch().train(2).drain(then="pause", cause="request-pause")
    run.now += 100
    run.state("running")
    run.event("waiting: no placement", kind="waiting", details={"key": "nothing-fits"})
    run.now += 10
    run.launch().train(8).die(then="hold")
    run.now += 1000
    found = goodput(run.store, now=run.now)
    assert_whole(found)
    spent = seconds_of(found)
    assert spent["PAUSED"] == 100.25
    assert spent["WAITING"] == 11.0
    assert spent["HELD"] == 1000.25


def test_a_complete_run_gains_no_wall_time() -> None:
    run = RunFactory(steps=2)
    run.launch().train(2).commit().finish()
    run.complete()
    assert goodput(run.store, now=run.now + 1e6) == goodput(run.store, now=None)


def test_a_run_that_is_not_over_ends_now_or_at_its_last_event() -> None:
    run = RunFactory(steps=8)
    run.launch().train(2)
    assert goodput(run.store, now=run.now + 5).wall_seconds == run.now + 5 - SUBMITTED_AT
    assert goodput(run.store, now=None).to_at == run.store.events()[-1].at


def test_before_any_time_has_passed_all_is_zero() -> None:
    found = goodput(RunFactory().store, now=SUBMITTED_AT - 60)
    assert_whole(found)
    assert (found.wall_nanoseconds, found.goodput_percent) == (0, 0.0)


def test_the_slowest_process_decides_which_phase_it_is() -> None:
    run = RunFactory(steps=2)
    attempt = run.launch("full")
    phases = (PhaseStart(phase="start", at=run.now), PhaseStart(phase="initialise", at=run.now + 8))
    for process in range(4):
        late = phases if process == 2 else (phases[0], phases[1].model_copy(update={"at": run.now + 1}))
        run.store.write_progress(progress_of(attempt, process, late))
    spent = seconds_of(goodput(run.store, now=run.now + 10))
    assert spent["TPU_INITIALIZATION"] == 2.0


def test_waiting_for_a_batch_is_at_most_the_whole_step() -> None:
    run = RunFactory(steps=4)
    run.launch().train(4, change={3: {"data_seconds": 50.0}})
    run.now += 10
    spent = seconds_of(goodput(run.store, now=run.now))
    assert (spent["DATA_LOADING_SYNC"], spent["PRODUCTIVE"]) == (3 * 0.125 + 1.0, 3 * 0.875)


def test_a_phase_in_which_a_process_died_ends_with_it() -> None:
    run = RunFactory(steps=8)
    run.launch("quarter").train(4).commit().die()
    before = seconds_of(goodput(run.store, now=run.now))["UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME"]
    run.launch("quarter").die()
    after = seconds_of(goodput(run.store, now=run.now))["UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME"]
    assert after - before == 1.0 + 0.5


def test_an_attempt_that_dies_alone_wastes_the_step_it_was_in() -> None:
    run = RunFactory(steps=8)
    attempt = run.launch("quarter").train(4).commit()
    run.now += 0.75
    attempt.exit(0, code=1)
    run.now += 5
    attempt.ended("died")
    spent = seconds_of(goodput(run.store, now=run.now))
    assert spent["WASTED_PROGRESS_FROM_DISRUPTION"] == 0.75
    assert spent["DETECTION_AND_DECISION"] == 5.0


def test_a_reader_that_comes_back_reads_only_new_segments() -> None:
    run = RunFactory(steps=12)
    attempt = run.launch().train(4)
    store = CountingStore(run.store)
    times = StepTimes(store)
    first = goodput(store, now=run.now, times=times)
    attempt.train(6)
    second = goodput(store, now=run.now, times=times)
    assert second.buckets[0].seconds > first.buckets[0].seconds
    assert store.segments == run.store.segment_names(1)


class CountingStore(RunStore):
    """Remembers which segments were read."""

    def __init__(self, store: RunStore) -> None:
        super().__init__(store.objects, store.name)
        self.segments: list[str] = []

    def read_segment(self, name: str):  # type: ignore[no-untyped-def]
        self.segments.append(name)
        return super().read_segment(name)


def progress_of(attempt: AttemptFactory, process: int, phases: Sequence[PhaseStart]) -> Progress:
    return Progress(
        attempt=attempt.number,
        process=process,
        pid=1,
        phase=phases[-1].phase,
        step=None,
        counter=0,
        phases=tuple(phases),
        at=phases[-1].at,
    )


# ---- any history
skews = st.floats(-50, 50)


@st.composite
def any_run(draw: st.DrawFn) -> RunFactory:
    """A run of random deeds whose hosts have clocks that are off, back and forth."""
    run = RunFactory(steps=40)
    for _ in range(draw(st.integers(1, 4))):
        attempt = run.launch(draw(st.sampled_from(["full", "quarter"])))
        if draw(st.booleans()):
            skewed_phases(draw, run, attempt)
        if draw(st.booleans()):
            attempt.train(min(attempt.next_step + draw(st.integers(1, 5)), attempt.until))
            if draw(st.booleans()):
                attempt.commit()
        if draw(st.booleans()):
            records = [
                true_record(
                    attempt.next_step + index,
                    attempt=attempt.number,
                    started=run.now + draw(skews),
                    seconds=draw(st.floats(-5, 50)),
                    data_seconds=draw(st.floats(-5, 50)),
                )
                for index in range(draw(st.integers(1, 4)))
            ]
            attempt.store.create_segment(attempt.number, 99, records)
        run.now += draw(st.floats(0, 10))
        end = draw(st.sampled_from(["die", "drain", "pause", "hold", "fence only", "run on"]))
        if end == "die":
            attempt.die(host=draw(st.integers(0, len(attempt.hosts) - 1)))
        elif end in ("drain", "pause"):
            attempt.drain(witness=0, then="pause" if end == "pause" else "relaunch")
        elif end == "hold":
            run.state("held")
        run.now += draw(st.floats(-20, 20))  # another controller leads, whose clock is behind or ahead
    if draw(st.booleans()):
        run.complete()
    return run


def skewed_phases(draw: st.DrawFn, run: RunFactory, attempt: AttemptFactory) -> None:
    names = draw(
        st.lists(st.sampled_from(["start", "initialise", "compile", "restore", "replay", "train"]), min_size=1)
    )
    for process in range(draw(st.integers(1, len(attempt.hosts)))):
        phases = [PhaseStart.model_validate({"phase": name, "at": run.now + draw(skews)}) for name in names]
        run.store.write_progress(progress_of(attempt, process, phases))


@given(run=any_run(), later=st.none() | st.floats(-100, 100))
def test_buckets_sum_to_the_wall_time_exactly_and_none_is_negative(run: RunFactory, later: float | None) -> None:
    assert_whole(goodput(run.store, now=None if later is None else run.now + later))


# ---- the arithmetic
windows = st.builds(lambda start, length: Interval(start, start + length), st.integers(0, 100), st.integers(0, 100))
intervals = st.lists(st.builds(Interval, st.integers(-50, 250), st.integers(-50, 250)), max_size=5)
layered = st.lists(st.builds(Layer, st.sampled_from("abc"), intervals), max_size=5)


@given(window=windows, layers=layered)
def test_allocate_gives_each_moment_to_the_first_layer_that_claims_it(window: Interval, layers: list[Layer]) -> None:
    expected = dict.fromkeys([*(layer.bucket for layer in layers), "rest"], 0)
    for moment in range(window.start, window.end):
        claimants = [
            layer.bucket for layer in layers if any(part.start <= moment < part.end for part in layer.intervals)
        ]
        expected[claimants[0] if claimants else "rest"] += 1
    assert allocate(window, layers, rest="rest") == expected


@given(st.lists(st.integers(0, 10**18), min_size=1, max_size=15))
def test_shares_sum_to_one_hundred_percent_and_are_within_a_hundredth_of_the_truth(parts: list[int]) -> None:
    shares = hundredths(parts)
    whole = sum(parts)
    assert sum(shares) == (10_000 if whole else 0)
    assert all(abs(share * whole - part * 10_000) < max(whole, 1) for share, part in zip(shares, parts, strict=True))


def test_equal_remainders_go_to_the_earlier_part() -> None:
    assert hundredths([1, 1, 1]) == [3334, 3333, 3333]


def test_wall_seconds_are_the_nanoseconds() -> None:
    run = RunFactory(steps=2)
    run.launch().train(2).commit().finish()
    found = goodput(run.complete().store, now=None)
    assert found.wall_seconds == found.wall_nanoseconds / NANOSECONDS
