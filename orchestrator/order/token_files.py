"""Token files: headerless little-endian uint32; mapped into memory in a folder, read by range in a bucket."""

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from orchestrator.contract.base import ContractError
from orchestrator.contract.manifest import FileEntry
from orchestrator.contract.recipe import TokenFile
from orchestrator.store.objects import Conflict, NotFound, RangeStore
from orchestrator.store.opening import is_bucket, open_ranges, split_address

BYTES_A_TOKEN = 4
AT_ONCE = 8
"""Requests to a bucket at a time; an answer takes tens of milliseconds, and the client keeps 10 connections."""

PATIENCE_SECONDS = 600.0
"""For tokens that a bucket does not give: a step cannot go on without them, and whoever stops for less begins again."""

DataRoot = Path | str
"""A folder or ``gs://bucket/folder``."""


class Tokens(Protocol):
    """A file's tokens, read when they are asked for."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> NDArray[np.uint32]: ...


@dataclass(frozen=True)
class BucketTokens:
    """A file in a bucket, read by range, at the generation that the recipe says.

    Raises:
        ContractError: (when it is read) it is gone, or is another one by now.
        StoreUnavailable: (when it is read) the service does not answer for some time.
    """

    bucket: RangeStore
    address: str
    name: str
    file: TokenFile

    def __len__(self) -> int:
        return self.file.tokens or 0

    def __getitem__(self, part: slice, /) -> NDArray[np.uint32]:
        start, stop, _ = part.indices(len(self))
        start, size = start * BYTES_A_TOKEN, (stop - start) * BYTES_A_TOKEN
        try:
            data = self.bucket.read_range(self.name, start=start, size=size, generation=str(self.file.generation))
        except (Conflict, NotFound) as error:
            raise ContractError(f"{self.address}: {_gone(error)}; {_restore(self.file)}") from error
        return np.frombuffer(data, "<u4")


def address_of(file: TokenFile, *, data_root: DataRoot) -> str:
    """Where a file is: a path, or ``gs://…``."""
    if is_bucket(file.path):
        return file.path
    if is_bucket(str(data_root)):
        return f"{str(data_root).rstrip('/')}/{file.path.removeprefix('./')}"
    return str(Path(data_root) / file.path)


def opened(files: Iterable[TokenFile], *, data_root: DataRoot) -> list[Tokens]:
    """The tokens of a recipe's files, not read yet; of a bucket nothing is asked.

    Raises:
        ContractError: a file in a folder is missing, or is not as long as the recipe says, or one in a bucket was not
            looked at by submit; one line.
        StoreUnavailable: there are no credentials, or the bucket's client is not installed.
    """
    buckets: dict[str, RangeStore] = {}
    found: list[Tokens] = []
    for file in files:
        address = address_of(file, data_root=data_root)
        if not is_bucket(address):
            found.append(mapped(file, data_root=Path(data_root)))
            continue
        if not file.frozen:
            raise ContractError(f"{address}: its length and generation are not in the recipe; submit fills them in")
        bucket, name = split_address(address)
        if bucket not in buckets:
            buckets[bucket] = open_ranges(bucket, seconds=PATIENCE_SECONDS)
        found.append(BucketTokens(buckets[bucket], address, name, file))
    return found


def read_rows(places: Sequence[tuple[Tokens, int]], *, length: int) -> list[NDArray[np.uint32]]:
    """``length`` tokens of each file from a token on; from buckets, many at a time."""
    if not any(isinstance(tokens, BucketTokens) for tokens, _ in places):
        return [tokens[first : first + length] for tokens, first in places]
    with ThreadPoolExecutor(min(AT_ONCE, len(places)), thread_name_prefix="tokens") as pool:
        return list(pool.map(lambda place: place[0][place[1] : place[1] + length], places))


def entries(addresses: Iterable[str]) -> dict[str, FileEntry]:
    """What buckets say of objects, by address; no object is read.

    Raises:
        ContractError: one is missing; one line.
        StoreUnavailable: a bucket cannot be asked.
    """
    asked = list(dict.fromkeys(addresses))
    buckets = {bucket: open_ranges(bucket) for bucket in {split_address(address)[0] for address in asked}}

    def ask(address: str) -> FileEntry:
        bucket, name = split_address(address)
        try:
            return buckets[bucket].entry(name)
        except NotFound as error:
            raise ContractError(f"{address}: no such object; correct data_root or the recipe's path") from error

    if not asked:
        return {}
    with ThreadPoolExecutor(min(AT_ONCE, len(asked)), thread_name_prefix="tokens") as pool:
        return dict(zip(asked, pool.map(ask, asked), strict=True))


def compare_objects(files: Iterable[TokenFile], *, data_root: DataRoot) -> None:
    """Hold the files that are in buckets against what was found there at submit; no object is read.

    Raises:
        ContractError: one is missing or another one; one line.
        StoreUnavailable: a bucket cannot be asked.
    """
    wanted = {address_of(file, data_root=data_root): file for file in files}
    wanted = {address: file for address, file in wanted.items() if is_bucket(address)}
    for address, found in entries(wanted).items():
        file = wanted[address]
        there = (found.size, found.crc32c, found.generation)
        if there != ((file.tokens or 0) * BYTES_A_TOKEN, file.crc32c, file.generation):
            raise ContractError(
                f"{address}: has {found.size:,} bytes, crc32c {found.crc32c}, generation {found.generation}; "
                f"{_restore(file)}"
            )


def whole_tokens(where: object, size: int) -> int:
    """Tokens in a file of this size. Raises ContractError: it is empty, or no whole number of tokens; one line."""
    if size % BYTES_A_TOKEN or not size:
        raise ContractError(
            f"{where}: {size:,} bytes is not a whole, positive number of uint32 tokens; it is torn or has another "
            "format: write it again as little-endian uint32 without a header"
        )
    return size // BYTES_A_TOKEN


def count_tokens(path: Path) -> int:
    """Tokens in a file, by its size.

    Raises:
        ContractError: it is missing, empty, or not a whole number of tokens; one line.
    """
    try:
        size = path.stat().st_size
    except OSError as error:
        raise ContractError(f"{path}: {error.strerror or error}; correct data_root or the recipe's path") from error
    return whole_tokens(path, size)


def mapped(file: TokenFile, *, data_root: Path) -> NDArray[np.uint32]:
    """The tokens of a recipe's file in a folder, not read yet.

    Raises:
        ContractError: the file is missing, or is not as long as the recipe says; one line.
    """
    path = data_root / file.path
    found = count_tokens(path)
    if found != file.tokens:
        said = "nothing" if file.tokens is None else f"{file.tokens:,}"
        raise ContractError(
            f"{path}: holds {found:,} tokens, the recipe says {said}; restore the file that the run was "
            "submitted with, or give the data_root that it was submitted with"
        )
    try:
        return np.memmap(path, dtype="<u4", mode="r")
    except OSError as error:
        raise ContractError(f"{path}: {error.strerror or error}; make it readable") from error


def _gone(error: Exception) -> str:
    return "it is gone" if isinstance(error, NotFound) else "it was written again"


def _restore(file: TokenFile) -> str:
    return f"the run was submitted with generation {file.generation}, crc32c {file.crc32c}: restore that version"
