"""Faults on purpose in a run's files, for ``everstep drill``: what storage really does now and then.

Raises, all of them: ContractError when there is nothing to damage; OSError when a file cannot be written.
"""

from pathlib import Path
from typing import Literal, get_args

from orchestrator.contract.base import ContractError
from orchestrator.contract.manifest import Manifest
from orchestrator.store.run_store import RunStore

Damage = Literal["flipped-byte", "missing-file"]
DAMAGES: tuple[Damage, ...] = get_args(Damage)


def corrupt_checkpoint(store: RunStore, *, how: Damage) -> str:
    """Damage the newest committed checkpoint: the next restore must see it, and go back to the one before it."""
    head = store.head().value
    if head.manifest is None:
        raise ContractError(f"run {store.name}: no checkpoint is committed yet; nothing was damaged")
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


def _largest_file(store: RunStore, manifest: Manifest) -> tuple[str, Path]:
    if not manifest.files:
        raise ContractError(f"checkpoint {manifest.name} has no files; nothing was damaged")
    name = max(manifest.files, key=lambda name: manifest.files[name].size)
    path = Path(store.address) / manifest.folder / name
    if not path.is_file() or not path.stat().st_size:
        raise ContractError(f"{path}: not there, or empty; nothing was damaged")
    return name, path
