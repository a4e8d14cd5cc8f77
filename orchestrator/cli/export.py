"""``everstep export``: the merged loss curve, each step once."""

from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import click

from orchestrator.cli.errors import BadInput
from orchestrator.cli.options import json_option, run_argument, store_option
from orchestrator.cli.output import print_document, print_lines
from orchestrator.cli.stores import open_run, open_store
from orchestrator.contract.base import Document
from orchestrator.reports.curve import curve
from orchestrator.reports.table import ExportError, write_csv
from orchestrator.reports.tensorboard import write_tensorboard


class Exported(Document):
    """What ``everstep export --json`` says."""

    KIND: ClassVar[str] = "exported"

    run: str
    steps: dict[str, int]
    """Steps written, by file or folder."""


@click.command()
@run_argument
@store_option
@click.option("--csv", "csv_file", type=click.Path(path_type=Path), metavar="FILE", help="Write a CSV file.")
@click.option(
    "--tensorboard", "folder", type=click.Path(path_type=Path), metavar="FOLDER", help="Write TensorBoard events."
)
@click.option("--force", is_flag=True, help="Replace what is there.")
@json_option(schema="exported")
def export(run: str, store: str | None, csv_file: Path | None, folder: Path | None, force: bool, as_json: bool) -> None:
    """Write the loss curve of a run: each step once, by the record that counts, however often it was computed.

    \b
    Examples:
      everstep export demo --csv curve.csv
      everstep export demo --tensorboard logs/demo
    """
    if csv_file is None and folder is None:
        raise BadInput("export to what? pass --csv FILE or --tensorboard FOLDER")
    run_store = open_run(open_store(store), run)
    steps = {}
    if csv_file is not None:
        steps[str(csv_file)] = _written(lambda: write_csv(curve(run_store), csv_file, force=force))
    if folder is not None:
        steps[str(folder)] = _written(lambda: write_tensorboard(curve(run_store), folder, force=force))
    if as_json:
        print_document(Exported(run=run, steps=steps))
    else:
        print_lines(f"{path}: {count:,} steps" for path, count in steps.items())


def _written(write: Callable[[], int]) -> int:
    try:
        return write()
    except ExportError as error:
        raise BadInput(str(error)) from error
    except OSError as error:
        raise BadInput(f"{error.filename}: {error.strerror or error}; name another place") from error
