"""A folder as a person has it before a submit: run.yaml, recipe.yaml, a fleet, tokens; and calling ``everstep``."""

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from click.testing import CliRunner, Result

from orchestrator.cli.main import main
from orchestrator.cli.schemas import document_types
from orchestrator.contract.base import Document
from orchestrator.store.local import LocalStore
from orchestrator.store.run_store import RunStore

VOCABULARY = 32

RECIPE: dict[str, Any] = {
    "name": "tiny",
    "model": {
        "vocab_size": VOCABULARY,
        "d_model": 8,
        "n_layers": 4,
        "n_heads": 4,
        "n_kv_heads": 4,
        "head_dim": 2,
        "d_ff": 16,
        "sliding_window": 8,
    },
    "stages": [
        {
            "name": "pretrain",
            "steps": 12,
            "virtual_ranks": 4,
            "sequence_length": 8,
            "data": {"files": [{"path": "text.u32"}]},
            "schedule": {"peak": 1e-3},
        }
    ],
}
PLACEMENTS: list[dict[str, Any]] = [
    {"name": "full", "pool": "main", "generation": "cpu", "hosts": 4, "devices_per_host": 1},
    {"name": "quarter", "pool": "main", "generation": "cpu", "hosts": 1, "devices_per_host": 1},
]
RUN: dict[str, Any] = {
    "name": "demo",
    "store": "store",
    "fleet": "fleet",
    "data_root": "data",
    "recipe": "recipe.yaml",
    "policy": {"placements": PLACEMENTS},
    "trainer": ["trainer"],
    "scrub": [],
}
FLEET: dict[str, Any] = {"pools": [{"name": "main", "generation": "cpu", "hosts": 4, "devices_per_host": 1}]}


class CliFolder:
    """The folder; ``run``, ``recipe`` and ``fleet`` may be changed before ``write``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.run = copy.deepcopy(RUN)
        self.recipe = copy.deepcopy(RECIPE)
        self.fleet = copy.deepcopy(FLEET)
        self.tokens(np.arange(512) % VOCABULARY)

    @property
    def run_yaml(self) -> Path:
        return self.path / "run.yaml"

    @property
    def stage(self) -> dict[str, Any]:
        stage: dict[str, Any] = self.recipe["stages"][0]
        return stage

    @property
    def store(self) -> RunStore:
        return RunStore(LocalStore(self.path / "store"), self.run["name"])

    def tokens(self, ids: Any, *, name: str = "text.u32", torn: bytes = b"") -> None:
        (self.path / "data").mkdir(exist_ok=True)
        (self.path / "data" / name).write_bytes(np.asarray(ids, "<u4").tobytes() + torn)

    def write(self) -> "CliFolder":
        (self.path / "fleet").mkdir(exist_ok=True)
        self.run_yaml.write_text(yaml.safe_dump(self.run))
        (self.path / "recipe.yaml").write_text(yaml.safe_dump(self.recipe))
        (self.path / "fleet" / "fleet.yaml").write_text(yaml.safe_dump(self.fleet))
        return self

    def submit(self, *arguments: str) -> Result:
        return everstep("submit", str(self.write().run_yaml), "--no-controller", *arguments)

    def call(self, *arguments: str) -> Result:
        """A command on the folder's store."""
        return everstep(*arguments, "--store", str(self.path / "store"))

    def files(self) -> dict[str, bytes]:
        """Everything in the store, by name."""
        store = self.path / "store"
        found = [path for path in store.rglob("*") if path.is_file() and ".tmp" not in path.parts]
        return {path.relative_to(store).as_posix(): path.read_bytes() for path in found}


def everstep(*arguments: str) -> Result:
    """Run a command in this process."""
    return CliRunner().invoke(main, list(arguments), catch_exceptions=False)


def error_line(result: Result) -> str:
    """The one line on standard error that a failed command says; anything else there fails the test."""
    lines = result.stderr.splitlines()
    assert len(lines) == 1, f"expected one line, got {result.stderr!r}"
    assert lines[0].startswith("everstep: "), lines[0]
    return lines[0].removeprefix("everstep: ")


def outcome(result: Result) -> tuple[int, Sequence[str]]:
    """Exit code and standard output's lines, without padding."""
    return result.exit_code, [" ".join(line.split()) for line in result.stdout.splitlines()]


def document(result: Result) -> Document:
    """The JSON on standard output, read strictly as the document that it says it is."""
    kind = json.loads(result.stdout)["schema"].partition("/")[0]
    (model,) = [model for model in document_types() if kind == model.KIND]
    return model.from_bytes(result.stdout.encode(), where="standard output")
