"""Finding the checkpoint that a command is about."""

from orchestrator.cli.errors import BadInput
from orchestrator.store.run_store import RunStore


def checkpoint_named(store: RunStore, manifest: str | None) -> str:
    """The manifest's name, else the newest committed one's.

    Raises:
        BadInput: there is none, or its data were deleted.
    """
    name = manifest or store.head().value.manifest
    if name is None:
        raise BadInput(f"run {store.name} has no checkpoint yet; look again after its first save")
    names = store.manifest_names()
    if name not in names:
        raise BadInput(f"run {store.name} has no checkpoint {name!r}; the newest are {', '.join(names[-3:])}")
    if name in store.tombstones():
        raise BadInput(f"checkpoint {name} was deleted by retention; the newest are {', '.join(names[-3:])}")
    return name
