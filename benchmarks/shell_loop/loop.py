"""The other side of ``recovery.py``: ``train.py`` in a shell loop on every host, with or without a compile cache."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from benchmarks import recovery_job
from benchmarks.recovery_job import Job, Outcome, phases_of, uninterrupted, until

HERE = Path(__file__).parent
Said = Mapping[str, float]
"""What one process wrote down in one launch, and when."""


class ShellLoop:
    """A fresh folder for each trial; the compile cache, where there is one, stays."""

    def __init__(self, folder: Path, job: Job, *, cached: bool) -> None:
        self.side = "loop + cache" if cached else "loop"
        self._folder = folder
        self._job = job
        self._cache = folder / "cache" if cached else None
        folder.mkdir(parents=True)
        recovery_job.write_tokens(folder / "some.tokens")

    def trial(self, case: str, number: int) -> Outcome:
        folder = self._folder / f"{case}-{number}"
        if case == "shrink" and self._cache is not None and number == 0:
            self._fill_for_one_host()
        command = self._command(folder, hosts=self._job.hosts)
        whole = ["bash", str(HERE / "fleet.sh"), str(folder), *command]
        with (folder / "loop.log").open("wb") as log:
            loop = subprocess.Popen(whole, stdout=log, stderr=log, env=_environment(), start_new_session=True)
        try:
            return self._kill_and_see(loop, folder, case, number)
        finally:
            with uninterrupted(), contextlib.suppress(ProcessLookupError):
                os.killpg(loop.pid, signal.SIGKILL)
                loop.wait()

    def _fill_for_one_host(self) -> None:
        """What Everstep prepares, the cache shall have too."""
        folder = self._folder / "ahead"
        command = self._command(folder, hosts=1)
        there = ["--launch", "1", "--hosts", "1", "--host", "0", "--until", "1"]
        with (folder / "host-0.log").open("wb") as log:
            subprocess.run([*command, *there], env=_environment(), stdout=log, stderr=log, check=True)

    def _command(self, folder: Path, *, hosts: int) -> list[str]:
        folder.mkdir()
        settings = recovery_job.settings_of(self._job, data=self._folder / "some.tokens", port=_free_port())
        (folder / "job.json").write_text(json.dumps(settings))
        (folder / "hosts").write_text(f"{hosts}\n")
        cache = [] if self._cache is None else ["--cache", str(self._cache)]
        return [sys.executable, str(HERE / "train.py"), "--folder", str(folder), *cache]

    def _kill_and_see(self, loop: subprocess.Popen[bytes], folder: Path, case: str, number: int) -> Outcome:
        def alive() -> bool:
            return loop.poll() is None

        def due() -> bool:
            steps = _steps(_newest(_said(folder, host=0)))
            return bool(steps) and self._job.due(committed=_committed(folder), next_step=max(steps) + 1)

        until(due, f"{self.side}: the moment to kill", alive=alive)
        before = max(_said(folder, host=0))
        victims = self._job.victims(case, number)
        pids = [_pid(_said(folder, host=host)[before]) for host in victims]
        if case == "shrink":
            (folder / "hosts").write_text("1\n")
        killed = time.time()
        for pid in pids:
            os.kill(pid, signal.SIGKILL)

        def first_new() -> int | None:
            reached = max(
                max(_steps(said), default=-1)
                for host in range(self._job.hosts)
                for launch, said in _said(folder, host=host).items()
                if launch <= before
            )
            launches = _said(folder, host=0)
            steps = _steps(_newest(launches)) if max(launches) > before else []
            return min((step for step in steps if step > reached), default=None)

        new = until(first_new, f"{self.side}: the first new step", alive=alive)
        said = _said(folder, host=0)
        return Outcome(
            side=self.side,
            case=case,
            trial=number,
            seconds=_newest(said)[str(new)] - killed,
            replayed=new - min(_steps(_newest(said))),
            launches=max(said) - before,
            phases=phases_of(self._moments(folder, max(said), new), killed=killed),
        )

    def _moments(self, folder: Path, launch: int, new: int) -> dict[str, float | None]:
        """When each phase ended; nothing is decided and nobody is waited for."""
        told = _lines(folder / "fleet.log")[launch - 1]
        processes = [said[launch] for host in range(self._job.hosts) if launch in (said := _said(folder, host=host))]
        last = {what: max(said[what] for said in processes) for what in ("imported", "initialised", "compiled")}
        return {
            "detect": told["died"],
            "stop": told["gone"],
            "start": last["imported"],
            "initialise": last["initialised"],
            "compile": last["compiled"],
            "restore": max(said["restored"] for said in processes),
            "replay": processes[0].get(str(new - 1)),
            "first new step": processes[0][str(new)],
        }


def _lines(path: Path) -> dict[int, dict[str, float]]:
    """By launch, what was written down; a line that is being written is left out."""
    launches: dict[int, dict[str, float]] = {}
    text = path.read_text() if path.exists() else ""
    for line in text[: text.rfind("\n") + 1].splitlines():
        launch, what, at = line.split()
        launches.setdefault(int(launch), {})[what] = float(at)
    return launches


def _said(folder: Path, *, host: int) -> Mapping[int, Said]:
    return _lines(folder / f"steps-{host}.log")


def _newest(launches: Mapping[int, Said]) -> Said:
    return launches[max(launches)] if launches else {}


def _steps(said: Said) -> list[int]:
    return [int(what) for what in said if what.isdigit()]


def _pid(said: Said) -> int:
    return next(int(what.removeprefix("pid-")) for what in said if what.startswith("pid-"))


def _committed(folder: Path) -> int:
    """Orbax gives a checkpoint its name when it is complete."""
    checkpoints = folder / "checkpoints"
    names = [path.name for path in checkpoints.iterdir()] if checkpoints.is_dir() else []
    return max((int(name) for name in names if name.isdigit()), default=0)


def _environment() -> dict[str, str]:
    return {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={recovery_job.DEVICES}",
        "PYTHONPATH": str(HERE.parents[1]),
    }


def _free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
