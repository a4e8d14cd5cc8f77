"""A folder of token files that text becomes: each appears whole, and what is complete is never made again.

The files have the same number of tokens each, so that no instance is lost at the end of one as long as that number is
a multiple of the sequence length; a document may go on in the next file. Beside them is ``tokens.json``, written again
after each file: the settings, and for each file its hash and the place in the text at which it ended. An interrupted
folder is gone on with from the last of these.
"""

import contextlib
import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, BinaryIO, ClassVar

from pydantic import Field

from orchestrator.cli.documents import documents
from orchestrator.cli.encoders import Encoder, Ids, ended
from orchestrator.cli.errors import BadInput, Unreachable
from orchestrator.cli.whole_file import whole_file
from orchestrator.contract.base import Document, Part
from orchestrator.contract.names import Location
from orchestrator.contract.recipe import Positive, Sha256, TokenFile

MANIFEST = "tokens.json"
BATCH = 1024
"""Documents that are encoded at a time, at most: the library does them on all cores."""
BATCH_CHARACTERS = 1 << 20
"""After which a batch is full."""

Count = Annotated[int, Field(ge=0)]
Progress = Callable[[Path, int], None]
"""(text file, bytes just read)."""


class Source(Part):
    """A text file, and how it is known again."""

    path: Location
    size: Count
    mtime_ns: int

    @classmethod
    def of(cls, path: Path) -> "Source":
        found = path.stat()
        return cls(path=str(path.absolute()), size=found.st_size, mtime_ns=found.st_mtime_ns)


class Position(Part):
    """A place in the text."""

    source: Count
    document: Count
    """Of the source."""
    token: Count
    """Of the document's tokens; those before it are in earlier files."""


class Written(Part):
    """A token file that is complete."""

    file: TokenFile
    end: Position


class TokenFolder(Document):
    """``tokens.json``, and what ``everstep data tokenize --json`` says."""

    KIND: ClassVar[str] = "token-folder"

    tokenizer_sha256: Sha256 | None
    """Of the tokenizer.json; None: bytes."""
    largest_id: Count
    """That the tokenizer can give."""
    end_of_text: Count | None
    """The id that ends each document; None: none does."""
    field: str
    strip: bool
    file_tokens: Positive
    sources: tuple[Source, ...]
    documents: Count
    written: tuple[Written, ...] = ()
    complete: bool = False

    @property
    def tokens(self) -> int:
        """In complete files."""
        return sum(written.file.tokens or 0 for written in self.written)


def existing(folder: Path) -> TokenFolder | None:
    """What ``tokens.json`` says, if there is one.

    Raises:
        ContractError: it is no such document.
        BadInput: it cannot be read, or a file of it is missing or has another length.
    """
    path = folder / MANIFEST
    try:
        found = TokenFolder.from_bytes(path.read_bytes(), where=str(path))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror or error}; name another folder") from error
    for written in found.written:
        file = folder / written.file.path
        if not file.is_file() or file.stat().st_size != 4 * (written.file.tokens or 0):
            raise BadInput(f"{file}: is not there as {MANIFEST} says; restore it, or empty the folder and begin again")
    return found


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Make the folder, and keep others from writing there.

    Raises:
        BadInput: it cannot be made, or somebody writes there.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        number = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise BadInput(f"{folder}: {error.strerror or error}; name another folder") from error
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        raise BadInput(f"{folder}: another process is writing there; wait for it, or name another folder") from error
    finally:
        os.close(number)


def write(folder: Path, started: TokenFolder, encoder: Encoder, *, progress: Progress) -> TokenFolder:
    """Write what is missing; returns the complete folder.

    Raises:
        BadInput: a text is not what it was when it was looked through.
        Unreachable: the folder cannot be written; what is complete stays.
    """
    writer = _Writer(folder, started)
    try:
        save(folder, started)
        for position, ids in _encoded(started, encoder, progress):
            writer.add(ids, position)
        return writer.finish()
    except OSError as error:
        what = f"{error.filename or folder}: {error.strerror or error}"
        raise Unreachable(f"{what}; complete files stay: free space, then repeat the command") from error
    finally:
        writer.discard()


def texts(path: Path, *, field: str, strip: bool, progress: Progress) -> Iterator[str]:
    """Of a file, as they are encoded; an empty one stays in its place, and has no tokens."""
    found = documents(path, field=field, read=lambda count: progress(path, count))
    return (text.strip() for text in found) if strip else found


def save(folder: Path, document: TokenFolder) -> None:
    """Replace ``tokens.json``."""
    with whole_file(folder / MANIFEST) as out:
        out.write(document.to_bytes())


def _encoded(folder: TokenFolder, encoder: Encoder, progress: Progress) -> Iterator[tuple[Position, Ids]]:
    """From where the last complete file ended: each document's ids and where they begin."""
    start = folder.written[-1].end if folder.written else Position(source=0, document=0, token=0)
    token = start.token
    for source in range(start.source, len(folder.sources)):
        found = texts(Path(folder.sources[source].path), field=folder.field, strip=folder.strip, progress=progress)
        done = start.document if source == start.source else 0
        for batch in _batches(islice(enumerate(found), done, None)):
            for (document, _), ids in zip(batch, encoder.encode([text for _, text in batch]), strict=True):
                yield Position(source=source, document=document, token=token), ended(ids, encoder.end)[token:]
                token = 0


def _batches(numbered: Iterator[tuple[int, str]]) -> Iterator[list[tuple[int, str]]]:
    batch: list[tuple[int, str]] = []
    characters = 0
    for document in numbered:
        batch.append(document)
        characters += len(document[1])
        if len(batch) == BATCH or characters >= BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


class _Writer:
    """The file that is being written, and the folder's document."""

    def __init__(self, folder: Path, document: TokenFolder) -> None:
        self._folder = folder
        self._document = document
        self._out: BinaryIO | None = None
        self._digest = hashlib.sha256()
        self._tokens = 0
        self._end = Position(source=0, document=0, token=0)

    def add(self, ids: Ids, position: Position) -> None:
        """Write a document's tokens, in as many files as they take."""
        while len(ids):
            part = ids[: self._document.file_tokens - self._tokens]
            self._append(part)
            ids = ids[len(part) :]
            position = position.model_copy(update={"token": position.token + len(part)})
            self._end = position
            if self._tokens == self._document.file_tokens:
                self._close_file()

    def finish(self) -> TokenFolder:
        if self._out is not None:
            self._close_file()
        self._note({"complete": True})
        return self._document

    def discard(self) -> None:
        """Leave nothing half-written."""
        if self._out is not None:
            self._out.close()
        self._partial.unlink(missing_ok=True)

    @property
    def _name(self) -> str:
        return f"tokens-{len(self._document.written):05}.u32"

    @property
    def _partial(self) -> Path:
        return self._folder / f".{self._name}.partial"

    def _append(self, part: Ids) -> None:
        if self._out is None:
            self._out = self._partial.open("wb")
        self._out.write(part.data)
        self._digest.update(part.data)
        self._tokens += len(part)

    def _close_file(self) -> None:
        assert self._out is not None
        self._out.flush()
        os.fsync(self._out.fileno())
        self._out.close()
        self._out = None
        self._partial.replace(self._folder / self._name)
        file = TokenFile(path=self._name, sha256=self._digest.hexdigest(), tokens=self._tokens)
        self._digest, self._tokens = hashlib.sha256(), 0
        self._note({"written": (*self._document.written, Written(file=file, end=self._end))})

    def _note(self, change: dict[str, object]) -> None:
        self._document = self._document.model_copy(update=change)
        save(self._folder, self._document)
