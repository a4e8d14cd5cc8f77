"""What may come next is compiled ahead, one placement at a time, each once."""

import os
import select
import sys
from pathlib import Path

import pytest

from orchestrator.backends.local.preparer import BACK_OFF, LocalPreparer
from orchestrator.contract.run import Placement
from orchestrator.fleet.backend import Ahead

SAYS = "import os, sys; print(*sys.argv[1:], os.environ['XLA_FLAGS'].rpartition('=')[2], flush=True); "
FLEET = """\
pools:
  - {name: main, generation: any, hosts: 2, devices_per_host: 4}
"""


def ahead(name: str, *, pool: str = "main") -> Ahead:
    placement = Placement(name=name, pool=pool, generation="any", hosts=1, devices_per_host=4)
    return Ahead(revision=2, stage="pretrain", placement=placement)


HALF, QUARTER = ahead("half"), ahead("quarter")


class Bench:
    """A preparer with a command of Python code, and a clock that only the test moves."""

    def __init__(self, folder: Path, code: str | None) -> None:
        self.now = 100.0
        self.log = folder / "prepare.log"
        (folder / "fleet.yaml").write_text(FLEET)
        self.preparer = LocalPreparer(
            command=() if code is None else (sys.executable, "-S", "-c", SAYS + code),
            store_address="/store",
            run="demo",
            fleet=folder,
            log=self.log,
            monotonic=lambda: self.now,
        )

    def end(self) -> None:
        child = self.preparer._child._child
        assert child is not None
        child.wait(30)

    @property
    def starts(self) -> list[str]:
        """Placements, in order."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [line.split()[-2] for line in lines if line.startswith("--store")]


def test_the_command_is_told_what_to_compile_in_the_environment_of_its_pool(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "")
    bench.preparer.prepare([HALF])
    bench.end()
    told = "--store /store --run demo --revision 2 --stage pretrain --placement half 4\n"
    assert bench.log.read_text() == told


def test_each_is_compiled_once_and_in_order(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "")
    for _ in range(2):
        bench.preparer.prepare([HALF, QUARTER])
        bench.end()
    bench.preparer.prepare([HALF, QUARTER])
    assert bench.preparer._child.pid is None
    assert bench.starts == ["half", "quarter"]


def test_one_at_a_time_and_none_is_left_behind(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "import signal; signal.pause()")
    bench.preparer.prepare([HALF])
    first = bench.preparer._child.pid
    bench.preparer.prepare([QUARTER])
    assert bench.preparer._child.pid == first
    bench.preparer.close()
    assert first is not None
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)


def test_what_a_child_has_started_ends_with_it(tmp_path: Path) -> None:
    said = tmp_path / "grandchild"
    os.mkfifo(said)
    code = f"pid = os.fork(); pid or open({str(said)!r}, 'w').write(str(os.getpid())); import signal; signal.pause()"
    bench = Bench(tmp_path, code)
    bench.preparer.prepare([HALF])
    grandchild = int(said.read_text())
    handle = os.pidfd_open(grandchild)
    bench.preparer.close()
    ended, _, _ = select.select([handle], [], [], 30)
    os.close(handle)
    assert ended, "it lives on"


def test_a_failed_try_lets_the_next_placement_go_first_and_is_repeated_later(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "sys.exit(1)")
    for _ in range(2):
        bench.preparer.prepare([HALF, QUARTER])
        bench.end()
    bench.preparer.prepare([HALF, QUARTER])
    assert bench.preparer._child.pid is None
    bench.now += BACK_OFF
    bench.preparer.prepare([HALF, QUARTER])
    bench.end()
    assert bench.starts == ["half", "quarter", "half"]


def test_a_placement_whose_pool_is_not_in_the_fleet_is_passed_over(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "")
    bench.preparer.prepare([ahead("elsewhere", pool="other"), HALF])
    bench.end()
    assert bench.starts == ["half"]


def test_without_a_command_nothing_is_compiled(tmp_path: Path) -> None:
    bench = Bench(tmp_path, None)
    bench.preparer.prepare([HALF])
    assert bench.preparer._child.pid is None
