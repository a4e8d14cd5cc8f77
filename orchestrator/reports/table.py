"""The loss curve as a CSV file."""

import csv
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from orchestrator.reports.curve import Point


class ExportError(ValueError):
    """An export was refused; the text is one line: why, and what to do."""


def write_csv(points: Iterable[Point], path: Path, *, force: bool = False) -> int:
    """Write a curve with one header line; returns the number of steps.

    The file appears whole or not at all. Numbers are written so that reading them gives the same double; a number that
    is not finite is empty, ``loss_bits`` has it.

    Raises:
        ExportError: the file exists and ``force`` is not given, or its folder does not exist.
    """
    if not path.parent.is_dir():
        raise ExportError(f"{path}: its folder does not exist; create it first")
    if not force and path.exists():
        raise _exists(path)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with open(handle, "w", newline="", encoding="utf-8") as file:
            count = _write(points, csv.DictWriter(file, fieldnames=list(Point.model_fields)))
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        if force:
            os.replace(temporary, path)
        else:
            os.link(temporary, path)
    except FileExistsError as error:
        raise _exists(path) from error
    finally:
        Path(temporary).unlink(missing_ok=True)
    return count


def _write(points: Iterable[Point], writer: "csv.DictWriter[str]") -> int:
    writer.writeheader()
    written = 0
    for point in points:
        writer.writerow(point.model_dump(mode="json"))
        written += 1
    return written


def _exists(path: Path) -> ExportError:
    return ExportError(f"{path}: the file exists; choose another name, or pass --force to replace it")
