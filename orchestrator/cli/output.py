"""What commands print: a document as JSON, or text for a person."""

import json
import sys
from collections.abc import Iterable

import click
from rich.console import Console, RenderableType

from orchestrator.contract.base import Document


def print_document(document: Document) -> None:
    """The canonical bytes on standard output."""
    click.echo(document.to_bytes(), nl=False)


def print_json_line(document: Document) -> None:
    """One document a line, for what goes on: ``--follow`` and ``--watch``."""
    body = {"schema": f"{document.KIND}/{document.VERSION}", **document.model_dump(mode="json")}
    click.echo(json.dumps(body, ensure_ascii=False, sort_keys=True))


def print_lines(lines: Iterable[str]) -> None:
    for line in lines:
        click.echo(line)


def print_table(table: RenderableType) -> None:
    """A table as wide as the terminal; into a pipe, as wide as it needs to be."""
    console().print(table)


def console() -> Console:
    """Standard output; not narrower than its content when nobody looks at it."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else 240)


def note(text: str) -> None:
    """Something that a person should know and that is not the answer: on standard error."""
    click.echo(f"everstep: {text}", err=True)
