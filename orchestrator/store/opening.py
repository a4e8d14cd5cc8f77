"""From an address to the store that it names."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.store.local import LocalStore
from orchestrator.store.objects import ObjectStore, RangeStore, StoreUnavailable

if TYPE_CHECKING:
    from orchestrator.store.gcs import GcsStore

MISSING = "{}: this needs google-cloud-storage, which is not installed; pip install 'everstep[gcs]'"
_SCHEME = re.compile(r"([a-z0-9]+):/")


def is_bucket(address: str) -> bool:
    """``gs://…``, else a folder."""
    return address.startswith("gs://")


def split_address(address: str) -> tuple[str, str]:
    """``gs://bucket/a/b`` as ``gs://bucket`` and ``a/b``."""
    bucket, _, name = address.removeprefix("gs://").partition("/")
    return f"gs://{bucket}", name


def open_ranges(address: str, *, seconds: float = 45.0) -> RangeStore:
    """A bucket whose large objects are read in parts; requests are repeated for ``seconds``. Raises: as below."""
    return _bucket(address, seconds=seconds)


def open_objects(address: str, *, make: bool = False) -> ObjectStore:
    """The store at a folder or ``gs://bucket/folder``.

    Args:
        address: absolute or relative path, or ``gs://…``.
        make: make a folder that is missing; a bucket is never made.

    Raises:
        ValueError: no address of a store that there is.
        StoreUnavailable: it cannot be made, the bucket's client is not installed, or there are no credentials.
    """
    if not is_bucket(address):
        scheme = _SCHEME.match(address)
        if scheme is not None:
            raise ValueError(f"store {address}: there are folders and gs:// buckets, no {scheme[1]}:")
        return LocalStore(Path(address), make=make)
    return _bucket(address)


def crc32c_of(data: memoryview) -> str:
    """What a bucket says of an object with these bytes. Raises StoreUnavailable: its client is not installed."""
    try:
        from orchestrator.store.gcs import crc32c_of
    except ImportError as error:
        raise StoreUnavailable(MISSING.format("a hash of a bucket")) from error
    return crc32c_of(data)


def _bucket(address: str, *, seconds: float | None = None) -> "GcsStore":
    try:
        from orchestrator.store.gcs import GcsStore, Patience
    except ImportError as error:
        raise StoreUnavailable(MISSING.format(f"store {address}")) from error
    return GcsStore(address, patience=None if seconds is None else Patience(total=seconds))
