"""A Google Cloud Storage bucket, or a part of one, as an object store.

Create-only is an upload with ``ifGenerationMatch=0``, a swap one with the generation that was read, so the service
itself says who was first. Every request is repeated with back-off while the service is busy, unreachable or silent,
for a limited time. A repeated conditional write may meet its own first try, whose response was lost: then the object
is read back, and one's own bytes there mean success. Everything below the address belongs to the store.
"""

import base64
import logging
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import google_crc32c
from google.api_core import exceptions as answers
from google.auth import exceptions as credentials
from google.cloud import storage  # type: ignore[import-untyped]
from google.cloud.storage.exceptions import DataCorruption  # type: ignore[import-untyped]
from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_delay, wait_random_exponential

from orchestrator.contract.manifest import FileEntry
from orchestrator.store.objects import (
    AlreadyExists,
    Conflict,
    NotFound,
    Stored,
    StoreUnavailable,
    check_name,
    check_prefix,
    is_name,
)

T = TypeVar("T")

_ADDRESS = re.compile(r"gs://(?P<bucket>[a-z0-9][a-z0-9._-]{1,220}[a-z0-9])(/(?P<folder>.+))?")
_log = logging.getLogger(__name__)

AT_ONCE = 16
"""Requests at a time, at most; an answer takes tens of milliseconds."""


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long a request is waited for and repeated."""

    connect: float = 5.0
    """Seconds for a connection."""
    answer: float = 15.0
    """Seconds without a byte of the answer."""
    total: float = 45.0
    """Seconds after which no further try begins."""
    longest_pause: float = 5.0
    """Seconds between two tries at most; the first pauses are shorter, and all are random."""


@dataclass
class _Tries:
    """What is known of an operation's earlier tries."""

    unknown: bool = False
    """One of them got no answer: it may have been done or not."""


class GcsStore:
    """Objects below ``gs://bucket/prefix``. Any thread may use it; a forked process makes its own.

    Args:
        address: ``gs://bucket`` or ``gs://bucket/prefix``.
        patience: for each operation.

    Raises:
        ValueError: the address is no bucket's.
        StoreUnavailable: there are no credentials.
    """

    def __init__(self, address: str, *, patience: Patience | None = None) -> None:
        found = _ADDRESS.fullmatch(address.rstrip("/"))
        if found is None:
            raise ValueError(f"{address}: no address of a bucket; write gs://bucket or gs://bucket/folder")
        bucket, folder = found["bucket"], found["folder"]
        self._address = address.rstrip("/")
        self._prefix = f"{check_name(folder)}/" if folder else ""
        self._there = False
        self._patience = patience or Patience()
        try:
            self._client = storage.Client(project=None)  # which only making buckets needs
        except credentials.GoogleAuthError as error:
            raise StoreUnavailable(
                f"{self.address}: no Google credentials; `gcloud auth application-default login`, or give the "
                f"workload a service account ({_one_line(error)})"
            ) from error
        self._bucket = self._client.bucket(bucket)

    @property
    def address(self) -> str:
        return self._address

    @property
    def at_once(self) -> int:
        return AT_ONCE

    def read(self, name: str) -> Stored:
        blob = self._blob(name)
        try:
            return self._asked(name, _Tries(), lambda: self._download(blob))
        except NotFound:
            if not self._there:  # a bucket that is not there is no empty store; one with objects cannot be deleted
                self.check()
            raise

    def create(self, name: str, data: bytes) -> str:
        try:
            return self._upload(name, data, generation=0, tries=_Tries())
        except answers.PreconditionFailed:
            there = self.read(name)
            if there.data != data:
                raise AlreadyExists(f"{name} exists with other content") from None
            return there.generation

    def swap(self, name: str, data: bytes, *, generation: str) -> str:
        if not generation.isdigit() or generation == "0":  # 0 would mean: only if there is none
            self.read(name)  # raises NotFound
            raise _conflict(name)
        tries = _Tries()
        try:
            return self._upload(name, data, generation=int(generation), tries=tries)
        except answers.PreconditionFailed:
            there = self.read(name)
            if tries.unknown and there.data == data:
                return there.generation
            raise _conflict(name) from None

    def overwrite(self, name: str, data: bytes) -> None:
        self._upload(name, data, generation=None, tries=_Tries())

    def names(self, prefix: str) -> list[str]:
        return sorted(prefix + rest for rest in self._listed(prefix))

    def sizes(self, prefix: str) -> dict[str, int]:
        return {rest: int(blob.size) for rest, blob in self._listed(prefix).items()}

    def files(self, prefix: str) -> dict[str, FileEntry]:
        return {rest: _entry(blob) for rest, blob in self._listed(prefix).items()}

    def children(self, prefix: str) -> list[str]:
        base = self._key(check_prefix(prefix))

        def ask() -> set[str]:
            found = self._client.list_blobs(self._bucket, prefix=base, delimiter="/", **self._once)
            objects = {blob.name.removeprefix(base) for blob in found}  # the prefixes are known after this
            return objects | {folder.removeprefix(base).rstrip("/") for folder in found.prefixes}

        found = self._asked_of_bucket(prefix or "all names", _Tries(), ask)
        return sorted(child for child in found if is_name(child))

    def delete(self, prefix: str) -> None:
        names = [check_name(prefix), *self.names(prefix + "/")]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for _ in pool.map(self._delete_one, names):
                pass

    def entry(self, name: str) -> FileEntry:
        blob = self._bucket.blob(self._key(name))
        self._asked(name, _Tries(), lambda: blob.reload(**self._once))
        return _entry(blob)

    def read_range(self, name: str, *, start: int, size: int, generation: str) -> bytes:
        blob = self._bucket.blob(self._key(name))

        def ask() -> bytes:
            data: bytes = blob.download_as_bytes(start=start, end=start + size - 1, **self._once)
            if str(blob.generation) == generation and len(data) != size:  # the hash that comes along is of the whole
                raise ConnectionError(f"{len(data)} of {size} bytes arrived")
            return data

        data = self._asked(name, _Tries(), ask)
        if str(blob.generation) != generation:  # of this response
            raise _conflict(name)
        return data

    def check(self) -> None:
        """Raises StoreUnavailable: the bucket is not there, or may not be listed."""

        def ask() -> None:
            list(self._client.list_blobs(self._bucket, prefix=self._prefix, max_results=1, **self._once))

        try:
            self._asked("any name", _Tries(), ask)
        except NotFound:
            raise StoreUnavailable(
                f"{self.address}: there is no such bucket; check its name, or make it: "
                f"gcloud storage buckets create gs://{self._bucket.name}"
            ) from None
        self._there = True

    def keeps_deleted(self) -> str | None:
        """How the bucket keeps what was deleted or overwritten by mistake; None: it does not.

        Raises:
            StoreUnavailable: the account may not see that (storage.buckets.get).
        """
        bucket = self._asked("its settings", _Tries(), lambda: self._client.get_bucket(self._bucket, **self._once))
        if bucket.versioning_enabled:
            return "versioning is on"
        seconds = bucket.soft_delete_policy.retention_duration_seconds
        return f"soft delete keeps objects for {int(seconds) / 86400:g} days" if seconds and int(seconds) else None

    def _delete_one(self, name: str) -> None:
        blob = self._blob(name)
        try:
            self._asked(name, _Tries(), lambda: blob.delete(**self._once))
        except NotFound:
            return

    def _download(self, blob: storage.Blob) -> Stored:
        data = blob.download_as_bytes(**self._once)
        return Stored(data=data, generation=str(blob.generation))  # both of one response

    def _upload(self, name: str, data: bytes, *, generation: int | None, tries: _Tries) -> str:
        blob = self._blob(name)

        def send() -> str:
            blob.upload_from_string(
                data, content_type="application/octet-stream", if_generation_match=generation, **self._once
            )
            return str(blob.generation)

        return self._asked_of_bucket(name, tries, send)

    def _listed(self, prefix: str) -> dict[str, storage.Blob]:
        base = self._key(check_prefix(prefix))

        def ask() -> dict[str, storage.Blob]:
            found = self._client.list_blobs(self._bucket, prefix=base, **self._once)
            return {blob.name.removeprefix(base): blob for blob in found if not blob.name.endswith("/")}

        return self._asked_of_bucket(prefix or "all names", _Tries(), ask)

    def _asked_of_bucket(self, what: str, tries: _Tries, request: Callable[[], T]) -> T:
        """As ``_asked``, of what finds nothing only where there is no bucket: an upload, a listing."""
        try:
            return self._asked(what, tries, request)
        except NotFound:
            self.check()
            raise

    def _asked(self, what: str, tries: _Tries, request: Callable[[], T]) -> T:
        """Raises NotFound, StoreUnavailable, and PreconditionFailed as it is."""
        try:
            return self._retrying(what, tries)(request)
        except answers.NotFound:
            raise NotFound(f"{what} is not in the store; restore it from a copy") from None
        except answers.PreconditionFailed:
            raise
        except (OSError, DataCorruption, answers.GoogleAPICallError, credentials.GoogleAuthError) as error:
            raise StoreUnavailable(f"{what}: {self.address} {_problem(error)}") from error

    def _retrying(self, what: str, tries: _Tries) -> Retrying:
        def note(state: RetryCallState) -> None:
            if not tries.unknown:
                error = state.outcome and state.outcome.exception()
                why = error and _one_line(error)
                _log.warning("%s: %s: %s; trying again for %.0f s", self.address, what, why, patience.total)
            tries.unknown = True

        patience = self._patience
        return Retrying(
            retry=retry_if_exception(may_pass),
            stop=stop_after_delay(patience.total),
            wait=wait_random_exponential(multiplier=0.2, max=patience.longest_pause),
            before_sleep=note,
            reraise=True,
        )

    def _blob(self, name: str) -> storage.Blob:
        return self._bucket.blob(self._key(check_name(name)))

    def _key(self, name: str) -> str:
        return f"{self._prefix}{name}"

    @property
    def _once(self) -> dict[str, object]:
        """The client's own retries are off: they end at other errors and know nothing of our deadline."""
        return {"retry": None, "timeout": (self._patience.connect, self._patience.answer)}


def crc32c_of(data: memoryview | bytes) -> str:
    """As the service says it of an object with these bytes."""
    return base64.b64encode(google_crc32c.value(bytes(data)).to_bytes(4, "big")).decode()


def _entry(blob: storage.Blob) -> FileEntry:
    return FileEntry(size=int(blob.size), crc32c=blob.crc32c, generation=str(blob.generation))


def _conflict(name: str) -> Conflict:
    return Conflict(f"{name} was changed by another writer")


def may_pass(error: BaseException) -> bool:
    """The service is busy or down, the network is, or a body arrived damaged: over in a moment, perhaps."""
    if isinstance(error, credentials.GoogleAuthError):
        return bool(error.retryable)
    return isinstance(error, (OSError, DataCorruption, answers.TooManyRequests, answers.ServerError))


def _problem(error: BaseException) -> str:
    if may_pass(error):
        return f"does not answer ({_one_line(error)})"
    if isinstance(error, answers.Forbidden | answers.Unauthorized | credentials.GoogleAuthError):
        return f"forbids it ({_one_line(error)}); give the account roles/storage.objectAdmin"
    return f"refuses it ({_one_line(error)})"


def _one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]
