"""EMULATION of what a kubelet does for one pod: start its process, report it, end it. A thread for each pod."""

import contextlib
import datetime
import logging
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.cluster.api import Api, ApiError, Document, Unreachable
from tests.cluster.container import (
    MARK,
    CannotCreate,
    CannotStart,
    Container,
    Machine,
    asks_for_tpu,
    container_of,
    dns_name,
)
from tests.cluster.marked import kill_marked
from tests.cluster.mortal import mortal

BROKEN_DEVICES = "broken-devices"
"""While the host's folder has a file of this name, its device plugin offers no chip that is healthy."""
UNPULLABLE = ":missing"
"""An image with this tag is in no registry."""
NICE = 5  # a control plane that the trainers starve would lose hosts that are well
LEAST_GRACE = 1.0
"""Seconds that a pod has after its object was deleted by force."""
RETRY_SECONDS = 0.5

_log = logging.getLogger(__name__)


def now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


@dataclass
class PodWorker:
    """One pod of this host, from its binding to the end of its object."""

    pod: Document
    api: Api
    machine: Machine
    host: Path
    """The host's folder."""
    leaving: threading.Event
    """Set when this kubelet ends."""
    _wake: int = field(default_factory=lambda: os.eventfd(0), init=False)
    _grace: float | None = field(default=None, init=False)
    _started_at: str = field(default_factory=now, init=False)

    def begin(self) -> None:
        threading.Thread(target=self._live, name=self._name, daemon=True).start()

    def ask_to_end(self, grace: float) -> None:
        """Its object was marked as deleted, or is gone; a later, shorter grace counts."""
        self._grace = grace
        os.eventfd_write(self._wake, 1)

    @property
    def _name(self) -> str:
        return str(self.pod["metadata"]["name"])

    @property
    def _folder(self) -> Path:
        return self.host / "pods" / str(self.pod["metadata"]["uid"])

    def _live(self) -> None:
        phase = self.pod.get("status", {}).get("phase", "Pending")
        if phase == "Running":  # by a kubelet of this name before this one: the machine has started anew meanwhile
            self._report("Failed", {"terminated": self._ended(255, "ContainerStatusUnknown")})
        elif phase == "Pending" and not self.pod["metadata"].get("deletionTimestamp"):
            self._admit()
        while self._grace is None:
            select.select([self._wake], [], [])
            os.eventfd_read(self._wake)
        self._remove()

    def _admit(self) -> None:
        if asks_for_tpu(self.pod) and (self.host / BROKEN_DEVICES).exists():
            message = (
                "Pod was rejected: Allocate failed due to no healthy devices present; cannot allocate unhealthy devices"
            )
            self._patch({"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": message})
            return
        image = self.pod["spec"]["containers"][0].get("image", "")
        if image.endswith(UNPULLABLE):
            self._report("Pending", _waiting("ImagePullBackOff", f'Back-off pulling image "{image}"'))
            return
        try:
            self._run(container_of(self.pod, machine=self.machine, folder=self._folder))
        except CannotCreate as error:
            self._report("Pending", _waiting("CreateContainerConfigError", str(error)))
        except CannotStart as error:
            self._report("Failed", {"terminated": {**self._ended(128, "StartError"), "message": str(error)}})

    def _run(self, container: Container) -> None:
        self._started_at = now()
        with (self._folder / "log").open("wb") as log:
            process = subprocess.Popen(
                mortal(container.command, nice=NICE),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=container.folder,
                env=container.environment,
                start_new_session=True,
            )
        with self._name_in_dns():
            self._report("Running", {"running": {"startedAt": self._started_at}})
            self._until_ended(process)
        kill_marked(MARK, self._folder)  # with its first process a container ends
        code = process.wait()
        code = code if code >= 0 else 128 - code
        self._report(
            "Failed" if code else "Succeeded", {"terminated": self._ended(code, "Error" if code else "Completed")}
        )

    def _until_ended(self, process: subprocess.Popen[bytes]) -> None:
        """SIGTERM goes to the first process alone, as a container runtime sends it; SIGKILL to all of them."""
        ended = os.pidfd_open(process.pid)
        kill_at: float | None = None
        try:
            while True:
                timeout = None if kill_at is None else max(0.0, kill_at - time.monotonic())
                ready, _, _ = select.select([ended, self._wake], [], [], timeout)
                if ended in ready:
                    return
                if self._wake in ready:
                    os.eventfd_read(self._wake)
                    assert self._grace is not None
                    if kill_at is None:
                        process.send_signal(signal.SIGTERM)
                    kill_at = min(kill_at or float("inf"), time.monotonic() + self._grace)
                else:
                    kill_marked(MARK, self._folder)
        finally:
            os.close(ended)

    @contextlib.contextmanager
    def _name_in_dns(self) -> Iterator[None]:
        name = dns_name(self.pod)
        if name is not None:
            (self.machine.names / name).write_text(self.machine.address)
        yield
        if name is not None:
            (self.machine.names / name).unlink(missing_ok=True)

    def _ended(self, code: int, reason: str) -> Document:
        return {"exitCode": code, "reason": reason, "startedAt": self._started_at, "finishedAt": now()}

    def _report(self, phase: str, state: Document) -> None:
        running = phase == "Running"
        container = self.pod["spec"]["containers"][0]
        status = {
            "name": container["name"],
            "image": container.get("image", ""),
            "imageID": "",
            "ready": running,
            "started": running,
            "restartCount": 0,
            "state": state,
        }
        addresses = {"podIP": self.machine.address, "podIPs": [{"ip": self.machine.address}]}
        self._patch(
            {
                "phase": phase,
                "hostIP": self.machine.address,
                "startTime": self._started_at,
                **({} if phase == "Pending" else addresses),
                "conditions": [
                    {"type": kind, "status": str(running), "lastTransitionTime": now()}
                    for kind in ("Ready", "ContainersReady")
                ],
                "containerStatuses": [status],
            }
        )

    def _patch(self, status: Document) -> None:
        body = {"metadata": {"uid": self.pod["metadata"]["uid"]}, "status": status}
        self._insist(lambda: self.api.patch(f"{self._path}/status", body, kind="strategic"))
        _log.info("%s is %s", self._name, status["phase"])

    def _remove(self) -> None:
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": self.pod["metadata"]["uid"]}}
        self._insist(lambda: self.api.delete(self._path, **options))
        _log.info("%s is gone", self._name)

    @property
    def _path(self) -> str:
        return f"/api/v1/namespaces/{self.pod['metadata']['namespace']}/pods/{self._name}"

    def _insist(self, ask: Callable[[], Document]) -> None:
        """Until the API server has heard it: a kubelet that cannot reach it keeps its news."""
        while not self.leaving.is_set():
            try:
                ask()
            except Unreachable as error:
                _log.info("%s: %s", self._name, error)
            except ApiError as error:
                if error.status in (404, 409):  # gone, or another pod of this name
                    return
                _log.warning("%s: %s", self._name, error)
            else:
                return
            self.leaving.wait(RETRY_SECONDS)


def _waiting(reason: str, message: str) -> Document:
    return {"waiting": {"reason": reason, "message": message}}
