"""An object store in memory, for simulations and tests; thread-safe through one lock."""

import threading

from orchestrator.contract.base import sha256_of
from orchestrator.contract.manifest import FileEntry
from orchestrator.store.objects import AlreadyExists, Conflict, NotFound, Stored, check_name, check_prefix


class MemoryStore:
    """Objects in a dictionary; a generation is a rising number."""

    def __init__(self) -> None:
        self._objects: dict[str, Stored] = {}
        self._writes = 0
        self._lock = threading.Lock()

    @property
    def address(self) -> str:
        return "memory:"

    @property
    def at_once(self) -> int:
        return 1

    def read(self, name: str) -> Stored:
        found = self._objects.get(check_name(name))
        if found is None:
            raise NotFound(f"{name} is not in the store; restore it from a copy")
        return found

    def create(self, name: str, data: bytes) -> str:
        with self._lock:
            there = self._objects.get(check_name(name))
            if there is None:
                return self._put(name, data)
            if there.data != data:
                raise AlreadyExists(f"{name} exists with other content")
            return there.generation

    def swap(self, name: str, data: bytes, *, generation: str) -> str:
        with self._lock:
            if self.read(name).generation != generation:
                raise Conflict(f"{name} was changed by another writer")
            return self._put(name, data)

    def overwrite(self, name: str, data: bytes) -> None:
        with self._lock:
            self._put(check_name(name), data)

    def names(self, prefix: str) -> list[str]:
        check_prefix(prefix)
        return sorted(name for name in self._objects if name.startswith(prefix))

    def children(self, prefix: str) -> list[str]:
        check_prefix(prefix)
        return sorted({name[len(prefix) :].split("/", 1)[0] for name in self._objects if name.startswith(prefix)})

    def sizes(self, prefix: str) -> dict[str, int]:
        return {name.removeprefix(prefix): len(self._objects[name].data) for name in self.names(prefix)}

    def files(self, prefix: str) -> dict[str, FileEntry]:
        found = {name.removeprefix(prefix): self._objects[name].data for name in self.names(prefix)}
        return {name: FileEntry(size=len(data), sha256=sha256_of(data)) for name, data in found.items()}

    def delete(self, prefix: str) -> None:
        check_name(prefix)
        with self._lock:
            for name in [name for name in self._objects if name == prefix or name.startswith(prefix + "/")]:
                del self._objects[name]

    def _put(self, name: str, data: bytes) -> str:
        self._writes += 1
        self._objects[name] = Stored(data=data, generation=str(self._writes))
        return str(self._writes)
