"""Faults on purpose in a run's files, for ``everstep drill``: what storage really does now and then.

Raises, all of them: ContractError when there is nothing to damage; OSError when a file cannot be written.
"""

import os
from pathlib import Path
from typing import Literal, get_args

from orchestrator.contract.base import ContractError
from orchestrator.contract.manifest import Manifest
from orchestrator.store.run_store import RunStore

Damage = Literal["flipped-byte", "missing-file", "truncated-manifest"]
DAMAGES: tuple[Damage, ...] = get_args(Damage)


def corrupt_checkpoint(store: RunStore, *, how: Damage) -> str:
    """Damage the newest committed checkpoint: the next restore must see it, and go back to the one before it."""
    head = store.head().value
    if head.manifest is None:
        raise ContractError(f"run {store.name}: no checkpoint is committed yet; nothing was damaged")
    if how == "truncated-manifest":
        return _cut(store, f"manifests/{head.manifest}.json", to=0.5)
    name, path = _largest_file(store, store.manifest(head.manifest))
    if how == "missing-file":
        path.unlink()
        return f"checkpoint {head.manifest}: deleted {name}"
    place = path.stat().st_size // 2
    with path.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)
        file.seek(place)
        file.write(bytes([byte[0] ^ 0x80]))
    return f"checkpoint {head.manifest}: flipped a bit of byte {place:,} of {name}"


def tear_ledger(store: RunStore) -> str:
    """Cut the newest closed ledger segment in the middle of its last record, as a file that was never synced can be."""
    for attempt in sorted(store.attempt_numbers(), reverse=True):
        names = store.segment_names(attempt)
        if names:
            data = store.objects.read(f"{store.name}/{names[-1]}").data
            last = data.rstrip().rfind(b"\n") + 1
            return _cut(store, names[-1], to=(last + len(data)) / 2 / len(data))
    raise ContractError(f"run {store.name}: no ledger segment is closed yet; nothing was damaged")


def _cut(store: RunStore, name: str, *, to: float) -> str:
    """``to``: the part of the file that stays."""
    path = Path(store.address) / name
    size = path.stat().st_size
    os.truncate(path, int(size * to))
    return f"{name}: cut from {size:,} to {int(size * to):,} bytes"


def _largest_file(store: RunStore, manifest: Manifest) -> tuple[str, Path]:
    if not manifest.files:
        raise ContractError(f"checkpoint {manifest.name} has no files; nothing was damaged")
    name = max(manifest.files, key=lambda name: manifest.files[name].size)
    path = Path(store.address) / manifest.folder / name
    if not path.is_file() or not path.stat().st_size:
        raise ContractError(f"{path}: not there, or empty; nothing was damaged")
    return name, path
