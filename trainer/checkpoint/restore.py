"""Starting from a checkpoint: the newest that is whole, read straight onto this attempt's mesh and proven there.

Only evidence against a checkpoint puts it aside: a file that is missing or changed, an array that is missing or has
another checksum. What goes wrong beside a checkpoint that is whole (memory, network, a bug) is the attempt's own error,
and the checkpoint stays.
"""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from orchestrator.contract.attempt import AttemptSpec
from orchestrator.contract.base import ContractError
from orchestrator.contract.manifest import Manifest, Proof, Quarantine
from orchestrator.store.run_store import RunStore
from trainer.checkpoint import orbax_files
from trainer.checkpoint.verify import changed_file, differing_arrays, missing_or_resized
from trainer.parallel.checksum import array_words
from trainer.parallel.mesh import cut_axis
from trainer.parallel.state_checksums import Checksums, ReadChecksums, by_path

Tree = Any
"""A nested dict with string keys."""
READ_ERRORS = (ValueError, KeyError, TypeError, AttributeError, AssertionError, RuntimeError, OSError)
"""What damaged files have been seen to cause, and more; the files' hashes then say whether they are damaged."""
RESTORE_SECONDS = 1800.0


class NothingRestores(Exception):
    """Checkpoints exist, and none of them is whole. Starting anew would throw the run away, so a person decides."""


class Program(Protocol):
    """What restoring needs of ``trainer.step.Program``."""

    @property
    def mesh(self) -> Mesh: ...

    @property
    def abstract_state(self) -> Tree: ...

    def checksums(self, state: Tree) -> ReadChecksums: ...

    def next_stage_state(self, params: Tree) -> Tree: ...


class Agreement(Protocol):
    """What ``trainer.peers.Peers`` does for a restore."""

    @property
    def process(self) -> int: ...

    def gather(self, what: str, text: str, *, seconds: float) -> list[str]: ...


@dataclass(frozen=True, kw_only=True)
class Restored:
    """A state, and the checkpoint that it is."""

    state: Tree
    manifest: Manifest


@dataclass(kw_only=True)
class Restorer:
    """Restores for one attempt."""

    store: RunStore
    spec: AttemptSpec
    stage_first_step: int
    program: Program
    peers: Agreement
    log: Callable[[str], None]
    _ahead: "Future[tuple[str, Tree]] | None" = field(default=None, init=False)

    def begin(self) -> None:
        """Read the checkpoint to resume from beside what is done meanwhile: ``newest`` waits for it. Nothing is
        concluded from it before that, and it needs none of the program's executables."""
        pool = ThreadPoolExecutor(1, thread_name_prefix="restore")
        self._ahead = pool.submit(self._read_ahead)
        pool.shutdown(wait=False)

    def newest(self) -> Restored:
        """The newest candidate that is whole; those before it are quarantined.

        Raises:
            NothingRestores: there are candidates and none is.
            ContractError: a candidate is not of this run, recipe, revision or stage.
        """
        assert self.spec.resume is not None
        tried = 0
        for manifest in self._candidates(self.spec.resume):
            self._check(manifest)
            tried += 1
            found = self._try(manifest)
            if not isinstance(found, str):
                return Restored(state=found, manifest=manifest)
            self.log(f"checkpoint {manifest.name} is not whole: {found}; it is quarantined, the one before it is next")
            if self.peers.process == 0:
                self.store.create_quarantine(
                    Quarantine(manifest=manifest.name, problem=found, attempt=self.spec.attempt, at=time.time())
                )
        raise NothingRestores(
            f"no checkpoint at or before {self.spec.resume} restores ({tried} tried now, the others quarantined or "
            "deleted before); bring one back from a copy, or submit the run anew"
        )

    def _candidates(self, newest: str) -> Iterator[Manifest]:
        passed_over = self.store.quarantined().keys() | self.store.tombstones()
        name: str | None = newest
        while name is not None:
            manifest = self.store.manifest(name)
            if name in passed_over:
                self.log(f"checkpoint {name} is passed over: quarantined or deleted before")
            else:
                yield manifest
            name = manifest.parent

    def _check(self, manifest: Manifest) -> None:
        spec = self.spec
        if manifest.run != spec.run:
            raise ContractError(f"checkpoint {manifest.name} is of run {manifest.run}, not {spec.run}")
        if manifest.recipe_sha256 != spec.recipe_sha256 and manifest.revision >= spec.revision:
            raise ContractError(
                f"checkpoint {manifest.name} was written under recipe {manifest.recipe_sha256[:12]}…, the attempt has "
                f"{spec.recipe_sha256[:12]}…, and both say revision {spec.revision}; a wanted change is "
                "`everstep amend`"
            )
        at_start = manifest.next_step == self.stage_first_step and manifest.stage != spec.stage
        if manifest.stage != spec.stage and not at_start:
            raise ContractError(
                f"checkpoint {manifest.name} is of stage {manifest.stage}, step {manifest.next_step}; stage "
                f"{spec.stage} starts from step {self.stage_first_step}: launch stage {manifest.stage} again first"
            )

    def _try(self, manifest: Manifest) -> Tree | str:
        """The state, or what is wrong with the checkpoint: the same in all processes."""
        whole = manifest.stage == self.spec.stage
        wanted = self._wanted(manifest)
        paths = self._fitting(manifest, wanted)
        ahead, self._ahead = self._ahead, None
        begun = ahead if manifest.name == self.spec.resume else None
        own, state = self._read(manifest, wanted) if begun is None else begun.result()
        problems = [text for text in self.peers.gather("restore", own, seconds=RESTORE_SECONDS) if text]
        if problems:
            return problems[0]
        found = self.program.checksums(state)() if whole else checksums_of(state, mesh=self.program.mesh)
        problem = differing_arrays(manifest, found, paths=manifest.arrays.keys() | paths if whole else paths)
        if problem is not None:
            return problem
        self.log(f"restored {manifest.name}: {len(paths)} arrays equal to its manifest")
        if not whole:
            self.log(f"stage {self.spec.stage} starts: weights of {manifest.stage}, a fresh optimizer")
            return self.program.next_stage_state(state["params"])
        if self.peers.process == 0:
            self.store.create_proof(
                Proof(
                    manifest=manifest.name,
                    how="restore",
                    attempt=self.spec.attempt,
                    arrays=len(paths),
                    at=time.time(),
                )
            )
        return state

    def _wanted(self, manifest: Manifest) -> Tree:
        """All arrays; of another stage's checkpoint the parameters."""
        state = self.program.abstract_state
        return state if manifest.stage == self.spec.stage else {"params": state["params"]}

    def _read_ahead(self) -> tuple[str, Tree]:
        assert self.spec.resume is not None
        manifest = self.store.manifest(self.spec.resume)
        return self._read(manifest, self._wanted(manifest))

    def _read(self, manifest: Manifest, wanted: Tree) -> tuple[str, Tree]:
        """(what is wrong with the files, or nothing; the state)."""
        problem = missing_or_resized(manifest, self.store.checkpoint_sizes(manifest.folder))
        if problem is not None:
            return problem, None
        try:
            address = self.store.checkpoint_address(manifest.folder)
            return "", jax.block_until_ready(orbax_files.restore(address, wanted))
        except orbax_files.NotAsAsked as error:
            return changed_file(manifest, self.store) or f"its files are as they were written, but {error}", None
        except READ_ERRORS:
            problem = changed_file(manifest, self.store)
            if problem is None:
                raise
            return problem, None

    def _fitting(self, manifest: Manifest, wanted: Tree) -> list[str]:
        """The paths of ``wanted``, all of which the manifest has with that dtype and shape."""
        flat = by_path(wanted)
        for path, target in flat.items():
            entry = manifest.arrays.get(path)
            if entry is None or (entry.dtype, entry.shape) != (target.dtype.name, tuple(target.shape)):
                has = "no such array" if entry is None else f"{entry.dtype}{list(entry.shape)}"
                raise ContractError(
                    f"checkpoint {manifest.name}: {path} must be {target.dtype.name}{list(target.shape)}, "
                    f"it has {has}; this recipe's model or optimizer is not the one that wrote it"
                )
        return list(flat)


def checksums_of(arrays: Tree, *, mesh: Mesh) -> Checksums:
    """Checksums of any arrays on the mesh, by path."""
    flat = by_path(arrays)
    specs = [array.sharding.spec for array in flat.values()]

    def words_of(parts: list[jax.Array]) -> jax.Array:
        return jnp.stack([array_words(part, cut=cut_axis(spec)) for part, spec in zip(parts, specs, strict=True)])

    mapped = jax.shard_map(words_of, mesh=mesh, in_specs=(specs,), out_specs=PartitionSpec(), check_vma=False)
    pairs = jax.device_get(jax.jit(mapped)(list(flat.values())))
    return {
        path: (array.dtype.name, tuple(array.shape), (int(pair[0]), int(pair[1])))
        for (path, array), pair in zip(flat.items(), pairs, strict=True)
    }
