"""What is kept of a program, and who gets it."""

from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from trainer.compile_cache import CompileCache
from trainer.parallel.state_checksums import Executables


def cache_of(folder: Path | None, *, key: str = "here") -> CompileCache:
    return CompileCache(folder, key=key, devices=jax.devices()[:1])


@pytest.fixture(scope="module")
def executables() -> Executables:
    double = jax.jit(lambda tree: {"twice": tree["x"] * 2}, donate_argnums=0)
    return {"double": double.lower({"x": jax.ShapeDtypeStruct((3,), jnp.float32)}).compile()}


@pytest.fixture
def folder(tmp_path: Path, executables: Executables) -> Path:
    """With a file in it."""
    cache = cache_of(tmp_path)
    assert (cache.load(), cache.outcome) == (None, "miss")
    cache.keep(executables)
    return tmp_path


def test_what_was_kept_computes_what_was_compiled(folder: Path, executables: Executables) -> None:
    cache = cache_of(folder)
    found = cache.load()
    assert found is not None
    assert cache.outcome == "hit"
    given = {"x": jnp.arange(3, dtype=jnp.float32)}
    assert found["double"](given)["twice"].tolist() == [0.0, 2.0, 4.0]
    assert given["x"].is_deleted(), "what is donated is given away by an executable from the cache too"
    assert found["double"].as_text() == executables["double"].as_text()


def test_no_other_place_finds_it(folder: Path) -> None:
    assert cache_of(folder, key="elsewhere").load() is None


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty"])
def test_a_damaged_file_is_a_line_and_a_miss_and_is_written_anew(
    folder: Path, executables: Executables, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = folder / "here.executables"
    whole = file.read_bytes()
    flipped = whole[:100] + bytes([whole[100] ^ 1]) + whole[101:]
    file.write_bytes({"cut": whole[:-1], "flipped": flipped, "empty": b""}[damage])
    cache = cache_of(folder)
    assert (cache.load(), cache.outcome) == (None, "miss")
    assert capsys.readouterr().out == f"everstep: {file} is not used: it is damaged\n"
    cache.keep(executables)
    assert cache_of(folder).load() is not None
    assert [path.name for path in folder.iterdir()] == ["here.executables"]


def test_a_file_that_others_can_write_is_not_read(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is code."""
    file = folder / "here.executables"
    file.chmod(0o620)
    assert cache_of(folder).load() is None
    assert capsys.readouterr().out == f"everstep: {file} is not used: it is another user's, or others can write it\n"


def test_a_folder_that_cannot_be_written_is_a_line(
    tmp_path: Path, executables: Executables, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "taken").write_text("")
    cache_of(tmp_path / "taken").keep(executables)
    assert capsys.readouterr().out.startswith(f"everstep: {tmp_path}/taken/here.executables is not written: ")


def test_nothing_is_kept_where_no_folder_is_named(executables: Executables) -> None:
    cache = cache_of(None)
    cache.keep(executables)
    assert (cache.load(), cache.outcome) == (None, "off")
