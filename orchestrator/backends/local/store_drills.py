"""Faults on purpose in a run's files, for ``everstep drill``: what storage really does now and then.

Raises, all of them: ContractError when there is nothing to damage, StoreError when it cannot be written.
"""

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
    name = _largest_file(store, store.manifest(head.manifest))
    whole = f"{store.name}/{store.manifest(head.manifest).folder}/{name}"
    if how == "missing-file":
        store.objects.delete(whole)
        return f"checkpoint {head.manifest}: deleted {name}"
    data = bytearray(store.objects.read(whole).data)
    place = len(data) // 2
    data[place] ^= 0x80
    store.objects.overwrite(whole, bytes(data))
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
    data = store.objects.read(f"{store.name}/{name}").data
    rest = data[: int(len(data) * to)]
    store.objects.overwrite(f"{store.name}/{name}", rest)
    return f"{name}: cut from {len(data):,} to {len(rest):,} bytes"


def _largest_file(store: RunStore, manifest: Manifest) -> str:
    sizes = store.checkpoint_sizes(manifest.folder)
    name = max(sizes, key=lambda name: sizes[name], default=None)
    if name is None or not sizes[name]:
        raise ContractError(f"checkpoint {manifest.name}: its files are not there, or empty; nothing was damaged")
    return name
