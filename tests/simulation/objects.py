"""The store of a simulation: in memory, with an index of folders, and one faulty view of it for each actor.

``QuickRunStore`` writes the same documents as ``RunStore`` in another notation and remembers what it has parsed, since
(de)serialisation would take most of the time of a simulation. Some seeds use ``RunStore`` itself.
"""

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from orchestrator.contract.attempt import Progress
from orchestrator.contract.base import Document
from orchestrator.contract.ledger import Record
from orchestrator.contract.manifest import Head
from orchestrator.contract.run import Policy
from orchestrator.store.memory import MemoryStore
from orchestrator.store.objects import Conflict, Stored
from orchestrator.store.run_store import RunStore, Versioned

D = TypeVar("D", bound=Document)


class SimObjects(MemoryStore):
    """MemoryStore that finds children without a look at every name."""

    def __init__(self) -> None:
        super().__init__()
        self._folders: dict[str, set[str]] = {}

    def names(self, prefix: str) -> list[str]:
        found = []
        for child in self.children(prefix):
            name = prefix + child
            found += [name] if name in self._objects else []
            found += self.names(name + "/")
        return found

    def children(self, prefix: str) -> list[str]:
        return sorted(self._folders.get(prefix, ()))

    def delete(self, prefix: str) -> None:
        for name in [*self.names(prefix + "/"), prefix]:
            if self._objects.pop(name, None) is not None:
                self._forget(name)

    def _put(self, name: str, data: bytes) -> str:
        if name not in self._objects:
            folder, _, child = name.rpartition("/")
            while child and child not in self._folders.setdefault(folder + "/", set()):
                self._folders[folder + "/"].add(child)
                folder, _, child = folder.rpartition("/")
        return super()._put(name, data)

    def _forget(self, name: str) -> None:
        folder, _, child = name.rpartition("/")
        while child and not self._folders.get(name + "/"):
            self._folders[folder + "/"].discard(child)
            name = folder
            folder, _, child = folder.rpartition("/")


class Guard(Protocol):
    """What may happen to an actor at each of its operations."""

    def before(self, operation: str, name: str) -> None:
        """May raise, or let the world go on for a while."""
        ...

    def after(self, operation: str, name: str) -> None:
        """As ``before``; a write is done by now."""
        ...


class Witness(Protocol):
    """Is told of every write before anybody else can see it."""

    def written(self, actor: str, name: str, before: bytes | None, after: bytes | None) -> None: ...


class ActorObjects:
    """The store as one actor sees it."""

    def __init__(self, objects: SimObjects, *, actor: str, guard: Guard, witness: Witness) -> None:
        self._objects = objects
        self._actor = actor
        self._guard = guard
        self._witness = witness

    @property
    def address(self) -> str:
        return self._objects.address

    @property
    def at_once(self) -> int:
        return self._objects.at_once

    def read(self, name: str) -> Stored:
        return self._do("read", name, lambda: self._objects.read(name))

    def create(self, name: str, data: bytes) -> str:
        return self._write("create", name, data, lambda: self._objects.create(name, data))

    def swap(self, name: str, data: bytes, *, generation: str) -> str:
        return self._write("swap", name, data, lambda: self._objects.swap(name, data, generation=generation))

    def overwrite(self, name: str, data: bytes) -> None:
        self._do("overwrite", name, lambda: self._objects.overwrite(name, data))
        self._witness.written(self._actor, name, None, data)

    def names(self, prefix: str) -> list[str]:
        return self._do("names", prefix, lambda: self._objects.names(prefix))

    def children(self, prefix: str) -> list[str]:
        return self._do("children", prefix, lambda: self._objects.children(prefix))

    def delete(self, prefix: str) -> None:
        self._guard.before("delete", prefix)
        self._witness.written(self._actor, prefix, b"", None)
        self._objects.delete(prefix)
        self._guard.after("delete", prefix)

    def _do(self, operation: str, name: str, work: Callable[[], Any]) -> Any:
        self._guard.before(operation, name)
        done = work()
        self._guard.after(operation, name)
        return done

    def _write(self, operation: str, name: str, data: bytes, work: Callable[[], str]) -> str:
        self._guard.before(operation, name)
        there = self._objects._objects.get(name)
        generation = work()
        if there is None or there.data != data:
            self._witness.written(self._actor, name, there.data if there else None, data)
        self._guard.after(operation, name)
        return generation


class QuickRunStore(RunStore):
    """RunStore with a shared memory of parsed documents."""

    def __init__(self, objects: Any, name: str, parsed: dict[Any, Any]) -> None:
        super().__init__(objects, name)
        self._parsed = parsed

    def swap_head(self, head: Head, *, generation: str) -> str:
        try:
            return str(self.objects.swap(self._name("head.json"), self._noted(head), generation=generation))
        except Conflict:
            now = self.head()
            if now.value.write_id == head.write_id:
                return now.generation
            raise

    def swap_policy(self, policy: Policy, *, generation: str) -> None:
        self.objects.swap(self._name("policy.json"), self._noted(policy), generation=generation)

    def write_progress(self, progress: Progress) -> None:
        name = f"attempts/{progress.attempt:04d}/hosts/{progress.process:03d}.json"
        self.objects.overwrite(self._name(name), self._noted(progress))

    def create_segment(self, attempt: int, number: int, records: list[Record]) -> str:
        name = f"attempts/{attempt:04d}/ledger/{number:06d}.jsonl"
        data = "\n".join(record.model_dump_json() for record in records).encode()
        self._parsed[data] = records
        self.objects.create(self._name(name), data)
        return name

    def read_segment(self, name: str) -> tuple[bytes, list[Record]]:
        data = self.objects.read(self._name(name)).data
        return data, self._parsed[data]

    def _create(self, name: str, document: Document) -> None:
        self.objects.create(self._name(name), self._noted(document))

    def _read(self, name: str, kind: type[D]) -> Versioned[D]:
        stored = self.objects.read(self._name(name))
        return Versioned(self._parsed[(kind, stored.data)], stored.generation)

    def _noted(self, document: Document) -> bytes:
        data = document.model_dump_json().encode()
        self._parsed[(type(document), data)] = document
        return data
