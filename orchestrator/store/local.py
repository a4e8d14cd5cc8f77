"""A folder as an object store.

Create-only is ``link()`` of an fsynced temporary file, which fails if the name is taken; a swap holds a lock, compares
and renames. Both then fsync the folder, so that what was acknowledged survives a power cut. Temporary files live in
``.tmp`` beside the objects and carry a random name, so leftovers of a killed writer are never read.
"""

import contextlib
import errno
import fcntl
import hashlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from orchestrator.contract.manifest import FileEntry
from orchestrator.store.objects import (
    AlreadyExists,
    Conflict,
    NotFound,
    Stored,
    StoreUnavailable,
    check_name,
    is_name,
)


class LocalStore:
    """Objects are files below ``root``.

    A store is known by its ``.tmp``: a root without one (an unmounted folder) is unavailable, never an empty store.

    Args:
        root: the folder.
        make: make it when it is missing; False for those who find a store and must not make another in its place.

    Raises:
        StoreUnavailable: ``root`` cannot be made or written.
    """

    def __init__(self, root: Path, *, make: bool = True) -> None:
        self._root = root.absolute()
        self._temporary = self._root / ".tmp"
        if make:
            with self._reaching(str(self._root)):
                self._temporary.mkdir(parents=True, exist_ok=True)

    @property
    def address(self) -> str:
        return str(self._root)

    @property
    def at_once(self) -> int:
        return 1

    def read(self, name: str) -> Stored:
        with self._reaching(name):
            data = self._path(name).read_bytes()
        return Stored(data=data, generation=_generation(data))

    def create(self, name: str, data: bytes) -> str:
        path = self._path(name)
        with self._reaching(name), self._written(data, durable=True) as temporary:
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(temporary, path)
            except FileExistsError:
                if path.read_bytes() != data:
                    raise AlreadyExists(f"{name} exists with other content") from None
            _sync_folder(path.parent)
        return _generation(data)

    def swap(self, name: str, data: bytes, *, generation: str) -> str:
        path = self._path(name)
        with self._reaching(name), self._written(data, durable=True) as temporary, self._lock(name):
            if _generation(path.read_bytes()) != generation:
                raise Conflict(f"{name} was changed by another writer")
            os.replace(temporary, path)
            _sync_folder(path.parent)
        return _generation(data)

    def overwrite(self, name: str, data: bytes) -> None:
        path = self._path(name)
        with self._reaching(name), self._written(data, durable=False) as temporary:
            path.parent.mkdir(parents=True, exist_ok=True)
            os.replace(temporary, path)

    def names(self, prefix: str) -> list[str]:
        return sorted(path.relative_to(self._root).as_posix() for path in self._below(prefix))

    def sizes(self, prefix: str) -> dict[str, int]:
        base = self._folder(prefix)
        with self._reaching(prefix):
            return {path.relative_to(base).as_posix(): path.stat().st_size for path in self._below(prefix)}

    def files(self, prefix: str) -> dict[str, FileEntry]:
        base = self._folder(prefix)
        with self._reaching(prefix):
            return {path.relative_to(base).as_posix(): _entry(path) for path in self._below(prefix)}

    def children(self, prefix: str) -> list[str]:
        with self._reaching(prefix):
            try:
                found = os.listdir(self._folder(prefix))
            except FileNotFoundError:
                self._check_presence()
                return []
        return sorted(child for child in found if is_name(child))

    def delete(self, prefix: str) -> None:
        path = self._path(prefix)
        with self._reaching(prefix):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    def _below(self, prefix: str) -> list[Path]:
        with self._reaching(prefix):
            base = self._folder(prefix)
            found = [Path(folder) / file for folder, _, files in os.walk(base) for file in files]
            self._check_presence()
        return [path for path in found if self._temporary not in path.parents]

    def _path(self, name: str) -> Path:
        return self._root / check_name(name)

    def _folder(self, prefix: str) -> Path:
        return self._root / check_name(prefix.removesuffix("/")) if prefix else self._root

    @contextlib.contextmanager
    def _written(self, data: bytes, *, durable: bool) -> Iterator[Path]:
        path = self._temporary / secrets.token_hex(16)
        try:
            with path.open("xb") as file:
                file.write(data)
                if durable:
                    file.flush()
                    os.fsync(file.fileno())
            yield path
        finally:
            path.unlink(missing_ok=True)

    def _check_presence(self) -> None:
        if not self._temporary.is_dir():
            raise StoreUnavailable(f"the store {self._root} is not there; check path and mount")

    @contextlib.contextmanager
    def _reaching(self, what: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            self._check_presence()
            raise NotFound(f"{what} is not in the store; restore it from a copy") from error
        except NotADirectoryError as error:
            raise StoreUnavailable(f"{what}: {error.filename} is not a folder; name another store") from error
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            remedy = "free some space" if full else "check path, mount and permissions"
            raise StoreUnavailable(f"{what}: {error.strerror or error}; {remedy}") from error

    @contextlib.contextmanager
    def _lock(self, name: str) -> Iterator[None]:
        lock = self._temporary / (hashlib.sha256(name.encode()).hexdigest()[:32] + ".lock")
        with lock.open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def _generation(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _entry(path: Path) -> FileEntry:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
    return FileEntry(size=path.stat().st_size, sha256=digest.hexdigest())


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
