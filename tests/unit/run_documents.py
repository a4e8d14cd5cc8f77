"""What a small run computes: its recipe, its placements, and the one set of true bits of each step."""

import struct
from collections.abc import Collection, Mapping
from typing import Any

from orchestrator.contract.base import sha256_of
from orchestrator.contract.ledger import Fingerprint, Record, bits_of
from orchestrator.contract.recipe import Data, Model, Recipe, Schedule, Stage, TokenFile
from orchestrator.contract.run import Placement
from orchestrator.reports.tokens import Reading

RANKS = 4
FULL = Placement(name="full", pool="pool", generation="cpu", hosts=4, devices_per_host=1)
QUARTER = Placement(name="quarter", pool="pool", generation="cpu", hosts=1, devices_per_host=1)
OTHER = Placement(name="other", pool="pool", generation="cpu2", hosts=2, devices_per_host=1)
PLACEMENTS = {placement.name: placement for placement in (FULL, QUARTER, OTHER)}


def recipe_of(stages: Mapping[str, int], *, seed: int = 0, ranks: int = RANKS) -> Recipe:
    """A small recipe: steps by stage name."""
    model = Model(vocab_size=32, d_model=8, n_layers=4, n_heads=4, n_kv_heads=4, head_dim=2, d_ff=16, sliding_window=8)
    return Recipe(
        name="tiny",
        seed=seed,
        model=model,
        stages=tuple(
            Stage(
                name=name,
                steps=steps,
                virtual_ranks=ranks,
                sequence_length=8,
                data=Data(files=(TokenFile(path=f"{name}.u32", sha256="1" * 64, tokens=4096),)),
                schedule=Schedule(peak=1e-3),
            )
            for name, steps in stages.items()
        ),
    )


def fingerprint(label: str) -> Fingerprint:
    """A fingerprint of its own for each label."""
    return Fingerprint(numerics=sha256_of(f"numerics {label}".encode()), leaf=sha256_of(f"leaf {label}".encode()))


def flipped(bits: str, bit: int) -> str:
    """A hexadecimal word with one bit changed."""
    return f"{int(bits, 16) ^ (1 << bit):0{len(bits)}x}"


def true_record(
    step: int, *, attempt: int = 1, label: str = "a", started: float = 0.0, seed: int = 0, **change: Any
) -> Record:
    """What step ``step`` computes; ``change`` replaces fields."""
    loss = 4.0 - step / 64 + seed
    fields: dict[str, Any] = {
        "step": step,
        "attempt": attempt,
        "ce": bits_of(loss),
        "z_loss": bits_of(0.125),
        "total": bits_of(loss + 0.125),
        "ce_by_rank": tuple(bits_of(loss + rank / 32) for rank in range(RANKS)),
        "grad_norm": bits_of(1.0 + step),
        "gradient": sha256_of(struct.pack("<qq", step, seed))[:16],
        "tokens": sha256_of(struct.pack("<qqq", step, seed, 1))[:16],
        "learning_rate": bits_of(1e-3),
        "skipped": False,
        "finite": True,
        "fingerprint": fingerprint(label).key,
        "started": started,
        "seconds": 1.0,
        "data_seconds": 0.125,
    }
    return Record.model_validate({**fields, **change})


class TrueTokens:
    """Token files that give what ``true_record`` has, except for steps that are ``wrong``; ``asked`` are all steps."""

    def __init__(self, *, wrong: Collection[int] = ()) -> None:
        self.wrong = wrong
        self.asked: list[int] = []

    def checksum_of(self, recipe: Recipe, step: int) -> str:
        self.asked.append(step)
        return "0" * 16 if step in self.wrong else true_record(step).tokens

    def readings_of(self, recipe: Recipe, step: int) -> tuple[Reading, ...]:
        return (Reading(virtual_rank=0, file="pretrain.u32", token=8 * step),)
