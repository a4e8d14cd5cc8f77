"""Somebody who works on a run with commands only."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.backends.local import drills
from orchestrator.cli import controllers
from orchestrator.cli.options import STORE_VARIABLE
from orchestrator.store.opening import open_objects
from orchestrator.store.run_store import RunStore


class Person:
    """Types commands in a folder with a run.yaml; ``store`` is where that says, ./store if not told."""

    def __init__(self, folder: Path, run: str, *, store: str | None = None) -> None:
        self.folder, self.run = folder, run
        self.store = store or str(folder / "store")

    def types(self, *words: str, code: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "orchestrator.cli.main", *words],
            cwd=self.folder,
            env={**os.environ, STORE_VARIABLE: self.store},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == code, f"everstep {' '.join(words)}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def reads(self, *words: str, code: int = 0) -> Any:
        return json.loads(self.types(*words, "--json", code=code))

    def leader(self) -> int | None:
        """The process of the run's controller."""
        return controllers.leader_of(RunStore(open_objects(self.store), self.run).run())

    def waits(self, until: Callable[[Any], bool], *, seconds: float = 400) -> Any:
        """For a status that fits; fails with the run's own story."""
        deadline, pause = time.monotonic() + seconds, threading.Event()
        while time.monotonic() < deadline:
            status = self.reads("status", self.run)
            row = status["runs"][0]
            if until(row):
                return row
            pause.wait(0.5)
        pytest.fail(f"not in {seconds} s; {self.types('why', self.run)}")

    def leaves(self) -> None:
        """Ends the controller and all that runs on the fleet."""
        leader = self.leader()
        if leader is not None:
            os.kill(leader, signal.SIGTERM)
        drills.end_everything(self.folder / "fleet")
