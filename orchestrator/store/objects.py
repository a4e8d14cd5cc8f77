"""What an object store must do for a run: a few operations, two of them conditional.

Names are relative, with ``/`` between parts, each of letters, digits, ``.``, ``_``, ``-``. A generation is an opaque
string that changes with every write. Errors are four, so that callers never look at texts or at ``OSError``.
"""

import re
from dataclasses import dataclass
from typing import Protocol

from orchestrator.contract.base import ContractError
from orchestrator.contract.manifest import FileEntry
from orchestrator.contract.names import FORMS, OBJECT_NAME


class StoreError(Exception):
    """Base of what a store raises; the text is one line for a person."""


class NotFound(StoreError):
    """No object of that name."""


class AlreadyExists(StoreError):
    """A create-only write found other bytes there."""


class Conflict(StoreError):
    """The generation is not the expected one: somebody else wrote."""


class StoreUnavailable(StoreError):
    """The store did not answer, is full or forbids it; says nothing about the object."""


@dataclass(frozen=True)
class Stored:
    """An object's bytes and the generation they were read at."""

    data: bytes
    generation: str


class ObjectStore(Protocol):
    """A flat space of named objects."""

    @property
    def address(self) -> str:
        """Absolute path or ``gs://`` address, as a trainer on any host can use it."""
        ...

    @property
    def at_once(self) -> int:
        """How many reads are worth making at a time: 1 where an answer takes no time."""
        ...

    def read(self, name: str) -> Stored:
        """Raises NotFound, StoreUnavailable."""
        ...

    def create(self, name: str, data: bytes) -> str:
        """Write only if the name is free; equal bytes there already count as success. Returns the generation.

        Raises AlreadyExists, StoreUnavailable.
        """
        ...

    def swap(self, name: str, data: bytes, *, generation: str) -> str:
        """Replace only if the object is still at ``generation``. Raises Conflict, NotFound, StoreUnavailable."""
        ...

    def overwrite(self, name: str, data: bytes) -> None:
        """Replace without a condition: for progress only. Raises StoreUnavailable."""
        ...

    def names(self, prefix: str) -> list[str]:
        """Names that start with ``prefix`` (which ends with ``/``), sorted. Raises StoreUnavailable."""
        ...

    def children(self, prefix: str) -> list[str]:
        """The next parts of the names below ``prefix`` (which ends with ``/``), sorted. Raises StoreUnavailable."""
        ...

    def sizes(self, prefix: str) -> dict[str, int]:
        """Bytes of each object below ``prefix`` (which ends with ``/``), by the rest of its name; reads no object."""
        ...

    def files(self, prefix: str) -> dict[str, FileEntry]:
        """As ``sizes``, with a hash of each: of what is read in a folder, the service's own in a bucket."""
        ...

    def delete(self, prefix: str) -> None:
        """Delete one object, or everything below a name. Deleting nothing is no error."""
        ...


class RangeStore(Protocol):
    """Large objects that others wrote, read in parts; any name that the service takes."""

    def check(self) -> None:
        """Raises StoreUnavailable: it is not there, or may not be listed."""
        ...

    def entry(self, name: str) -> FileEntry:
        """What the service says of an object: size, hash, generation. Raises NotFound, StoreUnavailable."""
        ...

    def read_range(self, name: str, *, start: int, size: int, generation: str) -> bytes:
        """``size`` bytes from ``start`` on, of this generation. Raises Conflict, NotFound, StoreUnavailable."""
        ...


_NAME = re.compile(OBJECT_NAME)


def check_name(name: str) -> str:
    """The name itself, when it is harmless.

    Raises:
        ContractError: it could leave the store or be misread.
    """
    if not is_name(name):
        raise ContractError(f"object name {name!r:.300}: {FORMS[OBJECT_NAME]}")
    return name


def is_name(name: str) -> bool:
    """Whether an object may have this name. A file that has another one (an editor's backup, a .DS_Store) is none."""
    return _NAME.fullmatch(name) is not None


def check_prefix(prefix: str) -> str:
    """A prefix for listing: empty, or a harmless name and ``/``. Raises ContractError."""
    if prefix:
        check_name(prefix.removesuffix("/"))
    return prefix
