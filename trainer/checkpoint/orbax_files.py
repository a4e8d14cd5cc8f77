"""Orbax behind four calls: write the arrays of a state, read them onto a mesh, read an array or a part on the host.

A checkpointer is made for each save and dropped with it, so that a failed save leaves nothing behind. Barriers of a
save go through the coordination service (``active_processes`` says so), never through the devices, and bear a label
that no other save has. A restore has none at all: each process reads what its devices hold, and whether all succeeded
is for the caller to agree on. Retention and the choice of a step are not Orbax's business here. A folder is named by
its path or its ``gs://`` address.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp  # type: ignore[import-untyped]
import tensorstore
from numpy.typing import NDArray

Tree = Any
"""A nested dict with string keys."""
Meet = Callable[[str, float], None]
"""Waits for all processes at a point of that name, so many seconds at most; raises when they will not come."""
SUBFOLDER = "state"
"""Inside a checkpoint's folder, so that a half-written one is inside it too and is deleted with it."""
SAVE_SECONDS = 1200
"""For all processes to write their parts."""
CHUNK_BYTES = 64 << 20
"""At most, of what is read as a whole: another mesh reads little more than it wants."""
IN_FLIGHT_GB = 1
"""Read at a time by a process, or one shard where that is more; it is held twice for a moment."""
KEPT_BYTES = 256 << 20
"""Of chunks, by a ``PartReader``: tensors that lie side by side share theirs."""


class NotAsAsked(ValueError):
    """An array is missing, or has another shape or dtype than asked for."""


@dataclass(frozen=True)
class PendingSave:
    """A save that goes on in the background; the state may be donated meanwhile."""

    _checkpointer: ocp.AsyncCheckpointer

    def wait(self) -> None:
        """Return when all processes have written all. Raises whatever went wrong in this one."""
        try:
            self._checkpointer.wait_until_finished()
        finally:
            self._checkpointer.close()


def prepare(folder: str) -> None:
    """Make a folder for a save; a bucket has none to make. Raises OSError."""
    if "://" not in folder:
        Path(folder).mkdir(parents=True, exist_ok=True)


def save(folder: str, state: Tree, *, label: str, meet: Meet | None = None) -> PendingSave:
    """Start writing ``state``; returns once it was copied from the devices. All processes call it.

    ``meet`` is how processes that have written wait for the others; None: Orbax's own way, with a deadline only.
    """
    processes = range(jax.process_count())
    how = jax.tree.map(lambda _: ocp.SaveArgs(chunk_byte_size=CHUNK_BYTES), state)
    barrier = None if meet is None else lambda *, key, timeout_ms: meet(key, timeout_ms / 1000)
    checkpointer = ocp.AsyncCheckpointer(
        ocp.PyTreeCheckpointHandler(),
        async_options=ocp.options.AsyncOptions(timeout_secs=SAVE_SECONDS, barrier_sync_fn=barrier),
        multiprocessing_options=ocp.options.MultiprocessingOptions(
            primary_host=0, active_processes=set(processes), barrier_sync_key_prefix=label
        ),
    )
    checkpointer.save(f"{folder}/{SUBFOLDER}", args=ocp.args.PyTreeSave(state, save_args=how))
    return PendingSave(checkpointer)


def restore(folder: str, abstract: Tree) -> Tree:
    """Read the arrays that ``abstract`` names (ShapeDtypeStruct with shardings): a whole state or a part of it.

    Raises:
        NotAsAsked: names an array's path.
        Exception: whatever Orbax raises when files are damaged or storage does not answer.
    """
    # a dtype, here or in the wanted tree, would make Orbax cast instead of letting a wrong one be seen
    how = jax.tree.map(lambda a: ocp.ArrayRestoreArgs(sharding=a.sharding, global_shape=a.shape), abstract)
    shards = [math.prod(a.sharding.shard_shape(a.shape)) * a.dtype.itemsize for a in jax.tree.leaves(abstract)]
    found = _read(folder, jax.tree.map(lambda _: 0, abstract), how, largest=max(shards))
    jax.tree_util.tree_map_with_path(_check, abstract, found)
    return found


def read_array(folder: str, path: str) -> NDArray[Any]:
    """One whole array, as it was written. Raises as ``restore``."""
    wanted: Tree = ...
    how: Tree = ocp.RestoreArgs(restore_type=np.ndarray)
    for key in reversed(path.split("/")):
        wanted, how = {key: wanted}, {key: how}
    (found,) = jax.tree.leaves(_read(folder, wanted, how, largest=None))
    if not isinstance(found, np.ndarray | np.generic):
        raise NotAsAsked(f"array {path} is missing")
    return np.asarray(found)


class PartReader:
    """Parts of arrays, each without the rest; host memory is the part and the newest ``KEPT_BYTES`` of chunks.

    Orbax itself reads whole arrays only; the files are those of TensorStore, whose chunks it has written.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._context = tensorstore.Context({"cache_pool": {"total_bytes_limit": KEPT_BYTES}})

    def read(self, path: str, index: tuple[int | slice, ...]) -> NDArray[Any]:
        """Raises ValueError: there is no such array, or it cannot be read."""
        base = f"{self._folder}/{SUBFOLDER}/"
        files = base if "://" in base else f"file://{base}"
        found = tensorstore.open(
            {
                "driver": "zarr",
                "kvstore": {"driver": "ocdbt", "base": files, "path": f"{path.replace('/', '.')}/"},
                "recheck_cached_data": "open",  # a committed checkpoint does not change
            },
            open=True,
            read=True,
            context=self._context,
        ).result()
        return np.asarray(found[index].read().result())


def _read(folder: str, wanted: Tree, how: Tree, *, largest: int | None) -> Tree:
    """``largest``: bytes of the largest shard; None: no limit, for one array read as a whole."""
    alone = jax.process_index()
    options = ocp.options.MultiprocessingOptions(primary_host=alone, active_processes={alone})
    limit = None if largest is None else max(IN_FLIGHT_GB, math.ceil((largest + CHUNK_BYTES) * 1.1e-9))
    handler = ocp.PyTreeCheckpointHandler(restore_concurrent_gb=limit, multiprocessing_options=options)
    arguments = ocp.args.PyTreeRestore(item=wanted, restore_args=how, partial_restore=True)
    with ocp.Checkpointer(handler, multiprocessing_options=options) as reader:
        return reader.restore(f"{folder}/{SUBFOLDER}", args=arguments)


def _check(path: tuple[Any, ...], wanted: jax.ShapeDtypeStruct, found: Any) -> None:
    name = "/".join(str(key.key) for key in path)
    if not isinstance(found, jax.Array):  # a partial restore leaves what is not there as it was
        raise NotAsAsked(f"array {name} is missing")
    if (found.shape, found.dtype) != (wanted.shape, wanted.dtype):
        raise NotAsAsked(f"array {name} is {found.dtype}{list(found.shape)}, not {wanted.dtype}{list(wanted.shape)}")
