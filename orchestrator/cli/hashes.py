"""Hashes of large files: several at a time, and none again that was computed before and still holds.

What was found of a file is remembered at once, in a file of its own below ``~/.cache/everstep/hashes``, so that an
interrupted submit of terabytes goes on with the file that it was at. It is used only for the same path, inode, size and
times of the last change of content and of anything: who writes into a file and sets its time back changes the latter.
"""

import hashlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, CancelledError, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Protocol

import numpy as np
from pydantic import ValidationError

from orchestrator.cli.errors import BadInput
from orchestrator.cli.whole_file import whole_file
from orchestrator.contract.base import Part
from orchestrator.contract.recipe import Sha256

CHUNK = 8 << 20
"""Bytes that are read at a time."""
SETTLED_NS = 2_000_000_000
"""What changed later than this before it was read may change again at the same time of a coarse clock."""


class Progress(Protocol):
    """Who is told how far it is."""

    def begin(self, total: int) -> None:
        """Bytes that will be read."""
        ...

    def advance(self, path: Path, count: int) -> None:
        """Bytes of a file that were just read; called from several threads."""
        ...


class Unseen:
    """Nobody is told."""

    def begin(self, total: int) -> None: ...

    def advance(self, path: Path, count: int) -> None: ...


@dataclass(frozen=True)
class Job:
    """A file to hash."""

    path: Path
    vocabulary: int | None = None
    """Its ids are below this; None: it has none."""


class Identity(Part):
    """By which a file is known again."""

    path: str
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, path: Path) -> "Identity":
        """Raises BadInput: it cannot be seen."""
        try:
            found = path.stat()
        except OSError as error:
            raise BadInput(f"{path}: {error.strerror or error}; correct data_root or the recipe's path") from error
        return cls(
            path=str(path.absolute()),
            inode=found.st_ino,
            size=found.st_size,
            mtime_ns=found.st_mtime_ns,
            ctime_ns=found.st_ctime_ns,
        )


class Found(Part):
    """What is remembered of a file."""

    file: Identity
    sha256: Sha256
    largest: int | None = None
    """Of its ids; None: they were not looked at."""


@dataclass
class Remembered:
    """What was found before.

    Args:
        folder: where it is kept.
        use: False: everything is hashed anew, and remembered.
        now: nanoseconds since the epoch.
    """

    folder: Path
    use: bool = True
    now: Callable[[], int] = time.time_ns
    problem: str | None = field(default=None, init=False)
    """Why something could not be kept; None: all was."""

    @classmethod
    def of_this_person(cls, *, use: bool = True) -> "Remembered":
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        return cls(cache / "everstep" / "hashes", use=use)

    def find(self, file: Identity, *, vocabulary: int | None) -> str | None:
        """The hash of a file that is as it was, and whose ids are all in the vocabulary."""
        if not self.use:
            return None
        try:
            found = Found.model_validate_json(self._place(file).read_bytes())
        except (OSError, ValidationError):  # there is none, or it is damaged: then it is computed again
            return None
        known = vocabulary is None or (found.largest is not None and found.largest < vocabulary)
        return found.sha256 if found.file == file and known else None

    def keep(self, found: Found, *, since: int) -> None:
        """Remember what was read from ``since`` on; not of a file that had changed just before."""
        if since - max(found.file.ctime_ns, found.file.mtime_ns) < SETTLED_NS:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with whole_file(self._place(found.file)) as out:
                out.write(found.model_dump_json().encode())
        except OSError as error:
            self.problem = f"{error.filename or self.folder}: {error.strerror or error}"

    def _place(self, file: Identity) -> Path:
        return self.folder / f"{hashlib.sha256(file.path.encode(errors='surrogateescape')).hexdigest()}.json"


@dataclass(frozen=True, kw_only=True)
class Hashing:
    """How files are hashed."""

    remembered: Remembered | None = None
    progress: Progress = field(default_factory=Unseen)
    workers: int = os.cpu_count() or 1

    def hashes(self, jobs: Sequence[Job]) -> dict[Path, str]:
        """The SHA-256 of each file.

        Raises:
            BadInput: one cannot be read, changed meanwhile, or has an id outside its vocabulary; at once, whatever the
                others have still to do.
        """
        files = {job: Identity.of(job.path) for job in dict.fromkeys(jobs)}
        found = {job: self._known(job, file) for job, file in files.items()}
        missing = [job for job in files if found[job] is None]
        self.progress.begin(sum(files[job].size for job in missing))
        with _stopping(ThreadPoolExecutor(self.workers, thread_name_prefix="hash")) as (pool, stop):
            started = [pool.submit(self._computed, job, files[job], stop) for job in missing]
            ended = wait(started, return_when=FIRST_EXCEPTION).done
            found |= {job: future.result() for job, future in zip(missing, started, strict=True) if future in ended}
        return {job.path: sha256 for job, sha256 in found.items() if sha256 is not None}

    def _known(self, job: Job, file: Identity) -> str | None:
        return self.remembered.find(file, vocabulary=job.vocabulary) if self.remembered else None

    def _computed(self, job: Job, file: Identity, stop: Event) -> str:
        since = self.remembered.now() if self.remembered else 0
        digest, tokens, largest = hashlib.sha256(), 0, -1
        for block in _blocks(job.path, stop):
            digest.update(block)
            if job.vocabulary is not None:
                ids = np.frombuffer(block, "<u4")
                largest = max(largest, _largest(ids, job, first=tokens))
                tokens += len(ids)
            self.progress.advance(job.path, len(block))
        if stop.is_set():
            raise CancelledError
        if Identity.of(job.path) != file:
            raise BadInput(f"{job.path}: changed while it was read; repeat the command when nobody writes there")
        if self.remembered:
            seen = largest if job.vocabulary is not None else None
            self.remembered.keep(Found(file=file, sha256=digest.hexdigest(), largest=seen), since=since)
        return digest.hexdigest()


@contextmanager
def _stopping(pool: ThreadPoolExecutor) -> Iterator[tuple[ThreadPoolExecutor, Event]]:
    """At the first error, or Ctrl-C, the other threads stop at their next block."""
    stop = Event()
    try:
        yield pool, stop
    finally:
        stop.set()
        pool.shutdown(cancel_futures=True)


def _blocks(path: Path, stop: Event) -> Iterator[bytes]:
    try:
        with path.open("rb") as stream:
            while not stop.is_set() and (block := stream.read(CHUNK)):
                yield block
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror or error}; restore the file") from error


def _largest(ids: np.ndarray, job: Job, *, first: int) -> int:
    """Raises BadInput: one is outside the vocabulary."""
    largest = int(ids.max())
    if job.vocabulary is not None and largest >= job.vocabulary:
        raise BadInput(
            f"{job.path}: token {first + int(ids.argmax()):,} is {largest:,}, but the recipe's vocab_size is "
            f"{job.vocabulary:,}; tokenize again with that vocabulary, or correct model.vocab_size"
        )
    return largest
