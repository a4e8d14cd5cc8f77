"""Files that people write, checked strictly: duplicate, unknown and mistyped fields are errors in one line."""

import difflib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from orchestrator.cli.errors import BadInput
from orchestrator.contract import strict_yaml
from orchestrator.contract.base import ContractError
from orchestrator.contract.names import FORMS
from orchestrator.contract.text import LONGEST, one_line

M = TypeVar("M", bound=BaseModel)

REMEDIES = {
    "string_pattern_mismatch": "has a form that is not allowed here",
    "missing": "is missing; add it",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "string_type": "must be text; put it in quotes",
    "tuple_type": "must be a list",
    "dict_type": "must be a mapping",
    "model_type": "must be a mapping with fields",
    "too_short": "needs at least one entry",
    "string_too_short": "must not be empty",
}
"""What is said instead of pydantic's own text, by error type."""


def read_yaml(path: Path, model: type[M]) -> M:
    """The file as a model.

    Raises:
        BadInput: it cannot be read, is not YAML, or a field does not fit; names file, line or field, and remedy.
    """
    return checked(parsed(path), model, where=str(path))


def parsed(path: Path) -> Any:
    """The file's content. Raises BadInput: it cannot be read or is not YAML."""
    try:
        return strict_yaml.read(path)
    except FileNotFoundError as error:
        raise BadInput(f"{path}: no such file; `everstep init FOLDER` writes an example") from error
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror or error}; name a file that can be read") from error
    except ContractError as error:
        raise BadInput(str(error)) from error


def checked(fields: Any, model: type[M], *, where: str) -> M:
    """Parsed YAML as a model, by the strict rules of JSON: no text where a number is meant. Raises BadInput."""
    if not isinstance(fields, dict):
        found = "nothing" if fields is None else f"a {type(fields).__name__}"
        raise BadInput(f"{where}: expected fields such as {_known(model.model_json_schema())}, found {found}")
    try:
        return model.model_validate_json(json.dumps(fields), strict=True)
    except ValidationError as error:
        problem = f"{where}: {_first_problem(error, model.model_json_schema())}"
        raise BadInput(one_line(problem, longest=LONGEST)) from error


def _first_problem(error: ValidationError, schema: Mapping[str, Any]) -> str:
    """Unknown fields first: a mistyped name is also the reason why a field is missing."""
    problems = error.errors(include_url=False)
    first = min(problems, key=lambda problem: problem["type"] != "extra_forbidden")
    field = ".".join(str(part) for part in first["loc"])
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return f"{field}: {_text(first, schema)}{more}" if field else f"{_text(first, schema)}{more}"


def _text(problem: ErrorDetails, schema: Mapping[str, Any]) -> str:
    kind, found = problem["type"], f" (found {problem['input']!r:.60})"
    match kind:
        case "extra_forbidden":
            return _unknown(str(problem["loc"][-1]), _at(schema, problem["loc"][:-1]))
        case "value_error":
            return problem["msg"].removeprefix("Value error, ")
        case "missing":
            return REMEDIES[kind]
        case "literal_error":
            return f"must be {problem['ctx']['expected']}{found}"
        case "string_pattern_mismatch" if problem["ctx"]["pattern"] in FORMS:
            return f"{FORMS[problem['ctx']['pattern']]}{found}"
        case _ if kind in REMEDIES:
            return f"{REMEDIES[kind]}{found}"
        case _:
            return f"{problem['msg'].removeprefix('Input ')}{found}; correct it there"


def _unknown(name: str, schema: Mapping[str, Any]) -> str:
    close = difflib.get_close_matches(name, schema.get("properties", {}), n=1)
    return "unknown field; " + (f"did you mean {close[0]!r}?" if close else f"remove it; known are {_known(schema)}")


def _known(schema: Mapping[str, Any]) -> str:
    return ", ".join(schema.get("properties", {})) or "none"


def _at(schema: Mapping[str, Any], location: tuple[int | str, ...]) -> Mapping[str, Any]:
    """The JSON Schema of a place inside a document; an empty one when the place is free in form."""
    now = _resolved(schema, schema)
    for part in location:
        inner = now.get("items", {}) if isinstance(part, int) else now.get("properties", {}).get(part, {})
        now = _resolved(inner, schema)
    return now


def _resolved(node: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    for option in node.get("anyOf", ()):
        if option.get("type") != "null":
            return _resolved(option, root)
    if "$ref" in node:
        return _resolved(root["$defs"][node["$ref"].rpartition("/")[2]], root)
    return node
