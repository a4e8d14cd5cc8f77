"""A small fleet with a store, and what a controller would say to it."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import tenacity

from orchestrator.agent.host_folder import AgentRecord, HostFolder
from orchestrator.backends.local import drills
from orchestrator.backends.local.backend import LocalBackend
from orchestrator.contract.attempt import AttemptSpec, Exit, HostRef, Progress, Started, StartOrder, StopOrder
from orchestrator.contract.run import CheckpointPolicy, LeafPlan, Placement
from orchestrator.fleet.observation import HostView
from orchestrator.store.local import LocalStore
from orchestrator.store.run_store import RunStore

FAKE_TRAINER = Path(__file__).with_name("fake_trainer.py")
DEADLINE = 30.0


def wait_until(seen: Callable[[], object], what: str) -> None:
    """Look until ``seen`` is true; fails with ``what`` after DEADLINE seconds."""
    looks = tenacity.Retrying(
        stop=tenacity.stop_after_delay(DEADLINE),
        wait=tenacity.wait_fixed(0.005),
        retry=tenacity.retry_if_result(lambda value: not value),
        retry_error_callback=lambda _: None,
    )
    assert looks(seen), f"not within {DEADLINE:.0f} s: {what}"


def exists(pid: int) -> bool:
    """In /proc, be it as a zombie."""
    return os.path.exists(f"/proc/{pid}")


class Bench:
    """Pool ``main`` with ``hosts`` hosts of two devices, one run ``demo``."""

    def __init__(self, root: Path, *, hosts: int, zygote: str | None = None) -> None:
        self.fleet = root / "fleet"
        self.fleet.mkdir()
        (self.fleet / "fleet.yaml").write_text(
            f"pools: [{{name: main, generation: local-a, hosts: {hosts}, devices_per_host: 2}}]\n"
        )
        self.root = root / "store"
        self.store = RunStore(LocalStore(self.root), "demo")
        self.backend = LocalBackend(fleet=self.fleet, store_address=str(self.root), run="demo", zygote=zygote)
        self.hosts = tuple(HostRef(pool="main", host=f"h{index}") for index in range(hosts))

    @classmethod
    @contextmanager
    def set_up(cls, root: Path, *, hosts: int = 1, zygote: str | None = None) -> Iterator["Bench"]:
        bench = cls(root, hosts=hosts, zygote=zygote)
        try:
            yield bench
        finally:
            drills.end_everything(bench.fleet)
            bench.backend.kill_agents(())  # waits for the agents that it had started

    # ---- what a controller says
    def spec(self, attempt: int, *options: str, command: tuple[str, ...] | None = None) -> AttemptSpec:
        return AttemptSpec(
            run="demo",
            attempt=attempt,
            revision=1,
            recipe_sha256="0" * 64,
            store=self.store.objects.address,
            data_root="/nowhere",
            stage="pretrain",
            until_step=1000,
            allocation="demo-g1",
            placement=Placement(
                name="full", pool="main", generation="local-a", hosts=len(self.hosts), devices_per_host=2
            ),
            hosts=self.hosts,
            leaf_plan=LeafPlan(generation="local-a"),
            resume=None,
            checkpoint=CheckpointPolicy(),
            trainer=command or (sys.executable, str(FAKE_TRAINER), *options),
        )

    def order(self, attempt: int, *options: str, command: tuple[str, ...] | None = None) -> None:
        """Write the spec and the start order."""
        self.store.create_attempt(self.spec(attempt, *options, command=command))
        self.store.create_start_order(StartOrder(attempt=attempt, hosts=self.hosts, at=time.time()))

    def stop(self, attempt: int, how: Literal["drain", "kill"]) -> None:
        self.store.create_stop_order(StopOrder(attempt=attempt, how=how, reason="a test", at=time.time()))

    def ensure_agents(self, *, from_attempt: int = 1) -> None:
        self.backend.ensure_agents(self.hosts, from_attempt=from_attempt)

    # ---- what is seen
    def folder(self, process: int = 0) -> HostFolder:
        return HostFolder.of(self.fleet, self.hosts[process])

    def record(self, process: int = 0) -> AgentRecord:
        record = self.folder(process).record()
        assert record is not None
        return record

    def agent_pid(self, process: int = 0) -> int:
        identity = self.record(process).process
        assert identity is not None
        return identity.pid

    def view(self, process: int = 0) -> HostView:
        return self.backend.hosts()[process]

    def started(self, attempt: int, process: int = 0) -> Started:
        wait_until(lambda: process in self.store.started(attempt), f"a{attempt}: started{self.log(process)}")
        return self.store.started(attempt)[process]

    def stepping(self, attempt: int, process: int = 0) -> Progress:
        def steps() -> bool:
            progress = self.store.progress(attempt).get(process)
            return progress is not None and progress.step is not None

        wait_until(steps, f"a{attempt}: process {process} steps{self.log(process)}")
        return self.store.progress(attempt)[process]

    def exit(self, attempt: int, process: int = 0) -> Exit:
        wait_until(lambda: process in self.store.exits(attempt), f"a{attempt}: exit document{self.log(process)}")
        return self.store.exits(attempt)[process]

    def log(self, process: int = 0) -> str:
        """For a failure's text: what the agent said."""
        path = self.folder(process).agent_log
        return f"; agent.log of {self.hosts[process]}: {path}"
