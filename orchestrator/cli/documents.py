"""Documents of text out of files: a .txt is one, and so is each line of a .jsonl or .jsonl.gz, in one of its fields."""

import gzip
import json
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO

from orchestrator.cli.errors import BadInput

WHOLE = (".txt",)
LINES = (".jsonl", ".jsonl.gz", ".json.gz")
"""The last is what dolma calls its files of lines."""

Read = Callable[[int], None]
"""(bytes of the file just read)."""


def text_files(given: Iterable[Path]) -> list[Path]:
    """The files, and those in the folders, in the order of their paths there.

    Raises:
        BadInput: one is missing, named twice, or of another kind; a folder has none.
    """
    found: dict[Path, None] = {}
    for path in given:
        inner = (
            sorted(file for file in path.rglob("*") if _is_text(file) and file.is_file()) if path.is_dir() else [path]
        )
        if not inner:
            raise BadInput(f"{path}: no {', '.join(WHOLE + LINES)} is in this folder; name another")
        for file in inner:
            if not file.is_file():
                raise BadInput(f"{file}: no such file or folder; name text files, or folders with some")
            if not _is_text(file):
                raise BadInput(f"{file}: read are {', '.join(WHOLE + LINES)}; unpack or convert it first")
            if not str(file).isprintable():
                raise BadInput(f"{str(file)!r:.300}: has a control character in its name; rename it")
            if file in found:
                raise BadInput(f"{file}: is named twice; name it once")
            found[file] = None
    return list(found)


def documents(path: Path, *, field: str, read: Read) -> Iterator[str]:
    """The texts of a file, in order; empty ones too.

    Raises:
        BadInput: it cannot be read, is not UTF-8, or a line has no such text; names file, line and remedy.
    """
    try:
        with path.open("rb") as raw:
            if path.name.endswith(WHOLE):
                data = raw.read()
                read(len(data))
                yield _decoded(data, where=str(path))
            else:
                yield from _of_lines(path, raw, field=field, read=read)
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise BadInput(f"{path}: {reason}; restore the file, or leave it out") from error


def _of_lines(path: Path, raw: IO[bytes], *, field: str, read: Read) -> Iterator[str]:
    lines: Iterable[bytes] = gzip.GzipFile(fileobj=raw) if path.name.endswith(".gz") else raw
    seen = 0
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield _text_of(line, field=field, where=f"{path}, line {number:,}")
        read(raw.tell() - seen)
        seen = raw.tell()


def _text_of(line: bytes, *, field: str, where: str) -> str:
    try:
        row = json.loads(_decoded(line, where=where))
    except (json.JSONDecodeError, RecursionError) as error:
        raise BadInput(f"{where}: not valid JSON ({error}); correct the line") from error
    text = row.get(field) if isinstance(row, dict) else None
    if not isinstance(text, str):
        there = [name for name, value in row.items() if isinstance(value, str)] if isinstance(row, dict) else []
        raise BadInput(f"{where}: has no text {field!r:.60}, but {there!r:.200}; name the field: --field NAME")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadInput(f"{where}: {field!r:.60} has half a character ({error.reason}); correct the line") from error
    return text


def _decoded(data: bytes, *, where: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise BadInput(f"{where}: byte {error.start:,} is not UTF-8 ({error.reason}); convert it first") from error


def _is_text(path: Path) -> bool:
    return path.name.endswith(WHOLE + LINES)
