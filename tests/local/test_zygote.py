"""Warm starts: forked trainers behave like fresh ones, and nothing depends on the zygote's life."""

import ast
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.agent.process import ProcessIdentity, children_of
from tests.local.bench import Bench, exists, wait_until
from trainer import zygote

ROOT = Path(__file__).parents[2]
FAKE = "tests.local.fake_trainer"


@pytest.fixture(autouse=True)
def modules_of_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents and zygotes import from here too."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with Bench.set_up(tmp_path, zygote=f"tests.local.quick_zygote:{FAKE}") as bench:
        yield bench


def module(name: str, *options: str) -> tuple[str, ...]:
    return (sys.executable, "-m", name, *options)


def command_line(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()


def is_forked(pid: int) -> bool:
    """A fork keeps the command line of what it was forked from."""
    return "quick_zygote" in command_line(pid)


def children(bench: Bench) -> list[int]:
    return [child.pid for child in children_of(bench.agent_pid())]


def zygote_of(bench: Bench) -> ProcessIdentity:
    """The agent's child that is no trainer, once it is there."""

    def found() -> list[ProcessIdentity]:
        record = bench.folder().record()
        if record is None or record.process is None:
            return []
        return [child for child in children_of(record.process.pid) if child != record.trainer]

    wait_until(found, f"the agent has a zygote{bench.log()}")
    return found()[0]


def test_a_trainer_is_forked_with_its_environment_arguments_and_output(bench: Bench) -> None:
    bench.ensure_agents()
    bench.order(1, command=module(FAKE, "--junk", "--witness", "3"))
    pid = bench.stepping(1).pid
    assert bench.started(1).pid == pid
    assert is_forked(pid)
    assert pid in children(bench), "the agent is its parent"
    assert os.getsid(pid) == pid
    bench.stop(1, "drain")
    end = bench.exit(1)
    assert (end.code, end.phase) == (80, "drain")
    assert end.last_lines[-2:] == ("the last line", "SIGTERM came 1 times")
    assert not exists(pid)


def test_one_zygote_serves_one_attempt_after_the_other(bench: Bench) -> None:
    bench.ensure_agents()
    server = zygote_of(bench)
    for attempt in (1, 2, 3):
        bench.order(attempt, command=module(FAKE, "--child"))
        assert is_forked(bench.stepping(attempt).pid)
        bench.stop(attempt, "kill")
        assert bench.exit(attempt).killed_by_us
    wait_until(lambda: children(bench) == [server.pid], "nothing but the zygote is left")


def test_an_exit_code_and_a_stack_trace_come_through(bench: Bench) -> None:
    bench.ensure_agents()
    bench.order(1, command=module(FAKE, "--exit", "83"))
    assert bench.exit(1).code == 83
    bench.order(2, command=module(FAKE, "--no-such-option"))
    end = bench.exit(2)
    assert end.code == 2
    assert "--no-such-option" in end.last_lines[-1]


def test_a_trainer_outlives_its_zygote_and_its_end_is_told(bench: Bench) -> None:
    bench.ensure_agents()
    bench.order(1, command=module(FAKE))
    pid = bench.stepping(1).pid
    os.kill(zygote_of(bench).pid, signal.SIGKILL)
    wait_until(lambda: "given up" in bench.folder().agent_log.read_text(), "the agent notices")
    step = bench.stepping(1).step
    wait_until(lambda: bench.stepping(1).step != step, "the trainer goes on")
    assert exists(pid)
    bench.stop(1, "drain")
    assert bench.exit(1).code == 80


def test_after_the_death_of_a_zygote_the_next_one_serves(bench: Bench) -> None:
    bench.ensure_agents()
    first = zygote_of(bench)
    os.kill(first.pid, signal.SIGKILL)
    wait_until(lambda: zygote_of(bench) != first, "there is another")
    bench.order(1, command=module(FAKE))
    assert is_forked(bench.stepping(1).pid)


def test_a_zygote_that_hangs_costs_seconds_and_starts_no_second_trainer(bench: Bench) -> None:
    bench.ensure_agents()
    bench.order(1, command=module(FAKE))
    bench.stepping(1)
    server = zygote_of(bench)
    os.kill(server.pid, signal.SIGSTOP)
    bench.order(2, command=module(FAKE))
    pid = bench.stepping(2).pid
    assert not is_forked(pid)
    assert not exists(server.pid)
    assert [child for child in children(bench) if child == pid] == [pid]


def test_a_zygote_that_cannot_import_leaves_cold_starts(tmp_path: Path) -> None:
    with Bench.set_up(tmp_path, zygote="no.such.zygote:tests.local.fake_trainer") as bench:
        bench.ensure_agents()
        bench.order(1, command=module(FAKE))
        pid = bench.stepping(1).pid
        assert not is_forked(pid)
        wait_until(lambda: children(bench) == [pid], "no more zygotes are tried")


def test_another_command_than_the_zygotes_starts_cold(bench: Bench) -> None:
    bench.ensure_agents()
    bench.order(1)
    assert not is_forked(bench.stepping(1).pid)


def test_an_agent_killed_by_force_takes_zygote_and_trainer_along(bench: Bench) -> None:
    bench.ensure_agents()
    bench.order(1, command=module(FAKE))
    pids = [bench.stepping(1).pid, zygote_of(bench).pid]
    os.kill(bench.agent_pid(), signal.SIGKILL)
    wait_until(lambda: not bench.folder().lock_is_held(), "the lock is free")
    assert not any("python" in command_line(pid) for pid in pids if exists(pid)), "at most zombies, without a command"


def test_everything_that_the_trainer_imports_late_is_imported_before_the_fork() -> None:
    files = [*ROOT.glob("trainer/*.py"), *ROOT.glob("trainer/checkpoint/*.py"), *ROOT.glob("trainer/data/*.py")]
    own = ("prepare.py", "check.py")  # programs of their own, which no zygote forks
    late = {name for file in files if file.name not in own for name in late_imports(ast.parse(file.read_text()))}
    assert "trainer.attempt" in late, "the reader of late imports reads"
    assert late <= set(zygote.PRELOADED), f"add to trainer.zygote.PRELOADED: {late - set(zygote.PRELOADED)}"


def late_imports(tree: ast.Module) -> set[str]:
    """Modules that functions import."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    inside = [node for function in functions for node in ast.walk(function)]
    direct = {name.name for node in inside if isinstance(node, ast.Import) for name in node.names}
    packages = {
        f"{node.module}.{name.name}" if node.module == "jax.experimental" else str(node.module)
        for node in inside
        if isinstance(node, ast.ImportFrom)
        for name in node.names
    }
    return direct | packages


def test_a_zygote_with_two_threads_refuses_to_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "listdir", lambda _path: ["1", "2"])
    assert "2 threads" in str(zygote.why_unsafe())


def test_jax_runs_in_a_fork_on_the_hosts_devices(tmp_path: Path) -> None:
    with Bench.set_up(tmp_path, zygote="trainer.zygote:tests.local.jax_probe") as bench:
        bench.ensure_agents()
        for attempt in (1, 2):
            bench.order(attempt, command=module("tests.local.jax_probe"))
            end = bench.exit(attempt)
            assert (end.code, end.last_lines) == (0, ("warm=True devices=2 sum=4950.0",))
