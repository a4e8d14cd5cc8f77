"""Checksums of all arrays of a state, as programs beside the step."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from orchestrator.contract.checksum import Checksum
from trainer.parallel.checksum import over_devices, shares_of_words
from trainer.parallel.mesh import AXIS, cut_axis

Tree = Any
Executables = Mapping[str, jax.stages.Compiled]
"""Of one program on one placement, by name."""
Checksums = Mapping[str, tuple[str, tuple[int, ...], Checksum]]
"""By path in the state: dtype, global shape, words."""
ReadChecksums = Callable[[], Checksums]
"""Waits for what was queued on the devices, in any thread."""

Kind = tuple[tuple[int, ...], str, int | None]
"""Shape, dtype and cut axis of an array."""
SHARES, REPLICATED = PartitionSpec(AXIS), PartitionSpec()
WORDS = "words"


class StateChecksums:
    """One small program for all arrays of a kind, and one that adds up what devices found.

    Compile time grows with the number of loops, and a CPU device has 32 programs in flight at most: with a program for
    each array a save would wait for them. Only the last talks to other devices: processes would run several in
    different orders, and wait for each other.
    """

    def __init__(self, layout: Mapping[str, jax.ShapeDtypeStruct], *, mesh: Mesh) -> None:
        self._mesh = mesh
        self._layout = layout
        # from the layout: on one device JAX forgets the axis along which an array counts as cut
        self._kinds: dict[Kind, list[str]] = {}
        for path, target in layout.items():
            kind = tuple(target.shape), target.dtype.name, cut_axis(target.sharding.spec)
            self._kinds.setdefault(kind, []).append(path)
        self._executables: Executables = {}

    def compiled(self, options: dict[str, str | bool]) -> dict[str, jax.stages.Compiled]:
        """The programs, for ``use``."""
        found = {}
        for kind, paths in self._kinds.items():
            alike = [self._layout[path] for path in paths]
            found[_name(kind)] = self._mapped_shares(alike[0]).lower(alike).compile(options)
        sharding = NamedSharding(self._mesh, SHARES)
        shares = [
            jax.ShapeDtypeStruct((self._mesh.devices.size, len(paths), 2), jnp.uint32, sharding=sharding)
            for paths in self._kinds.values()
        ]
        found[WORDS] = self._mapped_words().lower(shares).compile(options)
        return found

    def use(self, executables: Executables) -> None:
        self._executables = executables

    def queue(self, arrays: Mapping[str, Array]) -> ReadChecksums:
        """Queue them before any later step, so that the arrays may be donated at once."""
        programs = self._executables
        shares = [programs[_name(kind)]([arrays[path] for path in paths]) for kind, paths in self._kinds.items()]
        words = programs[WORDS](shares)

        def read() -> Checksums:
            pairs = np.asarray(jax.device_get(words))
            named = [(path, shape, dtype) for (shape, dtype, _), paths in self._kinds.items() for path in paths]
            return {
                path: (dtype, shape, (int(pair[0]), int(pair[1])))
                for (path, shape, dtype), pair in sorted(zip(named, pairs, strict=True), key=lambda both: both[0][0])
            }

        return read

    def _mapped_shares(self, target: jax.ShapeDtypeStruct) -> Any:
        """n arrays like ``target`` → each device's shares of their words, [P, n, 2]."""
        cut = cut_axis(target.sharding.spec)
        mapped = jax.shard_map(
            lambda parts: shares_of_words(parts, cut=cut)[None],
            mesh=self._mesh,
            in_specs=(target.sharding.spec,),
            out_specs=SHARES,
            check_vma=False,
        )
        return jax.jit(mapped)

    def _mapped_words(self) -> Any:
        """Shares of all kinds → the words of all arrays, kind by kind, [n, 2]."""
        mapped = jax.shard_map(
            lambda shares: over_devices(jnp.concatenate(shares, axis=1)[0]),
            mesh=self._mesh,
            in_specs=SHARES,
            out_specs=REPLICATED,
            check_vma=False,
        )
        return jax.jit(mapped)


def by_path(tree: Tree) -> dict[str, Any]:
    """Leaves of a nested dict by their keys joined with "/", in the order of ``jax.tree.leaves``."""
    flat, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda leaf: isinstance(leaf, PartitionSpec))
    return {"/".join(str(key.key) for key in path): leaf for path, leaf in flat}


def _name(kind: Kind) -> str:
    return f"shares of {kind}"
