"""Our recipe against OLMo-core's own code, as ``tests/reference/make_core.py`` recorded it."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array
from numpy.typing import NDArray

from orchestrator.cli.yaml_files import read_yaml
from orchestrator.contract.recipe import Data, Optimizer, Recipe, Schedule, Stage, TokenFile
from orchestrator.contract.shipped import shipped
from orchestrator.order.global_order import GlobalOrder, permutation
from trainer.optim import adamw, skip_step
from trainer.optim.schedule import learning_rate
from trainer.parallel.reduction import compiler_options, rounding

Tree = Any
Arrays = Mapping[str, NDArray[Any]]

CORE = Path(__file__).parents[1] / "reference" / "data" / "core.npz"
CLOSE = 1e-6
"""Largest difference of a weight or moment, relative to the largest one of the same tensor and step."""
DECAYED = {"embeddings": False, "head": True}


@pytest.fixture(scope="module")
def core() -> Arrays:
    with np.load(CORE) as file:
        return dict(file)


def stage(schedule: Schedule, **changes: Any) -> Stage:
    base: dict[str, Any] = {
        "name": "only",
        "steps": 1,
        "virtual_ranks": 1,
        "sequence_length": 2,
        "data": Data(files=(TokenFile(path="none"),)),
    }
    return Stage(**{**base, **changes}, schedule=schedule)


# --- steps of the optimizer ---

STAGES = {
    "official": stage(Schedule(peak=3e-4, warmup_steps=20), steps=220),
    "short": stage(
        Schedule(kind="linear", peak=2e-3, final_fraction=0.0),
        optimizer=Optimizer(skip_window=8, skip_after=4, skip_sigma=3.0),
        steps=50,
    ),
}


@dataclass(frozen=True, kw_only=True)
class Series:
    """Steps of OLMo-core's optimizer, and of ours on the same losses and gradients."""

    theirs: Arrays
    skipped: list[bool]
    rates: list[np.float32]
    after: dict[str, NDArray[np.float32]]
    """Our weights after each step, [steps, …]."""
    state: Tree
    """Ours at the end."""


@pytest.fixture(scope="module", params=STAGES)
def series(core: Arrays, request: pytest.FixtureRequest) -> Series:
    of = STAGES[request.param]
    theirs = part(core, f"{request.param}/")
    state = fresh({key: theirs[f"initial/{key}"] for key in DECAYED}, window=of.optimizer.skip_window)
    rates = [learning_rate(of, update=step + 1) for step in range(of.steps)]
    skipped, after = [], []
    for step, rate in enumerate(rates):
        gradients = {key: theirs[f"gradient/{key}"][step] for key in DECAYED}
        figures = jnp.array([theirs["loss"][step], theirs["grad_norm"][step], rate])
        state, outlier = one_step(of.optimizer, state, gradients, figures)
        skipped.append(bool(outlier))
        after.append(state["params"])
    stacked = {key: np.stack([weights[key] for weights in after]) for key in DECAYED}
    return Series(theirs=theirs, skipped=skipped, rates=rates, after=stacked, state=jax.device_get(state))


def part(core: Arrays, prefix: str) -> Arrays:
    return {key.removeprefix(prefix): value for key, value in core.items() if key.startswith(prefix)}


def fresh(params: Tree, *, window: int) -> Tree:
    none, ring = jax.tree.map(jnp.zeros_like, params), jnp.zeros(window)
    entries = skip_step.Window(loss=ring, grad_norm=ring, count=jnp.int32(0))
    return {"params": params, "first": none, "second": none, "applied": jnp.int32(0), "window": entries}


@functools.partial(jax.jit, static_argnums=0, compiler_options=compiler_options("cpu"))
def one_step(optimizer: Optimizer, state: Tree, gradients: Tree, figures: Array) -> tuple[Tree, Array]:
    """The state after a step and whether it was left out, as ``trainer.step`` goes on from mean gradients.

    ``figures``: cross entropy, gradient norm, learning rate.
    """
    loss, grad_norm, rate = figures
    rounded = rounding()
    outlier = skip_step.is_outlier(state["window"], optimizer, loss=loss, grad_norm=grad_norm, rounded=rounded)
    scalars = adamw.coefficients(
        optimizer, learning_rate=rate, grad_norm=grad_norm, per_target=1.0, applied=state["applied"]
    )
    common: dict[str, Any] = {"optimizer": optimizer, "scalars": scalars, "apply": ~outlier, "rounded": rounded}
    new: Tree = {"params": {}, "first": {}, "second": {}}
    for key, decay in DECAYED.items():
        first, second = adamw.moments(state["first"][key], state["second"][key], gradients[key], **common)
        new["params"][key] = adamw.parameter(state["params"][key], first, second, decay=decay, **common)
        new["first"][key], new["second"][key] = first, second
    new["applied"] = state["applied"] + ~outlier
    new["window"] = skip_step.record(state["window"], loss=loss, grad_norm=grad_norm)
    return new, outlier


def test_the_steps_that_olmo_core_leaves_out_are_left_out(series: Series) -> None:
    """Among them some at 6.01 σ, after others at 5.99, and the first step that can be."""
    assert np.flatnonzero(series.skipped).tolist() == np.flatnonzero(series.theirs["skipped"]).tolist()


def test_weights_after_every_step_are_those_of_olmo_core(series: Series) -> None:
    for key, ours in series.after.items():
        theirs = series.theirs[f"after/{key}"]
        apart = np.abs(ours - theirs).max((1, 2)) / np.abs(theirs).max((1, 2))
        assert apart.max() <= CLOSE, f"{key}: step {apart.argmax() + 1} is the farthest"


def test_moments_at_the_end_are_those_of_olmo_core(series: Series) -> None:
    for moment in ("first", "second"):
        for key, ours in series.state[moment].items():
            theirs = series.theirs[f"{moment}/{key}"]
            assert np.abs(ours - theirs).max() <= CLOSE * np.abs(theirs).max(), f"{moment} moment of {key}"


# --- learning rates ---

MIDTRAINING = 0.00020712352850360292


def test_rates_go_on_over_steps_that_are_left_out_as_in_olmo_core(series: Series) -> None:
    assert series.rates == series.theirs["rate"].astype(np.float32).tolist()


@pytest.mark.parametrize(
    ("name", "schedule"),
    [
        ("cosine", Schedule(peak=3e-4, warmup_steps=2000, decay_steps=1_192_093 - 2000)),
        ("linear", Schedule(kind="linear", peak=MIDTRAINING, decay_steps=47_684, final_fraction=0.0)),
        (
            "linear_warm",
            Schedule(kind="linear", peak=MIDTRAINING, warmup_steps=200, decay_steps=11_921 - 200, final_fraction=0.0),
        ),
    ],
)
def test_rates_of_the_official_schedules_are_those_of_olmo_core_rounded_to_fp32(
    core: Arrays, name: str, schedule: Schedule
) -> None:
    theirs = zip(core[f"rate/{name}/steps"].tolist(), core[f"rate/{name}/rates"].astype(np.float32), strict=True)
    wrong = {step: (rate, learning_rate(stage(schedule), update=step)) for step, rate in theirs}
    assert {step: both for step, both in wrong.items() if both[0] != both[1]} == {}


@pytest.mark.parametrize(("name", "index", "beyond"), [("cosine", 0, 0), ("half_cosine", 0, 597_046), ("linear", 1, 0)])
def test_the_shipped_recipe_has_the_rates_of_olmo_core(core: Arrays, name: str, index: int, beyond: int) -> None:
    """The first schedule up to its hard stop, the second beyond it; midtraining is a stage of its own."""
    of = read_yaml(shipped()["olmo3-7b"], Recipe).stages[index]
    until = 597_046 if name == "cosine" else of.steps
    theirs = zip(core[f"rate/{name}/steps"].tolist(), core[f"rate/{name}/rates"].astype(np.float32), strict=True)
    within = [(step, rate) for step, rate in theirs if beyond < step <= until]
    assert len(within) > 10
    assert [(step, learning_rate(of, update=step)) for step, _ in within] == within


# --- order of the data ---


def order_of(core: Arrays) -> GlobalOrder:
    """Their epochs count from 1, ours from 0: the order of a run of theirs has their seed + 1 here."""
    files = [TokenFile(path=f"{n}.u32", tokens=count) for n, count in enumerate(core["order/file_tokens"].tolist())]
    data = Data(files=tuple(files), seed=int(core["order/seed"]) + 1)
    length, rows = int(core["order/length"]), core["order/batches/1"].shape[1]
    return GlobalOrder(stage(Schedule(peak=1.0), data=data, virtual_ranks=rows, sequence_length=length))


def batches_of(order: GlobalOrder, *, epoch: int) -> NDArray[np.uint32]:
    """All of their epoch, [batches, rows]."""
    count = order.batches_an_epoch
    return np.stack([order.batch((epoch - 1) * count + batch) for batch in range(count)])


@pytest.mark.parametrize("epoch", [1, 2])
def test_an_epoch_is_the_permutation_of_olmo_core(core: Arrays, epoch: int) -> None:
    theirs = core[f"order/indices/{epoch}"]
    assert permutation(len(theirs), seed=int(core["order/seed"]) + epoch).tolist() == theirs.tolist()


@pytest.mark.parametrize("epoch", [1, 2])
def test_batches_are_those_of_olmo_core_row_by_row(core: Arrays, epoch: int) -> None:
    assert batches_of(order_of(core), epoch=epoch).tolist() == core[f"order/batches/{epoch}"].tolist()


@pytest.mark.parametrize("epoch", [1, 2])
def test_rows_of_a_batch_are_those_of_the_ranks_of_olmo_core_in_turn(core: Arrays, epoch: int) -> None:
    """Rank r of 4 takes rows r, r + 4, …, and a virtual rank of ours consecutive ones: the batch is the same."""
    by_rank = core[f"order/by_rank/{epoch}"]
    ours = batches_of(order_of(core), epoch=epoch)
    assert [ours[:, rank :: len(by_rank)].tolist() for rank in range(len(by_rank))] == by_rank.tolist()


@pytest.mark.parametrize("epoch", [1, 2])
def test_an_instance_begins_at_the_token_where_olmo_core_reads_it(core: Arrays, epoch: int) -> None:
    """Token t of file f is 10,000 f + t."""
    order = order_of(core)
    places = [order.place(instance) for instance in core[f"order/batches/{epoch}"].ravel().tolist()]
    assert [10_000 * place.file + place.token for place in places] == core[
        f"order/first_tokens/{epoch}"
    ].ravel().tolist()
