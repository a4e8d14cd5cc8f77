"""From an address to the store that it names."""

import re
from pathlib import Path

from orchestrator.store.local import LocalStore
from orchestrator.store.objects import ObjectStore, StoreUnavailable

_SCHEME = re.compile(r"([a-z0-9]+):/")


def is_bucket(address: str) -> bool:
    """``gs://…``, else a folder."""
    return address.startswith("gs://")


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
    try:
        from orchestrator.store.gcs import GcsStore
    except ImportError as error:
        raise StoreUnavailable(
            f"store {address}: this needs google-cloud-storage, which is not installed; pip install 'everstep[gcs]'"
        ) from error
    return GcsStore(address)
