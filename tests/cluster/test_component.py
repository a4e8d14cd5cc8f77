"""Programs of the control plane: what is shown when one does not start, and that none is left over."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.agent.process import identity_of, wait_for_end
from tests.cluster.component import Component, NotReady

ROOT = Path(__file__).parents[2]
PYTHON = Path(sys.executable)
PAUSE: list[str | Path] = [PYTHON, "-c", "import signal; print('up', flush=True); signal.pause()"]
STARTER = """
import signal, sys
from pathlib import Path
from tests.cluster.component import Component
from tests.cluster.test_component import PAUSE
log = Path(sys.argv[1])
component = Component("c", command=PAUSE, log=log, ready=lambda: "up" in log.read_text())
component.start()
component.wait_until_ready()
print(component.pid, flush=True)
signal.pause()
"""


def test_the_end_of_the_log_says_why_a_program_did_not_start(tmp_path: Path) -> None:
    command: list[str | Path] = [PYTHON, "-c", "import sys; sys.exit('the port is taken')"]
    component = Component("broken", command=command, log=tmp_path / "log", ready=lambda: False)
    component.start()
    with pytest.raises(NotReady) as shown:
        component.wait_until_ready()
    assert str(shown.value) == f"broken ended with 1; the end of {tmp_path / 'log'}:\nthe port is taken\n"


def test_a_program_that_is_paused_can_be_resumed_killed_and_started_again(tmp_path: Path) -> None:
    component = Component("c", command=PAUSE, log=tmp_path / "log", ready=lambda: True)
    component.start()
    first = component.pid
    component.pause()
    os.waitid(os.P_PID, first, os.WSTOPPED)
    component.kill()
    assert identity_of(first) is None
    component.start()
    assert component.pid != first
    component.stop()
    assert not component.running


def test_a_killed_test_process_leaves_no_program_behind(tmp_path: Path) -> None:
    command: list[str | Path] = [PYTHON, "-c", STARTER, tmp_path / "log"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        started = identity_of(int(starter.stdout.readline()))
        assert started is not None
        starter.send_signal(signal.SIGKILL)
    assert wait_for_end(started, timeout=10)
