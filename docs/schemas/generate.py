"""Write the JSON Schema of every document that crosses a boundary, one file a kind, beside this program.

With ``--check`` nothing is written; the exit status is 1 when a published schema is not what the code says.
"""

import argparse
import importlib
import json
import pkgutil
import sys
from pathlib import Path

import orchestrator
from orchestrator.contract.base import Document

HERE = Path(__file__).resolve().parent


def document_types() -> dict[str, type[Document]]:
    """Every kind of document that the orchestrator defines, by kind."""
    for module in pkgutil.walk_packages(orchestrator.__path__, "orchestrator."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    found: dict[str, type[Document]] = {}
    waiting = list(Document.__subclasses__())
    while waiting:
        document = waiting.pop()
        waiting.extend(document.__subclasses__())
        if "KIND" not in vars(document):
            continue
        other = found.setdefault(document.KIND, document)
        if other is not document:
            raise ValueError(f"{document.__qualname__} and {other.__qualname__} are both of the kind {document.KIND!r}")
    return found


def schemas() -> dict[Path, str]:
    """The text of each schema file, by path."""
    texts = {}
    for kind, document in sorted(document_types().items()):
        schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **document.json_schema()}
        texts[HERE / f"{kind}.json"] = json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
    return texts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare only")
    check_only = parser.parse_args().check
    wanted = schemas()
    published = {path: path.read_text(encoding="utf-8") for path in HERE.glob("*.json")}
    stale = sorted(path for path in wanted.keys() | published.keys() if wanted.get(path) != published.get(path))
    if check_only:
        names = ", ".join(path.name for path in stale)
        if stale:
            print(f"docs/schemas: not what the code says ({names}); run: make schemas", file=sys.stderr)
        else:
            print(f"docs/schemas: all {len(wanted)} are current")
        return bool(stale)
    for path in stale:
        if path in wanted:
            path.write_text(wanted[path], encoding="utf-8")
        else:
            path.unlink()
    print(f"docs/schemas: {len(wanted)} schemas, {len(stale)} changed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
