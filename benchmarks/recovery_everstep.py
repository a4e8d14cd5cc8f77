"""Everstep's side of ``recovery.py``: a run on a local fleet, submitted and led by commands."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks import recovery_job
from benchmarks.recovery_job import Job, Outcome, phases_of, uninterrupted, until
from orchestrator.agent.host_folder import HostDeath, HostFolder
from orchestrator.agent.process import session_members
from orchestrator.backends.local import drills
from orchestrator.contract.attempt import HostRef
from orchestrator.contract.ledger import Record
from orchestrator.reports.episodes import ended_attempt, grouped, moments_of, phase_starts
from orchestrator.store.local import LocalStore
from orchestrator.store.run_store import RunStore
from trainer.launch import PROGRESS_VARIABLE

POOL, STAGE = "main", "only"
PROGRESS_SECONDS = 0.1
"""Between two words of progress, oftener than is usual: so that the kill hits the same step as on the other side, and
that little is guessed of what had been computed by then."""


class Everstep:
    """A fleet, and a run of its own on it for each trial; the compile cache of the fleet stays, as it does in life."""

    side = "everstep"

    def __init__(self, folder: Path, job: Job) -> None:
        self._folder = folder
        self._fleet = folder / "fleet"
        self._job = job
        self._files()

    def trial(self, case: str, number: int) -> Outcome:
        name = f"{case}-{number}"
        everstep = [sys.executable, "-P", "-m", "orchestrator.cli.main"]
        environment = {**os.environ, PROGRESS_VARIABLE: str(PROGRESS_SECONDS)}
        submit = [*everstep, "submit", f"{_policy(case)}.yaml", "--name", name, "--no-controller"]
        subprocess.run(submit, cwd=self._folder, env=environment, check=True, stdout=subprocess.DEVNULL)
        lead = [*everstep, "controller", name, "--store", str(self._folder / "store")]
        with (self._folder / f"{name}.log").open("wb") as log:
            leader = subprocess.Popen(lead, stdout=log, stderr=log, env=environment, start_new_session=True)
        try:
            return self._kill_and_see(leader, case, number)
        finally:
            with uninterrupted():
                leader.send_signal(signal.SIGTERM)
                leader.wait()
                drills.end_everything(self._fleet)
                drills.grow(self._fleet, POOL)

    def _kill_and_see(self, leader: subprocess.Popen[bytes], case: str, number: int) -> Outcome:
        store = RunStore(LocalStore(self._folder / "store"), f"{case}-{number}")

        def alive() -> bool:
            return leader.poll() is None

        if case == "shrink":
            until(lambda: self._prepared(store.name), "everstep: compiled ahead", alive=alive)
        until(lambda: self._due(store), "everstep: the moment to kill", alive=alive)
        before = max(store.attempt_numbers())
        killed = self._kill(case, number)

        def first_new() -> tuple[list[Record], Record] | None:
            attempt = max(store.attempt_numbers())
            records = store.ledger(attempt) if attempt > before else []
            reached = _reached(store, before, killed) if records else 0
            return next(((records, one) for one in records if one.step > reached), None)

        records, new = until(first_new, "everstep: the first new step", alive=alive)
        return Outcome(
            side=self.side,
            case=case,
            trial=number,
            seconds=new.started + new.seconds - killed,
            replayed=new.step - records[0].step,
            launches=max(store.attempt_numbers()) - before,
            phases=phases_of(_moments(store, before, new), killed=killed),
        )

    def _due(self, store: RunStore) -> bool:
        attempts = store.attempt_numbers()
        progress = store.progress(max(attempts)).values() if attempts else ()
        steps = [one.step + 1 for one in progress if one.step is not None]
        committed = store.head().value.next_step or 0
        return bool(steps) and self._job.due(committed=committed, next_step=max(steps))

    def _kill(self, case: str, number: int) -> float:
        """By process id, all at once; returns when. That a host is gone is for the fleet to say, and is said first."""
        folders = [
            HostFolder.of(self._fleet, HostRef(pool=POOL, host=f"h{host}")) for host in self._job.victims(case, number)
        ]
        pids: list[int] = []
        for folder in folders:
            record = folder.record()
            assert record is not None, folder
            assert record.process is not None, folder
            assert record.trainer is not None, folder
            family = session_members(record.process) if case != "trainer" else []
            pids += [who.pid for who in [*family, *session_members(record.trainer)]]
            if case != "trainer":
                folder.write_death(HostDeath(process=record.process, at=time.time()))
            if case == "shrink":
                folder.write_state(folder.state().model_copy(update={"present": False}))
        killed = time.time()
        for pid in pids:
            with suppress(ProcessLookupError):  # it has followed its parent by now
                os.kill(pid, signal.SIGKILL)
        return killed

    def _prepared(self, run: str) -> bool:
        """The executables for one host are in the cache, and nothing is at work on them any more."""
        log = self._fleet / "controllers" / f"{run}-prepare.log"
        return log.exists() and "is compiled" in log.read_text()

    def _files(self) -> None:
        for name in ("data", "fleet"):
            (self._folder / name).mkdir(parents=True)
        recovery_job.write_tokens(self._folder / "data" / "some.tokens")
        hosts = {"pool": POOL, "generation": "local-a", "devices_per_host": recovery_job.DEVICES}
        fleet = {"name": POOL, "generation": "local-a", "hosts": self._job.hosts}
        _write(self._fleet / "fleet.yaml", {"pools": [{**fleet, "devices_per_host": recovery_job.DEVICES}]})
        full, one = ({"name": name, "hosts": count, **hosts} for name, count in (("full", self._job.hosts), ("one", 1)))
        policy = {
            "checkpoint": {"every_steps": self._job.every, "prove_after": 1000, "max_unproven": 10000},
            "moves": {"hold_off": 100000},
        }
        run = {"name": "any", "store": "store", "fleet": "fleet", "data_root": "data", "recipe": "recipe.yaml"}
        _write(self._folder / "same.yaml", {**run, "policy": {**policy, "placements": [full]}})
        fewer = {**policy, "placements": [full, one], "prepare": True}
        _write(self._folder / "fewer.yaml", {**run, "policy": fewer})
        stage = {
            "name": STAGE,
            "steps": recovery_job.STEPS,
            "virtual_ranks": recovery_job.RANKS,
            "sequences_per_rank": recovery_job.ROWS_PER_RANK,
            "sequence_length": recovery_job.LENGTH,
            "data": {"files": [{"path": "some.tokens"}]},
            "schedule": {"peak": 0.003},
        }
        _write(self._folder / "recipe.yaml", {"name": "any", "model": recovery_job.MODEL, "stages": [stage]})


def _policy(case: str) -> str:
    return "fewer" if case == "shrink" else "same"


def _reached(store: RunStore, attempt: int, killed: float) -> int:
    """The last step that an attempt can have computed before the kill. What came after its last word of its progress
    was not recorded; at its pace it is counted as computed, rather one step too many."""
    return max(
        one.step + math.ceil(max(0.0, killed - one.at) / one.step_seconds)
        for one in store.progress(attempt).values()
        if one.step is not None and one.step_seconds is not None
    )


def _moments(store: RunStore, ended: int, new: Record) -> dict[str, float | None]:
    """When each phase ended."""
    events = next(events for events in grouped(store.events()).values() if ended_attempt(events) == ended)
    turns = moments_of(store, events)
    progress = store.progress(new.attempt).values()

    restored = [min(*phase_starts([one], "replay"), *phase_starts([one], "train")) for one in progress]
    return {
        "detect": turns.noticed,
        "decide": turns.stop_ordered,
        "stop": turns.ended,
        "wait": turns.last_launch,
        "start": max(phase_starts(progress, "initialise")),
        "initialise": max(phase_starts(progress, "compile")),
        "compile": max(phase_starts(progress, "restore")),
        "restore": max(restored),
        "replay": new.started,
        "first new step": new.started + new.seconds,
    }


def _write(path: Path, content: dict[str, Any]) -> None:
    """JSON is YAML."""
    path.write_text(json.dumps(content, indent=2))
