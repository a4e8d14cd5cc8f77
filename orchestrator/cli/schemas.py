"""``everstep schemas``: the JSON Schema of every document that crosses a boundary, and of the files people write."""

import ast
import importlib
import inspect
import json
import pkgutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import click

import orchestrator
from orchestrator.cli.errors import BadInput, DoesNotHold
from orchestrator.cli.options import json_option
from orchestrator.cli.output import print_document, print_lines
from orchestrator.cli.run_file import RunFile
from orchestrator.contract.base import Document, Part
from orchestrator.contract.recipe import Recipe
from orchestrator.fleet.local_fleet import LocalFleet

DIALECT = "https://json-schema.org/draft/2020-12/schema"
FieldDocs = Mapping[tuple[str, str], str]
"""By class and field."""
WRITTEN_BY_PEOPLE: dict[str, type[Part]] = {"run.yaml": RunFile, "recipe.yaml": Recipe, "fleet.yaml": LocalFleet}
"""Files without the ``schema`` member that documents have."""


class SchemaList(Document):
    """What ``everstep schemas --json`` says."""

    KIND: ClassVar[str] = "schema-list"

    folder: str | None
    schemas: tuple[str, ...]
    changed: tuple[str, ...]
    """Written, or with --check: not what the code says."""


@click.command()
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), metavar="FOLDER", help="Write them there.")
@click.option("--check", is_flag=True, help="Compare only.")
@json_option(schema="schema-list")
def schemas(out: Path | None, check: bool, as_json: bool) -> None:
    """Write the JSON Schemas of all documents, of what --json prints, and of run.yaml, recipe.yaml and fleet.yaml.

    Without --out, only list them.

    \b
    Examples:
      everstep schemas --out docs/schemas
      everstep schemas --out docs/schemas --check

    Exit codes: 0 written, or current; 1 with --check: some are not what the code says.
    """
    texts = schema_texts()
    changed: tuple[str, ...] = ()
    if out is not None:
        changed = _stale(texts, out)
        if not check:
            _write(texts, out, changed)
    elif check:
        raise BadInput("check what? pass --out FOLDER")
    found = SchemaList(folder=str(out) if out else None, schemas=tuple(texts), changed=changed)
    if as_json:
        print_document(found)
    elif out is None:
        print_lines(texts)
    elif not check:
        print_lines([f"{out}: {len(texts)} schemas, {len(changed)} changed"])
    if check and changed:
        raise DoesNotHold(f"{out}: not what the code says: {', '.join(changed)}; run: everstep schemas --out {out}")


def schema_texts() -> dict[str, str]:
    """The text of each schema, by file name."""
    _import_everything()
    docs = field_docs(_subclasses(Part))
    found = {document.KIND: document.json_schema() for document in document_types()}
    found |= {name: model.model_json_schema() for name, model in WRITTEN_BY_PEOPLE.items()}
    return {f"{name}.json": _text(_described(schema, docs)) for name, schema in sorted(found.items())}


def _text(schema: Mapping[str, Any]) -> str:
    return json.dumps({"$schema": DIALECT, **schema}, indent=2, ensure_ascii=False) + "\n"


def document_types() -> list[type[Document]]:
    """Every kind of document that the orchestrator defines. Raises ValueError: two have one kind."""
    found: dict[str, type[Document]] = {}
    for model in _subclasses(Document):
        if "KIND" in vars(model) and issubclass(model, Document) and found.setdefault(model.KIND, model) is not model:
            raise ValueError(f"{model.__qualname__} and {found[model.KIND].__qualname__} are both {model.KIND!r}")
    return list(found.values())


def _import_everything() -> None:
    for module in pkgutil.walk_packages(orchestrator.__path__, "orchestrator."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)


def _subclasses(model: type[Part]) -> list[type[Part]]:
    direct = [inner for inner in model.__subclasses__() if inner.__module__.startswith("orchestrator.")]
    return direct + [inner for one in direct for inner in _subclasses(one)]


def _described(schema: Mapping[str, Any], docs: FieldDocs) -> dict[str, Any]:
    """The schema with each field's docstring as its description."""
    nodes = {str(schema.get("title")): schema, **schema.get("$defs", {})}
    for name, node in nodes.items():
        for field, inner in node.get("properties", {}).items():
            if (name, field) in docs:
                inner["description"] = docs[name, field]
    return dict(schema)


def field_docs(models: Iterable[type[Part]]) -> FieldDocs:
    """The string literal that follows each field in a class's source, in one line."""
    docs = {}
    for module in {model.__module__ for model in models}:
        for node in ast.walk(ast.parse(inspect.getsource(sys.modules[module]))):
            if isinstance(node, ast.ClassDef):
                docs.update({(node.name, field): text for field, text in _docs_in(node)})
    return docs


def _docs_in(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for statement, after in zip(node.body, node.body[1:], strict=False):
        match statement, after:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                yield name, " ".join(text.split())


def _stale(texts: Mapping[str, str], folder: Path) -> tuple[str, ...]:
    published = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.json")}
    return tuple(sorted(name for name in texts.keys() | published.keys() if texts.get(name) != published.get(name)))


def _write(texts: Mapping[str, str], folder: Path, changed: tuple[str, ...]) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in changed:
            if name in texts:
                (folder / name).write_text(texts[name], encoding="utf-8")
            else:
                (folder / name).unlink()
    except OSError as error:
        raise BadInput(f"{error.filename}: {error.strerror or error}; name another folder") from error
