"""A pretended GKE cluster: a real control plane, and TPU node pools whose hosts are process kubelets.

What happens to hosts on GKE, a test does here by name: ``kill_host``, ``delete_node``, ``start_host``, ``cordon``,
``label``, ``cut_off``, ``break_devices``.
"""

import contextlib
import functools
import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from tests.cluster.api import Api, ApiError, Document
from tests.cluster.container import MARK, TPU
from tests.cluster.control_plane import ControlPlane
from tests.cluster.marked import kill_marked
from tests.cluster.mortal import mortal
from tests.cluster.pod import BROKEN_DEVICES
from tests.cluster.waiting import SECONDS, wait_until

GKE = "cloud.google.com"
JOBSETS = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/{}/jobsets"
TAINT = {"key": TPU, "value": "present", "effect": "NoSchedule"}
REGISTRATION = "node.json"
ROOT = Path(__file__).parents[2]

T = TypeVar("T")


@dataclass
class Host:
    """One node's machine."""

    name: str
    address: str
    folder: Path
    kubeconfig: Path
    environment: Mapping[str, str]
    process: subprocess.Popen[bytes] | None = field(default=None)


class Fabric:
    """Pools and pods of one test, in a namespace of its own; ``running`` makes it."""

    def __init__(self, plane: ControlPlane, folder: Path, *, namespace: str, environment: Mapping[str, str]) -> None:
        self.plane = plane
        self.api: Api = plane.api
        self.namespace = namespace
        self.folder = folder
        self.hosts: dict[str, Host] = {}
        self.environment = {**image_environment(), **environment}
        """Of every container; what is changed counts for the pools that are made afterwards."""
        self._names = folder / "names"
        self._names.mkdir()

    def pool(
        self,
        name: str,
        *,
        accelerator: str = "tpu7x",
        topology: str = "2x2x4",
        hosts: int | None = None,
        chips: int = 4,
        devices: int = 1,
        labels: Mapping[str, str] | None = None,
    ) -> list[str]:
        """Make a node pool and wait until its nodes are ready; their names.

        ``hosts`` None: as many as the topology has with ``chips`` a host. ``devices`` is what JAX sees in a pod: CPU
        devices, however many chips are pretended. ``labels`` come on top of GKE's.
        """
        count = hosts or max(1, math.prod(map(int, topology.split("x"))) // chips)
        labels = {
            f"{GKE}/gke-nodepool": name,
            f"{GKE}/gke-tpu-accelerator": accelerator,
            f"{GKE}/gke-tpu-topology": topology,
            f"{GKE}/gke-accelerator-count": str(chips),
            **(labels or {}),
        }
        environment = {**self.environment, "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}"}
        made = [f"gke-{name}-{index}" for index in range(count)]
        for node in made:
            self._make_host(node, labels=labels, chips=chips, environment=environment)
            self.start_host(node)
        for node in made:
            self.until(functools.partial(self.is_ready, node), f"{node} is ready")
        return made

    def start_host(self, node: str) -> None:
        """Start a machine that is off; it registers its node if there is none of its name. Does not wait."""
        host = self.hosts[node]
        assert host.process is None, f"{node} runs already"
        command: list[str | Path] = [
            *(sys.executable, "-m", "tests.cluster.kubelet", "--node", node, "--kubeconfig", host.kubeconfig),
            *("--address", host.address, "--folder", host.folder, "--names", self._names),
            *("--registration", host.folder / REGISTRATION),
            *(f"--env={variable}={value}" for variable, value in host.environment.items()),
        ]
        with (host.folder / "kubelet.log").open("ab") as log:
            host.process = subprocess.Popen(
                mortal(command), cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def kill_host(self, node: str) -> None:
        """Power off: the kubelet and every process of its pods are gone; the control plane is told nothing."""
        host = self.hosts[node]
        assert host.process is not None, f"{node} is off already"
        host.process.send_signal(signal.SIGSTOP)  # it shall not report the ends of its pods
        kill_marked(MARK, host.folder)
        host.process.kill()
        host.process.wait()
        kill_marked(MARK, host.folder)  # what it was just starting
        host.process = None

    def kill_container(self, pod: Document) -> None:
        """All processes of a pod die at once, as of a crash or out of memory; its kubelet reports 137."""
        kill_marked(MARK, self._pod_folder(pod))

    def delete_node(self, node: str) -> None:
        """The machine is removed and with it its Node, as a repair or a resize of the pool does."""
        if self.hosts[node].process is not None:
            self.kill_host(node)
        self.api.delete(f"/api/v1/nodes/{node}")

    def recreate_node(self, node: str) -> None:
        """Another machine takes the name: a new Node with another UID. Waits until it is ready."""
        self.delete_node(node)
        self.start_host(node)
        self.until(lambda: self.is_ready(node), f"{node} is ready")

    def cut_off(self, node: str) -> None:
        """The kubelet is silent while the processes of its pods run on: a partition from the control plane."""
        self._kubelet(node).send_signal(signal.SIGSTOP)

    def reconnect(self, node: str) -> None:
        self._kubelet(node).send_signal(signal.SIGCONT)

    def cordon(self, node: str, *, cordoned: bool = True) -> None:
        self.api.patch(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": cordoned}})

    def label(self, node: str, labels: Mapping[str, str | None]) -> None:
        """Set labels, or remove them with None: announced maintenance, a cube's state, a Slice's name."""
        self.api.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": dict(labels)}})

    def taint(self, node: str, *taints: Document) -> None:
        """Besides the taint of TPU nodes; with none, only that stays (and what the control plane adds again)."""
        self.api.patch(f"/api/v1/nodes/{node}", {"spec": {"taints": [TAINT, *taints]}})

    def break_devices(self, node: str, *, broken: bool = True) -> None:
        """Pods that ask for chips are rejected by the kubelet from now on: UnexpectedAdmissionError."""
        mark = self.hosts[node].folder / BROKEN_DEVICES
        mark.touch() if broken else mark.unlink(missing_ok=True)

    def offer_chips(self, node: str, chips: int) -> None:
        """The host's device plugin offers so many from its next report on: what the node shows as allocatable."""
        path = self.hosts[node].folder / REGISTRATION
        registration = json.loads(path.read_text())
        registration["status"]["allocatable"][TPU] = str(chips)
        _write_whole(path, registration)

    def node(self, name: str) -> Document:
        return self.api.get(f"/api/v1/nodes/{name}")

    def is_ready(self, node: str) -> bool:
        """Ready, and the control plane has removed the taint that keeps pods away until it has seen that."""
        try:
            found = self.node(node)
        except ApiError as error:
            if error.status == 404:
                return False
            raise
        taints = [taint["key"] for taint in found["spec"].get("taints", [])]
        return condition(found, "Ready") == "True" and "node.kubernetes.io/not-ready" not in taints

    def pods(self, **selector: str) -> list[Document]:
        found = self.api.items(f"/api/v1/namespaces/{self.namespace}/pods", **selector)
        return sorted(found, key=lambda pod: str(pod["metadata"]["name"]))

    def log(self, pod: Document) -> str:
        """What its container printed, also after the pod is gone; nothing before its start."""
        path = self._pod_folder(pod) / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def submit(self, jobset: Document) -> Document:
        return self.api.create(JOBSETS.format(self.namespace), jobset)

    def jobset(self, name: str) -> Document:
        return self.api.get(f"{JOBSETS.format(self.namespace)}/{name}")

    def delete_jobset(self, name: str) -> None:
        self.api.delete(f"{JOBSETS.format(self.namespace)}/{name}", propagationPolicy="Foreground")

    def until(self, look: Callable[[], T | None], what: str, *, seconds: float = SECONDS) -> T:
        """Look until it is true of something, which is returned. Raises TimeoutError with the state of the cluster."""
        return wait_until(look, what, seconds=seconds, story=self._story)

    def power_off(self) -> None:
        """Of all machines; needs no control plane."""
        for node, host in self.hosts.items():
            if host.process is not None:
                self.kill_host(node)

    def clear(self) -> None:
        """Nothing of this test is left in the control plane."""
        for jobset in self.api.items(JOBSETS.format(self.namespace)):
            self.api.delete(
                f"{JOBSETS.format(self.namespace)}/{jobset['metadata']['name']}", propagationPolicy="Background"
            )
        self.until(self._no_pod_is_left, "no pod is left")
        for node in self.hosts:
            with contextlib.suppress(ApiError):  # a test may have deleted it
                self.api.delete(f"/api/v1/nodes/{node}")

    def _no_pod_is_left(self) -> bool:
        pods = self.pods()
        for pod in pods:
            with contextlib.suppress(ApiError):  # gone meanwhile
                self.api.delete(
                    f"/api/v1/namespaces/{self.namespace}/pods/{pod['metadata']['name']}", gracePeriodSeconds=0
                )
        return not pods and not self.api.items(JOBSETS.format(self.namespace))

    def _make_host(self, node: str, *, labels: Mapping[str, str], chips: int, environment: Mapping[str, str]) -> None:
        folder = self.folder / "hosts" / node
        folder.mkdir(parents=True)
        resources = {TPU: str(chips), "cpu": "64", "memory": "256Gi", "ephemeral-storage": "256Gi", "pods": "15"}
        # with the old name of the operating system too, which the control plane would add some time later
        own = {"kubernetes.io/hostname": node, "kubernetes.io/os": "linux", "beta.kubernetes.io/os": "linux"}
        registration = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": node, "labels": {**own, **labels}},
            "spec": {"taints": [TAINT]},
            "status": {"capacity": resources, "allocatable": resources},
        }
        _write_whole(folder / REGISTRATION, registration)
        self.hosts[node] = Host(
            name=node,
            address=self.plane.network.next_host(),
            folder=folder,
            kubeconfig=self.plane.user(f"system:node:{node}", groups=("system:nodes",)),
            environment=environment,
        )

    def _pod_folder(self, pod: Document) -> Path:
        return self.hosts[pod["spec"]["nodeName"]].folder / "pods" / str(pod["metadata"]["uid"])

    def _kubelet(self, node: str) -> subprocess.Popen[bytes]:
        process = self.hosts[node].process
        assert process is not None, f"{node} is off"
        return process

    def _story(self) -> str:
        """What a person would look at first."""
        nodes = [
            f"{node['metadata']['name']}: Ready {condition(node, 'Ready')}" for node in self.api.items("/api/v1/nodes")
        ]
        pods = [
            f"{pod['metadata']['name']} on {pod['spec'].get('nodeName')}: {json.dumps(pod['status'])}"
            for pod in self.pods()
        ]
        events = [
            f"{event['involvedObject']['name']}: {event.get('reason')}: {event.get('message')}"
            for event in self.api.items(f"/api/v1/namespaces/{self.namespace}/events")[-20:]
        ]
        return "\n".join([*nodes, *pods, *events, f"logs: {self.folder}, {self.plane.folder}"])


def _write_whole(path: Path, document: Document) -> None:
    """A kubelet may read it at any moment."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(document, indent=1))
    part.rename(path)


def condition(thing: Document, kind: str) -> str | None:
    """Status of a condition: "True", "False", "Unknown"; None when there is none of this kind."""
    found = [entry["status"] for entry in thing.get("status", {}).get("conditions", []) if entry["type"] == kind]
    return found[0] if found else None


def image_environment() -> dict[str, str]:
    """What stands for every container image: this Python with this checkout, JAX on CPU."""
    return {
        "PATH": f"{Path(sys.executable).parent}:{os.defpath}",
        "PYTHONPATH": str(ROOT),
        "JAX_PLATFORMS": "cpu",
        "OPENBLAS_NUM_THREADS": "1",
        "LANG": "C.UTF-8",
    }


def jobset(
    name: str,
    command: Sequence[str],
    *,
    slices: int = 1,
    hosts: int = 1,
    accelerator: str = "tpu7x",
    topology: str = "2x2x4",
    chips: int = 4,
    grace: int = 10,
) -> Document:
    """A JobSet as plain as one for TPUs can be: a slice a pool, no restart."""
    container = {
        "name": "trainer",
        "image": "trainer",
        "command": list(command),
        "resources": {"limits": {TPU: chips}},
    }
    pod = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": grace,
        "nodeSelector": {f"{GKE}/gke-tpu-accelerator": accelerator, f"{GKE}/gke-tpu-topology": topology},
        "tolerations": [{"key": TPU, "operator": "Exists"}],
        "containers": [container],
    }
    job = {
        "parallelism": hosts,
        "completions": hosts,
        "backoffLimit": 0,
        "completionMode": "Indexed",
        "template": {"spec": pod},
    }
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {
            "name": name,
            "annotations": {"alpha.jobset.sigs.k8s.io/exclusive-topology": f"{GKE}/gke-nodepool"},
        },
        "spec": {
            "failurePolicy": {"maxRestarts": 0},
            "replicatedJobs": [{"name": "slice", "replicas": slices, "template": {"spec": job}}],
        },
    }


@contextlib.contextmanager
def running(plane: ControlPlane, folder: Path, *, environment: Mapping[str, str] | None = None) -> Iterator[Fabric]:
    """No pool yet, in the empty ``folder``. ``environment`` is what every container gets besides its pod's own."""
    namespace = f"test-{next(plane.namespaces)}"
    plane.api.create("/api/v1/namespaces", {"metadata": {"name": namespace}})
    fabric = Fabric(plane, folder, namespace=namespace, environment=environment or {})
    try:
        yield fabric
    finally:
        fabric.power_off()
        plane.mend()
        fabric.clear()
