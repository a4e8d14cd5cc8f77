"""EMULATION of a kubelet: one TPU host of a pretended GKE node pool, whose pods are processes of this machine.

    python -m tests.cluster.kubelet --kubeconfig FILE --node NAME --folder FOLDER --registration FILE …

To the control plane it is a kubelet: it registers its Node, renews its Lease, takes the pods that the scheduler binds
to it, reports what becomes of them and honours their deletion. Killed with its processes, it is a lost host.
"""

import argparse
import json
import logging
import random
import signal
import threading
from collections.abc import Sequence
from pathlib import Path

from tests.cluster.api import Api, ApiError, Document, Unreachable
from tests.cluster.container import MARK, Machine
from tests.cluster.marked import kill_marked
from tests.cluster.pod import LEAST_GRACE, PodWorker, now

LEASE_SECONDS, STATUS_EVERY = 1.0, 3
"""Between two renewals of the lease, and how many of them lie between two reports of the node's state."""
BACK_OFF = (0.2, 5.0)
"""Seconds between two tries to reach the API server: the first pause and the longest, with jitter."""
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"

_log = logging.getLogger(__name__)


class Kubelet:
    def __init__(self, node: str, *, api: Api, machine: Machine, folder: Path, registration: Path) -> None:
        self._node = node
        self._api = api
        self._machine = machine
        self._folder = folder
        self._registration = registration
        self._pods: dict[str, PodWorker] = {}
        self.leaving = threading.Event()

    def run(self) -> None:
        """Until asked to leave."""
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()
        threading.Thread(target=self._follow, name="pods", daemon=True).start()
        self.leaving.wait()

    def _beat(self) -> None:
        registered, beats = False, 0
        while not self.leaving.is_set():
            try:
                if not registered:
                    self._register()
                    registered = True
                if beats % STATUS_EVERY == 0:
                    self._api.patch(f"/api/v1/nodes/{self._node}/status", self._status(), kind="strategic")
                self._renew()
                beats += 1
            except (ApiError, Unreachable) as error:
                _log.info("heartbeat: %s", error)
            self.leaving.wait(LEASE_SECONDS)

    def _register(self) -> None:
        try:
            self._api.create("/api/v1/nodes", _read(self._registration))
        except ApiError as error:
            if error.status != 409:  # registered before: a host that starts again
                raise

    def _renew(self) -> None:
        spec = {"holderIdentity": self._node, "leaseDurationSeconds": 4, "renewTime": now()}
        lease = {"metadata": {"name": self._node}, "spec": spec}
        try:
            self._api.patch(f"{LEASES}/{self._node}", lease)
        except ApiError as error:
            if error.status != 404:
                raise
            self._api.create(LEASES, {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", **lease})

    def _status(self) -> Document:
        registered = _read(self._registration)["status"]  # anew each time: a device plugin may offer fewer chips now
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "emulated"}
        return {
            "status": {
                "capacity": registered["capacity"],
                "allocatable": registered["allocatable"],
                "addresses": [{"type": "InternalIP", "address": self._machine.address}],
                "conditions": [{**ready, "lastHeartbeatTime": now()}],
            }
        }

    def _follow(self) -> None:
        """List, then watch from there; again from the list when the server has forgotten where that was."""
        chosen = {"fieldSelector": f"spec.nodeName={self._node}"}
        version, pause = "", BACK_OFF[0]
        while not self.leaving.is_set():
            try:
                if not version:
                    found = self._api.get("/api/v1/pods", **chosen)
                    version = found["metadata"]["resourceVersion"]
                    self._take_all(found["items"])
                for event in self._api.watch("/api/v1/pods", resourceVersion=version, **chosen):
                    version = event["object"]["metadata"]["resourceVersion"]
                    if event["type"] != "BOOKMARK":
                        self._take(event["object"], gone=event["type"] == "DELETED")
                pause = BACK_OFF[0]
            except (ApiError, Unreachable) as error:
                _log.info("pods: %s", error)
                version = "" if isinstance(error, ApiError) else version
                self.leaving.wait(pause * random.uniform(0.5, 1.0))
                pause = min(2 * pause, BACK_OFF[1])

    def _take_all(self, pods: list[Document]) -> None:
        listed = {pod["metadata"]["uid"] for pod in pods}
        for uid in self._pods.keys() - listed:
            self._pods.pop(uid).ask_to_end(LEAST_GRACE)
        for pod in pods:
            self._take(pod, gone=False)

    def _take(self, pod: Document, *, gone: bool) -> None:
        uid = pod["metadata"]["uid"]
        if gone:
            if uid in self._pods:
                self._pods.pop(uid).ask_to_end(LEAST_GRACE)
            return
        if uid not in self._pods:
            self._pods[uid] = PodWorker(
                pod, api=self._api, machine=self._machine, host=self._folder, leaving=self.leaving
            )
            self._pods[uid].begin()
        if pod["metadata"].get("deletionTimestamp"):
            self._pods[uid].ask_to_end(pod["metadata"].get("deletionGracePeriodSeconds") or 0)


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    machine = Machine(
        address=options.address,
        labels=_read(options.registration)["metadata"]["labels"],
        image=dict(entry.split("=", 1) for entry in options.env),
        names=options.names,
    )
    kubelet = Kubelet(
        options.node,
        api=Api(options.kubeconfig),
        machine=machine,
        folder=options.folder,
        registration=options.registration,
    )
    signal.signal(signal.SIGTERM, lambda *_: kubelet.leaving.set())
    kubelet.run()
    kill_marked(MARK, options.folder)


def _read(registration: Path) -> Document:
    node: Document = json.loads(registration.read_text())
    return node


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.kubelet", description=__doc__)
    parser.add_argument("--kubeconfig", required=True, type=Path)
    parser.add_argument("--node", required=True)
    parser.add_argument("--address", required=True, help="of the host and of its pods")
    parser.add_argument(
        "--folder", required=True, type=Path, help="absolute; the host's files, its pods' in pods/<uid>/"
    )
    parser.add_argument("--registration", required=True, type=Path, help="the Node to register, as JSON")
    parser.add_argument("--names", required=True, type=Path, help="folder in place of DNS, the cluster's own")
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE", help="in place of an image's")
    return parser


if __name__ == "__main__":
    main()
