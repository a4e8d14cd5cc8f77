"""When a trainer traces: from the first step on, until the last, once an order, and never at the cost of the run."""

import threading
from pathlib import Path
from typing import Any

import jax
import pytest

from orchestrator.contract.attempt import ProfileOrder
from orchestrator.store.local import LocalStore
from orchestrator.store.memory import MemoryStore
from orchestrator.store.objects import StoreUnavailable
from orchestrator.store.run_store import RunStore
from trainer.profile import Profiler
from trainer.progress import ProgressReport

LONG = 60.0


class Bench:
    """A profiler of process 1 of attempt 7, and what it asked of JAX."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, *, process: int = 1) -> None:
        self.store = RunStore(LocalStore(folder), "run")
        self.profiler = Profiler(self.store, attempt=7, process=process, program_text=lambda: "HloModule text")
        self.calls: list[str] = []
        self.step = 0
        monkeypatch.setattr(jax.profiler, "start_trace", self.start)
        monkeypatch.setattr(jax.profiler, "stop_trace", lambda: self.calls.append(f"stop after {self.step}"))
        self.traces = folder

    def start(self, folder: str) -> None:
        self.traces = Path(folder)
        (self.traces / "plugins").mkdir()
        (self.traces / "plugins" / "host.xplane.pb").write_bytes(b"a trace")
        self.calls.append(f"start before {self.step}")

    def kept(self) -> list[str]:
        """Files of profiles in the store."""
        return [name.removeprefix("run/profiles/") for name in self.store.objects.names("run/profiles/")]

    def order(self, first: int, last: int, *, after: ProfileOrder | None = None) -> ProfileOrder:
        order = ProfileOrder(attempt=7, first_step=first, last_step=last, by="ada", reason="", at=0.0)
        self.store.put_profile_order(order, after=after)
        self.profiler.look()
        return order

    def train(self, until: int) -> list[str]:
        """What was asked of JAX so far."""
        while self.step < until:
            self.profiler.before(self.step)
            self.profiler.after(self.step)
            self.step += 1
        return self.calls


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(tmp_path, monkeypatch)


def test_the_steps_that_were_asked_for_are_traced_once(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.profiler.look()
    assert bench.train(2) == []
    order = bench.order(4, 6)
    assert bench.train(20) == ["start before 4", "stop after 6"]
    bench.order(30, 30, after=order)
    assert bench.train(40)[2:] == ["start before 30", "stop after 30"]
    assert capsys.readouterr().out.splitlines() == ["everstep: profiled steps 4..6", "everstep: profiled steps 30..30"]


def test_an_order_that_is_learnt_of_late_is_followed_from_then_on_or_told(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.train(5)
    order = bench.order(3, 6)
    assert bench.train(9) == ["start before 5", "stop after 6"]
    bench.order(7, 8, after=order)
    assert len(bench.train(12)) == 2
    assert "steps 7..8 had passed when their profile was asked for; the next step is 9" in capsys.readouterr().out


def test_an_attempt_that_leaves_in_between_closes_the_trace(bench: Bench) -> None:
    bench.order(1, 9)
    bench.train(4)
    bench.profiler.close()
    bench.profiler.close()
    assert bench.calls == ["start before 1", "stop after 4"]


def test_traces_go_to_the_store_and_process_0_writes_the_program_beside_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bench: Bench
) -> None:
    folder = bench.order(1, 2).folder.removeprefix("profiles/")
    bench.train(2)
    assert bench.kept() == []
    bench.train(3)
    assert bench.kept() == [f"{folder}/host-001/plugins/host.xplane.pb"]
    first = Bench(tmp_path, monkeypatch, process=0)
    first.profiler.look()
    first.train(3)
    assert bench.kept()[0] == f"{folder}/host-000/plugins/host.xplane.pb"
    assert bench.kept()[2:] == [f"{folder}/program.hlo.txt"]
    assert bench.store.objects.read(f"run/profiles/{folder}/program.hlo.txt").data == b"HloModule text"
    assert not bench.traces.exists()
    assert not first.traces.exists()


@pytest.mark.parametrize(
    "error", [OSError("No space left on device"), RuntimeError("Profile has already been started")]
)
def test_a_trace_that_fails_is_told_and_the_run_goes_on(
    error: Exception, bench: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: Any) -> None:
        raise error

    monkeypatch.setattr(jax.profiler, "start_trace", fails)
    order = bench.order(1, 2)
    assert bench.train(5) == []
    assert f"steps 1..2 are not profiled: {error}" in capsys.readouterr().out
    monkeypatch.setattr(jax.profiler, "start_trace", bench.start)
    monkeypatch.setattr(jax.profiler, "stop_trace", fails)
    bench.order(6, 7, after=order)
    assert bench.train(9) == ["start before 6"]
    assert not bench.traces.exists()
    assert f"the profile of steps 6..7 is not written: {error}" in capsys.readouterr().out


def test_a_store_that_does_not_answer_is_told_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def down(*_: Any) -> None:
        raise StoreUnavailable("no route to the store")

    monkeypatch.setattr(bench.store.objects, "read", down)
    for _ in range(3):
        bench.profiler.look()
    assert capsys.readouterr().out == "everstep: orders to profile are not read: no route to the store\n"


def test_orders_are_looked_for_as_often_as_progress_is_written() -> None:
    looked = threading.Event()
    progress = ProgressReport(RunStore(MemoryStore(), "run"), attempt=1, process=0, interval=0.001)
    progress.beside = looked.set
    progress.enter("start")
    assert looked.wait(LONG)
    progress.stop()
