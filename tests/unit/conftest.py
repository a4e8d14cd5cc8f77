"""A person's folder, a submitted run in it, and a run that has moved and is complete."""

from pathlib import Path

import pytest

from orchestrator.store.local import LocalStore
from tests.unit.cli_folder import CliFolder
from tests.unit.run_factory import RunFactory


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CliFolder:
    """The working folder of the test; nothing is written yet."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EVERSTEP_STORE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path.with_name(f"{tmp_path.name}-cache")))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))  # for processes that a command starts
    return CliFolder(tmp_path)


@pytest.fixture
def submitted(folder: CliFolder) -> CliFolder:
    assert folder.submit().exit_code == 0
    return folder


@pytest.fixture
def moved(folder: CliFolder) -> RunFactory:
    """A complete run in ./store that lost a host and moved to a quarter."""
    run = RunFactory(steps=12, objects=LocalStore(folder.path / "store"))
    run.launch("full").train(4).commit().train(7).die(host=3)
    run.launch("quarter").train(12).commit(proven=True).finish()
    return run.complete()
