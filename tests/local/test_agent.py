"""A real agent process with a trainer that needs no JAX: what is left of it, what it writes, how fast it is."""

import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.agent.process import session_members
from tests.local.bench import Bench, exists, wait_until


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with Bench.set_up(tmp_path) as bench:
        yield bench


def state_of(pid: int) -> str:
    """The letter in /proc: R running, S sleeping, T stopped, Z zombie."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def variables_of(pid: int) -> dict[str, str]:
    entries = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)


def test_an_order_is_started_with_its_environment_and_its_end_is_told(bench: Bench) -> None:
    bench.ensure_agents()
    bench.order(1)
    progress = bench.stepping(1)
    started = bench.started(1)
    assert (started.pid, started.host) == (progress.pid, bench.hosts[0])
    variables = variables_of(started.pid)
    assert variables["EVERSTEP_PROCESS"] == "0"
    assert variables["XLA_FLAGS"] == "--xla_force_host_platform_device_count=2"
    assert variables["JAX_PLATFORMS"] == "cpu"
    assert variables["OPENBLAS_NUM_THREADS"] == "1"
    copy = Path(variables["EVERSTEP_ATTEMPT"])
    assert copy.read_bytes() == bench.store.attempt(1).to_bytes()
    bench.stop(1, "drain")
    end = bench.exit(1)
    assert (end.code, end.signal, end.killed_by_us, end.phase) == (80, None, False, "drain")
    assert end.step is not None


def test_drain_sends_sigterm_exactly_once_after_the_first_progress(bench: Bench) -> None:
    bench.order(1, "--witness", "25")  # half a second, ten looks of the agent
    bench.stop(1, "drain")  # before the trainer even starts: a signal before its handler would kill it
    bench.ensure_agents()
    end = bench.exit(1)
    assert (end.code, end.signal) == (80, None)
    assert end.last_lines == ("SIGTERM came 1 times",)


def test_kill_leaves_nothing_of_the_trainer_and_what_it_started(bench: Bench) -> None:
    bench.ensure_agents()
    bench.order(1, "--child")
    bench.stepping(1)
    trainer = bench.record().trainer
    assert trainer is not None
    family = [who.pid for who in session_members(trainer)]
    assert len(family) == 2, "trainer and child"
    bench.stop(1, "kill")
    end = bench.exit(1)
    assert (end.signal, end.killed_by_us, end.phase) == (9, True, "train")
    wait_until(lambda: not any(map(exists, family)), f"{family} leave /proc, not even a zombie stays")
    assert children_of(bench.agent_pid()) == []
    assert bench.folder().lock_is_held(), "the agent lives on"


def test_what_a_trainer_leaves_behind_is_ended_with_it(bench: Bench) -> None:
    bench.ensure_agents()
    bench.order(1, "--child", "--exit", "0")
    assert bench.exit(1).code == 0
    wait_until(lambda: children_of(bench.agent_pid()) == [], "the orphan is killed and reaped")


def test_a_stopped_trainer_is_killed_all_the_same(bench: Bench) -> None:
    bench.ensure_agents()
    bench.order(1)
    pid = bench.stepping(1).pid
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: state_of(pid) == "T", "the trainer is stopped")
    bench.stop(1, "kill")
    assert bench.exit(1).signal == 9
    assert not exists(pid)


def test_a_newer_order_ends_the_old_trainer_before_the_new_one_starts(bench: Bench) -> None:
    bench.ensure_agents()
    bench.order(1)
    old = bench.stepping(1).pid
    bench.order(2)
    bench.stepping(2)
    assert not exists(old)
    assert bench.exit(1).killed_by_us
    assert bench.store.exits(1)[0].at <= bench.store.started(2)[0].at


def test_an_agent_killed_by_force_takes_its_trainer_along_and_frees_the_lock(bench: Bench) -> None:
    bench.ensure_agents()
    bench.order(1)
    trainer = bench.stepping(1).pid
    os.kill(bench.agent_pid(), signal.SIGKILL)
    wait_until(lambda: not bench.folder().lock_is_held(), "the lock is free")
    assert not exists(trainer) or state_of(trainer) == "Z", "a free lock proves that the trainer is dead"
    assert bench.store.exits(1) == {}
    view = bench.view()
    assert (view.condition, view.agent) == ("ready", None)


def test_a_second_agent_does_not_start_again_what_died_with_the_first(bench: Bench) -> None:
    bench.ensure_agents()
    bench.order(1)
    bench.stepping(1)
    os.kill(bench.agent_pid(), signal.SIGKILL)
    wait_until(lambda: not bench.folder().lock_is_held(), "the lock is free")
    bench.ensure_agents()
    end = bench.exit(1)
    assert (end.code, end.signal, end.killed_by_us) == (None, None, True)
    assert "earlier agent" in end.last_lines[0]
    bench.order(2)
    bench.stepping(2)


def test_an_order_that_was_killed_before_it_started_never_starts(bench: Bench) -> None:
    bench.order(1)
    bench.stop(1, "kill")
    bench.ensure_agents()
    end = bench.exit(1)
    assert (end.code, end.signal) == (None, None)
    assert end.last_lines == ("never started: it was ordered to be killed before it could start",)
    assert bench.store.started(1) == {}
    assert not bench.folder().trainer_log(1).exists()


def test_older_numbers_are_refused(bench: Bench) -> None:
    bench.order(3)
    bench.ensure_agents(from_attempt=4)
    bench.order(5)
    bench.stepping(5)
    bench.order(4)
    assert bench.exit(4).last_lines == ("never started: attempt 5 was ordered before it could start",)
    assert bench.store.started(4) == {}
    assert bench.store.started(3) == {}
    assert bench.store.exits(3) == {}


def test_an_exit_code_and_binary_output_are_told_whole(bench: Bench) -> None:
    bench.ensure_agents()
    bench.order(1, "--junk", "--exit", "83")
    end = bench.exit(1)
    assert (end.code, end.phase, end.error) == (83, "start", None)
    assert len(end.last_lines) == 200
    assert end.last_lines[-1] == "the last line"
    assert "\ufffd" in end.last_lines[0]
    json.loads(Path(bench.root, "demo/attempts/0001/exits/000.json").read_bytes())


def test_an_own_error_is_told_by_its_type_and_frame(bench: Bench) -> None:
    bench.ensure_agents()
    bench.order(1, "--own-error")
    end = bench.exit(1)
    assert end.code == 1
    assert end.error is not None
    assert (end.error.type, end.error.frame) == ("ValueError", "fake_trainer.py:fail")


def test_a_crash_is_told_with_the_last_words(bench: Bench) -> None:
    bench.ensure_agents()
    bench.order(1, command=(sys.executable, "-c", "raise RuntimeError('these words')"))
    end = bench.exit(1)
    assert (end.code, end.phase, end.step, end.error) == (1, None, None, None)
    assert end.last_lines[-1] == "RuntimeError: these words"


def test_a_command_that_does_not_exist_is_told(bench: Bench) -> None:
    bench.ensure_agents()
    bench.order(1, command=("/no/such/trainer",))
    end = bench.exit(1)
    assert (end.code, end.signal, end.killed_by_us) == (None, None, False)
    assert "/no/such/trainer" in end.last_lines[0]


def test_a_store_that_goes_away_for_a_while_is_survived(bench: Bench, tmp_path: Path) -> None:
    bench.ensure_agents()
    bench.order(1)
    pid = bench.stepping(1).pid
    away = tmp_path / "away"
    bench.root.rename(away)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: "unreachable" in bench.folder().agent_log.read_text(), "the agent notices")
    assert not exists(pid), "it is reaped all the same"
    away.rename(bench.root)
    end = bench.exit(1)
    assert (end.signal, end.killed_by_us) == (9, False)
    bench.order(2)
    bench.stepping(2)


def test_asked_to_leave_the_agent_ends_its_trainer_tells_it_and_ends(bench: Bench) -> None:
    bench.ensure_agents()
    bench.order(1)
    trainer = bench.stepping(1).pid
    agent = bench.agent_pid()
    bench.backend.release(bench.hosts)
    wait_until(lambda: bench.view().agent is None, "the lock is free")
    assert not exists(trainer)
    assert bench.exit(1).killed_by_us
    wait_until(lambda: bench.backend.hosts() and not exists(agent), "the agent is waited for")


def test_the_end_of_a_trainer_is_told_within_three_tenths_of_a_second(bench: Bench) -> None:
    """The bar is for the median: one look that the machine delays is not the agent's doing."""
    bench.ensure_agents()
    delays = []
    for attempt in range(1, 8):
        bench.order(attempt)
        pid = bench.stepping(attempt).pid
        at = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        bench.exit(attempt)
        delays.append(time.monotonic() - at)
    print("seconds from death to exit document:", " ".join(f"{delay:.3f}" for delay in sorted(delays)))
    assert statistics.median(delays) < 0.3
