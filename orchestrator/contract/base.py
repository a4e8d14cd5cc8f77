"""What every document that crosses a boundary has in common.

A document is a frozen pydantic model that rejects unknown fields. On disk it is JSON with one more member,
``"schema": "<kind>/<version>"``, so that a reader never has to guess what it holds, and a document written by a
newer Everstep is refused with that reason instead of being half understood.
"""

import hashlib
import json
import re
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from orchestrator.contract import strict_json
from orchestrator.contract.names import FORMS
from orchestrator.contract.text import LONGEST, one_line


class ContractError(ValueError):
    """A document is not what it should be; the text is one line: where, what, and what to do."""

    def __init__(self, text: str) -> None:
        super().__init__(one_line(text, longest=LONGEST))


class Part(BaseModel):
    """A piece of a document."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Document(Part):
    """A whole document; subclasses set ``KIND``."""

    KIND: ClassVar[str]
    VERSION: ClassVar[int] = 1

    def to_bytes(self) -> bytes:
        """The canonical bytes: sorted keys, two-space indent, one final newline."""
        body = {"schema": f"{self.KIND}/{self.VERSION}", **self.model_dump(mode="json")}
        return (json.dumps(body, sort_keys=True, indent=2, ensure_ascii=False) + "\n").encode()

    @classmethod
    def from_bytes(cls, data: bytes, *, where: str) -> Self:
        """Parse bytes read at ``where`` (a name for the error text).

        Raises:
            ContractError: not JSON, another kind, a newer version, or a field that does not fit.
        """
        try:
            body = strict_json.parse(data)
        except ValueError as error:
            raise ContractError(f"{where}: not valid JSON ({error}); restore the file from a copy") from error
        if not isinstance(body, dict):
            raise ContractError(f"{where}: expected a JSON object, found {type(body).__name__}")
        cls._check_schema(body.pop("schema", None), where)
        return cls.from_fields(body, where=where)

    @classmethod
    def from_fields(cls, fields: dict[str, Any], *, where: str) -> Self:
        """Validate fields (YAML or JSON already parsed) and name file and field in the error."""
        try:
            # JSON semantics, so that a list is accepted for a tuple field also in strict places
            return cls.model_validate(fields)
        except ValidationError as error:
            raise ContractError(f"{where}: {first_problem(error)}") from error

    @classmethod
    def _check_schema(cls, schema: object, where: str) -> None:
        kind, _, version = str(schema).partition("/")
        if kind != cls.KIND or not re.fullmatch("[0-9]{1,9}", version):
            raise ContractError(f"{where}: expected a {cls.KIND} document, found schema {schema!r:.60}")
        if int(version) > cls.VERSION:
            raise ContractError(
                f"{where}: schema {schema} is newer than this Everstep reads ({cls.KIND}/{cls.VERSION}); "
                "upgrade everstep"
            )

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """The published JSON Schema, with the ``schema`` member that the bytes carry."""
        schema = cls.model_json_schema()
        schema["properties"] = {"schema": {"const": f"{cls.KIND}/{cls.VERSION}"}, **schema.get("properties", {})}
        schema["required"] = ["schema", *schema.get("required", [])]
        return schema


def first_problem(error: ValidationError) -> str:
    """The first problem of a validation in one line: field, what is wrong, and how many more there are."""
    problems = error.errors(include_url=False)
    first = problems[0]
    field = ".".join(str(part) for part in first["loc"]) or "document"
    text = first["msg"].removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        text = "unknown field; remove it or correct its name"
    elif first["type"] == "string_pattern_mismatch" and first["ctx"]["pattern"] in FORMS:
        text = f"{FORMS[first['ctx']['pattern']]} (found {first['input']!r:.60})"
    elif first["type"] != "value_error":
        text = f"{text} (found {first['input']!r:.60})"
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return f"{field}: {text}{more}"


def sha256_of(data: bytes) -> str:
    """SHA-256 as 64 lower-case hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()
