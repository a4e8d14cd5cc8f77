"""The learning rate: its shape, its ends, and that it is rounded once."""

import itertools
import math
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.contract.recipe import Data, Schedule, Stage, TokenFile
from trainer.optim.schedule import learning_rate

Kind = Literal["cosine", "linear", "constant"]
"""Of a decay that starts at the peak."""

KINDS: tuple[Kind, ...] = ("cosine", "linear", "constant")
PEAK = 3e-4


def stage(*, steps: int = 100, **schedule: Any) -> Stage:
    return Stage(
        name="only",
        steps=steps,
        virtual_ranks=1,
        sequence_length=2,
        data=Data(files=(TokenFile(path="none"),)),
        schedule=Schedule(**{"peak": PEAK, **schedule}),
    )


def rates(of: Stage, updates: range) -> list[np.float32]:
    return [learning_rate(of, update=update) for update in updates]


@pytest.mark.parametrize("kind", KINDS)
def test_warm_up_rises_in_equal_steps_and_reaches_the_peak_at_its_last_update(kind: Kind) -> None:
    found = rates(stage(kind=kind, warmup_steps=4), range(1, 5))
    assert found == [np.float32(PEAK * part) for part in (0.25, 0.5, 0.75, 1.0)]


def test_without_warm_up_the_first_update_has_already_left_the_peak() -> None:
    """The decay counts from update 0, which is never made."""
    assert learning_rate(stage(kind="linear", final_fraction=0.0), update=1) == np.float32(PEAK * 0.99)


def test_linear_goes_straight_from_the_peak_to_its_final_fraction() -> None:
    found = rates(stage(kind="linear", warmup_steps=10, decay_steps=4, final_fraction=0.5), range(10, 15))
    assert found == [np.float32(PEAK * part) for part in (1.0, 0.875, 0.75, 0.625, 0.5)]


def test_cosine_is_half_a_turn_from_the_peak_to_its_final_fraction() -> None:
    found = rates(stage(kind="cosine", warmup_steps=10, decay_steps=8, final_fraction=0.1), range(10, 19))
    turns = [0.1 + 0.9 * (1 + math.cos(math.pi * step / 8)) / 2 for step in range(9)]
    assert found == [np.float32(PEAK * part) for part in turns]
    assert found[4] == np.float32(PEAK * 0.55)


def test_half_a_cosine_starts_where_a_whole_one_is_half_way_through() -> None:
    whole = rates(stage(kind="cosine", steps=100, decay_steps=80, final_fraction=0.1), range(41, 90))
    half = rates(stage(kind="half-cosine", steps=100, decay_steps=40, final_fraction=0.1), range(1, 50))
    np.testing.assert_array_max_ulp(np.array(half), np.array(whole), maxulp=1)


def test_a_continuation_takes_over_beyond_its_update() -> None:
    after = {"after": 6, "kind": "half-cosine", "decay_steps": 8, "final_fraction": 0.2}
    of = stage(kind="linear", warmup_steps=2, decay_steps=10, final_fraction=0.0, continuations=[after])
    assert rates(of, range(1, 7)) == [np.float32(PEAK * part) for part in (0.5, 1.0, 0.9, 0.8, 0.7, 0.6)]
    turns = [0.2 + 0.8 * (1 + math.cos(math.pi * (1 + step / 8) / 2)) / 2 for step in range(1, 9)]
    assert rates(of, range(7, 15)) == [np.float32(PEAK * part) for part in turns]
    assert rates(of, range(15, 20)) == [np.float32(PEAK * 0.2)] * 5


def test_continuations_are_in_order() -> None:
    parts = [{"after": after, "kind": "constant", "decay_steps": 1} for after in (6, 5)]
    with pytest.raises(ValueError, match="each begins after the one before it, and after the warm-up"):
        stage(continuations=parts)
    with pytest.raises(ValueError, match="each begins after the one before it, and after the warm-up"):
        stage(warmup_steps=6, continuations=parts[:1])


def test_the_rate_of_the_published_pretraining_at_its_last_update() -> None:
    """5e12 tokens planned, stopped half way, gone on with for 7e12, ended after one epoch: 3.93e-5."""
    second = {"after": 597_046, "kind": "half-cosine", "decay_steps": 1_668_931 - 597_046}
    of = stage(warmup_steps=2000, decay_steps=1_192_093 - 2000, steps=1_413_814, continuations=[second])
    assert float(learning_rate(of, update=597_046)) == pytest.approx(1.65e-4, rel=1e-5)
    assert float(learning_rate(of, update=1_413_814)) == pytest.approx(3.93e-5, rel=1e-3)


def test_constant_keeps_the_peak_whatever_the_final_fraction() -> None:
    found = rates(stage(kind="constant", warmup_steps=2, decay_steps=3, final_fraction=0.0), range(2, 40))
    assert set(found) == {np.float32(PEAK)}


@pytest.mark.parametrize("kind", ["cosine", "linear"])
def test_the_decay_takes_the_rest_of_the_stage_unless_it_has_a_length(kind: Kind) -> None:
    rest = rates(stage(kind=kind, steps=50, warmup_steps=10), range(1, 51))
    assert rest == rates(stage(kind=kind, steps=50, warmup_steps=10, decay_steps=40), range(1, 51))
    assert rest[-1] == np.float32(PEAK * 0.1)
    assert rest[-2] > rest[-1]


@pytest.mark.parametrize("kind", ["cosine", "linear"])
def test_a_decay_longer_than_the_stage_is_cut_off_by_its_end(kind: Kind) -> None:
    """As in a pretraining that is stopped at half of its cosine."""
    half = learning_rate(stage(kind=kind, steps=100, decay_steps=200, final_fraction=0.0), update=100)
    assert half == np.float32(PEAK * 0.5)


@pytest.mark.parametrize("kind", ["cosine", "linear"])
@pytest.mark.parametrize("final_fraction", [0.0, 0.1, 1.0])
def test_the_rate_is_flat_beyond_the_end_of_its_decay(kind: Kind, final_fraction: float) -> None:
    of = stage(kind=kind, warmup_steps=3, decay_steps=7, final_fraction=final_fraction)
    assert set(rates(of, range(10, 100))) == {np.float32(PEAK * final_fraction)}


def test_a_stage_of_nothing_but_warm_up_ends_at_the_peak() -> None:
    assert rates(stage(steps=3, warmup_steps=3), range(1, 4))[-1] == np.float32(PEAK)


def test_the_rate_is_rounded_to_fp32_once() -> None:
    """Rounding the peak first, or the progress, would give other bits for some of these."""
    of = stage(kind="linear", steps=1000, decay_steps=997, final_fraction=0.1)
    found = rates(of, range(1, 998))
    wide = [PEAK * (1 + (0.1 - 1) * (update / 997)) for update in range(1, 998)]
    assert all(type(rate) is np.float32 for rate in found)
    assert found == [np.float32(rate) for rate in wide]
    twice = [np.float32(PEAK) * np.float32(rate / PEAK) for rate in wide]
    assert found != twice


@pytest.mark.parametrize("update", [0, -1])
def test_updates_count_from_one(update: int) -> None:
    with pytest.raises(ValueError, match=f"stage only: updates count from 1, not {update}"):
        learning_rate(stage(), update=update)


@given(
    kind=st.sampled_from(KINDS),
    peak=st.floats(1e-6, 1.0),
    warmup_steps=st.integers(0, 50),
    decay_steps=st.none() | st.integers(1, 100),
    final_fraction=st.floats(0.0, 1.0),
)
def test_the_rate_rises_to_the_peak_then_never_rises_again_and_stays_above_the_final_one(
    kind: Kind, peak: float, warmup_steps: int, decay_steps: int | None, final_fraction: float
) -> None:
    of = stage(kind=kind, peak=peak, warmup_steps=warmup_steps, decay_steps=decay_steps, final_fraction=final_fraction)
    rising, falling = rates(of, range(1, warmup_steps + 1)), rates(of, range(max(1, warmup_steps), 160))
    assert all(earlier < later for earlier, later in itertools.pairwise(rising))
    assert all(earlier >= later for earlier, later in itertools.pairwise(falling))
    assert max(rising + falling) <= np.float32(peak)
    assert min(falling) >= np.float32(peak * (1.0 if kind == "constant" else final_fraction))
