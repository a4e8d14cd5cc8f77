"""JSON as documents are written: what one reader takes for one thing, every reader must.

Python's own reader also takes a member that comes twice (the last one wins), NaN, numbers beyond what other readers
hold, half of a surrogate pair, and UTF-16; and it ends in RecursionError on deep nesting. None of these is a document.
"""

import json
import math
import re
from typing import Any

MOST_DEPTH = 64
"""Lists and objects inside one another; no document has a fifth of it."""
_LONGEST_INTEGER = 20
"""Characters of the smallest number of 64 bits."""
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def parse(data: bytes) -> Any:
    """The value.

    Raises:
        ValueError: it is not JSON as documents have it; the text says what is wrong, in one line.
    """
    text = data.decode()
    try:
        found = json.loads(
            text, object_pairs_hook=_object, parse_int=_integer, parse_float=_number, parse_constant=_constant
        )
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if _deeper_than(found, MOST_DEPTH):
        raise ValueError("nested too deeply")
    if _SURROGATE.search(text):
        json.dumps(found, ensure_ascii=False).encode()  # an emoji as two escapes is whole, half of one is not
    return found


def _object(members: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(members)
    if len(found) != len(members):
        names = [name for name, _ in members]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"member {twice!r:.60} comes twice")
    return found


def _integer(digits: str) -> int:
    if len(digits) <= _LONGEST_INTEGER and -(2**63) <= (number := int(digits)) < 2**63:
        return number
    raise ValueError(f"the number {digits:.20}… does not fit in 64 bits")


def _number(digits: str) -> float:
    number = float(digits)
    if math.isfinite(number):
        return number
    raise ValueError(f"the number {digits:.40} is too large")


def _constant(word: str) -> float:
    raise ValueError(f"{word} is no number")


def _deeper_than(value: Any, most: int) -> bool:
    level = [value]
    for _ in range(most):
        level = [inner for outer in level for inner in _containers(outer)]
        if not level:
            return False
    return True


def _containers(value: Any) -> list[Any]:
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [inner for inner in inside if isinstance(inner, dict | list)]
