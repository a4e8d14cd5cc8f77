"""Evidence that a checkpoint is what its manifest says, or is not."""

from collections.abc import Iterable, Mapping

from orchestrator.contract.checksum import line, params_sha256, words
from orchestrator.contract.manifest import ArrayEntry, Manifest
from orchestrator.store.run_store import RunStore
from trainer.parallel.state_checksums import Checksums

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


def missing_or_resized(manifest: Manifest, sizes: Mapping[str, int]) -> str | None:
    """The first file that is not there or has another size: cheap, and finds torn copies and deletions."""
    for name, entry in manifest.files.items():
        if name not in sizes:
            return f"file {name} is missing"
        if sizes[name] != entry.size:
            return f"file {name} has {sizes[name]} bytes instead of {entry.size}"
    return None


def changed_file(manifest: Manifest, store: RunStore) -> str | None:
    """The first file that is not there or has other bytes: a folder is read whole, a bucket knows.

    A copy that knows other kinds of hashes than the manifest is compared by sizes; its arrays have checksums.
    """
    found = store.checkpoint_files(manifest.folder)
    problem = missing_or_resized(manifest, {name: entry.size for name, entry in found.items()})
    if problem is not None:
        return problem
    changed = (name for name, entry in manifest.files.items() if found[name].differs(entry))
    return next((f"file {name} has another hash" for name in changed), None)


def differing_arrays(manifest: Manifest, found: Checksums, *, paths: Iterable[str]) -> str | None:
    """The arrays among ``paths`` whose dtype, shape or checksum is not the manifest's, in one line."""
    entries = array_entries(found)
    wrong = [path for path in paths if entries.get(path) != manifest.arrays.get(path)]
    if not wrong:
        return None
    more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
    return f"the checksum of {', '.join(wrong[:3])}{more} is not the manifest's"
