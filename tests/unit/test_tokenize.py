"""Text becomes token files: dolma2's ids, whole files or none, and one line for whatever is wrong with a text."""

import gzip
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestrator.cli import token_folder
from orchestrator.cli.encoders import BYTES, ByteEncoder, FileEncoder, Ids
from orchestrator.cli.token_folder import TokenFolder
from orchestrator.contract.base import sha256_of
from tests.unit.cli_folder import RECIPE, document, error_line, everstep

DOLMA2 = json.loads((Path(__file__).parents[1] / "reference" / "data" / "dolma2.json").read_text())
"""Part of its tokenizer, and the ids that the whole one gives; see tests/reference/make_tokenizer.py."""
END = 100257


def call(*arguments: object) -> Any:
    return everstep("data", "tokenize", *map(str, arguments))


def made(*arguments: object) -> TokenFolder:
    found = document(call(*arguments, "--json"))
    assert isinstance(found, TokenFolder)
    return found


def ids_in(folder: Path) -> list[int]:
    """Of all files of a folder, in the order of their names."""
    return [int(token) for path in sorted(folder.glob("*.u32")) for token in np.fromfile(path, "<u4")]


def lines(path: Path, texts: Sequence[str], *, field: str = "text") -> Path:
    data = "".join(json.dumps({"id": "x", field: text}) + "\n" for text in texts).encode()
    path.write_bytes(gzip.compress(data) if path.name.endswith(".gz") else data)
    return path


@pytest.fixture
def dolma2(tmp_path: Path) -> Path:
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(DOLMA2["tokenizer"]))
    return path


# ---- ids
def test_dolma2_gives_its_own_ids_and_ends_each_document(tmp_path: Path, dolma2: Path) -> None:
    texts = [*(row["text"] for row in DOLMA2["texts"]), "<|endoftext|>"]
    found = made(lines(tmp_path / "a.jsonl.gz", texts), "--out", tmp_path / "out", "--tokenizer", dolma2)
    assert (found.end_of_text, found.largest_id, found.documents) == (END, 100277, len(texts))
    assert found.tokenizer_sha256 == sha256_of(dolma2.read_bytes())
    ended = [token for row in DOLMA2["texts"] for token in [*row["ids"], END]]
    assert ids_in(tmp_path / "out") == [*ended, END]  # the last text is one already


def test_documents_may_go_without_an_end_and_without_white_space_around_them(tmp_path: Path, dolma2: Path) -> None:
    row = next(row for row in DOLMA2["texts"] if row["text"].startswith(" leading"))
    source = lines(tmp_path / "a.jsonl", [row["text"]])
    made(source, "--out", tmp_path / "bare", "--tokenizer", dolma2, "--no-end-of-text")
    assert ids_in(tmp_path / "bare") == row["ids"]
    made(source, "--out", tmp_path / "strip", "--strip")
    assert ids_in(tmp_path / "strip") == [*row["text"].strip().encode(), 256]


def test_bytes_are_ids_and_a_document_without_any_has_no_end(tmp_path: Path) -> None:
    (tmp_path / "texts" / "b").mkdir(parents=True)
    (tmp_path / "texts" / "b" / "z.txt").write_text("hi")
    (tmp_path / "texts" / "a.txt").write_text("")
    (tmp_path / "texts" / "notes.md").write_text("of another kind")
    more = lines(tmp_path / "more.jsonl", ["é", "", "\n"])
    found = made(tmp_path / "texts", more, "--out", tmp_path / "out")
    assert ids_in(tmp_path / "out") == [*b"hi", 256, *"é".encode(), 256, 10, 256]
    assert (found.documents, found.tokens, found.largest_id) == (5, 8, 256)
    assert made(more, "--out", tmp_path / "bare", "--no-end-of-text").largest_id == 255


def test_files_have_the_same_number_of_tokens_and_their_hashes_beside_them(tmp_path: Path) -> None:
    source = lines(tmp_path / "a.jsonl", ["abcdefgh", "ij", "klm"])
    result = call(source, "--out", tmp_path / "out", "--file-tokens", 4)
    files = sorted((tmp_path / "out").glob("*.u32"))
    assert [path.stat().st_size for path in files] == [16, 16, 16, 16]
    assert ids_in(tmp_path / "out") == [*b"abcdefgh", 256, *b"ij", 256, *b"klm", 256]
    said = TokenFolder.from_bytes((tmp_path / "out" / "tokens.json").read_bytes(), where="tokens.json")
    assert said.complete
    for path, written in zip(files, said.written, strict=True):
        assert (written.file.path, written.file.tokens) == (path.name, 4)
        assert written.file.sha256 == sha256_of(path.read_bytes())
    assert "3 documents, 16 tokens in 4 files" in result.stdout
    assert "- path: tokens-00003.u32" in result.stdout


# ---- interrupted, and again
def interrupted(monkeypatch: pytest.MonkeyPatch, *, after: int) -> None:
    """Ctrl-C while the batch after so many is encoded."""
    real, calls = ByteEncoder.encode, [0]

    def encode(self: ByteEncoder, texts: Sequence[str]) -> list[Ids]:
        calls[0] += 1
        if calls[0] > after:
            raise KeyboardInterrupt
        return real(self, texts)

    monkeypatch.setattr(ByteEncoder, "encode", encode)


@pytest.mark.parametrize("after", [0, 1, 2, 3, 4, 5])
def test_an_interrupted_command_goes_on_where_its_last_complete_file_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    monkeypatch.setattr(token_folder, "BATCH", 2)
    sources = [lines(tmp_path / f"{name}.jsonl", [name * 5, "", name * 9]) for name in ("a", "b", "c")]
    line = (*sources, "--file-tokens", 7, "--out")
    made(*line, tmp_path / "whole")
    wanted = {path.name: path.read_bytes() for path in (tmp_path / "whole").iterdir()}
    with monkeypatch.context() as patch:
        interrupted(patch, after=after)
        assert call(*line, tmp_path / "out").exit_code == 130
    left = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    del left["tokens.json"]
    assert left.items() <= wanted.items()
    kept = {name: (tmp_path / "out" / name).stat().st_ino for name in left}
    made(*line, tmp_path / "out")
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == wanted
    assert {name: (tmp_path / "out" / name).stat().st_ino for name in left} == kept


def test_what_is_complete_is_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = lines(tmp_path / "a.jsonl", ["text"])
    first = made(source, "--out", tmp_path / "out")
    interrupted(monkeypatch, after=0)
    assert made(source, "--out", tmp_path / "out") == first
    (tmp_path / "out" / "tokens-00000.u32").write_bytes(b"torn")
    assert "tokens-00000.u32: is not there as tokens.json says" in error_line(call(source, "--out", tmp_path / "out"))


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (["--no-end-of-text"], "end_of_text"),
        (["--strip"], "strip"),
        (["--file-tokens", "9"], "file_tokens"),
        (["--tokenizer", "tokenizer.json", "--end-of-text", "<|pad|>"], "tokenizer_sha256, end_of_text"),
    ],
)
def test_a_folder_that_was_made_otherwise_is_left_alone(
    tmp_path: Path, dolma2: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], what: str
) -> None:
    monkeypatch.chdir(tmp_path)
    source = lines(tmp_path / "a.jsonl", ["text"])
    made(source, "--out", tmp_path / "out")
    before = {path: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    line = error_line(call(source, "--out", tmp_path / "out", *options))
    assert f"tokens.json: the folder was made with another {what}; repeat the first command" in line
    lines(source, ["other text"])
    assert f"with another {source}; " in error_line(call(source, "--out", tmp_path / "out"))
    assert {path: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before


def test_two_at_once_do_not_write_the_same_folder(tmp_path: Path) -> None:
    source = lines(tmp_path / "a.jsonl", ["text"])
    with token_folder.alone_in(tmp_path / "out"):
        assert "another process is writing there" in error_line(call(source, "--out", tmp_path / "out"))


def test_a_folder_that_cannot_be_written_is_exit_code_3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = lines(tmp_path / "a.jsonl", ["text"])

    def full(number: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(token_folder.os, "fsync", full)
    result = call(source, "--out", tmp_path / "out")
    assert result.exit_code == 3
    assert "No space left on device; complete files stay" in error_line(result)
    assert not list((tmp_path / "out").iterdir())


def test_a_bucket_is_no_folder_to_write_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    line = error_line(call(lines(tmp_path / "a.jsonl", ["text"]), "--out", "gs://bucket/data"))
    assert "is no folder; name one, then copy it there: gcloud storage cp --recursive" in line
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]


# ---- wrong input
@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b'{"text": "a"}\n{"text": "b"\n', "line 2: not valid JSON (Expecting ',' delimiter"),
        (b'{"text": "a"}\n\n[1]\n', "line 3: has no text 'text', but []; name the field: --field NAME"),
        (b'{"body": "a", "n": 1}\n', "line 1: has no text 'text', but ['body']; name the field"),
        (b'{"text": 5}\n', "line 1: has no text 'text'"),
        (b'{"text": "a\xff"}\n', "line 1: byte 11 is not UTF-8 (invalid start byte); convert it first"),
        (b'{"text": "\\ud83d"}\n', "line 1: 'text' has half a character"),
        (b"[" * 100_000 + b"\n", "line 1: not valid JSON (maximum recursion depth"),
        (b'{"text": ""}\n', "there is nothing to tokenize"),
        (b"", "there is nothing to tokenize"),
    ],
)
def test_a_wrong_line_is_named_before_anything_is_written(tmp_path: Path, data: bytes, says: str) -> None:
    good, bad = lines(tmp_path / "good.jsonl", ["" if "nothing" in says else "fine"]), tmp_path / "bad.jsonl"
    bad.write_bytes(data)
    result = call(good, bad, "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert says in error_line(result)
    assert not (tmp_path / "out").exists()


def test_a_torn_archive_and_undecodable_text_are_named(tmp_path: Path) -> None:
    torn = lines(tmp_path / "torn.jsonl.gz", ["text" * 99])
    torn.write_bytes(torn.read_bytes()[:-9])
    assert "torn.jsonl.gz: Compressed file ended" in error_line(call(torn, "--out", tmp_path / "out"))
    torn.write_bytes(b"no archive")
    assert "torn.jsonl.gz: Not a gzipped file" in error_line(call(torn, "--out", tmp_path / "out"))
    (tmp_path / "latin.txt").write_bytes("é".encode("latin-1"))
    assert "latin.txt: byte 0 is not UTF-8" in error_line(call(tmp_path / "latin.txt", "--out", tmp_path / "out"))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (["gone.txt"], "gone.txt: no such file or folder"),
        (["empty"], "empty: no .txt, .jsonl, .jsonl.gz, .json.gz is in this folder"),
        (["a.zst"], "a.zst: read are .txt, .jsonl, .jsonl.gz, .json.gz; unpack or convert it first"),
        (["a.txt", "a.txt"], "a.txt: is named twice"),
        (["a\n.txt"], "a\\n.txt': has a control character in its name; rename it"),
    ],
)
def test_texts_that_cannot_be_read_are_named(tmp_path: Path, names: list[str], says: str) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("a.txt", "a.zst", "a\n.txt"):
        (tmp_path / name).write_text("text")
    line = error_line(call(*(tmp_path / name for name in names), "--out", tmp_path / "out"))
    assert says in line
    assert not (tmp_path / "out").exists()


def test_a_tokenizer_that_is_none_or_does_not_fit_is_named(tmp_path: Path, dolma2: Path) -> None:
    source = lines(tmp_path / "a.jsonl", ["text"])
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(json.dumps(RECIPE))
    line = (source, "--out", tmp_path / "out", "--tokenizer")
    assert "a.jsonl: is no tokenizer (" in error_line(call(*line, source))
    assert "gone.json: No such file or directory; name a tokenizer.json, or bytes" in error_line(
        call(*line, "gone.json")
    )
    assert "has no token '</s>'; name the one" in error_line(call(*line, dolma2, "--end-of-text", "</s>"))
    assert (
        f"{dolma2}, {recipe}: the tokenizer gives ids up to 100,277, and the recipe's vocab_size is 32; name"
    ) in error_line(call(*line, dolma2, "--recipe", recipe))
    assert "the tokenizer gives ids up to 256, and" in error_line(call(*line, BYTES, "--recipe", recipe))
    assert not (tmp_path / "out").exists()


def test_a_missing_library_names_the_extra(tmp_path: Path, dolma2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    source = lines(tmp_path / "a.jsonl", ["text"])
    line = error_line(call(source, "--out", tmp_path / "out", "--tokenizer", dolma2))
    assert "reading it needs tokenizers, which is not installed; pip install 'everstep[data]'" in line


def test_a_tokenizer_that_cuts_or_fills_up_does_neither_here(tmp_path: Path) -> None:
    settings = {
        **DOLMA2["tokenizer"],
        "truncation": {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0},
        "padding": {
            "strategy": {"Fixed": 64},
            "direction": "Right",
            "pad_to_multiple_of": None,
            "pad_id": 100277,
            "pad_type_id": 0,
            "pad_token": "<|pad|>",
        },
    }
    (tmp_path / "t.json").write_text(json.dumps(settings))
    row = DOLMA2["texts"][0]
    (found,) = FileEncoder.read(tmp_path / "t.json", end=None).encode([row["text"]])
    assert found.tolist() == row["ids"]
