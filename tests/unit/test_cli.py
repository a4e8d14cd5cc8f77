"""The command line itself: help, errors as one line, exit codes, which store and which run."""

import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.cli.main import COMMANDS
from orchestrator.contract.base import ContractError
from tests.unit.cli_folder import CliFolder, error_line, everstep
from tests.unit.run_factory import RunFactory

REPOSITORY = Path(__file__).parents[2]


# ---- the command line itself
def test_help_lists_every_command_without_importing_any() -> None:
    code = (
        "import sys; from orchestrator.cli.main import main\n"
        "try: main(['--help'])\n"
        "finally: heavy = {'pydantic', 'numpy', 'rich.table', 'yaml'} & set(sys.modules); print('heavy', sorted(heavy))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=REPOSITORY)
    assert "heavy []" in done.stdout
    for name in COMMANDS:
        assert f"\n  {name} " in done.stdout


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_help_with_an_example_and_is_documented(name: str) -> None:
    result = everstep(name, "--help")
    assert result.exit_code == 0
    assert "Example" in result.stdout
    assert f"everstep {name}" in result.stdout
    assert f"everstep {name}" in (REPOSITORY / "docs" / "cli.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", sorted(set(COMMANDS) - {"controller", "data", "demo"}))
def test_every_command_takes_json_with_a_published_schema(name: str) -> None:
    (line,) = [line for line in everstep(name, "--help").stdout.splitlines() if line.startswith("  --json ")]
    published = line.split("docs/schemas/")[1].removesuffix(".")
    assert (REPOSITORY / "docs" / "schemas" / published).is_file(), published


def test_the_trainer_s_commands_are_found_by_their_entry_points() -> None:
    assert "Of the trainer" in everstep("--help").stdout
    assert error_line(everstep("convrt")) == "no command 'convrt', did you mean 'convert'?; see `everstep --help`"
    assert everstep("convert").stdout == everstep("convert", "--help").stdout
    for command in ("model", "export"):
        result = everstep("convert", command, "--help")
        assert result.exit_code == 0
        assert f"everstep convert {command}" in result.stdout
        assert f"everstep convert {command}" in (REPOSITORY / "docs" / "cli.md").read_text(encoding="utf-8")


def test_published_schemas_are_current() -> None:
    result = everstep("schemas", "--out", str(REPOSITORY / "docs" / "schemas"), "--check")
    assert result.exit_code == 0, result.stderr


def test_a_mistyped_command_gets_a_suggestion() -> None:
    result = everstep("stauts")
    assert result.exit_code == 2
    assert error_line(result) == "no command 'stauts', did you mean 'status'?; see `everstep --help`"


def test_a_mistyped_option_is_one_line() -> None:
    result = everstep("status", "--jsn")
    assert result.exit_code == 2
    assert error_line(result).endswith("see `everstep status --help`")


def test_a_bug_keeps_its_stack_trace(monkeypatch: pytest.MonkeyPatch, moved: RunFactory) -> None:
    def bug(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("orchestrator.cli.prove.goodput_of", bug)
    with pytest.raises(ZeroDivisionError):
        everstep("goodput", "demo")


def test_debug_shows_the_stack_trace_of_a_known_error(moved: RunFactory) -> None:
    Path("store/demo/head.json").write_text("{")
    assert error_line(everstep("goodput", "demo")).startswith("demo/head.json: not valid JSON")
    with pytest.raises(ContractError):
        everstep("--debug", "goodput", "demo")


def test_ctrl_c_is_130(monkeypatch: pytest.MonkeyPatch, moved: RunFactory) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("orchestrator.cli.prove.goodput_of", interrupted)
    result = everstep("goodput", "demo")
    assert result.exit_code == 130
    assert result.stderr.strip() == "everstep: interrupted"


# ---- which store, which run
def test_no_store_is_named(folder: CliFolder) -> None:
    result = everstep("status")
    assert result.exit_code == 2
    assert error_line(result).startswith(
        "no store was named: pass --store with a folder or gs:// address, set EVERSTEP_STORE"
    )


def test_a_store_that_is_not_there_is_unreachable(folder: CliFolder) -> None:
    result = everstep("status", "--store", "nowhere")
    assert result.exit_code == 3
    assert "no such folder; check --store" in error_line(result)
    assert not Path("nowhere").exists()


def test_the_store_is_taken_from_the_environment(moved: RunFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("store").rename("elsewhere")
    monkeypatch.setenv("EVERSTEP_STORE", "elsewhere")
    assert everstep("status", "demo").exit_code == 0


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("demi", "no run 'demi'"),
        ("../demo", "is no name of a run"),
        ("Demo", "is no name of a run"),
        ("", "is no name"),
    ],
)
def test_a_run_that_is_not_there(moved: RunFactory, name: str, says: str) -> None:
    result = everstep("why", name)
    assert result.exit_code == 2
    assert says in error_line(result)


def test_a_run_with_a_close_name_is_suggested(moved: RunFactory) -> None:
    assert "did you mean 'demo'?" in error_line(everstep("why", "dmo"))
