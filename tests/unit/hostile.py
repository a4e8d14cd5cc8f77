"""Documents as nobody should write them: valid ones from their JSON Schema, and what can be wrong with them."""

import copy
import importlib
import json
import pkgutil
import re
from collections.abc import Mapping
from random import Random
from typing import Any

from hypothesis import strategies as st

import orchestrator
from orchestrator.contract.base import Document

Json = Any
RAW = {
    "huge float": "1e400",
    "huge integer": "9" * 5000,
    "65 bits": str(2**64),
    "not a number": "NaN",
    "infinity": "-Infinity",
    "half a surrogate": '"\\ud800"',
    "twice": '{"a": 1, "a": 2}',
    "deep lists": "[" * 5000 + "]" * 5000,
    "deep objects": '{"a":' * 300 + "1" + "}" * 300,
    "control characters": '"\\u0000\\u001b[2J\\n"',
    "very long": '"' + "x" * 100_000 + '"',
    "python": '"!!python/object/apply:os.system [id]"',
}
"""JSON text that json.dumps would not write."""
WORDS = (
    "main",
    "h-0",
    "000000000000-a0001",
    "checkpoints/000000000004-a0001",
    "demo-g1",
    "127.0.0.1:8476",
    "trainer.zygote:trainer.train",
    "0123456789abcdef" * 4,
    "0123456789abcdef",
    "3f800000",
    "AAAAAA==",
    "17",
    "tpu7x",
    "4x8x8",
)
"""A string for every pattern."""
HOSTILE_PATHS = (
    "../../etc/passwd",
    "/etc/passwd",
    "a/../../b",
    "..",
    "a\\..\\b",
    "a\x00b",
    "a\nb",
    "a\n",
    "\x1b[2J",
    "a//b",
    "",
)


def document_types() -> list[type[Document]]:
    """Every document of the orchestrator, so that a new one is covered without an edit."""
    for module in pkgutil.walk_packages(orchestrator.__path__, "orchestrator."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    found, waiting = [], [Document]
    while waiting:
        inner = [model for model in waiting.pop().__subclasses__() if model.__module__.startswith("orchestrator.")]
        found += inner
        waiting += inner
    return sorted(found, key=lambda model: model.KIND)


def fields_of(schema: Mapping[str, Any], seed: int) -> Json:
    """What a JSON Schema allows, small; a model's own validator may still refuse it."""
    return _Writer(schema, Random(seed)).value(schema)


class _Writer:
    def __init__(self, root: Mapping[str, Any], random: Random) -> None:
        self._root = root
        self._random = random

    def value(self, node: Mapping[str, Any]) -> Json:
        if "$ref" in node:
            return self.value(self._root["$defs"][node["$ref"].rpartition("/")[2]])
        if "const" in node or "enum" in node:
            return self._random.choice(node.get("enum", [node.get("const")]))
        if options := node.get("anyOf", node.get("oneOf")):
            return self.value(self._random.choice(options))
        write = getattr(self, f"_{node.get('type', 'anything')}")
        return write(node)

    def _object(self, node: Mapping[str, Any]) -> Json:
        if properties := node.get("properties"):
            required = node.get("required", ())
            there = [name for name in properties if name in required or self._random.random() < 0.5]
            return {name: self.value(properties[name]) for name in there}
        for pattern, inner in node.get("patternProperties", {}).items():
            return {self._string({"pattern": pattern}): self.value(inner)}
        rest = node.get("additionalProperties", True)
        return {name: self.value({} if rest is True else rest) for name in self._random.choice(["", "a", "ab"])}

    def _array(self, node: Mapping[str, Any]) -> Json:
        if "prefixItems" in node:
            return [self.value(inner) for inner in node["prefixItems"]]
        count = max(node.get("minItems", 0), self._random.choice([0, 1, 1, 2]))
        return [self.value(node.get("items", {})) for _ in range(count)]

    def _string(self, node: Mapping[str, Any]) -> Json:
        if "pattern" in node:
            return self._random.choice([text for text in WORDS if re.search(node["pattern"], text)])
        return self._random.choice(["", "a", "Δ ≠ 0", "two words"])

    def _integer(self, node: Mapping[str, Any]) -> Json:
        least = max(node.get("minimum", 0), node.get("exclusiveMinimum", -1) + 1)
        return self._random.choice([least, max(least, 2), max(least, 4)])

    def _number(self, node: Mapping[str, Any]) -> Json:
        return self._random.choice([0.5, 1.0] if "maximum" in node or "exclusiveMaximum" in node else [1, 1.0, 7.25])

    def _boolean(self, node: Mapping[str, Any]) -> Json:
        return self._random.random() < 0.5

    def _null(self, node: Mapping[str, Any]) -> Json:
        return None

    def _anything(self, node: Mapping[str, Any]) -> Json:
        return self._random.choice([None, 1, "a", [1.5], {"b": True}])


@st.composite
def damaged(draw: st.DrawFn, whole: Json) -> bytes:
    """The JSON text of a value, with up to three things wrong in its fields and one in its bytes."""
    value = copy.deepcopy(whole)
    raw: dict[str, str] = {}
    for index in range(draw(st.integers(0, 3))):
        place = draw(st.sampled_from(_places(value) or [()]))
        if not place:
            break
        marker = f"@{index}@"
        raw[f'"{marker}"'] = draw(st.sampled_from([*RAW.values(), "null", "true", "-1", '"text"', "[]", "{}", "0.5"]))
        _change(draw(st.sampled_from(["replace", "remove", "rename"])), value, place, marker)
    text = json.dumps(value)
    for marker, written in raw.items():
        text = text.replace(marker, written)
    return _damaged_bytes(draw, text)


def _damaged_bytes(draw: st.DrawFn, text: str) -> bytes:
    data = text.encode()
    place = draw(st.integers(0, len(data)))
    match draw(st.sampled_from(["none"] * 4 + ["cut", "flip", "utf-16", "bom", "more"])):
        case "cut":
            return data[:place]
        case "flip":
            return data[:place] + draw(st.binary(min_size=1, max_size=2)) + data[place + 1 :]
        case "utf-16":
            return text.encode("utf-16")
        case "bom":
            return text.encode("utf-8-sig")
        case "more":
            return data + draw(st.binary(max_size=4))
        case _:
            return data


def _places(value: Json, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return ([at] if at else []) + [place for key, one in inner for place in _places(one, (*at, key))]


def _change(how: str, value: Json, place: tuple[Any, ...], marker: str) -> None:
    *outer, last = place
    for key in outer:
        value = value[key]
    if how == "replace" or isinstance(value, list):
        value[last] = marker
    else:
        found = value.pop(last)
        if how == "rename":
            value[f"{last}{marker}"] = found
