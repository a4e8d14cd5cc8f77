"""The local fleet as a controller sees it, and the faults that drills put into it."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.agent.process import identity_of
from orchestrator.backends.local import drills
from orchestrator.backends.local.backend import LocalBackend
from orchestrator.contract.attempt import HostRef
from orchestrator.contract.base import ContractError
from orchestrator.fleet.backend import BackendUnavailable
from tests.local.bench import Bench, exists, wait_until

NOW = 1000.0


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with Bench.set_up(tmp_path, hosts=2) as bench:
        yield bench


def agents_of(fleet: Path) -> list[int]:
    """Pids of living agents of a fleet, found by their command lines, not by any record."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if b"orchestrator.agent" in words and str(fleet).encode() in words:
            found.append(int(name))
    return found


# ---- fleets that are wrong


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "expected 'pools:'"),
        ("pools: []", "pools: "),
        ("pools: [{name: main, generation: a, hosts: 0, devices_per_host: 2}]", "pools.0.hosts: "),
        ("pools: [{name: main, generation: a, hosts: 1}]", "pools.0.devices_per_host: "),
        (
            "pools: [{name: main, generation: a, hosts: 1, devices_per_host: 2, colour: red}]",
            "pools.0.colour: unknown field; remove it",
        ),
        ("pools: [{name: ../up, generation: a, hosts: 1, devices_per_host: 2}]", "pools.0.name: "),
        ("pools: [{name: 'a b', generation: a, hosts: 1, devices_per_host: 2}]", "pools.0.name: "),
        ("pools: [{name: main, generation: a, hosts: 5000, devices_per_host: 2}]", "pools.0.hosts: "),
        (
            "pools: [&a {name: a, generation: a, hosts: 1, devices_per_host: 2}, *a]",
            "two are named 'a'; rename one",
        ),
        ("pools: [", "fleet.yaml:1: "),
        ("pools: \xff", "not UTF-8"),
    ],
)
def test_a_wrong_fleet_is_refused_in_one_line_with_file_and_field(tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / "fleet.yaml").write_text(text, encoding="latin-1")
    with pytest.raises(ContractError) as refused:
        LocalBackend(fleet=tmp_path, store_address="/nowhere", run="demo")
    assert str(tmp_path / "fleet.yaml") in str(refused.value)
    assert complaint in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_folder_without_a_fleet_is_refused_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(ContractError, match=r"fleet\.yaml: no such file; name a folder"):
        LocalBackend(fleet=tmp_path / "nothing", store_address="/nowhere", run="demo")


# ---- what is seen


def test_a_fresh_fleet_is_ready_and_without_agents(bench: Bench) -> None:
    views = bench.backend.hosts()
    assert [str(view.ref) for view in views] == ["main/h0", "main/h1"]
    assert {(view.condition, view.agent, view.generation, view.devices) for view in views} == {
        ("ready", None, "local-a", 2)
    }


def test_a_fleet_that_disappears_is_unavailable_not_empty(bench: Bench) -> None:
    (bench.fleet / "fleet.yaml").unlink()
    with pytest.raises(BackendUnavailable, match=r"fleet\.yaml"):
        bench.backend.hosts()


def test_agents_are_seen_with_their_run_and_first_attempt(bench: Bench) -> None:
    bench.ensure_agents(from_attempt=3)
    for view in bench.backend.hosts():
        assert view.agent is not None
        assert (view.condition, view.agent.run, view.agent.from_attempt) == ("ready", "demo", 3)


def test_ensuring_twice_starts_no_second_agent(bench: Bench) -> None:
    bench.ensure_agents()
    wait_until(lambda: bench.record().process is not None, "the agent signs")
    before = bench.record()
    bench.ensure_agents()
    assert bench.record() == before
    assert len(agents_of(bench.fleet)) == 2


def test_an_unreadable_state_is_unknown_and_never_gone(bench: Bench) -> None:
    bench.ensure_agents()
    (bench.folder().path / "state.json").write_text("junk")
    view = bench.view()
    assert view.condition == "unknown"
    assert "state.json" in view.evidence


def test_a_lock_that_is_held_beside_a_stale_record_is_unknown_and_never_free(bench: Bench) -> None:
    bench.ensure_agents()
    wait_until(lambda: bench.record().process is not None, "the agent signs")
    record = bench.record()
    assert record.process is not None
    stale = record.process.model_copy(update={"start_ticks": 1})
    bench.folder().write_record(record.model_copy(update={"process": stale}))
    view = bench.view()
    assert view.condition == "unknown"
    assert view.agent is not None
    bench.folder().write_record(record)


def test_the_look_at_a_lock_never_stops_somebody_from_taking_it(bench: Bench) -> None:
    folder = bench.folder()
    lock = folder.take_lock()
    assert lock is not None
    assert folder.lock_is_held()
    assert folder.take_lock() is None
    os.close(lock)
    assert not folder.lock_is_held()


# ---- agents of several controllers


def test_two_controllers_that_race_start_one_agent(bench: Bench) -> None:
    program = (
        "import sys; from pathlib import Path\n"
        "from orchestrator.backends.local.backend import LocalBackend\n"
        "from orchestrator.contract.attempt import HostRef\n"
        "backend = LocalBackend(fleet=Path(sys.argv[1]), store_address=sys.argv[2], run='demo')\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "for _ in range(20): backend.ensure_agents([HostRef(pool='main', host='h0')], from_attempt=1)\n"
    )
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(bench.fleet), str(bench.root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    for racer in racers:
        racer.communicate(timeout=60)
        assert racer.returncode == 0
    assert len(agents_of(bench.fleet)) == 1
    bench.store.create_attempt(bench.spec(1))
    wait_until(lambda: bench.record().process is not None, "the agent signs and outlives both controllers")


def test_another_runs_agents_are_neither_replaced_nor_killed_nor_released(bench: Bench) -> None:
    bench.ensure_agents()
    wait_until(lambda: bench.record().process is not None, "the agent signs")
    other = LocalBackend(fleet=bench.fleet, store_address=str(bench.root), run="other")
    other.ensure_agents(bench.hosts, from_attempt=1)
    other.kill_agents(bench.hosts)
    other.release(bench.hosts)
    view = other.hosts()[0]
    assert view.agent is not None
    assert view.agent.run == "demo"
    assert exists(bench.agent_pid())


def test_kill_agents_leaves_nothing_and_needs_no_signed_record(bench: Bench) -> None:
    bench.ensure_agents()
    bench.backend.kill_agents(bench.hosts)  # most likely before an agent has written its pid
    assert [view.agent for view in bench.backend.hosts()] == [None, None]
    assert agents_of(bench.fleet) == []


def test_kill_agents_ends_trainers_and_what_they_started(bench: Bench) -> None:
    bench.ensure_agents()
    bench.order(1, "--child")
    pids = [bench.stepping(1, process).pid for process in (0, 1)] + [bench.agent_pid(0), bench.agent_pid(1)]
    bench.backend.kill_agents(bench.hosts)
    assert not any(bench.folder(process).lock_is_held() for process in (0, 1))
    wait_until(lambda: not any(map(exists, pids)), f"{pids} leave /proc")
    bench.ensure_agents(from_attempt=2)
    bench.order(2)
    bench.stepping(2, 1)


def test_release_lets_agents_that_are_being_started_go_too(bench: Bench) -> None:
    bench.ensure_agents()
    bench.backend.release(bench.hosts)
    wait_until(lambda: not any(view.agent for view in bench.backend.hosts()), "both locks are free")
    assert agents_of(bench.fleet) == []


def test_a_host_that_is_not_in_the_fleet_gets_no_agent(bench: Bench) -> None:
    bench.backend.ensure_agents([HostRef(pool="main", host="h7"), HostRef(pool="other", host="h0")], from_attempt=1)
    assert agents_of(bench.fleet) == []


def test_an_interpreter_that_does_not_exist_is_told_and_frees_the_lock(bench: Bench) -> None:
    backend = LocalBackend(fleet=bench.fleet, store_address=str(bench.root), run="demo", python=("/no/python",))
    with pytest.raises(BackendUnavailable, match=r"main/h0: .*/no/python"):
        backend.ensure_agents(bench.hosts, from_attempt=1)
    assert bench.view().agent is None


# ---- drills


def test_kill_host_looks_like_an_instant_reboot(bench: Bench) -> None:
    bench.ensure_agents()
    bench.order(1)
    bench.stepping(1)
    said = drills.kill_host(bench.fleet, bench.hosts[0], now=NOW)
    assert said == "host main/h0: killed agent and trainer; the host stays in the fleet"
    dead, alive = bench.backend.hosts()
    assert (dead.condition, dead.agent, dead.died_at) == ("ready", None, NOW)
    assert alive.agent is not None
    assert bench.store.exits(1) == {}
    assert "nothing was killed" in drills.kill_host(bench.fleet, bench.hosts[0], now=NOW)
    bench.ensure_agents()
    wait_until(lambda: bench.record().process is not None, "the next agent signs")
    os.kill(bench.record().process.pid, 9)
    wait_until(lambda: bench.view().agent is None, "it is dead")
    assert bench.view().died_at is None, "nobody said when"


def test_a_lost_agent_takes_its_trainer_along_and_leaves_a_host_that_is_free(bench: Bench) -> None:
    bench.ensure_agents()
    bench.order(1)
    trainer, agent = bench.stepping(1).pid, bench.agent_pid()
    said = drills.lose_agent(bench.fleet, bench.hosts[0], now=NOW)
    assert said == f"host main/h0: killed agent {agent} alone; what it had started ended with it"
    assert identity_of(trainer) is None
    assert (bench.view().condition, bench.view().agent, bench.view().died_at) == ("ready", None, NOW)
    assert bench.store.exits(1) == {}


def test_stop_host_leaves_trainer_and_agent_alive_and_stuck(bench: Bench) -> None:
    bench.ensure_agents()
    bench.order(1)
    pid = bench.stepping(1).pid
    assert str(pid) in drills.stop_host(bench.fleet, bench.hosts[0])
    wait_until(lambda: " T " in Path(f"/proc/{pid}/stat").read_text(), "the trainer is stopped")
    assert bench.view().agent is not None
    bench.stop(1, "kill")
    assert bench.exit(1).signal == 9
    assert "nothing was stopped" in drills.stop_host(bench.fleet, bench.hosts[0])


def test_shrink_takes_hosts_away_and_grow_gives_them_back(bench: Bench) -> None:
    bench.ensure_agents()
    wait_until(lambda: bench.record(1).process is not None, "the agent signs")
    assert drills.shrink(bench.fleet, "main", keep=1, now=NOW) == "pool main: 1 of 2 hosts taken away, 1 left"
    kept, gone = bench.backend.hosts()
    assert (kept.condition, gone.condition, gone.agent) == ("ready", "gone", None)
    assert gone.evidence == "not in the fleet's list"
    bench.ensure_agents()
    assert bench.view(1).agent is None, "no agent on a host that is gone"
    assert drills.grow(bench.fleet, "main") == "pool main: 1 hosts given back, all 2 present"
    assert bench.view(1).condition == "ready"


def test_maintenance_is_announced_and_withdrawn(bench: Bench) -> None:
    said = drills.announce_maintenance(bench.fleet, bench.hosts[0], at=1060.0, now=1000.0)
    assert said == "host main/h0: maintenance announced in 60 s"
    assert bench.view().maintenance_at == 1060.0
    drills.clear_maintenance(bench.fleet, bench.hosts[0])
    assert bench.view().maintenance_at is None


@pytest.mark.parametrize(
    ("drill", "complaint"),
    [
        (lambda fleet: drills.kill_host(fleet, HostRef(pool="no", host="h0"), now=NOW), "no pool 'no'; there are main"),
        (lambda fleet: drills.stop_host(fleet, HostRef(pool="main", host="h9")), "no host 'h9'; there are h0 … h1"),
        (lambda fleet: drills.shrink(fleet, "main", keep=3, now=NOW), "use 0 … 2"),
    ],
)
def test_a_drill_on_what_is_not_there_names_what_is(bench: Bench, drill, complaint: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ContractError, match=complaint):
        drill(bench.fleet)


def test_end_everything_frees_all_locks_even_without_the_fleets_description(bench: Bench) -> None:
    bench.ensure_agents()
    bench.order(1)
    bench.stepping(1)
    (bench.fleet / "fleet.yaml").rename(bench.fleet / "hidden.yaml")
    assert drills.end_everything(bench.fleet) == "2 hosts ended, all 2 locks are free"
    assert agents_of(bench.fleet) == []
    (bench.fleet / "hidden.yaml").rename(bench.fleet / "fleet.yaml")


def test_documents_of_a_host_are_plain_json(bench: Bench) -> None:
    drills.announce_maintenance(bench.fleet, bench.hosts[0], at=1060.0, now=1000.0)
    state = json.loads((bench.folder().path / "state.json").read_text())
    assert state == {"schema": "host/1", "present": True, "maintenance_at": 1060.0}
