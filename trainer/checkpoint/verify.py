"""Evidence that a checkpoint is what its manifest says, or is not."""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from orchestrator.contract.checksum import Checksum, line, params_sha256, words
from orchestrator.contract.manifest import ArrayEntry, FileEntry, Manifest

Checksums = Mapping[str, tuple[str, tuple[int, ...], Checksum]]
"""By path in the state: dtype, global shape, words; as ``trainer.step.Program.checksums`` gives them."""
BLOCK = 1 << 22
PARAMS = "params/"


def array_entries(checksums: Checksums) -> dict[str, ArrayEntry]:
    """The manifest's entries."""
    return {
        path: ArrayEntry(dtype=dtype, shape=shape, checksum=words(pair))
        for path, (dtype, shape, pair) in checksums.items()
    }


def hash_of_params(checksums: Checksums) -> str:
    """``params_sha256`` of the manifest."""
    return params_sha256(
        line(path, dtype=dtype, shape=shape, checksum=pair)
        for path, (dtype, shape, pair) in checksums.items()
        if path.startswith(PARAMS)
    )


def file_entries(folder: Path) -> dict[str, FileEntry]:
    """Size and hash of every file in a checkpoint's folder, by path in it."""
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    return {
        path.relative_to(folder).as_posix(): FileEntry(size=path.stat().st_size, sha256=_sha256(path)) for path in found
    }


def missing_or_resized(manifest: Manifest, folder: Path) -> str | None:
    """The first file that is not there or has another size: cheap, and finds torn copies and deletions."""
    for name, entry in manifest.files.items():
        try:
            size = (folder / name).stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            return f"file {name} is missing"
        if size != entry.size:
            return f"file {name} has {size} bytes instead of {entry.size}"
    return None


def changed_file(manifest: Manifest, folder: Path) -> str | None:
    """The first file that is not there or has other bytes: reads everything."""
    found = missing_or_resized(manifest, folder)
    if found is not None:
        return found
    changed = (name for name, entry in manifest.files.items() if _sha256(folder / name) != entry.sha256)
    return next((f"file {name} has another SHA-256" for name in changed), None)


def differing_arrays(manifest: Manifest, found: Checksums, *, paths: Iterable[str]) -> str | None:
    """The arrays among ``paths`` whose dtype, shape or checksum is not the manifest's, in one line."""
    entries = array_entries(found)
    wrong = [path for path in paths if entries.get(path) != manifest.arrays.get(path)]
    if not wrong:
        return None
    more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
    return f"the checksum of {', '.join(wrong[:3])}{more} is not the manifest's"


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()
