"""Finding the store and the run that a command is about."""

import difflib
import os
import re
from pathlib import Path

from orchestrator.cli.errors import BadInput, Unreachable
from orchestrator.cli.options import STORE_VARIABLE
from orchestrator.store.local import LocalStore
from orchestrator.store.objects import NotFound, ObjectStore
from orchestrator.store.run_store import RunStore

DEFAULT_STORE = "store"


def open_store(given: str | None) -> ObjectStore:
    """The store at ``given``, else ``./store``; it must exist.

    Raises:
        BadInput: none was named and there is no ./store.
        Unreachable: it is not there.
    """
    if given is None and not os.path.isdir(DEFAULT_STORE):
        raise BadInput(f"no store was named: pass --store FOLDER, set {STORE_VARIABLE}, or go where ./store is")
    path = Path(given or DEFAULT_STORE)
    refuse_address(str(path))
    if not path.is_dir():
        raise Unreachable(f"store {path.absolute()}: no such folder; check --store, {STORE_VARIABLE} and mounts")
    return LocalStore(path, make=False)


def make_store(path: str) -> ObjectStore:
    """The store at ``path``, made when it is missing. Raises StoreUnavailable: it cannot be made or written."""
    refuse_address(path)
    return LocalStore(Path(path))


def refuse_address(text: str) -> None:
    """Raises BadInput for ``gs://…``, which only a later Everstep knows."""
    if re.match(r"[a-z0-9]+:/", text):
        raise BadInput(f"store {text}: this Everstep keeps runs in folders only; name a folder")


def open_run(objects: ObjectStore, name: str) -> RunStore:
    """A run that was submitted.

    Raises:
        BadInput: there is no such run; the text names those that there are.
    """
    if not re.fullmatch(r"[a-z0-9-]+", name):
        raise BadInput(f"{name!r} is no name of a run: they have lower-case letters, digits and '-' only")
    store = RunStore(objects, name)
    try:
        store.run()
    except NotFound:
        names = run_names(objects)
        close = difflib.get_close_matches(name, names, n=1)
        there = f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(names) or 'none'}"
        raise BadInput(f"no run {name!r} in store {objects.address}; {there}") from None
    return store


def run_names(objects: ObjectStore) -> list[str]:
    """The runs of a store, by name."""
    return [name for name in objects.children("") if _is_run(objects, name)]


def _is_run(objects: ObjectStore, name: str) -> bool:
    if name.startswith("."):
        return False
    try:
        objects.read(f"{name}/run.json")
    except NotFound:
        return False
    return True
