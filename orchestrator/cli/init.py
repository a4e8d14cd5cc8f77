"""``everstep init``: an example that works on this machine, with comments."""

import sysconfig
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import ClassVar

import click
import numpy as np

from orchestrator.cli.encoders import END_OF_DOCUMENT, Ids, ended, ids_of_bytes
from orchestrator.cli.errors import BadInput
from orchestrator.cli.options import json_option
from orchestrator.cli.output import print_document, print_lines
from orchestrator.cli.yaml_files import checked
from orchestrator.contract.base import Document

SOURCE_BYTES = {"text.u32": 2 << 20, "anneal.u32": 1 << 19}
"""How much text each token file holds; a token is a byte."""
FILES = {"run.yaml": "run.yaml", "recipe.yaml": "recipe.yaml", "fleet.yaml": "fleet/fleet.yaml"}
"""Where each file of the example goes."""


class Initialised(Document):
    """What ``everstep init --json`` says."""

    KIND: ClassVar[str] = "initialised"

    folder: str
    files: tuple[str, ...]


@click.command()
@click.argument("folder", metavar="FOLDER", type=click.Path(path_type=Path, file_okay=False))
@click.option("--name", metavar="NAME", help="Of the run.  [default: the folder's name]")
@json_option(schema="initialised")
def init(folder: Path, name: str | None, as_json: bool) -> None:
    """Write an example that works: run.yaml, recipe.yaml, a local fleet, and a little text as tokens.

    The text is the Python library's own source. Every field of the files is explained in them.

    \b
    Example:
      everstep init example && cd example && everstep submit run.yaml --watch

    Exit codes: 0 written; 2 the folder has files of that name already, and nothing was changed.
    """
    run = _run_name(folder, name)
    targets = [*FILES.values(), *(f"data/{file}" for file in SOURCE_BYTES)]
    there = [target for target in targets if (folder / target).exists()]
    if there:
        raise BadInput(f"{folder / there[0]} exists already; choose another folder, nothing was changed")
    try:
        write_example(folder, run=run)
    except OSError as error:
        raise BadInput(f"{error.filename}: {error.strerror or error}; choose another folder") from error
    if as_json:
        print_document(Initialised(folder=str(folder.absolute()), files=tuple(targets)))
        return
    print_lines([f"wrote {', '.join(targets)} in {folder}", "next:", f"  cd {folder}"])
    print_lines(
        [
            "  everstep plan run.yaml                     # what it needs",
            "  everstep submit run.yaml --watch           # start it",
            "  everstep drill kill-host main/h1           # from another terminal: disturb it",
            f"  everstep why {run} && everstep verify {run}",
        ]
    )


def write_example(folder: Path, *, run: str) -> None:
    """Write all files of the example; ``run`` is the run's name.

    Raises:
        BadInput: the Python library's sources are not on this machine.
        OSError: a file cannot be written.
    """
    for source, target in FILES.items():
        text = resources.files("orchestrator.cli").joinpath("example", source).read_text(encoding="utf-8")
        path = folder / target
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("NAME", run), encoding="utf-8")
    (folder / "data").mkdir(exist_ok=True)
    documents = _sources()
    for name, size in SOURCE_BYTES.items():
        (folder / "data" / name).write_bytes(_tokens(documents, size))


def _sources() -> Iterator[bytes]:
    """The Python library's top-level modules, which every machine with Python has."""
    library = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(library.glob("*.py")):
        yield path.read_bytes()


def _tokens(documents: Iterator[bytes], size: int) -> bytes:
    """At least ``size`` bytes of whole documents as little-endian uint32."""
    blocks: list[Ids] = []
    count = 0
    while count < size:
        document = next(documents, None)
        if document is None:
            raise BadInput("the Python library's sources are not on this machine; install them, or try another Python")
        blocks.append(ended(ids_of_bytes(document), END_OF_DOCUMENT))
        count += len(document)
    return np.concatenate(blocks).tobytes()


def _run_name(folder: Path, name: str | None) -> str:
    """Raises BadInput: it is no name for a run."""
    from orchestrator.cli.run_file import RunName

    wanted = name if name is not None else folder.absolute().name
    return checked({"name": wanted}, RunName, where="--name" if name is not None else f"{folder} (or pass --name)").name
