"""Checkpoints are read back one at a time, beside the run, and a failed reading is not tried again at once."""

import os
import sys
from pathlib import Path

import pytest

from orchestrator.backends.local.prover import BACK_OFF, LocalProver

SAYS = "import sys; print(' '.join(sys.argv[1:]), flush=True); "


class Bench:
    """A prover with a command of Python code, and a clock that only the test moves."""

    def __init__(self, folder: Path, code: str | None) -> None:
        self.now = 100.0
        self.log = folder / "below" / "scrub.log"
        self.prover = LocalProver(
            command=() if code is None else (sys.executable, "-S", "-c", SAYS + code),
            store_address="/store",
            run="demo",
            log=self.log,
            monotonic=lambda: self.now,
        )

    @property
    def child(self) -> int | None:
        return self.prover._child.pid

    def end(self) -> None:
        """Wait for the child to end by itself."""
        child = self.prover._child._child
        assert child is not None
        child.wait(30)

    @property
    def starts(self) -> list[str]:
        return [line for line in self.log.read_text().splitlines() if line.startswith("--store")]


def test_the_command_is_told_store_run_and_manifest(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "")
    bench.prover.prove("000000000010-a0001")
    bench.end()
    assert bench.starts == ["--store /store --run demo --manifest 000000000010-a0001"]


def test_one_at_a_time(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "import signal; signal.pause()")
    bench.prover.prove("a")
    first = bench.child
    bench.prover.prove("b")
    assert bench.child == first
    bench.prover.close()
    assert first is not None
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)


def test_a_child_that_will_not_end_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.backends.local.background.END_TIMEOUT", 0.05)
    deaf = tmp_path / "deaf"
    os.mkfifo(deaf)
    code = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); open({str(deaf)!r}, 'w'); signal.pause()"
    bench = Bench(tmp_path, code)
    bench.prover.prove("a")
    deaf.open().close()  # opens when the child has done so too
    child = bench.child
    bench.prover.close()
    assert child is not None
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


def test_a_failed_reading_waits_before_it_is_tried_again(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "sys.exit(1)")
    bench.prover.prove("a")
    bench.end()
    bench.prover.prove("a")
    bench.now += BACK_OFF - 0.1
    bench.prover.prove("a")
    assert bench.child is None
    assert len(bench.starts) == 1
    bench.now += 0.2
    bench.prover.prove("a")
    bench.end()
    assert len(bench.starts) == 2


def test_another_checkpoint_does_not_wait_for_the_failed_one(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "sys.exit(1)")
    bench.prover.prove("a")
    bench.end()
    bench.prover.prove("b")
    bench.end()
    assert [line[-1] for line in bench.starts] == ["a", "b"]


def test_a_successful_reading_is_followed_by_the_next_at_once(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "")
    for _ in range(2):
        bench.prover.prove("a")
        bench.end()
    assert len(bench.starts) == 2


def test_without_a_command_nothing_is_read_back(tmp_path: Path) -> None:
    bench = Bench(tmp_path, None)
    bench.prover.prove("a")
    assert bench.child is None
    bench.prover.close()


def test_a_command_that_is_not_there_does_not_stop_the_controller(tmp_path: Path) -> None:
    bench = Bench(tmp_path, None)
    bench.prover = LocalProver(
        command=("/nowhere/scrub",), store_address="/store", run="demo", log=bench.log, monotonic=lambda: bench.now
    )
    bench.prover.prove("a")
    assert bench.child is None
