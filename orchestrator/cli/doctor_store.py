"""What ``everstep doctor`` checks of an object store.

``CHECKS`` are those of every store; ``FOLDER_CHECKS`` and ``BUCKET_CHECKS`` add what only one kind has. A check writes
below the name that it is given, which is deleted afterwards, and answers with a finding, whatever the store does.
"""

import os
from collections.abc import Callable, Sequence

from orchestrator.cli.doctor_finding import Finding, Machine, ok, problem, warning
from orchestrator.cli.errors import CommandError
from orchestrator.cli.sizes import checkpoint_bytes, kept_checkpoints
from orchestrator.cli.stores import open_store, run_names
from orchestrator.contract.base import ContractError
from orchestrator.store.objects import AlreadyExists, Conflict, ObjectStore, StoreError
from orchestrator.store.opening import is_bucket
from orchestrator.store.run_store import RunStore

StoreCheck = Callable[[ObjectStore, str, Machine], Finding]
"""The store, a free name in it, the machine."""
SKEW_SECONDS = (2.0, 60.0)
"""Between the clocks of store and machine: above the first, reports are off by as much; above the second, times of
events and steps no longer fit together."""
GIB = 1 << 30


def opened(given: str | None) -> tuple[ObjectStore | None, Finding]:
    """The store, if it is there."""
    try:
        store = open_store(given)
        runs = run_names(store)
    except (CommandError, StoreError) as error:
        what, _, remedy = str(error).partition("; ")
        return None, problem("store", what, remedy=remedy or "check --store and mounts")
    return store, ok("store", f"{store.address}, {len(runs)} run{'' if len(runs) == 1 else 's'}")


def examined(store: ObjectStore, machine: Machine) -> list[Finding]:
    """Every check of this kind of store, and nothing of them left behind."""
    own = BUCKET_CHECKS if is_bucket(store.address) else FOLDER_CHECKS
    scratch = f"doctor-{os.getpid()}"  # few names: a folder keeps an empty lock of each that was ever swapped
    try:
        store.delete(scratch)
        found = [check(store, scratch, machine) for check in (*CHECKS, *own)]
        store.delete(scratch)
    except StoreError as error:
        return [problem("store writes", str(error), remedy="make the store writable for this user")]
    return found


def _writes(store: ObjectStore, scratch: str, _: Machine) -> Finding:
    """What the proof of a run rests on: create-only and compare-and-swap are refused where they must be."""
    check, name = "store writes", f"{scratch}/writes.json"
    remedy = "keep runs on another file system; this one cannot hold a run"
    try:
        first = store.create(name, b"1")
        second = store.swap(name, b"2", generation=first)
        if store.read(name).data != b"2":
            return problem(check, "what was swapped in is not what is read", remedy=remedy)
        if _taken(store, name):
            return problem(check, "a second creation of one name was not refused", remedy=remedy)
        if _swapped(store, name, generation=first):
            return problem(check, "a swap at a stale generation was not refused", remedy=remedy)
        store.swap(name, b"3", generation=second)
        store.delete(name)
        if store.children(f"{scratch}/"):
            return problem(check, "what was deleted is still listed", remedy=remedy)
    except StoreError as error:
        return problem(check, str(error), remedy="make the store readable and writable for this user")
    return ok(check, "create, swap and delete work; a second creation and a stale swap are refused")


def _taken(store: ObjectStore, name: str) -> bool:
    try:
        store.create(name, b"other")
    except AlreadyExists:
        return False
    return True


def _swapped(store: ObjectStore, name: str, *, generation: str) -> bool:
    try:
        store.swap(name, b"stale", generation=generation)
    except Conflict:
        return False
    return True


def _space(store: ObjectStore, _: str, machine: Machine) -> Finding:
    check = "store space"
    try:
        free = machine.free_bytes(store.address)
        needs = {name: _needed(RunStore(store, name)) for name in run_names(store)}
    except (OSError, StoreError, ContractError) as error:
        return problem(check, str(error), remedy="look at the file that is named")
    if not needs:
        return ok(check, f"{_size(free)} free; no run says how much it needs")
    name = max(needs, key=lambda name: needs[name])
    one, kept = needs[name]
    found = f"{_size(free)} free; run {name} takes {_size(one)} a checkpoint and keeps up to {kept}"
    if free < one:
        return problem(check, found, remedy="free some space: the next checkpoint cannot be written")
    if free < one * kept:
        return warning(check, found, remedy="free some space, or keep fewer (policy.checkpoint)")
    return ok(check, found)


def _needed(run: RunStore) -> tuple[int, int]:
    """Bytes of a checkpoint, and how many are kept."""
    recipe = run.recipe(run.revisions()[-1].recipe_sha256)
    return checkpoint_bytes(recipe.model), kept_checkpoints(recipe, run.policy().value.checkpoint)


def _clock(store: ObjectStore, scratch: str, machine: Machine) -> Finding:
    """A store on another machine gives files its own time."""
    check, name = "store clock", f"{scratch}/clock.json"
    try:
        before = machine.now()
        store.overwrite(name, b"now")
        written = os.stat(os.path.join(store.address, name)).st_mtime
        skew = max(before - written, written - machine.now(), 0.0)
    except (OSError, StoreError) as error:
        return problem(check, str(error), remedy="make the store readable and writable for this user")
    late, too_late = SKEW_SECONDS
    found = f"{skew:.1f} s from this machine's"
    if skew <= late:
        return ok(check, found)
    return (problem if skew > too_late else warning)(check, found, remedy="set both by NTP")


def _kept_when_deleted(store: ObjectStore, _: str, __: Machine) -> Finding:
    """Somebody will delete the wrong folder one day."""
    from orchestrator.store.gcs import GcsStore  # its client need not be installed where stores are folders

    assert isinstance(store, GcsStore)
    check = "bucket protection"
    remedy = f"gcloud storage buckets update {store.address} --soft-delete-duration=7d, or --versioning"
    try:
        found = store.keeps_deleted()
    except StoreError as error:
        return warning(check, f"it cannot be seen: {error}", remedy="give the account storage.buckets.get")
    if found is None:
        return warning(check, "neither versioning nor soft delete is on: what is deleted is gone", remedy=remedy)
    return ok(check, found)


CHECKS: Sequence[StoreCheck] = (_writes,)
FOLDER_CHECKS: Sequence[StoreCheck] = (_space, _clock)
BUCKET_CHECKS: Sequence[StoreCheck] = (_kept_when_deleted,)


def _size(count: int) -> str:
    return f"{count / GIB:,.1f} GiB" if count >= GIB / 10 else f"{count / (1 << 20):,.1f} MiB"
