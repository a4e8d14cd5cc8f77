"""The agent's loop on a store in memory, with processes and time that the test plays."""

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from orchestrator.agent.agent import Agent, Pace
from orchestrator.agent.host_folder import HostFolder, HostState
from orchestrator.agent.launch import CannotStart, Launch
from orchestrator.agent.process import ProcessIdentity
from orchestrator.contract.attempt import AttemptSpec, Exit, HostRef, OwnError, Progress, StartOrder, StopOrder
from orchestrator.contract.run import CheckpointPolicy, LeafPlan, Placement
from orchestrator.store.memory import MemoryStore
from orchestrator.store.objects import Stored, StoreUnavailable
from orchestrator.store.run_store import RunStore

HOSTS = (HostRef(pool="main", host="h0"), HostRef(pool="main", host="h1"))
ME = HOSTS[1]
SIGKILLED = int(signal.SIGKILL)
"""Wait status of a process that SIGKILL ended."""
EXITED = 256
"""Times an exit code: the wait status of a process that exited."""


class Processes:
    """Trainers that live in a dictionary; ``log`` has what was done to them."""

    def __init__(self) -> None:
        self.ready = True
        self.launches: list[Launch] = []
        self.log: list[str] = []
        self.broken: str | None = None
        self._ended: dict[int, int] = {}

    def start(self, launch: Launch) -> ProcessIdentity:
        if self.broken:
            raise CannotStart(self.broken)
        self.launches.append(launch)
        pid = 1000 + len(self.launches)
        self.log.append(f"start {pid}")
        launch.log.write_text(f"output of {pid}\n")
        return ProcessIdentity(pid=pid, start_ticks=1)

    def terminate(self, trainer: ProcessIdentity) -> None:
        self.log.append(f"terminate {trainer.pid}")

    def kill(self, trainer: ProcessIdentity) -> None:
        self.log.append(f"kill {trainer.pid}")
        self._ended[trainer.pid] = SIGKILLED

    def end(self, pid: int, status: int) -> None:
        self._ended[pid] = status

    def ended(self) -> dict[int, int]:
        ended, self._ended = self._ended, {}
        return ended


class FlakyStore(MemoryStore):
    """A store in memory that can be away."""

    away = False

    def read(self, name: str) -> Stored:
        self._fail_if_away()
        return super().read(name)

    def create(self, name: str, data: bytes) -> str:
        self._fail_if_away()
        return super().create(name, data)

    def children(self, prefix: str) -> list[str]:
        self._fail_if_away()
        return super().children(prefix)

    def _fail_if_away(self) -> None:
        if self.away:
            raise StoreUnavailable("away; check path, mount and permissions")


@dataclass
class Script:
    """What happens at each wait; after the last thing the agent is asked to leave."""

    acts: list[Callable[[], object]] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    leave: bool = False
    clock: float = 100.0

    def wait(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.clock += seconds
        if self.acts:
            self.acts.pop(0)()
        else:
            self.leave = True

    def watch(self, handle: int) -> None: ...

    def forget(self, handle: int) -> None: ...


class Stage:
    """An agent of host h1 and everything around it."""

    def __init__(self, root: Path, *, from_attempt: int) -> None:
        self.objects = FlakyStore()
        self.store = RunStore(self.objects, "demo")
        self.processes = Processes()
        self.script = Script()
        self.folder = HostFolder(root / "h1")
        lock = self.folder.take_lock()
        assert lock is not None
        self.lock = lock
        self.agent = Agent(
            store=self.store,
            host=ME,
            from_attempt=from_attempt,
            folder=self.folder,
            lock=lock,
            processes=self.processes,
            environment={"JAX_PLATFORMS": "cpu"},
            waiter=self.script,
            now=lambda: self.script.clock,
            monotonic=lambda: self.script.clock,
            pace=Pace(),
        )

    def play(self, *acts: Callable[[], object]) -> None:
        """Let the agent look once before each act and once after the last, then leave."""
        self.script.acts = list(acts)
        self.agent.run()

    def order(self, attempt: int, hosts: tuple[HostRef, ...] = HOSTS) -> None:
        self.store.create_attempt(spec(attempt))
        self.store.create_start_order(StartOrder(attempt=attempt, hosts=hosts, at=1.0))

    def drain(self, attempt: int) -> None:
        self.store.create_stop_order(StopOrder(attempt=attempt, how="drain", reason="test", at=1.0))

    def kill(self, attempt: int) -> None:
        self.store.create_stop_order(StopOrder(attempt=attempt, how="kill", reason="test", at=1.0))

    def report(self, attempt: int, *, step: int | None, at: float | None = None) -> None:
        """What the trainer says of itself."""
        self.store.write_progress(
            Progress(
                attempt=attempt,
                process=1,
                pid=1,
                phase="start" if step is None else "train",
                step=step,
                counter=1,
                phases=(),
                at=self.script.clock if at is None else at,
            )
        )

    def exit(self, attempt: int) -> Exit:
        return self.store.exits(attempt)[1]


@pytest.fixture
def stage(tmp_path: Path) -> "Stage":
    return Stage(tmp_path, from_attempt=1)


def spec(attempt: int) -> AttemptSpec:
    return AttemptSpec(
        run="demo",
        attempt=attempt,
        revision=1,
        recipe_sha256="0" * 64,
        store="/nowhere",
        data_root="/nowhere",
        stage="pretrain",
        until_step=10,
        allocation="demo-g1",
        placement=Placement(name="full", pool="main", generation="local-a", hosts=2, devices_per_host=2),
        hosts=HOSTS,
        leaf_plan=LeafPlan(generation="local-a"),
        resume=None,
        checkpoint=CheckpointPolicy(),
        trainer=("trainer", "--quick"),
    )


def test_an_order_that_names_the_host_starts_its_trainer_with_index_files_and_environment(stage: Stage) -> None:
    stage.play(lambda: stage.order(1), lambda: None)
    (launch,) = stage.processes.launches
    assert tuple(launch.command) == ("trainer", "--quick")
    assert launch.environment["EVERSTEP_PROCESS"] == "1"
    assert launch.environment["JAX_PLATFORMS"] == "cpu"
    assert launch.environment["EVERSTEP_ERROR"] == str(stage.folder.error_file(1))
    assert AttemptSpec.from_bytes(Path(launch.environment["EVERSTEP_ATTEMPT"]).read_bytes(), where="copy") == spec(1)
    assert launch.lock == stage.lock
    assert stage.store.started(1)[1].pid == 1001


def test_an_order_for_other_hosts_starts_nothing_and_is_not_answered(stage: Stage) -> None:
    stage.play(lambda: stage.order(1, (HOSTS[0],)), lambda: None)
    assert stage.processes.log == []
    assert stage.store.exits(1) == {}


def test_a_spec_without_an_order_waits_for_it(stage: Stage) -> None:
    stage.store.create_attempt(spec(1))
    stage.play(lambda: None, lambda: stage.order(1), lambda: None)
    assert stage.processes.log[0] == "start 1001"


def test_numbers_below_the_first_one_are_refused_without_a_word(tmp_path: Path) -> None:
    stage = Stage(tmp_path, from_attempt=5)
    stage.order(4)
    stage.play(lambda: None)
    assert stage.processes.log == []
    assert stage.store.exits(4) == {}


def test_an_order_that_arrives_after_a_newer_one_is_refused(stage: Stage) -> None:
    stage.play(lambda: stage.order(2), lambda: stage.order(1), lambda: None)
    assert stage.processes.launches[0].log.name == "attempt-0002.log"
    assert len(stage.processes.launches) == 1
    refusal = stage.exit(1)
    assert (refusal.code, refusal.signal, refusal.killed_by_us) == (None, None, True)
    assert refusal.last_lines == ("never started: attempt 2 was ordered before it could start",)


def test_of_several_waiting_orders_only_the_newest_starts(stage: Stage) -> None:
    for attempt in (1, 2, 3):
        stage.order(attempt)
    stage.play(lambda: None)
    assert [launch.log.name for launch in stage.processes.launches] == ["attempt-0003.log"]
    assert stage.exit(1).code is None
    assert stage.exit(2).code is None


def test_an_order_with_a_kill_beside_it_never_starts(stage: Stage) -> None:
    stage.order(1)
    stage.kill(1)
    stage.play(lambda: None)
    assert stage.processes.log == []
    assert stage.exit(1).last_lines == ("never started: it was ordered to be killed before it could start",)


def test_an_attempt_that_an_earlier_agent_started_is_not_started_again(tmp_path: Path) -> None:
    first = Stage(tmp_path / "first", from_attempt=1)
    first.order(1)
    first.play()
    second = Stage(tmp_path / "second", from_attempt=1)
    second.order(1)
    second.store.create_started(first.store.started(1)[1])
    second.play(lambda: None)
    assert second.processes.log == []
    assert "an earlier agent on this host had started it and died" in second.exit(1).last_lines[0]


def test_a_kill_order_ends_the_trainer_once_and_says_so(stage: Stage) -> None:
    stage.order(1)
    stage.play(
        lambda: stage.report(1, step=7),
        lambda: stage.kill(1),
        lambda: None,
        lambda: None,
    )
    assert stage.processes.log == ["start 1001", "kill 1001"]
    end = stage.exit(1)
    assert (end.code, end.signal, end.killed_by_us) == (None, 9, True)
    assert (end.phase, end.step) == ("train", 7)
    assert end.last_lines == ("output of 1001",)


def test_a_newer_order_ends_the_running_trainer_before_the_next_starts(stage: Stage) -> None:
    stage.order(1)
    stage.play(lambda: stage.order(2), lambda: None)
    assert stage.processes.log[:3] == ["start 1001", "kill 1001", "start 1002"]
    assert stage.exit(1).killed_by_us


def test_a_newer_order_for_other_hosts_ends_the_fenced_trainer_here(stage: Stage) -> None:
    stage.order(1)
    stage.play(lambda: stage.order(2, (HOSTS[0],)), lambda: None)
    assert stage.processes.log == ["start 1001", "kill 1001"]


def test_a_trainer_that_ended_by_itself_just_before_the_kill_was_not_killed_by_us(stage: Stage) -> None:
    stage.order(1)

    def end_and_kill() -> None:
        stage.kill(1)
        stage.processes.kill = lambda trainer: stage.processes.end(trainer.pid, 1 * EXITED)  # type: ignore[method-assign]

    stage.play(end_and_kill, lambda: None)
    assert (stage.exit(1).code, stage.exit(1).killed_by_us) == (1, False)


def test_drain_waits_for_the_first_progress_and_signals_once(stage: Stage) -> None:
    stage.order(1)
    log_before_progress: list[str] = []
    stage.play(
        lambda: stage.drain(1),
        lambda: None,
        lambda: log_before_progress.extend(stage.processes.log),
        lambda: stage.report(1, step=None),
        lambda: None,
        lambda: None,
        lambda: stage.processes.end(1001, 80 * EXITED),
        lambda: None,
    )
    assert log_before_progress == ["start 1001"]
    assert stage.processes.log == ["start 1001", "terminate 1001"]
    assert stage.exit(1).code == 80


def test_progress_of_an_earlier_process_of_the_same_attempt_is_no_sign_of_a_handler(stage: Stage) -> None:
    stage.report(1, step=None, at=1.0)
    stage.order(1)
    stage.play(lambda: stage.drain(1), lambda: None)
    assert "terminate 1001" not in stage.processes.log


def test_a_drain_becomes_a_kill_when_both_are_ordered(stage: Stage) -> None:
    stage.order(1)
    stage.play(
        lambda: stage.report(1, step=1), lambda: stage.drain(1), lambda: None, lambda: stage.kill(1), lambda: None
    )
    assert stage.processes.log == ["start 1001", "terminate 1001", "kill 1001"]


def test_own_error_is_in_the_exit_document(stage: Stage) -> None:
    error = OwnError(type="ValueError", frame="train.py:run", message="no", step=3)
    stage.order(1)

    def fail() -> None:
        stage.folder.error_file(1).write_bytes(error.to_bytes())
        stage.processes.end(1001, 1 * EXITED)

    stage.play(fail, lambda: None)
    assert stage.exit(1).error == error
    assert stage.exit(1).code == 1


def test_an_error_file_that_is_no_error_document_is_left_out(stage: Stage) -> None:
    stage.order(1)

    def fail() -> None:
        stage.folder.error_file(1).write_bytes(b"\xff{")
        stage.processes.end(1001, 1 * EXITED)

    stage.play(fail, lambda: None)
    assert stage.exit(1).error is None


def test_a_command_that_cannot_be_run_is_answered_and_not_blamed_on_an_order(stage: Stage) -> None:
    stage.processes.broken = "cannot run 'trainer': no such file"
    stage.order(1)
    stage.play(lambda: None)
    refusal = stage.exit(1)
    assert (refusal.code, refusal.killed_by_us) == (None, False)
    assert refusal.last_lines == ("never started: cannot run 'trainer': no such file",)


def test_a_spec_of_a_newer_everstep_is_answered_with_the_reason(stage: Stage) -> None:
    stage.objects.create("demo/attempts/0001/attempt.json", b'{"schema": "attempt/99"}')
    stage.store.create_start_order(StartOrder(attempt=1, hosts=HOSTS, at=1.0))
    stage.play(lambda: None)
    assert "newer than this Everstep reads" in stage.exit(1).last_lines[0]


def test_an_unreadable_order_is_passed_over(stage: Stage) -> None:
    stage.objects.create("demo/attempts/0001/order.json", b"junk")
    stage.play(lambda: stage.order(2), lambda: None)
    assert stage.processes.log[0] == "start 1001"
    assert stage.processes.launches[0].log.name == "attempt-0002.log"


def test_unreadable_progress_does_not_hide_the_end(stage: Stage) -> None:
    stage.order(1)

    def end() -> None:
        stage.objects.overwrite("demo/attempts/0001/hosts/001.json", b"junk")
        stage.processes.end(1001, 0)

    stage.play(end, lambda: None)
    assert (stage.exit(1).code, stage.exit(1).phase) == (0, None)


def test_a_store_that_is_away_costs_no_trainer_its_life_and_no_document(stage: Stage) -> None:
    stage.order(1)

    def go_away() -> None:
        stage.report(1, step=4)
        stage.objects.away = True

    def come_back() -> None:
        assert stage.processes.log == ["start 1001"]
        stage.processes.end(1001, 3 * EXITED)
        stage.objects.away = False

    stage.play(go_away, *[lambda: None] * 10, come_back, lambda: None)
    assert stage.script.waits[:4] == [0.05, 0.1, 0.2, 0.4]
    assert max(stage.script.waits) == 1.0
    assert (stage.exit(1).code, stage.exit(1).step) == (3, 4)


def test_an_end_during_an_outage_is_told_when_the_store_is_back_before_anything_else_starts(stage: Stage) -> None:
    stage.order(1)
    when: list[float] = []

    def end_unseen() -> None:
        stage.objects.away = True
        stage.processes.end(1001, 3 * EXITED)
        when.append(stage.script.clock)

    def come_back() -> None:
        stage.objects.away = False
        stage.order(2)

    stage.play(end_unseen, *[lambda: None] * 5, come_back, lambda: None)
    assert stage.exit(1).code == 3
    assert stage.exit(1).at == pytest.approx(when[0], abs=0.01)
    assert stage.processes.log[:2] == ["start 1001", "start 1002"]


def test_an_outage_in_the_middle_of_an_answer_starts_nothing_twice(stage: Stage) -> None:
    stage.order(1)
    reads: list[str] = []
    read = stage.objects.read

    def fail_once_at_the_spec(name: str) -> Stored:
        reads.append(name)
        if name.endswith("attempt.json") and reads.count(name) == 1:
            raise StoreUnavailable("away")
        return read(name)

    stage.objects.read = fail_once_at_the_spec  # type: ignore[method-assign]
    stage.play(lambda: None, lambda: None, lambda: None)
    assert stage.processes.log[:1] == ["start 1001"]
    assert len(stage.processes.launches) == 1


def test_an_exit_that_somebody_wrote_before_is_let_stand(stage: Stage) -> None:
    stage.order(1)
    stage.kill(1)
    other = Exit(
        attempt=1,
        process=1,
        host=ME,
        code=0,
        signal=None,
        killed_by_us=False,
        phase=None,
        step=None,
        error=None,
        last_lines=(),
        at=1.0,
    )
    stage.store.create_exit(other)
    stage.play(lambda: stage.order(2), lambda: None)
    assert stage.exit(1) == other
    assert stage.processes.log[0] == "start 1001"


def test_a_start_waits_until_the_processes_are_ready_but_a_kill_is_answered_at_once(stage: Stage) -> None:
    stage.processes.ready = False
    stage.order(1)
    stage.play(lambda: None, lambda: stage.kill(1), lambda: None)
    assert stage.processes.log == []
    assert stage.exit(1).last_lines == ("never started: it was ordered to be killed before it could start",)


def test_a_start_that_waited_happens_once_they_are_ready(stage: Stage) -> None:
    stage.processes.ready = False
    stage.order(1)
    stage.play(lambda: None, lambda: setattr(stage.processes, "ready", True), lambda: None)
    assert stage.processes.log[0] == "start 1001"


def test_asked_to_leave_the_agent_ends_its_trainer_and_says_so(stage: Stage) -> None:
    stage.order(1)
    stage.play()
    assert stage.processes.log == ["start 1001", "kill 1001"]
    assert (stage.exit(1).signal, stage.exit(1).killed_by_us) == (9, True)


def test_a_host_that_is_taken_away_ends_its_trainer_which_counts_as_a_death(stage: Stage) -> None:
    stage.order(1)
    stage.play(lambda: stage.folder.write_state(HostState(present=False)), lambda: pytest.fail("it went on"))
    assert stage.processes.log == ["start 1001", "kill 1001"]
    assert (stage.exit(1).signal, stage.exit(1).killed_by_us) == (9, False)


def test_a_host_folder_that_disappears_ends_the_agent(stage: Stage, tmp_path: Path) -> None:
    stage.play(lambda: os.rename(tmp_path / "h1", tmp_path / "away"), lambda: pytest.fail("it went on"))


def test_a_state_that_cannot_be_read_is_not_taken_for_absence(stage: Stage) -> None:
    stage.order(1)
    seen: list[str] = []
    stage.play(
        lambda: (stage.folder.path / "state.json").write_text("junk"),
        lambda: None,
        lambda: seen.extend(stage.processes.log),
    )
    assert seen == ["start 1001"]


def test_leaving_while_the_store_is_away_ends_the_trainer_and_gives_up_in_time(stage: Stage) -> None:
    stage.order(1)
    stage.play(lambda: setattr(stage.objects, "away", True))
    assert stage.processes.log == ["start 1001", "kill 1001"]
    assert stage.script.clock < 110.0
