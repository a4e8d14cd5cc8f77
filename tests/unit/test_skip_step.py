"""Which steps are left out: the window of the last ones against plain statistics."""

import functools
import statistics

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array
from numpy.typing import NDArray

from orchestrator.contract.recipe import Optimizer
from trainer.optim import skip_step
from trainer.parallel.reduction import compiler_options, rounding


def expected_skips(entries: NDArray[np.float32], optimizer: Optimizer) -> list[bool]:
    """By the definition, with Python's own statistics, of entries [steps, 2]."""

    def is_far(column: list[float], value: float) -> bool:
        return value - statistics.fmean(column) > optimizer.skip_sigma * statistics.stdev(column)

    def skips(step: int) -> bool:
        before = entries[max(0, step - optimizer.skip_window) : step].astype(float)
        if len(before) < 2 or step + 1 < optimizer.skip_after:
            return False
        return any(is_far(before[:, which].tolist(), float(entries[step, which])) for which in range(2))

    return [skips(step) for step in range(len(entries))]


def fresh_window(length: int) -> skip_step.Window:
    return skip_step.Window(loss=jnp.zeros(length), grad_norm=jnp.zeros(length), count=jnp.int32(0))


@functools.partial(jax.jit, static_argnums=0, compiler_options=compiler_options("cpu"))
def judge(optimizer: Optimizer, window: skip_step.Window, entry: Array) -> tuple[Array, skip_step.Window]:
    """Whether the entry is an outlier, and the window with it."""
    loss, grad_norm = entry
    outlier = skip_step.is_outlier(window, optimizer, loss=loss, grad_norm=grad_norm, rounded=rounding())
    return outlier, skip_step.record(window, loss=loss, grad_norm=grad_norm)


def found_skips(entries: NDArray[np.float32], optimizer: Optimizer) -> tuple[list[bool], skip_step.Window]:
    """Of finite entries [steps, 2], each recorded whether it is skipped or not."""
    window = fresh_window(optimizer.skip_window)
    outliers = []
    for entry in entries:
        outlier, window = judge(optimizer, window, jnp.asarray(entry))
        outliers.append(bool(outlier))
    return outliers, window


def entries_of(losses: list[float], norms: list[float] | None = None) -> NDArray[np.float32]:
    """``norms`` None: level ones."""
    level = [1.0 + number % 2 for number in range(len(losses))]
    return np.array([losses, norms or level], np.float32).T


def skipped_by(optimizer: Optimizer, losses: list[float], norms: list[float] | None = None) -> list[int]:
    """Numbers of the steps left out, counted from 1."""
    outliers, _ = found_skips(entries_of(losses, norms), optimizer)
    return [number for number, outlier in enumerate(outliers, start=1) if outlier]


@pytest.mark.parametrize(
    "optimizer",
    [
        Optimizer(),
        Optimizer(skip_window=5, skip_after=3, skip_sigma=2.0),
        Optimizer(skip_window=2, skip_after=2, skip_sigma=1.0),
        Optimizer(skip_window=4, skip_after=20, skip_sigma=1.5),
    ],
    ids=["official", "window-of-5", "window-of-2", "active-after-wrapping"],
)
def test_long_series_with_spikes_are_judged_as_by_plain_statistics(optimizer: Optimizer) -> None:
    numbers = np.random.default_rng(4)
    entries = numbers.normal([3.0, 0.5], [0.2, 0.05], (400, 2)).astype(np.float32)
    for which in range(2):
        entries[numbers.integers(0, 400, 8), which] += np.float32(4.0)
        entries[numbers.integers(0, 400, 4), which] -= np.float32(4.0)
    expected = expected_skips(entries, optimizer)
    assert found_skips(entries, optimizer)[0] == expected
    assert any(expected)


def test_six_sigma_has_n_minus_one_in_its_denominator() -> None:
    """After 1, 3: the mean is 2, sigma is sqrt(2), and 1 with n. 9 is within 6 sigma, and would be beyond it."""
    optimizer = Optimizer(skip_after=3)
    assert skipped_by(optimizer, [1.0, 3.0, 9.0]) == []
    assert skipped_by(optimizer, [1.0, 3.0, 10.48]) == []
    assert skipped_by(optimizer, [1.0, 3.0, 10.49]) == [3]


def test_exactly_six_sigma_is_not_beyond_them() -> None:
    """After 1, 3, 2 the mean is 2 and sigma is 1."""
    optimizer = Optimizer(skip_after=3)
    assert skipped_by(optimizer, [1.0, 3.0, 2.0, 8.0]) == []
    assert skipped_by(optimizer, [1.0, 3.0, 2.0, float(np.nextafter(np.float32(8), np.float32(9)))]) == [4]


def test_a_loss_or_a_norm_alone_is_enough_and_low_values_never_are() -> None:
    optimizer = Optimizer(skip_after=3)
    level = [1.0, 3.0]
    assert skipped_by(optimizer, [*level, 99.0], [*level, 2.0]) == [3]
    assert skipped_by(optimizer, [*level, 2.0], [*level, 99.0]) == [3]
    assert skipped_by(optimizer, [*level, -99.0], [*level, -99.0]) == []


@pytest.mark.parametrize(("skip_after", "first"), [(2, 3), (3, 3), (4, 4), (64, 64)])
def test_the_first_step_that_can_be_skipped_is_number_skip_after_and_has_two_before_it(
    skip_after: int, first: int
) -> None:
    optimizer = Optimizer(skip_after=skip_after)
    window = fresh_window(optimizer.skip_window)
    for number, level in enumerate(entries_of([1.0, 1.1] * 33), start=1):
        outlier, _ = judge(optimizer, window, jnp.array([99.0, 1.0]))
        assert bool(outlier) == (number >= first), number
        _, window = judge(optimizer, window, jnp.asarray(level))


def test_a_skipped_entry_is_recorded_and_widens_the_window_for_the_next() -> None:
    optimizer = Optimizer(skip_after=3)
    assert skipped_by(optimizer, [1.0, 1.1, 1.0, 99.0, 99.0]) == [4]
    entries = entries_of([1.0, 1.1, 1.0, 99.0])
    _, window = found_skips(entries, optimizer)
    assert np.asarray(window["loss"])[:5].tolist() == [*entries[:, 0].tolist(), 0.0]


def test_the_window_wraps_around_and_forgets_its_oldest_entry() -> None:
    optimizer = Optimizer(skip_window=3, skip_after=3)
    _, window = found_skips(entries_of([1.0, 2.0, 3.0, 4.0, 5.0], [6.0, 7.0, 8.0, 9.0, 10.0]), optimizer)
    assert np.asarray(window["loss"]).tolist() == [4.0, 5.0, 3.0]
    assert np.asarray(window["grad_norm"]).tolist() == [9.0, 10.0, 8.0]
    assert int(window["count"]) == 5
    assert skipped_by(optimizer, [99.0, 1.0, 1.1, 9.0]) == []
    assert skipped_by(optimizer, [99.0, 1.0, 1.1, 1.0, 9.0]) == [5]


def test_equal_entries_have_no_sigma_and_anything_above_them_is_skipped() -> None:
    assert skipped_by(Optimizer(skip_after=3), [2.0, 2.0, 2.0, 2.0, 2.1]) == [5]


@pytest.mark.parametrize("level", [1.0, 3.4728308])
def test_a_step_equal_to_all_before_it_is_never_an_outlier(level: float) -> None:
    """It would be if the mean that is subtracted from it were rounded in another way than that of the entries."""
    assert skipped_by(Optimizer(skip_after=3), [level] * 130) == []
