"""What drills do to processes and files; those of a whole fleet are in tests/local."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from orchestrator.agent.host_folder import AgentRecord, HostFolder
from orchestrator.agent.process import identity_of
from orchestrator.backends.local.lasting_drills import full_disk, slow_host, store_outage
from orchestrator.contract.attempt import HostRef
from orchestrator.contract.base import ContractError
from orchestrator.store.local import LocalStore
from orchestrator.store.objects import StoreUnavailable
from tests.unit.cli_folder import CliFolder, document, error_line, everstep, outcome
from tests.unit.run_factory import RunFactory

H0 = HostRef(pool="main", host="h0")
REPOSITORY = Path(__file__).parents[2]


@contextmanager
def running_trainer(fleet: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A host whose agent is this process."""
    folder, here = HostFolder.of(fleet, H0), identity_of(os.getpid())
    lock = folder.take_lock()
    assert lock is not None
    child = subprocess.Popen(["sleep", "60"], start_new_session=True)
    record = AgentRecord(run="demo", store="store", from_attempt=1, process=here, trainer=identity_of(child.pid))
    folder.write_record(record)
    try:
        yield child
    finally:
        child.kill()
        child.wait()
        os.close(lock)


def next_change(child: "subprocess.Popen[bytes]") -> str:
    """Waits until the child is stopped, goes on, or ends."""
    _, status = os.waitpid(child.pid, os.WUNTRACED | os.WCONTINUED)
    if os.WIFCONTINUED(status):
        return "goes on"
    return "stopped" if os.WIFSTOPPED(status) else "ended"


# ---- a slow host
def test_a_slow_trainer_is_stopped_most_of_the_time_and_goes_on_in_between(tmp_path: Path) -> None:
    with running_trainer(tmp_path) as child:
        seen: list[tuple[str, float]] = []
        said = slow_host(tmp_path, H0, factor=4, seconds=1, wait=lambda s: seen.append((next_change(child), s)))
        assert seen == [("stopped", 0.375), ("goes on", 0.125)] * 2
        assert said == f"host main/h0: trainer {child.pid} was 4 times slower for 1 s, and is not any more"


def test_a_slow_trainer_goes_on_when_the_drill_is_interrupted(tmp_path: Path) -> None:
    def interrupted(_: float) -> None:
        assert next_change(child) == "stopped"
        raise KeyboardInterrupt

    with running_trainer(tmp_path) as child:
        with pytest.raises(KeyboardInterrupt):
            slow_host(tmp_path, H0, factor=4, seconds=1, wait=interrupted)
        assert next_change(child) == "goes on"


def test_a_slow_trainer_that_ends_is_not_slowed_any_more(tmp_path: Path) -> None:
    def killed(_: float) -> None:
        child.kill()
        child.wait()

    with running_trainer(tmp_path) as child:
        said = slow_host(tmp_path, H0, factor=2, seconds=60, wait=killed)
    assert said == f"host main/h0: trainer {child.pid} ended after 0.5 s as a slow one"


# ---- a store that is away
def test_in_an_outage_nothing_can_be_read_written_or_made_and_then_all_is_as_it_was(tmp_path: Path) -> None:
    root = tmp_path / "store"
    store = LocalStore(root)
    store.create("demo/run.json", b"{}")
    tries: tuple[Callable[[], object], ...] = (
        lambda: store.read("demo/run.json"),
        lambda: store.read("demo/other.json"),
        lambda: store.create("demo/other.json", b"{}"),
        lambda: store.overwrite("demo/run.json", b"[]"),
        lambda: store.children("demo/"),
    )

    def away(_: float) -> None:
        for attempt in tries:
            with pytest.raises(StoreUnavailable):
                attempt()
        with pytest.raises(OSError, match="Not a directory"):
            (root / "demo" / "checkpoints").mkdir(parents=True)
        assert f"mv '{root}.away' '{root}'" in root.read_text()

    assert store_outage(root, seconds=3, wait=away) == f"store {root}: was away for 3 s, and is back"
    assert store.read("demo/run.json").data == b"{}"
    assert store.children("demo/") == ["run.json"]
    assert os.listdir(tmp_path) == ["store"]


def test_an_outage_that_is_interrupted_is_over(tmp_path: Path) -> None:
    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    store = LocalStore(tmp_path / "store")
    with pytest.raises(KeyboardInterrupt):
        store_outage(tmp_path / "store", seconds=3, wait=interrupted)
    store.create("demo/run.json", b"{}")


def test_a_second_outage_does_not_end_the_first(tmp_path: Path) -> None:
    LocalStore(tmp_path / "store")

    def again(_: float) -> None:
        with pytest.raises(ContractError, match=r"store.away is there: another outage lasts"):
            store_outage(tmp_path / "store", seconds=3, wait=again)
        assert (tmp_path / "store").is_file()

    store_outage(tmp_path / "store", seconds=3, wait=again)
    assert (tmp_path / "store").is_dir()


def test_the_commands_of_drills_that_last_take_back_what_they_did(submitted: CliFolder) -> None:
    before = submitted.files()
    result = everstep("drill", "store-outage", "--seconds", "0.01", "--json")
    assert document(result).model_dump()["target"] == str(submitted.path / "store")
    assert "if this command is killed with SIGKILL: rm " in error_line(result)
    assert submitted.files() == before
    code, lines = outcome(everstep("drill", "slow-host", "main/h1", "--seconds", "1"))
    assert (code, lines) == (0, ["host main/h1: no trainer runs there, nothing was slowed"])


# ---- a full disk
ON_A_SMALL_DISK = """
import subprocess, sys
from pathlib import Path
from orchestrator.backends.local.lasting_drills import full_disk
from orchestrator.store.local import LocalStore
from orchestrator.store.objects import StoreUnavailable

root = Path(sys.argv[1])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", root], check=True)
store = LocalStore(root)
store.create("freed", bytes(100_000))

def full(seconds):
    try:
        store.create("during", bytes(5000))
    except StoreUnavailable as error:
        print(error)
    store.delete("freed")  # taken too, by the next second

print(full_disk(root, seconds=2, wait=full))
print(store.children(""), store.create("after", bytes(5000)) != "")
"""


def test_a_full_disk_refuses_writes_and_is_free_again_afterwards(tmp_path: Path) -> None:
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-rm", "true"], check=False).returncode:
        pytest.skip("a small file system needs a user namespace, which this machine does not allow")
    command = ["unshare", "-rm", sys.executable, "-c", ON_A_SMALL_DISK, str(tmp_path)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    full = "during: No space left on device; free some space"
    *refused, said, after = done.stdout.splitlines()
    assert refused == [full, full]
    assert said.startswith(f"store {tmp_path}: its file system was full for 2 s (1,0")
    assert after == "[] True"


def test_a_disk_that_others_need_is_not_filled(tmp_path: Path) -> None:
    LocalStore(tmp_path / "store")

    def never(_: float) -> None:
        pytest.fail("it was filled")

    with pytest.raises(ContractError, match="shares a file system with /"):
        full_disk(tmp_path / "store", seconds=1, wait=never)
    assert os.listdir(tmp_path / "store" / ".tmp") == []


# ---- damaged files
def test_a_torn_ledger_lacks_half_of_its_last_record(moved: RunFactory) -> None:
    store = moved.store
    older = store.segment_names(2)[-1]
    name = store.create_segment(2, 7, store.ledger(2))
    whole, records = store.read_segment(name)
    code, lines = outcome(everstep("drill", "torn-ledger", "demo"))
    torn = (Path(store.address) / name).read_bytes()
    assert (code, lines) == (0, [f"{name}: cut from {len(whole):,} to {len(torn):,} bytes"])
    assert whole.startswith(torn)
    assert torn.count(b"\n") == len(records) - 1, "the records before are whole"
    assert not torn.endswith(b"\n")
    with pytest.raises(ContractError, match="the ledger segment is damaged"):
        store.read_segment(name)
    assert store.read_segment(older)[1]


def test_a_cut_manifest_is_the_newest_one(moved: RunFactory) -> None:
    store, newest = moved.store, moved.store.head().value.manifest
    assert newest is not None
    older = store.manifest(newest).parent
    code, lines = outcome(everstep("drill", "corrupt-checkpoint", "demo", "--how", "truncated-manifest"))
    assert code == 0
    assert lines[0].startswith(f"manifests/{newest}.json: cut from ")
    with pytest.raises(ContractError, match=newest):
        store.manifest(newest)
    assert older is not None
    assert store.manifest(older).name == older


# ---- a lost controller
LEADER = "import fcntl, signal, sys; f = open(sys.argv[1], 'w'); fcntl.lockf(f, fcntl.LOCK_EX); print(); signal.pause()"


def test_a_lost_controller_is_killed_and_the_next_one_is_named(submitted: CliFolder) -> None:
    start = f"start one: everstep controller demo --store {submitted.path / 'store'}"
    nobody = f"run demo: no controller leads it, nothing was killed; {start}"
    assert outcome(everstep("drill", "controller-lost", "demo")) == (0, [nobody])
    lock = submitted.path / "fleet" / "controllers" / "demo.lock"
    lock.parent.mkdir()
    with subprocess.Popen([sys.executable, "-c", LEADER, str(lock)], stdout=subprocess.PIPE) as leader:
        assert leader.stdout is not None
        assert leader.stdout.readline() == b"\n"
        said = f"run demo: killed controller {leader.pid}; its trainers go on; {start}"
        assert outcome(everstep("drill", "controller-lost", "demo")) == (0, [said])
        assert leader.wait(timeout=10) == -signal.SIGKILL


def test_what_was_never_written_cannot_be_damaged(submitted: CliFolder) -> None:
    result = everstep("drill", "torn-ledger", "demo")
    assert result.exit_code == 2
    assert error_line(result) == "run demo: no ledger segment is closed yet; nothing was damaged"
