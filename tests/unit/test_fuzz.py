"""Every document that is read, damaged in every way: refused in one short line, or understood as it was written."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.backends.local.fleet_file import read_fleet
from orchestrator.cli.errors import BadInput
from orchestrator.cli.run_file import RunFile
from orchestrator.cli.yaml_files import read_yaml
from orchestrator.contract import strict_yaml
from orchestrator.contract.base import ContractError, Document, Part
from orchestrator.contract.event import Event
from orchestrator.contract.ledger import Record, from_lines, to_lines
from orchestrator.contract.recipe import Recipe
from orchestrator.contract.text import one_line
from orchestrator.fleet.local_fleet import LocalFleet
from orchestrator.planner.history import History
from tests.unit.cli_folder import FLEET, RECIPE, RUN
from tests.unit.hostile import RAW, damaged, document_types, fields_of
from tests.unit.records import record_of

DOCUMENTS = document_types()
SCHEMAS = {model.KIND: model.json_schema() for model in DOCUMENTS}
LONGEST = 500
each_document = pytest.mark.parametrize("model", DOCUMENTS, ids=[model.KIND for model in DOCUMENTS])
few = settings(max_examples=12, suppress_health_check=list(HealthCheck))


def check_refusal(error: Exception) -> None:
    text = str(error)
    assert text.isprintable(), f"more than a line, or control characters: {text!r}"
    assert len(text) <= LONGEST, f"{len(text)} characters: {text}"


def check_document(model: type[Document], data: bytes) -> Document | None:
    """The document, when it is one."""
    try:
        found = model.from_bytes(data, where="run/file.json")
    except ContractError as error:
        check_refusal(error)
        return None
    assert model.from_bytes(found.to_bytes(), where="itself") == found
    if isinstance(found, Event):
        History().after(found)
    return found


@each_document
def test_what_the_schema_allows_is_understood(model: type[Document]) -> None:
    texts = (json.dumps(fields_of(SCHEMAS[model.KIND], seed)).encode() for seed in range(500))
    assert any(check_document(model, text) for text in texts), "no text of 500 is a document"


@each_document
@few
@given(data=st.data())
def test_a_damaged_document_is_refused_or_understood_as_written(model: type[Document], data: st.DataObject) -> None:
    whole = fields_of(SCHEMAS[model.KIND], data.draw(st.integers(0, 500)))
    check_document(model, data.draw(damaged(whole)))


@given(model=st.sampled_from(DOCUMENTS), data=st.binary(max_size=200))
def test_bytes_that_are_no_document_are_refused(model: type[Document], data: bytes) -> None:
    assert check_document(model, data) is None


@pytest.mark.parametrize("schema", ["run/²", "run/" + "9" * 5000, "run/-1", "run/2", "x" * 9999, None, 1, [1], "run/"])
def test_a_schema_that_this_version_does_not_read_is_refused(schema: Any) -> None:
    run = next(model for model in DOCUMENTS if model.KIND == "run")
    assert check_document(run, json.dumps({"schema": schema}).encode()) is None


@pytest.mark.parametrize("text", RAW.values(), ids=RAW)
def test_json_that_readers_understand_differently_is_refused_wherever_it_stands(text: str) -> None:
    """In a leaf plan's settings, where anything may stand: what is accepted is what is written again."""
    plan = next(model for model in DOCUMENTS if model.KIND == "leaf-plan")
    whole = '{"schema": "leaf-plan/1", "generation": "cpu", "settings": {"a": [%s]}}'
    harmless = text in (RAW["control characters"], RAW["very long"], RAW["python"])
    assert (check_document(plan, (whole % text).encode()) is not None) == harmless


def test_a_line_that_is_too_long_keeps_its_beginning_and_its_end() -> None:
    text = "run/file.json: " + "x" * 5000 + "; restore the file from a copy"
    shown = one_line(text, longest=300)
    assert len(shown) == 300
    assert shown.startswith("run/file.json: x")
    assert shown.endswith("x; restore the file from a copy")
    assert one_line(text, longest=len(text)) == text


# ---- ledger segments
def check_segment(data: bytes) -> list[Record] | None:
    try:
        found = list(from_lines(data, where="run/attempts/0001/ledger/000001.jsonl"))
    except ContractError as error:
        check_refusal(error)
        return None
    assert list(from_lines(to_lines(found), where="itself")) == found
    return found


@few
@given(data=st.data())
def test_a_damaged_segment_is_refused_or_understood_as_written(data: st.DataObject) -> None:
    lines = [
        data.draw(damaged(json.loads(to_lines([record_of(step)])))) for step in range(data.draw(st.integers(1, 3)))
    ]
    check_segment(b"\n".join(lines) + data.draw(st.sampled_from([b"", b"\n", b"\n\n", b"\r\n", "\u2028".encode()])))
    check_segment(data.draw(st.binary(max_size=100)))


def test_a_segment_that_was_cut_anywhere_is_never_taken_for_a_shorter_one() -> None:
    whole = to_lines(record_of(step) for step in range(3))
    first_two = {len(to_lines(record_of(step) for step in range(count))) for count in (1, 2)}
    assert check_segment(whole) == [record_of(step) for step in range(3)]
    for length in set(range(len(whole))) - first_two:
        assert check_segment(whole[:length]) is None, length


def test_a_damaged_segment_is_named_with_the_line_and_the_remedy() -> None:
    whole = to_lines(record_of(step) for step in range(3))
    for data, complaint in ((whole[:-5], ":3: torn"), (b"", ": empty"), (b"x" + whole, ":1: ")):
        with pytest.raises(ContractError, match=r"restore the file from a copy; without one, move it out") as refused:
            list(from_lines(data, where="a.jsonl"))
        assert str(refused.value).startswith(f"a.jsonl{complaint}")


# ---- files that people write
WRITTEN: list[tuple[type[Part], dict[str, Any]]] = [(RunFile, RUN), (Recipe, RECIPE), (LocalFleet, FLEET)]
BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{b}: &{b} [{','.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)
SMALL_BOMB = "".join(BOMB.splitlines(keepends=True)[:6])
"""Half a million values: too many, and still quickly written out."""
HOSTILE_YAML = {
    "billion laughs": BOMB,
    "an alias of itself": "name: &a [*a]",
    "deep": "[" * 400,
    "deep blocks": "".join(f"{' ' * depth}a:\n" for depth in range(1500)),
    "python object": "name: !!python/object/apply:os.system ['echo executed']",
    "python name": "name: !!python/name:os.system",
    "unknown tag": "name: !secret x",
    "misfit tags": "a: !!bool maybe",
    "an empty int": "a: !!int ''",
    "no float": "a: !!float x",
    "a date": "a: !!timestamp 2001-01-01",
    "bytes": "a: !!binary aGVsbG8=",
    "a set": "a: !!set {x, y}",
    "a list as key": "? [a, b]\n: c",
    "a mapping as key": "? {a: b}\n: c",
    "twice": "name: a\nname: b",
    "twice after JSON": "1: a\n'1': b",
    "half a number": "a: 1.e",
    "huge integer": f"seed: {'9' * 5000}",
    "65 bits": f"leaf_plans: {{cpu: {{a: {2**64}}}}}",
    "huge hexadecimal": f"seed: 0x{'f' * 5000}",
    "huge float": "leaf_plans: {cpu: {a: 1e400}}",
    "infinity": "leaf_plans: {cpu: {a: !!float .inf}}",
    "half a surrogate": 'name: "\\ud800"',
    "control characters": "name: \x00\x1b[2J",
    "escaped control characters": 'name: "a\\n\\e[2J\\0"',
    "two documents": "a: 1\n---\nb: 2",
    "a very long field": "x" * 50_000 + ": 1",
    "a long field": "x" * 1000 + ": 1",
    "a tab": "a:\n\t- b",
    "nothing": "",
    "text": "hello",
    "an unknown alias": "a: *" + "b" * 5000,
    "a merge": "<<: {name: a}",
}


def check_yaml(folder: Path, data: bytes, model: type[Part]) -> Part | None:
    path = folder / "fleet.yaml"
    path.write_bytes(data)
    if model is LocalFleet:
        try:
            read_fleet(folder)
        except ContractError as error:
            check_refusal(error)
    try:
        return read_yaml(path, model)
    except BadInput as error:
        check_refusal(error)
        return None


@pytest.mark.parametrize("model", [model for model, _ in WRITTEN])
@pytest.mark.parametrize("text", HOSTILE_YAML.values(), ids=HOSTILE_YAML)
def test_hostile_yaml_is_refused_in_one_line(tmp_path: Path, text: str, model: type[Part]) -> None:
    assert check_yaml(tmp_path, text.encode(), model) is None


def test_a_file_that_nobody_wrote_is_not_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(BadInput, match="nobody wrote it"):
        read_yaml(path, RunFile)


def test_what_is_large_with_its_aliases_written_out_is_refused_for_that() -> None:
    with pytest.raises(ContractError, match=r"run\.yaml: too large with its aliases written out; write less"):
        strict_yaml.parse(SMALL_BOMB, where="run.yaml")


def test_aliases_are_fine(tmp_path: Path) -> None:
    text = yaml.safe_dump({**FLEET, "pools": [pool := FLEET["pools"][0], {**pool, "name": "other"}]})
    assert check_yaml(
        tmp_path, text.replace("hosts: 4", "hosts: &n 4", 1).replace("hosts: 4", "hosts: *n").encode(), LocalFleet
    )


@pytest.mark.parametrize(("model", "fields"), WRITTEN)
@few
@given(data=st.data())
def test_a_damaged_file_is_refused_in_one_line_or_understood(
    tmp_path: Path, model: type[Part], fields: dict[str, Any], data: st.DataObject
) -> None:
    as_json = data.draw(damaged(fields).filter(lambda text: b"[[[" not in text))  # JSON is YAML; depth is above
    as_block = yaml.safe_dump(fields)
    place = data.draw(st.integers(0, len(as_block)))
    junk = data.draw(st.sampled_from(["*", "&a ", "!!int ", "? ", "- ", "\t", "'", "{", "1e", ": ", "\n", "|", "%"]))
    for text in (as_json, (as_block[:place] + junk + as_block[place:]).encode(), data.draw(st.binary(max_size=50))):
        check_yaml(tmp_path, text, model)
