"""docs/failures.md names tests and programs that there are, and every row has some."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "failures.md").read_text(encoding="utf-8")


def rows() -> list[str]:
    """The last cell of each report."""
    lines = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| report")]
    return [line.rstrip("| ").rpartition(" | ")[2] for line in lines]


def test_every_report_has_a_test_or_a_program_that_there_is() -> None:
    sources = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    there = set(re.findall(r"def (test_\w+)\(", sources))
    assert len(rows()) > 30
    for row in rows():
        named = re.findall(r"`([^`]+)`", row)
        assert named, row
        missing = [name for name in named if name not in there and not (ROOT / name).is_file()]
        assert not missing, row
