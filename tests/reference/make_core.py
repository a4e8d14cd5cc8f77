"""What OLMo-core itself computes of Olmo 3's recipe: the numbers that the tests of ours are held against.

    python tests/reference/make_core.py            make data/core.npz anew
    python tests/reference/make_core.py --check    make it in memory and compare with what is committed; 1 if it differs

Made with ai2-olmo-core 3.0.0 and its PyTorch, 2.13, on a CPU. Everything goes through their own code: the optimizer
that ``SkipStepAdamWConfig`` builds for the official groups, a step as their train module takes it (norm, clipping,
rate, optimizer, in that order), their data loader on token files, their schedulers, and their trainer's count of steps.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from olmo_core.data import NumpyFSLDataset
from olmo_core.data.collator import DataCollator
from olmo_core.data.data_loader import NumpyDataLoaderBase, NumpyFSLDataLoader
from olmo_core.optim import (
    CosWithWarmup,
    HalfCosWithWarmup,
    LinearWithWarmup,
    OptimGroupOverride,
    SkipStepAdamWConfig,
)
from olmo_core.optim.scheduler import Scheduler
from olmo_core.train import Duration, Trainer
from olmo_core.train.train_module import TransformerTrainModule
from torch import nn

DATA = Path(__file__).parent / "data" / "core.npz"
SEED = 20_261_130
SHAPES = {"embeddings": (6, 5), "head": (7, 4)}
"""Of the two weights; the first is not decayed."""
TOLERANCE = 1e-6
"""For fp32, relative to the largest value of the same array: another processor may round in another way."""

Arrays = dict[str, NDArray[Any]]


# --- steps of the optimizer ---

Spike = tuple[int, Literal["loss", "norm"], float]
"""A step, counted from 1, and how many σ of the entries before it its loss or gradient norm is above their mean."""

OFFICIAL_SPIKES: tuple[Spike, ...] = (
    (20, "loss", 15.0),  # before the window takes part; two steps that widen it until they have left it
    (62, "norm", 25.0),
    (63, "loss", 20.0),
    (64, "loss", 6.2),  # the first step that can be left out
    (80, "norm", 9.0),
    (81, "norm", 9.0),
    (90, "loss", 5.99),  # n - 1 and n in the denominator differ by more than these two
    (91, "loss", 6.01),
    (110, "loss", -12.0),
    (140, "norm", 5.99),
    (141, "norm", 6.01),
    (170, "loss", 5.99),  # step 20 has left the window
    (171, "loss", 6.01),
    (200, "loss", 40.0),
    (201, "norm", 40.0),
    (202, "loss", 3.0),
)
SHORT_SPIKES: tuple[Spike, ...] = (
    (3, "loss", 30.0),
    (4, "loss", 3.2),
    (13, "norm", 2.9),
    (14, "norm", 3.1),
    (25, "loss", 50.0),
    (26, "loss", 50.0),
    (40, "norm", 12.0),
)


class TwoWeights(nn.Module):
    """What the optimizer is built for; ``embeddings.weight`` is the name in the official scripts."""

    def __init__(self, initial: Arrays) -> None:
        super().__init__()
        for name, values in initial.items():
            layer = nn.Module()
            layer.weight = nn.Parameter(torch.from_numpy(values.copy()))
            self.add_module(name, layer)

    def weights(self) -> dict[str, nn.Parameter]:
        return {key.removesuffix(".weight"): value for key, value in self.named_parameters()}

    def post_optim_step(self) -> None:
        """The train module calls it."""


def of_steps(
    name: str,
    *,
    steps: int,
    window: int,
    sigma: int,
    peak: float,
    scheduler: Scheduler,
    spikes: tuple[Spike, ...],
) -> Arrays:
    """Inputs of ``steps`` steps, weights after each of them, and the moments at the end."""
    numbers = np.random.default_rng(SEED)
    initial = {key: (0.02 * numbers.standard_normal(shape)).astype(np.float32) for key, shape in SHAPES.items()}
    losses, norms = entries(numbers, steps=steps, window=window, spikes=spikes)
    gradients = of_norms(numbers, norms)
    model = TwoWeights(initial)
    module = train_module(model, peak=peak, window=window, sigma=sigma, scheduler=scheduler, steps=steps)
    made: Arrays = {"loss": losses, **taken(module, losses, gradients)}
    print(f"{name}: skipped {(np.flatnonzero(made['skipped']) + 1).tolist()}")
    for key, weight in model.weights().items():
        state = module.optim.state[weight]
        made |= {f"initial/{key}": initial[key], f"gradient/{key}": gradients[key]}
        made |= {f"first/{key}": state["exp_avg"].numpy(), f"second/{key}": state["exp_avg_sq"].numpy()}
        assert int(state["step"]) == steps - made["skipped"].sum()
    return {f"{name}/{key}": value for key, value in made.items()}


def taken(module: SimpleNamespace, losses: NDArray[np.float32], gradients: Arrays) -> Arrays:
    """Gradient norm, rate and decision of each step, and the weights after it."""
    weights = module.model.weights()
    rows: list[Arrays] = []
    for step, loss in enumerate(losses):
        for key, weight in weights.items():
            weight.grad = torch.from_numpy(gradients[key][step].copy())
        module.trainer.global_step += 1
        module.optim.latest_loss = torch.tensor(loss)
        TransformerTrainModule.optim_step(module)
        row = {
            "grad_norm": module.optim.latest_grad_norm.numpy().copy(),
            "rate": np.float64(module.optim.param_groups[0]["lr"]),
            "skipped": np.bool_(module.optim.step_skipped),
        }
        rows.append(row | {f"after/{key}": weight.detach().numpy().copy() for key, weight in weights.items()})
    return {key: np.stack([row[key] for row in rows]) for key in rows[0]}


def entries(
    numbers: np.random.Generator, *, steps: int, window: int, spikes: tuple[Spike, ...]
) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """Losses, and gradient norms as they are wanted, [steps] each: level but for noise and spikes."""
    series = {"loss": numbers.normal(3.0, 0.05, steps), "norm": 0.8 * np.exp(numbers.normal(0.0, 0.15, steps))}
    for step, which, far in spikes:
        before = series[which][max(0, step - 1 - window) : step - 1]
        series[which][step - 1] = before.mean() + far * before.std(ddof=1)
    return series["loss"].astype(np.float32), series["norm"]


def of_norms(numbers: np.random.Generator, norms: NDArray[np.float64]) -> dict[str, NDArray[np.float32]]:
    """Gradients of both weights, [steps, …], whose norms together are ``norms``.

    One row of the embedding has none, as that of a token that never comes, and those of another are as small as eps.
    """
    drawn = {key: numbers.standard_normal((len(norms), *shape)) for key, shape in SHAPES.items()}
    drawn["embeddings"][:, 0], drawn["embeddings"][:, 1] = 0.0, 1e-7 * drawn["embeddings"][:, 1]
    lengths = np.sqrt(sum((values**2).sum((1, 2)) for values in drawn.values()))
    factors = (norms / lengths)[:, None, None]
    return {key: (values * factors).astype(np.float32) for key, values in drawn.items()}


def train_module(
    model: TwoWeights, *, peak: float, window: int, sigma: int, scheduler: Scheduler, steps: int
) -> SimpleNamespace:
    """As much of a train module and its trainer as one optimizer step takes."""
    optim = SkipStepAdamWConfig(
        lr=peak,
        weight_decay=0.1,
        betas=(0.9, 0.95),
        step_increment_bugfix=True,
        rolling_interval_length=window,
        sigma_factor=sigma,
        group_overrides=[OptimGroupOverride(params=["embeddings.weight"], opts={"weight_decay": 0.0})],
    ).build(model)

    def nothing(*_: Any, **__: Any) -> None: ...

    module = SimpleNamespace(model=model, optim=optim, scheduler=scheduler, max_grad_norm=1.0, record_metric=nothing)
    module.trainer = SimpleNamespace(global_step=0, max_steps=steps, record_metric=nothing)
    module._clip_grad_norm = lambda limit: TransformerTrainModule._clip_grad_norm(module, limit)
    return module


# --- order of the data ---

FILE_TOKENS = (829, 5, 493)
"""Tokens of the files; their instances of 8 leave 5, 5 and 5 over, and the second has none."""
LENGTH, BATCH, DATA_SEED = 8, 16, 34521
EPOCHS = (1, 2)
WORLD = 4


def of_order() -> Arrays:
    """``indices`` of an epoch; what its batches hold: instances [batches, 16], and the same for 4 ranks [4, …, 4].

    Token t of file f is 10,000 · f + t, so that a first token says where its instance was read.
    """
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{number}.npy" for number in range(len(FILE_TOKENS))]
        for number, (path, tokens) in enumerate(zip(paths, FILE_TOKENS, strict=True)):
            (10_000 * number + np.arange(tokens, dtype="<u4")).tofile(path)
        made: Arrays = {"file_tokens": np.array(FILE_TOKENS), "length": np.array(LENGTH), "seed": np.array(DATA_SEED)}
        for epoch in EPOCHS:
            loader = data_loader(paths, Path(folder), rank=0, world=1)
            loader.reshuffle(epoch)
            made[f"indices/{epoch}"] = np.array(loader.get_global_indices())
            made[f"batches/{epoch}"], made[f"first_tokens/{epoch}"] = read(loader)
            ranks = [data_loader(paths, Path(folder), rank=rank, world=WORLD) for rank in range(WORLD)]
            for one in ranks:
                one.reshuffle(epoch)
            made[f"by_rank/{epoch}"] = np.stack([read(one)[0] for one in ranks])
    print(f"order: {len(made['indices/1'])} instances, {len(made['batches/1'])} batches an epoch")
    return {f"order/{key}": value for key, value in made.items()}


def data_loader(paths: list[Path], folder: Path, *, rank: int, world: int) -> NumpyDataLoaderBase:
    dataset = NumpyFSLDataset(
        *paths,
        sequence_length=LENGTH,
        pad_token_id=100_277,
        eos_token_id=100_257,
        vocab_size=100_278,
        dtype=np.uint32,
        max_target_sequence_length=LENGTH,
    )
    dataset.work_dir = folder
    loader = NumpyFSLDataLoader.wrap_numpy_dataset(
        dataset,
        global_batch_size=BATCH * LENGTH,
        collator=DataCollator(pad_token_id=100_277),
        work_dir=folder,
        seed=DATA_SEED,
        dp_world_size=world,
        dp_rank=rank,
        fs_local_rank=rank,
    )
    assert isinstance(loader, NumpyFSLDataLoader)
    return loader


def read(loader: NumpyDataLoaderBase) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Instances of each batch, and the first token of each."""
    batches = list(loader)
    assert all((np.diff(batch["input_ids"].numpy(), axis=1) == 1).all() for batch in batches)
    instances = np.stack([batch["index"].numpy() for batch in batches])
    first = np.stack([batch["input_ids"][:, 0].numpy() for batch in batches])
    return instances.astype(np.uint32), first.astype(np.uint32)


# --- learning rates ---


def of_rates() -> Arrays:
    """The schedules of the official scripts for 7B, at some 40 steps each, in float64."""
    pretraining = 8192 * 512
    five, seven, middle = steps_of(int(5e12), pretraining), steps_of(int(7e12), pretraining), steps_of(10**11, 2**21)
    stop = int(5e12) // pretraining // 2 + 2000 // 2
    long = steps_of(5 * 10**10, 65536 * 64)  # the published script has the durations of pretraining by mistake
    peak = 0.00020712352850360292
    schedules: dict[str, tuple[Scheduler, float, int, int, int]] = {
        "cosine": (CosWithWarmup(warmup=2000), 3e-4, five, 1, stop),
        # its script begins at the checkpoint of step 596,047 and ends with the epoch
        "half_cosine": (HalfCosWithWarmup(warmup=stop), 3e-4, seven, 596_048, 1_413_814),
        "linear": (LinearWithWarmup(warmup=0, alpha_f=0.0), peak, middle, 1, middle),
        "linear_warm": (LinearWithWarmup(warmup=200, alpha_f=0.0), peak, long, 1, long),
    }
    made: Arrays = {}
    for name, (scheduler, peak, end, first, last) in schedules.items():
        steps = chosen(first=first, last=last, warmup=scheduler.warmup, end=end)
        made[f"{name}/steps"] = steps
        made[f"{name}/rates"] = np.array([scheduler.get_lr(peak, int(step), end) for step in steps], np.float64)
        made[f"{name}/warmup"], made[f"{name}/end"] = np.array(scheduler.warmup), np.array(end)
        print(f"{name}: {len(steps)} steps, {steps[0]} … {steps[-1]}; warm-up {scheduler.warmup}, end {end}")
    return {f"rate/{key}": value for key, value in made.items()}


def steps_of(tokens: int, batch: int) -> int:
    """Steps of a duration in tokens, as their trainer counts them: the last one may go beyond."""
    fresh: Any = SimpleNamespace(global_step=0, global_train_tokens_seen=0, tokens_per_batch=batch)
    steps = Trainer._get_max_steps(fresh, Duration.tokens(tokens))
    assert steps is not None
    return steps


def chosen(*, first: int, last: int, warmup: int, end: int) -> NDArray[np.int64]:
    """Steps around each turn of a schedule, two beyond its end among them, and others from the first to the last."""
    turns = [turn + near for turn in (first, warmup, last, end) for near in (-2, -1, 0, 1, 2)]
    between = np.linspace(first, last, 25).astype(np.int64).tolist()
    return np.array(sorted({step for step in (*turns, *between) if step >= first}))


# --- all of it ---


def make() -> Arrays:
    official = of_steps(
        "official",
        steps=220,
        window=128,
        sigma=6,
        peak=3e-4,
        scheduler=CosWithWarmup(warmup=20),
        spikes=OFFICIAL_SPIKES,
    )
    short = of_steps(
        "short",
        steps=50,
        window=8,
        sigma=3,
        peak=2e-3,
        scheduler=LinearWithWarmup(warmup=0, alpha_f=0.0),
        spikes=SHORT_SPIKES,
    )
    return official | short | of_order() | of_rates()


def agrees(made: Arrays) -> bool:
    """Whether what was made is what is committed: integers exactly, fp32 within ``TOLERANCE``; prints how far it is."""
    with np.load(DATA) as file:
        stored = dict(file)
    if made.keys() != stored.keys():
        print(f"{DATA.name}: other arrays than are committed: {sorted(made.keys() ^ stored.keys())}")
        return False
    kinds: dict[str, Callable[[NDArray[Any], NDArray[Any]], float]] = {
        "f": apart,
        "b": unequal,
        "i": unequal,
        "u": unequal,
    }
    far = {key: kinds[value.dtype.kind](made[key], value) for key, value in stored.items()}
    wrong = {key: value for key, value in far.items() if not value <= TOLERANCE}
    print(f"{DATA.name}: {len(far)} arrays, {max(far.values()):.1e} apart at most ({TOLERANCE:.1e} allowed)")
    for key, value in wrong.items():
        print(f"{DATA.name}: {key}: {value:.1e} apart")
    return not wrong


def apart(made: NDArray[Any], stored: NDArray[Any]) -> float:
    return float(np.abs(made - stored).max() / np.abs(stored).max()) if made.shape == stored.shape else np.inf


def unequal(made: NDArray[Any], stored: NDArray[Any]) -> float:
    return 0.0 if np.array_equal(made, stored) else np.inf


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with what is committed; write nothing")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    made = make()
    if options.check:
        return 0 if agrees(made) else 1
    np.savez_compressed(DATA, **made)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
