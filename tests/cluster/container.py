"""EMULATION of a container runtime, of cluster DNS and of GKE's TPU webhook: what a pod's process is given.

A container is a process on this machine, with the environment of its pod and volumes that are folders. Nothing of this
is GKE's code: the names and values are those that its documentation and JAX's own cluster detection name.
"""

import math
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.api import Document

JOBSET = "jobset.sigs.k8s.io"
TPU = "google.com/tpu"
MARK = "PROCESS_KUBELET_CONTAINER"
"""In the environment of every process of a container: its folder. What finds them all, whatever session they lead."""
NAMES = "CLUSTER_DNS_FOLDER"
"""In place of DNS, which would need the machine's root: a folder with a file ``<hostname>.<subdomain>`` for each pod of
this cluster that has an address, which is its content."""


class CannotCreate(Exception):
    """The pod asks for what is not emulated, or is wrong: a kubelet's CreateContainerConfigError."""


class CannotStart(Exception):
    """Its program cannot be run: a runtime's StartError."""


@dataclass(frozen=True)
class Machine:
    """What a host gives to its pods."""

    address: str
    labels: Mapping[str, str]
    image: Mapping[str, str]
    """The environment that stands for every image's: PATH, PYTHONPATH, JAX on CPU devices."""
    names: Path
    """Folder of the names that stand for DNS."""


@dataclass(frozen=True)
class Container:
    command: list[str]
    environment: dict[str, str]
    folder: Path
    """Its working directory; volumes lie in the folder above."""


def container_of(pod: Document, *, machine: Machine, folder: Path) -> Container:
    """``folder`` is the pod's own. Raises CannotCreate and CannotStart."""
    spec = only_container(pod)
    volumes = _volumes(pod, folder)
    working = folder / "root"
    working.mkdir(parents=True, exist_ok=True)
    environment = {**machine.image, **_of_tpu_webhook(pod, machine), MARK: str(folder), NAMES: str(machine.names)}
    environment["HOME"] = environment["TMPDIR"] = str(working)
    for entry in spec.get("env", []):
        environment[entry["name"]] = _in_volumes(_value(entry, pod, machine, environment), volumes)
    words = [*spec.get("command", []), *spec.get("args", [])]
    if not words:
        raise CannotCreate("a command is needed: images are not emulated, so there is no entry point")
    words = [_in_volumes(_expanded(word, environment), volumes) for word in words]
    program = shutil.which(words[0], path=environment.get("PATH", ""))
    if program is None:
        raise CannotStart(f'exec: "{words[0]}": executable file not found in $PATH')
    at = Path(_in_volumes(spec["workingDir"], volumes)) if "workingDir" in spec else working
    return Container(command=[program, *words[1:]], environment=environment, folder=at)


def only_container(pod: Document) -> Document:
    """Raises CannotCreate."""
    spec = pod["spec"]
    if len(spec["containers"]) != 1 or spec.get("initContainers") or spec.get("restartPolicy") != "Never":
        raise CannotCreate("only pods of one container with restartPolicy Never are emulated")
    container: Document = spec["containers"][0]
    if container.get("envFrom"):
        raise CannotCreate("envFrom is not emulated")
    return container


def asks_for_tpu(pod: Document) -> bool:
    resources = pod["spec"]["containers"][0].get("resources", {})
    return TPU in {**resources.get("limits", {}), **resources.get("requests", {})}


def dns_name(pod: Document) -> str | None:
    spec = pod["spec"]
    return f"{spec['hostname']}.{spec['subdomain']}" if spec.get("hostname") and spec.get("subdomain") else None


def _of_tpu_webhook(pod: Document, machine: Machine) -> dict[str, str]:
    """What GKE adds to a pod of a JobSet with TPUs; two slices and more get the variables of multislice."""
    labels = pod["metadata"].get("labels", {})
    job, index = labels.get("batch.kubernetes.io/job-name"), labels.get("batch.kubernetes.io/job-completion-index")
    if not asks_for_tpu(pod) or job is None or index is None:
        return {}
    domain = pod["spec"].get("subdomain", "")
    topology = machine.labels["cloud.google.com/gke-tpu-topology"]
    chips = math.prod(map(int, topology.split("x")))
    hosts = range(max(1, chips // int(machine.labels["cloud.google.com/gke-accelerator-count"])))
    given = {
        "TPU_WORKER_ID": index,
        "TPU_WORKER_HOSTNAMES": ",".join(f"{job}-{host}.{domain}" for host in hosts),
        "TPU_ACCELERATOR_TYPE": machine.labels["cloud.google.com/gke-tpu-accelerator"],
        "TPU_TOPOLOGY": topology,
    }
    slices = int(labels.get(f"{JOBSET}/replicatedjob-replicas", "1"))
    if slices > 1:
        first = f"{labels[f'{JOBSET}/jobset-name']}-{labels[f'{JOBSET}/replicatedjob-name']}-0-0.{domain}"
        given["MEGASCALE_NUM_SLICES"] = str(slices)
        given["MEGASCALE_SLICE_ID"] = labels[f"{JOBSET}/job-index"]
        given["MEGASCALE_COORDINATOR_ADDRESS"] = first
    return given


def _value(entry: Document, pod: Document, machine: Machine, environment: Mapping[str, str]) -> str:
    source = entry.get("valueFrom")
    if source is None:
        return _expanded(entry.get("value", ""), environment)
    if "fieldRef" not in source:
        raise CannotCreate(f"env {entry['name']}: of valueFrom only fieldRef is emulated")
    return _field(source["fieldRef"]["fieldPath"], pod, machine)


def _field(path: str, pod: Document, machine: Machine) -> str:
    metadata, spec = pod["metadata"], pod["spec"]
    subscript = re.fullmatch(r"metadata\.(labels|annotations)\['(.+)'\]", path)
    if subscript is not None:
        return str(metadata.get(subscript[1], {}).get(subscript[2], ""))
    fields = {
        "metadata.name": metadata["name"],
        "metadata.namespace": metadata["namespace"],
        "metadata.uid": metadata["uid"],
        "spec.nodeName": spec["nodeName"],
        "spec.serviceAccountName": spec.get("serviceAccountName", "default"),
        "status.hostIP": machine.address,
        "status.podIP": machine.address,
        "status.podIPs": machine.address,
    }
    if path not in fields:
        raise CannotCreate(f"fieldRef {path} is not emulated")
    return str(fields[path])


def _expanded(text: str, environment: Mapping[str, str]) -> str:
    """``$(NAME)`` as Kubernetes expands it: unknown names stay, ``$$(NAME)`` is an escaped one."""

    def value(found: re.Match[str]) -> str:
        return found[0][1:] if found[1] else environment.get(found[2], found[0])

    return re.sub(r"(\$?)\$\(([-._a-zA-Z][-._a-zA-Z0-9]*)\)", value, text)


def _volumes(pod: Document, folder: Path) -> dict[str, Path]:
    """Mount path → folder. Nothing can be mounted here, so ``_in_volumes`` writes the folder in the path's place."""
    folders: dict[str, Path] = {}
    for volume in pod["spec"].get("volumes", []):
        if "emptyDir" in volume:
            folders[volume["name"]] = folder / "volumes" / volume["name"]
        elif "hostPath" in volume:
            folders[volume["name"]] = Path(volume["hostPath"]["path"])
        else:
            raise CannotCreate(f"volume {volume['name']}: only emptyDir and hostPath are emulated")
        folders[volume["name"]].mkdir(parents=True, exist_ok=True)
    mounts = only_container(pod).get("volumeMounts", [])
    return {mount["mountPath"].rstrip("/"): folders[mount["name"]] / mount.get("subPath", "") for mount in mounts}


def _in_volumes(text: str, volumes: Mapping[str, Path]) -> str:
    """Paths below a mount path, at the start of a word or after = : or , lead to the volume's folder."""
    for mount, folder in volumes.items():
        to = str(folder).replace("\\", r"\\")
        text = re.sub(rf"(^|[=:,]){re.escape(mount)}(?=/|$|[:,])", rf"\g<1>{to}", text)
    return text
