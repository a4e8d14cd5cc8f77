"""Strings of documents that become paths, objects' names or arguments: hostile ones are refused when they are read."""

import json
from typing import Any

import pytest

from orchestrator.contract.attempt import AttemptSpec, Rendezvous
from orchestrator.contract.base import ContractError, Document
from orchestrator.contract.event import Event
from orchestrator.contract.manifest import Head, Manifest, Pin, Proof, Quarantine, Tombstone
from orchestrator.contract.recipe import Recipe
from orchestrator.contract.run import LeafPlan, Policy, Revision, Run
from orchestrator.store.memory import MemoryStore
from orchestrator.store.objects import Stored
from orchestrator.store.run_store import RunStore
from tests.unit.hostile import HOSTILE_PATHS, document_types
from tests.unit.run_factory import RunFactory

MANIFEST = "000000000004-a0001"
OLDER = "000000000000-a0001"


def valid() -> dict[type[Document], list[Document]]:
    """Documents of a run that moved, with whatever it does not have by itself."""
    run = RunFactory(steps=12)
    run.launch("full").train(4).commit(files={"default/d/0a1b": {"size": 1, "sha256": "1" * 64}}).train(7).die()
    run.launch("quarter").train(12)
    run.event("proven", kind="proven", details={"manifests": [MANIFEST]})
    run.amend()
    found: list[Document] = [
        run.store.run().model_copy(update={"zygote": "trainer.zygote:trainer.train", "scrub": ("scrub",)}),
        run.recipe,
        run.policy,
        LeafPlan(generation="cpu"),
        run.head,
        run.store.manifest(MANIFEST),
        *run.store.revisions(),
        *run.store.events(),
        run.store.attempt(2),
        Rendezvous(address="127.0.0.1:80"),
        Proof(manifest=MANIFEST, how="scrub", attempt=None, arrays=1, at=0.0),
        Quarantine(manifest=MANIFEST, problem="x", attempt=None, at=0.0),
        Pin(manifest=MANIFEST, reason="x", by="ada", at=0.0),
        Tombstone(manifest=MANIFEST),
    ]
    by_type: dict[type[Document], list[Document]] = {}
    for document in found:
        by_type.setdefault(type(document), []).append(document)
    return by_type


FIELDS: list[tuple[type[Document], str]] = [
    (Run, "name"),
    (Run, "zygote"),
    (Recipe, "name"),
    (Recipe, "stages.0.name"),
    (Recipe, "stages.0.data.files.0.path"),
    (Policy, "placements.0.name"),
    (Policy, "placements.0.pool"),
    (Policy, "placements.0.generation"),
    (LeafPlan, "generation"),
    (Head, "manifest"),
    (Manifest, "run"),
    (Manifest, "stage"),
    (Manifest, "parent"),
    (Manifest, "folder"),
    (Manifest, "files.<key>"),
    (Revision, "base_manifest"),
    (Event, "action.resume"),
    (Event, "action.base"),
    (Event, "action.target"),
    (Event, "action.stage"),
    (Event, "action.hosts.0.pool"),
    (Event, "action.hosts.0.host"),
    (Event, "request"),
    (Event, "details.manifests.0"),
    (AttemptSpec, "run"),
    (AttemptSpec, "stage"),
    (AttemptSpec, "allocation"),
    (AttemptSpec, "resume"),
    (AttemptSpec, "prior.0.name"),
    (AttemptSpec, "hosts.0.host"),
    (AttemptSpec, "leaf_plan.generation"),
    (Rendezvous, "address"),
    (Proof, "manifest"),
    (Quarantine, "manifest"),
    (Pin, "manifest"),
    (Tombstone, "manifest"),
]
"""Where a document says a name, and must not say where to go."""
PLACES: list[tuple[type[Document], str]] = [
    (Run, "fleet"),
    (Run, "data_root"),
    (AttemptSpec, "store"),
    (AttemptSpec, "data_root"),
    (Manifest, "arrays.<key>"),
]
"""Anything that a person may choose, but nothing that cannot be a path or would not be shown as it is."""
UNPRINTABLE = [text for text in HOSTILE_PATHS if text and not text.isprintable()]
ids = [f"{model.KIND}.{field}" for model, field in FIELDS]


@pytest.fixture(scope="module")
def documents() -> dict[type[Document], list[Document]]:
    return valid()


def written(documents: dict[type[Document], list[Document]], model: type[Document], field: str, text: str) -> bytes:
    """A document of a kind with ``text`` in a field; the first one that has the field."""
    for document in documents[model]:
        fields = json.loads(document.to_bytes())
        if (place := _place(fields, field)) is not None:
            inner, last = place
            if last == "<key>":
                inner[text] = inner.pop(next(iter(inner)))
            else:
                inner[last] = text
            return json.dumps(fields).encode()
    raise AssertionError(f"no {model.KIND} has {field}")


def _place(fields: Any, field: str) -> tuple[Any, Any] | None:
    *outer, last = [int(part) if part.isdigit() else part for part in field.split(".")]
    try:
        for part in outer:
            fields = fields[part]
        there = last == "<key>" or (last < len(fields) if isinstance(last, int) else last in fields)
    except (KeyError, IndexError, TypeError):
        return None
    return (fields, last) if fields and there else None


@pytest.mark.parametrize(("model", "field"), FIELDS, ids=ids)
def test_a_hostile_name_is_refused_and_the_field_named(
    documents: dict[type[Document], list[Document]], model: type[Document], field: str
) -> None:
    for text in HOSTILE_PATHS:
        with pytest.raises(ContractError) as refused:
            model.from_bytes(written(documents, model, field, text), where="file.json")
        said = str(refused.value)
        assert said.isprintable()
        assert all(part in said for part in field.replace("<key>", "").split(".") if not part.isdigit()), said


@pytest.mark.parametrize(("model", "field"), PLACES, ids=[f"{model.KIND}.{field}" for model, field in PLACES])
def test_a_place_may_be_anywhere_and_has_no_control_characters(
    documents: dict[type[Document], list[Document]], model: type[Document], field: str
) -> None:
    for text in ("/data/../Δ 1", "gs://bucket/a", "a\\b"):
        assert model.from_bytes(written(documents, model, field, text), where="file.json")
    for text in UNPRINTABLE:
        with pytest.raises(ContractError, match="control characters"):
            model.from_bytes(written(documents, model, field, text), where="file.json")


@pytest.mark.parametrize("path", ["text.u32", "./text.u32", "a/b.u32", ".hidden", "..data", "a b/Δ.u32", "a..b"])
def test_what_people_call_their_token_files_is_fine(documents: dict[type[Document], list[Document]], path: str) -> None:
    assert Recipe.from_bytes(written(documents, Recipe, "stages.0.data.files.0.path", path), where="file.json")


@pytest.mark.parametrize(
    "name", ["manifest.ocdbt", "default/d/0a1b", "w/.zarray", "ocdbt.process_0/manifest.ocdbt", "_METADATA"]
)
def test_what_a_checkpoint_s_files_are_called_is_fine(
    documents: dict[type[Document], list[Document]], name: str
) -> None:
    assert Manifest.from_bytes(written(documents, Manifest, "files.<key>", name), where="file.json")


def test_a_manifest_s_folder_is_a_checkpoint_s(documents: dict[type[Document], list[Document]]) -> None:
    for folder in ("events", "checkpoints", "checkpoints/../events", "attempts/0001"):
        with pytest.raises(ContractError, match=r"folder: must be a folder below checkpoints/"):
            Manifest.from_bytes(written(documents, Manifest, "folder", folder), where="file.json")


def test_no_field_that_is_called_like_a_name_is_any_text() -> None:
    """Of documents that are read: what is only printed (orchestrator.reports, orchestrator.cli) is nobody's path."""
    names = {
        "manifest",
        "parent",
        "folder",
        "files",
        "resume",
        "base",
        "base_manifest",
        "path",
        "pool",
        "host",
        "stage",
    }
    names |= {"run", "store", "fleet", "data_root", "generation", "allocation", "zygote", "address", "target"}
    loose = set()
    for model in document_types():
        schema = model.json_schema()
        if model.__module__.startswith(("orchestrator.reports", "orchestrator.cli")):
            continue
        for node in (schema, *schema.get("$defs", {}).values()):
            for field, inner in node.get("properties", {}).items():
                texts = [option for option in inner.get("anyOf", [inner]) if option.get("type") == "string"]
                if field in names and any("pattern" not in text and "enum" not in text for text in texts):
                    loose.add(f"{model.KIND}: {node.get('title')}.{field}")
    assert not loose


# ---- copies under other names
def objects_of(run: RunFactory) -> MemoryStore:
    assert isinstance(run.store.objects, MemoryStore)
    return run.store.objects


def put(run: RunFactory, name: str, data: bytes) -> None:
    objects_of(run).overwrite(f"{run.store.name}/{name}", data)


def stored(run: RunFactory, name: str) -> Stored:
    return objects_of(run).read(f"{run.store.name}/{name}")


def test_parents_cannot_go_in_a_circle(
    documents: dict[type[Document], list[Document]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for parent in (MANIFEST, "000000000005-a0001", "000000000004-a0002"):
        with pytest.raises(ContractError, match=f"parent {parent} is not older than {MANIFEST} itself"):
            Manifest.from_bytes(written(documents, Manifest, "parent", parent), where="file.json")
    run = RunFactory(steps=12)
    run.launch("full").train(4).commit()
    put(run, f"manifests/{OLDER}.json", stored(run, f"manifests/{MANIFEST}.json").data)
    seen: list[str] = []
    read = run.store.manifest

    def manifest(name: str) -> Manifest:
        assert name not in seen, f"the parents of {MANIFEST} go in a circle: {', '.join([*seen, name])}"
        seen.append(name)
        return read(name)

    monkeypatch.setattr(run.store, "manifest", manifest)
    with pytest.raises(
        ContractError, match=rf"{OLDER}\.json: it is checkpoint {MANIFEST}, not checkpoint {OLDER}; restore"
    ):
        run.store.lineage(MANIFEST)


def test_a_parent_may_be_of_the_same_step_and_an_earlier_attempt() -> None:
    run = RunFactory(steps=12)
    run.launch("full").train(4).commit()
    run.launch("full").commit()
    newest = run.head.manifest
    assert [manifest.name for manifest in run.store.lineage(newest)] == ["000000000004-a0002", MANIFEST, OLDER]


def test_a_document_under_another_one_s_name_is_refused() -> None:
    run = RunFactory(steps=12)
    run.launch("full").train(4).commit()
    run.launch("full")
    put(run, "attempts/0002/attempt.json", stored(run, "attempts/0001/attempt.json").data)
    put(run, "events/00000002.json", stored(run, "events/00000001.json").data)
    with pytest.raises(ContractError, match="it is attempt 1 of run demo, not attempt 2 of run demo"):
        run.store.attempt(2)
    with pytest.raises(ContractError, match="it is event 1, not event 2"):
        run.store.events()


def test_the_store_of_another_run_is_refused() -> None:
    other = RunStore(RunFactory(steps=12, name="other").store.objects, "other")
    copy = RunFactory(steps=12)
    put(copy, "run.json", other.objects.read("other/run.json").data)
    with pytest.raises(ContractError, match="it is of run other, in the folder of run demo; name the folder other, or"):
        copy.store.run()
