"""Making a written checkpoint complete: files hashed, manifest created, head swapped.

The swap is the one moment that counts. Its generation is known from the attempt's start and from its own commits, so
an attempt that was fenced meanwhile fails at the swap, whatever it believed before it.
"""

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_exponential

from orchestrator.contract.attempt import AttemptSpec
from orchestrator.contract.base import ContractError
from orchestrator.contract.ledger import Fingerprint
from orchestrator.contract.manifest import Head, Manifest, manifest_name
from orchestrator.store.objects import Conflict, StoreUnavailable
from orchestrator.store.run_store import RunStore, Versioned
from trainer.checkpoint.verify import array_entries, hash_of_params
from trainer.parallel.state_checksums import Checksums

PATIENCE = 120.0
"""Seconds for which a store that does not answer is asked again."""

T = TypeVar("T")


class Fenced(Exception):
    """Another attempt may commit now, and this one no more."""


@dataclass(frozen=True, kw_only=True)
class Origin:
    """What all manifests of an attempt say alike."""

    spec: AttemptSpec
    fingerprint: Fingerprint
    versions: dict[str, str]
    data_sha256: str


@dataclass(frozen=True, kw_only=True)
class Written:
    """A checkpoint whose files are all there."""

    next_step: int
    checksums: Checksums
    save_started: float
    """Seconds since the epoch."""
    witness: int | None = None
    """A step beyond it whose record should be in the store before head names it; None: none is to come."""


def own_head(store: RunStore, spec: AttemptSpec) -> Versioned[Head]:
    """Head at the start of an attempt, while it is this attempt that may commit.

    Raises:
        Fenced: a later attempt may.
        ContractError: an earlier one still may.
    """
    head = store.head()
    if head.value.attempt > spec.attempt:
        raise Fenced(f"fenced by attempt {head.value.attempt}: attempt {spec.attempt} commits nothing")
    if head.value.attempt < spec.attempt:
        raise ContractError(
            f"head says attempt {head.value.attempt}, this is {spec.attempt}; a launch raises head before it starts one"
        )
    return head


class Committer:
    """Commits of one attempt, by process 0. ``head`` is as it was when the attempt started.

    ``close_ledger`` puts all records into the store; first it waits a while for that of the step that it is given.
    """

    def __init__(
        self,
        store: RunStore,
        *,
        origin: Origin,
        head: Versioned[Head],
        parent: str | None,
        close_ledger: Callable[[int | None], None],
        patience: float = PATIENCE,
    ) -> None:
        self._store = store
        self._origin = origin
        self._generation = head.generation
        self._parent = parent
        self._close_ledger = close_ledger
        self._patience = patience
        self._uncommitted: Manifest | None = None

    def has_manifest(self, next_step: int) -> bool:
        """The manifest of this checkpoint was created, and only the swap of head is missing."""
        return self._uncommitted is not None and self._uncommitted.next_step == next_step

    def commit(self, written: Written) -> str:
        """Returns the manifest's name.

        Raises:
            Fenced: head was changed by somebody else.
            StoreError: not now; nothing was committed.
        """
        save_seconds = time.time() - written.save_started
        # no checkpoint is newer than the records that lead to it; and one beyond it witnesses the next move
        self._close_ledger(written.witness)
        if not self.has_manifest(written.next_step):
            manifest = self._manifest(written, save_seconds)
            self._patiently(lambda: self._store.create_manifest(manifest))
            self._uncommitted = manifest
        assert self._uncommitted is not None
        return self._swap(self._uncommitted)

    def _swap(self, manifest: Manifest) -> str:
        head = Head(
            attempt=manifest.attempt,
            manifest=manifest.name,
            next_step=manifest.next_step,
            revision=manifest.revision,
            write_id=secrets.token_hex(8),
        )
        try:
            self._generation = self._patiently(lambda: self._store.swap_head(head, generation=self._generation))
        except Conflict as error:
            now = self._store.head().value
            raise Fenced(f"fenced by attempt {now.attempt}: step {manifest.next_step} is not committed") from error
        self._parent, self._uncommitted = manifest.name, None
        return manifest.name

    def _manifest(self, written: Written, save_seconds: float) -> Manifest:
        origin, spec = self._origin, self._origin.spec
        folder = f"checkpoints/{manifest_name(written.next_step, spec.attempt)}"
        files = self._store.checkpoint_files(folder)
        return Manifest(
            run=spec.run,
            attempt=spec.attempt,
            revision=spec.revision,
            recipe_sha256=spec.recipe_sha256,
            stage=spec.stage,
            next_step=written.next_step,
            parent=self._parent,
            folder=folder,
            arrays=array_entries(written.checksums),
            files=files,
            params_sha256=hash_of_params(written.checksums),
            fingerprint=origin.fingerprint,
            versions=origin.versions,
            placement=spec.placement,
            data_sha256=origin.data_sha256,
            save_seconds=save_seconds,
            at=time.time(),
        )

    def _patiently(self, write: Callable[[], T]) -> T:
        retrying = Retrying(
            retry=retry_if_exception_type(StoreUnavailable),
            stop=stop_after_delay(self._patience),
            wait=wait_exponential(multiplier=0.1, max=5),
            before_sleep=lambda state: print(f"everstep: commit waits: {state.outcome and state.outcome.exception()}"),
            reraise=True,
        )
        return retrying(write)
