"""SkipStepAdamW: its arithmetic, and that a whole step which is left out leaves nothing behind."""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array
from numpy.typing import NDArray

from orchestrator.contract.checksum import checksum
from orchestrator.contract.recipe import Data, Model, Optimizer, Schedule, Stage, TokenFile
from trainer.model.olmo3 import skeleton
from trainer.optim import adamw, skip_step
from trainer.parallel.reduction import rounding
from trainer.step import Program, StepPlan, StepResult, build_program

Tree = Any

MODEL = Model(
    vocab_size=32,
    d_model=8,
    n_layers=1,
    global_every=1,
    n_heads=2,
    n_kv_heads=2,
    head_dim=4,
    d_ff=8,
    compute_dtype="float32",
)
STAGE = Stage(
    name="only",
    steps=100,
    virtual_ranks=2,
    sequence_length=8,
    data=Data(files=(TokenFile(path="none"),)),
    schedule=Schedule(peak=1e-2),
    optimizer=Optimizer(skip_window=4, skip_after=3),
)
RATE = np.float32(1e-2)
USED = MODEL.vocab_size // 2
"""Tokens of every batch are below this."""


# --- AdamW ---


@dataclass(frozen=True, kw_only=True)
class Gradient:
    """What a step knows: the sum over targets, and the norm of the mean over the whole model."""

    total: NDArray[np.float32]
    norm: float
    rate: float
    apply: bool = True


TARGETS = 50
SHAPE = (4, 3)


def gradients(*, norms: tuple[float, ...], skipped: tuple[int, ...] = ()) -> Iterator[Gradient]:
    numbers = np.random.default_rng(2)
    for step, norm in enumerate(norms):
        total = (numbers.normal(size=SHAPE) * norm * TARGETS).astype(np.float32)
        yield Gradient(total=total, norm=norm, rate=1e-2 / (step + 1), apply=step not in skipped)


def initial() -> NDArray[np.float32]:
    return np.random.default_rng(1).normal(size=SHAPE).astype(np.float32) * np.float32(0.1)


def wide_adamw(
    steps: Iterator[Gradient], *, optimizer: Optimizer, decay: bool
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Parameter and moments after the applied steps, as AdamW's authors write it, in float64."""
    param, first, second = initial().astype(np.float64), np.zeros(SHAPE), np.zeros(SHAPE)
    applied = (step for step in steps if step.apply)
    for number, step in enumerate(applied, start=1):
        grad = step.total.astype(np.float64) / TARGETS * min(1.0, optimizer.clip_norm / (step.norm + 1e-6))
        first = optimizer.beta1 * first + (1 - optimizer.beta1) * grad
        second = optimizer.beta2 * second + (1 - optimizer.beta2) * grad**2
        if decay:
            param = param - step.rate * optimizer.weight_decay * param
        unbiased_first = first / (1 - optimizer.beta1**number)
        unbiased_second = second / (1 - optimizer.beta2**number)
        param = param - step.rate * unbiased_first / (np.sqrt(unbiased_second) + optimizer.eps)
    return param, first, second


@functools.partial(jax.jit, static_argnames=("optimizer", "decay"))
def one_update(
    state: tuple[Array, Array, Array], total: Array, numbers: Array, apply: Array, *, optimizer: Optimizer, decay: bool
) -> tuple[Array, Array, Array]:
    """``numbers``: learning rate, gradient norm, updates applied before."""
    param, first, second = state
    rate, norm, applied = numbers
    scalars = adamw.coefficients(
        optimizer, learning_rate=rate, grad_norm=norm, per_target=1.0 / TARGETS, applied=applied.astype(jnp.int32)
    )
    common: dict[str, Any] = {"optimizer": optimizer, "scalars": scalars, "apply": apply, "rounded": lambda x: x}
    first, second = adamw.moments(first, second, total, **common)
    return adamw.parameter(param, first, second, decay=decay, **common), first, second


def our_adamw(steps: Iterator[Gradient], *, optimizer: Optimizer, decay: bool) -> tuple[Array, Array, Array]:
    state = jnp.asarray(initial()), jnp.zeros(SHAPE), jnp.zeros(SHAPE)
    applied = 0
    for step in steps:
        numbers = jnp.array([step.rate, step.norm, applied], jnp.float32)
        state = one_update(
            state, jnp.asarray(step.total), numbers, jnp.bool_(step.apply), optimizer=optimizer, decay=decay
        )
        applied += step.apply
    return state


@pytest.mark.parametrize(
    ("optimizer", "decay"),
    [
        (Optimizer(), True),
        (Optimizer(), False),
        (Optimizer(clip_norm=1e-4, weight_decay=3.0), True),
        (Optimizer(beta1=0.0, beta2=0.999, eps=1e-2), True),
    ],
    ids=["official", "not-decayed", "clipped-and-decayed", "no-momentum"],
)
def test_several_updates_are_those_of_adamw_in_float64(optimizer: Optimizer, decay: bool) -> None:
    norms = (0.5, 3.0, 1e-4, 2e-4, 40.0, 1.0, 0.01, 7.0)
    skipped = (2, 5)
    found = our_adamw(gradients(norms=norms, skipped=skipped), optimizer=optimizer, decay=decay)
    expected = wide_adamw(gradients(norms=norms, skipped=skipped), optimizer=optimizer, decay=decay)
    for name, ours, wide in zip(("param", "first", "second"), found, expected, strict=True):
        assert ours.dtype == jnp.float32
        np.testing.assert_allclose(ours, wide, rtol=5e-6, atol=1e-7 * np.abs(wide).max(), err_msg=name)


def test_bias_correction_of_a_beta_close_to_one_does_not_cancel() -> None:
    """1 - 0.999999 in fp32 is wrong by 1 %."""
    scalars = adamw.coefficients(
        Optimizer(beta2=0.999999),
        learning_rate=jnp.float32(1.0),
        grad_norm=jnp.float32(1.0),
        per_target=1.0,
        applied=jnp.int32(0),
    )
    np.testing.assert_allclose(scalars.second, 1e3, rtol=1e-6)


@pytest.mark.parametrize("value", [1.0, np.nan, np.inf])
def test_a_step_that_is_not_applied_gives_back_the_old_bits_whatever_its_gradient(value: float) -> None:
    """Among the old ones -0.0, a subnormal and NaN with a payload."""
    odd = np.array([0x80000000, 0x00000001, 0x7FC12345, 0x3F800001], np.uint32).view(np.float32)
    grad = jnp.full(odd.shape, value, jnp.float32)
    scalars = adamw.Coefficients(*(jnp.float32(value) for _ in range(4)))
    common: dict[str, Any] = {
        "optimizer": Optimizer(),
        "scalars": scalars,
        "apply": jnp.bool_(False),
        "rounded": lambda x: x,
    }
    first, second = adamw.moments(jnp.asarray(odd), jnp.asarray(odd), grad, **common)
    param = adamw.parameter(jnp.asarray(odd), grad, grad, decay=True, **common)
    for array in (first, second, param):
        assert np.asarray(array).view(np.uint32).tolist() == odd.view(np.uint32).tolist()


def test_only_the_embedding_is_not_decayed() -> None:
    weights = jax.tree_util.tree_flatten_with_path(skeleton(MODEL).weights)[0]
    kept = ["/".join(key.key for key in path) for path, weight in weights if not weight.decay]
    assert kept == ["embedding/table"]


# --- whole steps ---


@pytest.fixture(scope="module")
def program() -> Program:
    program = build_program(StepPlan(model=MODEL, stage=STAGE, remat="none"), jax.devices()[:1])
    program.compile()
    return program


@pytest.fixture(scope="module")
def trained(program: Program) -> Tree:
    """The state after a few steps, on the host: moments and window are not zero, and no window slot is free."""
    state = host(program.init_state(7))
    for step in range(5):
        state, result = run(program, state, step=step)
        assert result.finite
        assert not result.skipped
    return state


def host(state: Tree) -> Tree:
    return jax.tree.map(lambda array: np.array(array, copy=True), jax.device_get(state))


def run(program: Program, state: Tree, *, step: int) -> tuple[Tree, StepResult]:
    """One step from a state on the host, which stays as it is, to the next one there."""
    after, metrics = program.step(on_devices(program, state), batch_of(program, step), RATE)
    return host(after), metrics.read()


def on_devices(program: Program, state: Tree) -> Tree:
    shardings = jax.tree.map(lambda target: target.sharding, program.abstract_state)
    return jax.device_put(jax.tree.map(np.copy, state), shardings)


def batch_of(program: Program, step: int) -> Array:
    shape = (STAGE.global_batch, STAGE.sequence_length)
    batch = np.random.default_rng(step).integers(0, USED, shape).astype(np.uint32)
    return program.tokens_array(lambda rows: batch[rows])


def test_checksums_that_are_read_after_the_next_step_are_of_the_state_before_it(
    program: Program, trained: Tree
) -> None:
    """A save waits for them beside the steps that follow, which take the state's memory."""
    state = on_devices(program, trained)
    read = program.checksums(state)
    _, metrics = program.step(state, batch_of(program, 5), RATE)
    assert metrics.read().finite
    assert jax.tree.leaves(state)[0].is_deleted()
    assert read() == {
        path: (array.dtype.name, array.shape, checksum(array)) for path, array in by_path(trained).items()
    }


def by_path(state: Tree) -> dict[str, Any]:
    flat, _ = jax.tree_util.tree_flatten_with_path(state)
    return {"/".join(key.key for key in path): array for path, array in flat}


def bits(state: Tree) -> dict[str, bytes]:
    return {path: array.tobytes() for path, array in by_path(state).items()}


def with_window(state: Tree, **changes: Any) -> Tree:
    return {**state, "opt": {**state["opt"], "window": {**state["opt"]["window"], **changes}}}


def with_low_losses(state: Tree) -> Tree:
    """So that the next step is an outlier."""
    return with_window(state, loss=np.array([0.1, 0.11, 0.1, 0.12], np.float32), count=np.int32(4))


def one_nan(params: Tree) -> None:
    params["layers"]["mlp"]["down"][0, 3, 5] = np.nan


def infinities(params: Tree) -> None:
    params["embedding"]["table"][:USED, 2] = np.inf


def overflowing_squares(params: Tree) -> None:
    """Logits so large that the loss is finite, and its gradient too, but not the sum of its squares."""
    params["head"]["kernel"] *= np.float32(1e17)


@pytest.mark.parametrize(
    ("damage", "finite_loss"), [(one_nan, False), (infinities, False), (overflowing_squares, True)]
)
def test_nan_minus_mean_is_never_above_six_sigma_so_what_is_not_finite_is_refused_on_its_own(
    program: Program, trained: Tree, damage: Callable[[Tree], None], finite_loss: bool
) -> None:
    """Not applied, not recorded, not counted, and not reported as skipped: every bit stays."""
    nan = jnp.float32(np.nan)
    window = trained["opt"]["window"]
    assert not skip_step.is_outlier(window, STAGE.optimizer, loss=nan, grad_norm=nan, rounded=rounding())
    damaged = {**trained, "params": jax.tree.map(np.copy, trained["params"])}
    damage(damaged["params"])
    after, result = run(program, damaged, step=5)
    assert (np.isfinite(result.total), np.isfinite(result.grad_norm)) == (finite_loss, False)
    assert (result.finite, result.skipped) == (False, False)
    assert bits(after) == bits(damaged)


def test_a_skipped_step_changes_the_window_and_no_other_bit(program: Program, trained: Tree) -> None:
    before = with_low_losses(trained)
    after, result = run(program, before, step=5)
    assert (result.finite, result.skipped) == (True, True)
    changed = {path for path, now in bits(after).items() if now != bits(before)[path]}
    assert changed == {"opt/window/loss", "opt/window/grad_norm", "opt/window/count"}
    assert after["opt"]["window"]["loss"][0] == result.ce
    assert after["opt"]["window"]["grad_norm"][0] == result.grad_norm


def test_the_applied_count_does_not_count_skipped_steps(program: Program, trained: Tree) -> None:
    """Nor does bias correction: the update after a skip is the one that there would have been without it."""
    skipped, _ = run(program, with_low_losses(trained), step=5)
    assert (int(trained["opt"]["applied"]), int(skipped["opt"]["applied"])) == (5, 5)
    after, result = run(program, with_window(skipped, count=np.int32(0)), step=6)
    assert not result.skipped
    assert int(after["opt"]["applied"]) == 6
    direct, _ = run(program, trained, step=6)
    assert bits(after["params"]) == bits(direct["params"])


def test_the_window_holds_cross_entropy_and_norm_of_the_last_steps(program: Program) -> None:
    state = host(program.init_state(7))
    results: list[StepResult] = []
    for step in range(6):
        state, result = run(program, state, step=step)
        results.append(result)
    window = state["opt"]["window"]
    assert int(window["count"]) == 6
    last = [results[number] for number in (4, 5, 2, 3)]
    assert window["loss"].tolist() == [float(result.ce) for result in last]
    assert window["grad_norm"].tolist() == [float(result.grad_norm) for result in last]
    assert all(result.total > result.ce for result in results)


def test_the_window_survives_the_way_to_the_host_and_back_bit_for_bit(program: Program, trained: Tree) -> None:
    """A NaN's payload, -0.0 and a subnormal too."""
    odd = np.array([0x7FC12345, 0x80000000, 0x00000001, 0x3F800001], np.uint32).view(np.float32)
    before = with_window(trained, loss=odd, grad_norm=odd[::-1].copy(), count=np.int32(2**31 - 1))
    shardings = jax.tree.map(lambda target: target.sharding, program.abstract_state)
    assert bits(host(jax.device_put(before, shardings))) == bits(before)


def test_an_update_is_adamw_of_the_clipped_mean_gradient_and_decays_all_but_the_embedding(program: Program) -> None:
    optimizer = STAGE.optimizer
    before = host(program.init_state(7))
    after, result = run(program, before, step=0)
    old, new, first, second = (
        {path: array.astype(np.float64) for path, array in by_path(tree).items()}
        for tree in (before["params"], after["params"], after["opt"]["m"], after["opt"]["v"])
    )
    unbiased = {path: m / (1 - optimizer.beta1) for path, m in first.items()}
    norm = np.sqrt(np.sum([(grad**2).sum() for grad in unbiased.values()]))
    np.testing.assert_allclose(norm, min(optimizer.clip_norm, float(result.grad_norm)), rtol=1e-5)
    for path, grad in unbiased.items():
        np.testing.assert_allclose(second[path], (1 - optimizer.beta2) * grad**2, rtol=1e-5, atol=1e-20)
        decay = 0.0 if path == "embedding/table" else RATE * optimizer.weight_decay
        root = np.sqrt(second[path] / (1 - optimizer.beta2)) + optimizer.eps
        np.testing.assert_allclose(new[path], old[path] * (1 - decay) - RATE * grad / root, rtol=1e-5, atol=1e-8)


def test_embedding_rows_of_tokens_that_never_came_keep_their_initial_bits(program: Program, trained: Tree) -> None:
    initial_table = host(program.init_state(7))["params"]["embedding"]["table"]
    table = trained["params"]["embedding"]["table"]
    assert table[USED:].tobytes() == initial_table[USED:].tobytes()
    assert (table[:USED] != initial_table[:USED]).all()
