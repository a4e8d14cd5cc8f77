"""Finding the store and the run that a command is about."""

import difflib
import os
import re

from orchestrator.cli.errors import BadInput, Unreachable
from orchestrator.cli.options import STORE_VARIABLE
from orchestrator.store.objects import NotFound, ObjectStore
from orchestrator.store.opening import is_bucket, open_objects
from orchestrator.store.run_store import RunStore

DEFAULT_STORE = "store"


def open_store(given: str | None) -> ObjectStore:
    """The store at ``given``, else ``./store``; it must exist.

    Raises:
        BadInput: none was named and there is no ./store, or it is no address of a store.
        StoreUnavailable: it is not there.
    """
    if given is None and not os.path.isdir(DEFAULT_STORE):
        raise BadInput(
            f"no store was named: pass --store with a folder or gs:// address, set {STORE_VARIABLE}, or go where "
            "./store is"
        )
    address = given or DEFAULT_STORE
    objects = _opened(address, make=False)
    if not is_bucket(address) and not os.path.isdir(address):
        raise Unreachable(f"store {objects.address}: no such folder; check --store, {STORE_VARIABLE} and mounts")
    return objects


def make_store(address: str) -> ObjectStore:
    """The store at ``address``; a folder is made when it is missing. Raises BadInput, StoreUnavailable."""
    return _opened(address, make=True)


def _opened(address: str, *, make: bool) -> ObjectStore:
    try:
        return open_objects(address, make=make)
    except ValueError as error:
        raise BadInput(str(error)) from None


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
