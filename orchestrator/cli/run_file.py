"""``run.yaml``: a run as a person describes it, and what it names, found."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from orchestrator.cli.yaml_files import checked, read_yaml
from orchestrator.contract.base import Part
from orchestrator.contract.names import Argument, Location, ZygoteModules
from orchestrator.contract.recipe import Name, Recipe
from orchestrator.contract.run import Policy

DEFAULT_NAME = "run.yaml"


class RunName(Part):
    """A name by itself."""

    name: Name


class RunFile(Part):
    """A run.yaml. Paths are relative to the folder that the file is in."""

    name: Name
    """Of the run; its folder in the store."""
    store: Location
    """Folder of the object store; made when it is missing."""
    fleet: Location
    """Folder of a local fleet, with a fleet.yaml in it."""
    data_root: Location
    """Folder that the recipe's token files are relative to, or ``gs://bucket/folder``."""
    recipe: Location
    """The recipe's file."""
    policy: Policy
    """What may change later; see ``everstep policy``."""
    leaf_plans: dict[Name, dict[str, Any]] = Field(default_factory=dict)
    """The trainer's settings for a leaf, by generation; a generation that is not named has none."""
    trainer: Annotated[tuple[Argument, ...], Field(min_length=1)] | None = None
    """The trainer's command; without it, Everstep's own trainer with this Python."""
    zygote: ZygoteModules | None = None
    """``<module>:<trainer module>``, see the run document; without it, Everstep's own for Everstep's own trainer."""
    check: tuple[Argument, ...] | None = None
    """The command that checks leaf plans; without it, Everstep's own for Everstep's own trainer; []: none."""
    scrub: tuple[Argument, ...] | None = None
    """The command that reads a checkpoint back; without it, Everstep's own with this Python; []: none."""
    prepare: tuple[Argument, ...] | None = None
    """The command that compiles ahead; without it, Everstep's own for Everstep's own trainer; []: none."""


@dataclass(frozen=True, kw_only=True)
class RunDescription:
    """A run.yaml with everything in it resolved."""

    where: Path
    """The file itself."""
    file: RunFile
    recipe: Recipe
    """As written: token files may have no hash and length yet."""
    name: str
    store: str
    fleet: Path
    data_root: str
    """A folder, or ``gs://bucket/folder``."""
    recipe_path: Path
    trainer: tuple[str, ...]
    check: tuple[str, ...]
    scrub: tuple[str, ...]
    prepare: tuple[str, ...]
    zygote: str | None

    @property
    def policy(self) -> Policy:
        return self.file.policy


def read_run(path: Path, *, name: str | None = None, store: str | None = None) -> RunDescription:
    """Read run.yaml and the recipe that it names; ``name`` and ``store`` replace what it says.

    Raises:
        BadInput: a file or a field is wrong; one line.
    """
    where = path / DEFAULT_NAME if path.is_dir() else path
    file = run_file_at(where)
    if name is not None:
        file = _named(file, name)
    folder = where.absolute().parent
    recipe_path = _below(folder, file.recipe)
    python = (sys.executable, "-P", "-m")  # -P: nothing is imported from the working folder
    return RunDescription(
        where=where,
        file=file,
        recipe=read_yaml(recipe_path, Recipe),
        name=file.name,
        store=store or _address(folder, file.store),
        fleet=_below(folder, file.fleet),
        data_root=_address(folder, file.data_root),
        recipe_path=recipe_path,
        trainer=file.trainer or (*python, "trainer.train"),
        zygote=file.zygote or (None if file.trainer else "trainer.zygote:trainer.train"),
        check=file.check if file.check is not None else () if file.trainer else (*python, "trainer.check"),
        prepare=file.prepare if file.prepare is not None else () if file.trainer else (*python, "trainer.prepare"),
        scrub=(*python, "trainer.checkpoint.scrub") if file.scrub is None else file.scrub,
    )


def run_file_at(path: Path) -> RunFile:
    """A run.yaml by itself, without what it names. Raises BadInput."""
    return read_yaml(path, RunFile)


def _named(file: RunFile, name: str) -> RunFile:
    """The same run under another name. Raises BadInput: no name for a run."""
    return checked({**file.model_dump(mode="json"), "name": name}, RunFile, where="--name")


def _address(folder: Path, given: str) -> str:
    return given if "://" in given else str(_below(folder, given))


def _below(folder: Path, given: str) -> Path:
    return folder / Path(given).expanduser()
