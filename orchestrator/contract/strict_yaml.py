"""YAML that people write, read as JSON would be: nothing in it is executed, comes twice, or grows beyond its size.

Scalars are read as YAML 1.2 has them: ``3e-4`` is a number, ``no`` and ``010`` are text. Aliases are fine, as long as
what they stand for stays small when it is written out.
"""

import json
import re
from pathlib import Path
from typing import Any

import yaml

from orchestrator.contract import strict_json
from orchestrator.contract.base import ContractError

MOST_BYTES = 2 << 20
"""Of a file; a person did not write more, so it is another file, such as the tokens themselves."""
MOST_VALUES = 200_000
"""In a file, with every alias written out."""
_SCALARS = {
    "bool": (r"true|false|True|False|TRUE|FALSE", "tTfF"),
    "int": (r"[-+]?(?:0|[1-9][0-9_]*)|0x[0-9a-fA-F]+", "-+0123456789"),
    "float": (
        r"[-+]?(?:[0-9][0-9_]*)?\.[0-9]+(?:[eE][-+]?[0-9]+)?|[-+]?[0-9][0-9_]*(?:\.|\.?[eE][-+]?[0-9]+)",
        "-+.0123456789",
    ),
    "null": (r"~|null|Null|NULL|", "~nN\0"),
}
"""Tag: pattern and possible first characters; all else is text."""
_CORE = ("null", "bool", "int", "float", "str", "seq", "map")
_MISFITS = (ValueError, KeyError, IndexError, AttributeError, TypeError)
"""What PyYAML raises for a scalar that is not what its explicit tag says, as in ``!!bool maybe``."""


class _Loader(yaml.SafeLoader):
    """YAML 1.2's core schema; a key that comes twice is an error."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 (PyYAML's own name and type)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "a field's name must be text", key.start_mark)
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"field {key.value!r:.60} comes twice; remove one", key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep)


for _tag, (_pattern, _first) in _SCALARS.items():
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"^(?:{_pattern})$"), list(_first))
_Loader.yaml_implicit_resolvers[""] = _Loader.yaml_implicit_resolvers.pop("\0")
_Loader.yaml_constructors = {
    tag: build
    for tag, build in yaml.SafeLoader.yaml_constructors.items()
    if tag is None or tag.rpartition(":")[2] in _CORE  # None: all other tags, an error
}


def read(path: Path) -> Any:
    """The content of a file: what JSON can say, and nothing else.

    Raises:
        ContractError: it is not UTF-8, not such YAML, or too large; names file, line and remedy.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise ContractError(f"{path}: larger than {MOST_BYTES >> 20} MiB, so nobody wrote it; name the right file")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise ContractError(f"{path}: not UTF-8 text (byte {error.start}); save it as UTF-8") from error
    return parse(text, where=str(path))


def parse(text: str, *, where: str) -> Any:
    """As ``read``, of the text itself."""
    try:
        value = yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        line = f"{error.problem_mark.line + 1}" if error.problem_mark else "?"
        raise ContractError(f"{where}:{line}: {error.problem or 'not valid YAML'}; correct it there") from error
    except (yaml.YAMLError, RecursionError, *_MISFITS) as error:
        what = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ContractError(f"{where}: not valid YAML ({what}); correct it there") from error
    if _is_large(value):
        raise ContractError(f"{where}: too large with its aliases written out; write less, or without aliases")
    try:
        return strict_json.parse(json.dumps(value).encode())
    except (ValueError, RecursionError) as error:
        what = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ContractError(f"{where}: {what}; correct it there") from error


def _is_large(value: Any) -> bool:
    """Stops counting in time, so that it ends on an alias of itself too."""
    waiting, count = [value], 0
    while waiting and count <= MOST_VALUES:
        inner = waiting.pop()
        count += 1
        if isinstance(inner, dict | list):
            waiting.extend(inner.values() if isinstance(inner, dict) else inner)
    return count > MOST_VALUES
