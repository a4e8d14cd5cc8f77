"""A run's directory as typed reads and writes; the one place that knows the names of its objects."""

import re
import secrets
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

from orchestrator.contract.attempt import (
    AttemptSpec,
    Exit,
    ProfileOrder,
    Progress,
    Rendezvous,
    Segment,
    Started,
    StartOrder,
    StopOrder,
)
from orchestrator.contract.base import ContractError, Document, sha256_of
from orchestrator.contract.event import Event, Request
from orchestrator.contract.ledger import Record, from_lines, to_lines
from orchestrator.contract.manifest import FileEntry, Head, Manifest, Pin, Proof, Quarantine, Tombstone
from orchestrator.contract.names import MANIFEST_NAME
from orchestrator.contract.recipe import Recipe
from orchestrator.contract.run import LeafPlan, Policy, Revision, Run
from orchestrator.store.objects import AlreadyExists, Conflict, NotFound, ObjectStore

D = TypeVar("D", bound=Document)
T = TypeVar("T")


@dataclass(frozen=True)
class Versioned(Generic[T]):
    """A document and the generation it was read at."""

    value: T
    generation: str


class RunStore:
    """All of one run's objects, below ``<name>/`` in an object store."""

    def __init__(self, objects: ObjectStore, name: str) -> None:
        self.objects = objects
        self.name = name

    @property
    def address(self) -> str:
        """Where the run's directory is, for trainers."""
        return f"{self.objects.address}/{self.name}"

    # ---- what was asked for
    def create_run(self, run: Run) -> None:
        self._create("run.json", run)

    def run(self) -> Run:
        run = self._read("run.json", Run).value
        if run.name != self.name:
            raise ContractError(
                f"{self._name('run.json')}: it is of run {run.name}, in the folder of run {self.name}; name the folder "
                f"{run.name}, or restore the file from a copy of run {self.name}"
            )
        return run

    def create_revision(self, revision: Revision, recipe_bytes: bytes) -> None:
        """The recipe first: a revision without its recipe cannot be seen."""
        self.objects.create(self._name(f"recipes/{revision.recipe_sha256}.json"), recipe_bytes)
        self._create(f"revisions/{revision.number:04d}.json", revision)

    def create_recipe(self, recipe_bytes: bytes) -> str:
        """For a revision that is to be asked for; returns its hash."""
        sha256 = sha256_of(recipe_bytes)
        self.objects.create(self._name(f"recipes/{sha256}.json"), recipe_bytes)
        return sha256

    def revisions(self) -> list[Revision]:
        return self._all("revisions/", Revision)

    def recipe(self, sha256: str) -> Recipe:
        """The recipe with this hash.

        Raises:
            ContractError: the stored bytes have another hash.
        """
        name = f"recipes/{sha256}.json"
        data = self.objects.read(self._name(name)).data
        if sha256_of(data) != sha256:
            raise ContractError(f"{self._name(name)}: the recipe's bytes were changed; restore the file as submitted")
        return Recipe.from_bytes(data, where=self._name(name))

    def create_policy(self, policy: Policy) -> None:
        self._create("policy.json", policy)

    def policy(self) -> Versioned[Policy]:
        return self._read("policy.json", Policy)

    def swap_policy(self, policy: Policy, *, generation: str) -> None:
        self.objects.swap(self._name("policy.json"), policy.to_bytes(), generation=generation)

    def create_leaf_plan(self, plan: LeafPlan) -> None:
        self._create(f"plans/{plan.generation}.json", plan)

    def leaf_plan(self, generation: str) -> LeafPlan:
        return self._read(f"plans/{generation}.json", LeafPlan).value

    # ---- head
    def create_head(self, head: Head) -> None:
        self._create("head.json", head)

    def head(self) -> Versioned[Head]:
        return self._read("head.json", Head)

    def swap_head(self, head: Head, *, generation: str) -> str:
        """Replace head; a conflict caused by one's own lost response is success. Returns the new generation.

        Raises:
            Conflict: another writer was first.
        """
        try:
            return self.objects.swap(self._name("head.json"), head.to_bytes(), generation=generation)
        except Conflict:
            now = self.head()
            if now.value.write_id == head.write_id:
                return now.generation
            raise

    # ---- requests and events
    def create_request(self, request: Request) -> str:
        """Returns the request's name."""
        name = f"{int(request.at * 1000):014d}-{secrets.token_hex(4)}"
        self._create(f"requests/{name}.json", request)
        return name

    def request_names(self) -> list[str]:
        return [_stem(child) for child in self.objects.children(self._name("requests/"))]

    def request(self, name: str) -> Request:
        return self._read(f"requests/{name}.json", Request).value

    def create_event(self, event: Event) -> bool:
        """False when the number is taken by another event: somebody else led."""
        try:
            self._create(f"events/{event.number:08d}.json", event)
        except AlreadyExists:
            return False
        return True

    def events(self, *, after: int = 0) -> list[Event]:
        """Events with numbers above ``after``, in order, up to the first gap."""
        next_name = f"events/{after + 1:08d}.json"
        first = self._maybe(next_name, Event)
        if first is None:  # most looks end here, with one read
            return []
        later = [name for name in self._children("events/") if name > next_name]
        unbroken = [name for number, name in enumerate(later, after + 2) if name == f"events/{number:08d}.json"]
        found = [first, *self._each(unbroken, Event)]
        for number, event in enumerate(found, after + 1):
            self._check_is(f"events/{number:08d}.json", f"event {event.number}", f"event {number}")
        return found

    # ---- attempts
    def create_attempt(self, spec: AttemptSpec) -> None:
        self._create(f"attempts/{spec.attempt:04d}/attempt.json", spec)

    def attempt_object(self, attempt: int) -> str:
        """The spec's object name, for agents that hand it to a trainer."""
        return self._name(f"attempts/{attempt:04d}/attempt.json")

    def attempt(self, number: int) -> AttemptSpec:
        name = f"attempts/{number:04d}/attempt.json"
        spec = self._read(name, AttemptSpec).value
        self._check_is(name, f"attempt {spec.attempt} of run {spec.run}", f"attempt {number} of run {self.name}")
        return spec

    def attempt_numbers(self) -> list[int]:
        found = self.objects.children(self._name("attempts/"))
        return [int(child) for child in found if re.fullmatch("[0-9]{4,9}", child)]

    def create_start_order(self, order: StartOrder) -> None:
        self._create(f"attempts/{order.attempt:04d}/order.json", order)

    def start_order(self, attempt: int) -> StartOrder | None:
        return self._maybe(f"attempts/{attempt:04d}/order.json", StartOrder)

    def create_stop_order(self, order: StopOrder) -> None:
        """The first order of each kind counts; a repeated one is no error."""
        try:
            self._create(f"attempts/{order.attempt:04d}/{order.how}.json", order)
        except AlreadyExists:
            return

    def stop_order(self, attempt: int, how: str) -> StopOrder | None:
        return self._maybe(f"attempts/{attempt:04d}/{how}.json", StopOrder)

    def profile_order(self, attempt: int) -> ProfileOrder | None:
        """The newest order to profile this attempt."""
        return self._maybe(f"attempts/{attempt:04d}/profile.json", ProfileOrder)

    def put_profile_order(self, order: ProfileOrder, *, after: ProfileOrder | None) -> None:
        """Order a profile, in place of the one ``after`` (None: there is none).

        Raises:
            AlreadyExists, Conflict: somebody else was first.
        """
        name = f"attempts/{order.attempt:04d}/profile.json"
        if after is None:
            self._create(name, order)
            return
        before = self._read(name, ProfileOrder)
        if before.value != after:
            raise Conflict(f"{name} was changed by another writer")
        self.objects.swap(self._name(name), order.to_bytes(), generation=before.generation)

    def create_profile_file(self, order: ProfileOrder, name: str, data: bytes) -> None:
        """A file of a profile; ``name``: inside its folder. Raises StoreError, ContractError."""
        self.objects.create(self._name(f"{order.folder}/{name}"), data)

    def create_rendezvous(self, attempt: int, rendezvous: Rendezvous) -> None:
        self._create(f"attempts/{attempt:04d}/rendezvous.json", rendezvous)

    def rendezvous(self, attempt: int) -> Rendezvous | None:
        return self._maybe(f"attempts/{attempt:04d}/rendezvous.json", Rendezvous)

    def write_progress(self, progress: Progress) -> None:
        name = f"attempts/{progress.attempt:04d}/hosts/{progress.process:03d}.json"
        self.objects.overwrite(self._name(name), progress.to_bytes())

    def progress(self, attempt: int) -> dict[int, Progress]:
        """By process index."""
        found = self._all(f"attempts/{attempt:04d}/hosts/", Progress)
        return {progress.process: progress for progress in found}

    def create_started(self, started: Started) -> None:
        self._create(f"attempts/{started.attempt:04d}/started/{started.process:03d}.json", started)

    def started(self, attempt: int) -> dict[int, Started]:
        found = self._all(f"attempts/{attempt:04d}/started/", Started)
        return {started.process: started for started in found}

    def create_exit(self, exit_document: Exit) -> None:
        self._create(f"attempts/{exit_document.attempt:04d}/exits/{exit_document.process:03d}.json", exit_document)

    def exits(self, attempt: int) -> dict[int, Exit]:
        found = self._all(f"attempts/{attempt:04d}/exits/", Exit)
        return {exit_document.process: exit_document for exit_document in found}

    # ---- ledger
    def create_segment(self, attempt: int, number: int, records: list[Record]) -> str:
        """Close a segment; returns its object name inside the run."""
        name = f"attempts/{attempt:04d}/ledger/{number:06d}.jsonl"
        self.objects.create(self._name(name), to_lines(records))
        return name

    def segment_names(self, attempt: int) -> list[str]:
        return self._children(f"attempts/{attempt:04d}/ledger/")

    def read_segment(self, name: str) -> tuple[bytes, list[Record]]:
        data = self.objects.read(self._name(name)).data
        return data, list(from_lines(data, where=self._name(name)))

    def read_prior(self, segment: Segment) -> list[Record]:
        """The records of a segment whose length and hash an AttemptSpec froze.

        Raises:
            ContractError: the bytes are not the frozen ones.
        """
        data, records = self.read_segment(segment.name)
        if len(data) != segment.length or sha256_of(data) != segment.sha256:
            raise ContractError(
                f"{segment.name}: the ledger segment was changed after attempt {segment.attempt} was fenced"
            )
        return records

    def ledger(self, attempt: int) -> list[Record]:
        """All records of an attempt, in order."""
        return [record for name in self.segment_names(attempt) for record in self.read_segment(name)[1]]

    # ---- checkpoints
    def create_manifest(self, manifest: Manifest) -> None:
        self._create(f"manifests/{manifest.name}.json", manifest)

    def manifest(self, name: str) -> Manifest:
        manifest = self._read(f"manifests/{name}.json", Manifest).value
        self._check_is(f"manifests/{name}.json", f"checkpoint {manifest.name}", f"checkpoint {name}")
        return manifest

    def manifest_names(self) -> list[str]:
        """All that were ever written, reachable or not: for reports and retention, never for choosing one."""
        found = self.objects.children(self._name("manifests/"))
        return [_stem(child) for child in found if re.fullmatch(MANIFEST_NAME, _stem(child))]

    def lineage(self, newest: str | None) -> list[Manifest]:
        """The manifests reachable from one, newest first."""
        found: list[Manifest] = []
        name = newest
        while name is not None:
            manifest = self.manifest(name)
            found.append(manifest)
            name = manifest.parent
        return found

    def create_proof(self, proof: Proof) -> None:
        """One proof is enough; a second one is no error."""
        try:
            self._create(f"proofs/{proof.manifest}.json", proof)
        except AlreadyExists:
            return

    def proofs(self) -> dict[str, Proof]:
        return {proof.manifest: proof for proof in self._all("proofs/", Proof)}

    def proven_names(self) -> set[str]:
        return {_stem(child) for child in self.objects.children(self._name("proofs/"))}

    def create_quarantine(self, quarantine: Quarantine) -> None:
        try:
            self._create(f"quarantine/{quarantine.manifest}.json", quarantine)
        except AlreadyExists:
            return

    def quarantined(self) -> dict[str, Quarantine]:
        return {entry.manifest: entry for entry in self._all("quarantine/", Quarantine)}

    def create_pin(self, pin: Pin) -> None:
        try:
            self._create(f"pins/{pin.manifest}.json", pin)
        except AlreadyExists:
            return

    def pins(self) -> set[str]:
        return {_stem(child) for child in self.objects.children(self._name("pins/"))}

    def create_tombstone(self, manifest: str) -> None:
        """Say that a checkpoint's data is being deleted; a second time is no error."""
        self._create(f"tombstones/{manifest}.json", Tombstone(manifest=manifest))

    def checkpoint_folders(self) -> list[str]:
        """Folders that are there, complete or not: for deletion and reports, never for choosing one."""
        return self._children("checkpoints/")

    def checkpoint_address(self, folder: str) -> str:
        """Absolute path or ``gs://`` address of a checkpoint's folder."""
        return f"{self.address}/{folder}"

    def checkpoint_sizes(self, folder: str) -> dict[str, int]:
        """Bytes of each file, by path in the folder; reads no file."""
        return self.objects.sizes(self._name(folder) + "/")

    def checkpoint_files(self, folder: str) -> dict[str, FileEntry]:
        """Size and hash of each file, by path in the folder."""
        return self.objects.files(self._name(folder) + "/")

    def tombstones(self) -> set[str]:
        return {_stem(child) for child in self.objects.children(self._name("tombstones/"))}

    def delete_checkpoint(self, folder: str) -> None:
        """Delete a checkpoint's data.

        Raises:
            ValueError: not a checkpoint's folder.
        """
        if not re.fullmatch(r"checkpoints/[0-9]{12,18}-a[0-9]{4,9}", folder):
            raise ValueError(f"{folder!r} is not a checkpoint's folder")
        self.objects.delete(self._name(folder))

    # ---- certificates
    def create_certificate(self, manifest: str, certificate: Document) -> None:
        """Of the run as it is complete with this manifest; the first one stays."""
        try:
            self._create(f"certificates/{manifest}.json", certificate)
        except AlreadyExists:
            return

    def has_certificate(self, manifest: str) -> bool:
        return f"{manifest}.json" in self.objects.children(self._name("certificates/"))

    # ---- names
    def _check_is(self, name: str, found: str, expected: str) -> None:
        """What lies under a name is what the name says: no copy of another, which could make a circle of parents."""
        if found != expected:
            raise ContractError(
                f"{self._name(name)}: it is {found}, not {expected}; restore the file from a copy of this run"
            )

    def _name(self, name: str) -> str:
        return f"{self.name}/{name}"

    def _create(self, name: str, document: Document) -> None:
        self.objects.create(self._name(name), document.to_bytes())

    def _read(self, name: str, kind: type[D]) -> Versioned[D]:
        stored = self.objects.read(self._name(name))
        return Versioned(kind.from_bytes(stored.data, where=self._name(name)), stored.generation)

    def _maybe(self, name: str, kind: type[D]) -> D | None:
        try:
            return self._read(name, kind).value
        except NotFound:
            return None

    def _all(self, prefix: str, kind: type[D]) -> list[D]:
        return self._each(self._children(prefix), kind)

    def _children(self, prefix: str) -> list[str]:
        return [prefix + child for child in self.objects.children(self._name(prefix))]

    def _each(self, names: list[str], kind: type[D]) -> list[D]:
        if self.objects.at_once == 1 or len(names) < 2:
            return [self._read(name, kind).value for name in names]
        with ThreadPoolExecutor(self.objects.at_once) as pool:
            return [found.value for found in pool.map(lambda name: self._read(name, kind), names)]


def _stem(child: str) -> str:
    return child.removesuffix(".json")
