"""Manifests and head: what makes a checkpoint complete, and which one is the newest."""

from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from orchestrator.contract.base import Document, Part
from orchestrator.contract.ledger import Fingerprint, Words
from orchestrator.contract.names import CheckpointFolder, FilePath, Line, ManifestName
from orchestrator.contract.recipe import Crc32c, Generation, Name, Positive, Sha256
from orchestrator.contract.run import Placement


class ArrayEntry(Part):
    """One array of the state."""

    dtype: str
    shape: tuple[int, ...]
    checksum: Words


class FileEntry(Part):
    """One file of the checkpoint's folder."""

    size: Annotated[int, Field(ge=0)]
    sha256: Sha256 | None = None
    """Computed by who wrote it; None in a bucket, whose service computes its own."""
    crc32c: Crc32c | None = None
    """The service's own."""
    generation: Generation | None = None
    """At which the service had these bytes."""

    @model_validator(mode="after")
    def _has_a_hash(self) -> Self:
        if self.sha256 is None and self.crc32c is None:
            raise ValueError("a file needs its sha256 or its crc32c; restore the document from a copy")
        return self

    def differs(self, other: "FileEntry") -> bool:
        """Another size, or another hash of a kind that both have; a copy elsewhere has another generation only."""
        kinds = ((self.sha256, other.sha256), (self.crc32c, other.crc32c))
        return self.size != other.size or any(None not in pair and pair[0] != pair[1] for pair in kinds)


class Manifest(Document):
    """Written last, create-only; a checkpoint is complete when its manifest is reachable from head."""

    KIND: ClassVar[str] = "manifest"

    run: Name
    attempt: Positive
    revision: Positive
    recipe_sha256: Sha256
    stage: Name
    """The stage whose state this is; at a boundary the one that has just ended."""
    next_step: Annotated[int, Field(ge=0)]
    parent: ManifestName | None
    """Name of the manifest before it; None only for next_step 0 of revision 1. It is of an earlier step, or of the same
    one and an earlier attempt, so that whoever goes from parent to parent comes to an end."""
    folder: CheckpointFolder
    """The checkpoint's folder inside the run."""
    arrays: dict[Line, ArrayEntry]
    """By path in the state, ``params/…`` and ``opt/…``."""
    files: dict[FilePath, FileEntry]
    """By path in the folder."""
    params_sha256: Sha256
    fingerprint: Fingerprint
    versions: dict[str, str]
    placement: Placement
    data_sha256: Sha256
    """Over the stage's token files (names, lengths, hashes) and order seed."""
    save_seconds: float
    """Until all files were written; what a commit waits for after that is no part of it."""
    at: float

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.parent is not None and _place(self.parent) >= (self.next_step, self.attempt):
            raise ValueError(f"parent {self.parent} is not older than {self.name} itself")
        return self

    @property
    def name(self) -> str:
        return manifest_name(self.next_step, self.attempt)


def manifest_name(next_step: int, attempt: int) -> str:
    """``000000735000-a0007``; sorts by step."""
    return f"{next_step:012d}-a{attempt:04d}"


def _place(name: str) -> tuple[int, int]:
    next_step, _, attempt = name.partition("-a")
    return int(next_step), int(attempt)


class Head(Document):
    """Which attempt may commit and which manifest is the newest. Changed only by compare-and-swap."""

    KIND: ClassVar[str] = "head"

    attempt: Annotated[int, Field(ge=0)]
    """0 before the first launch."""
    manifest: ManifestName | None
    next_step: int | None
    revision: Positive
    write_id: str
    """Random; tells a lost response from another writer."""


class Proof(Document):
    """A checkpoint was read back from the store with equal array checksums."""

    KIND: ClassVar[str] = "proof"

    manifest: ManifestName
    how: str
    """``restore`` or ``scrub``."""
    attempt: int | None
    arrays: int
    at: float


class Quarantine(Document):
    """A checkpoint failed its checks and is not tried again."""

    KIND: ClassVar[str] = "quarantine"

    manifest: ManifestName
    problem: str
    attempt: int | None
    at: float


class Pin(Document):
    """A checkpoint that retention must keep."""

    KIND: ClassVar[str] = "pin"

    manifest: ManifestName
    reason: str
    by: str
    at: float


class Tombstone(Document):
    """A checkpoint whose data is deleted; written before the deletion."""

    KIND: ClassVar[str] = "tombstone"

    manifest: ManifestName
