"""The fabric itself: real processes as pods, lost hosts and refused users, as on a real cluster."""

import json
import sys
import time
from pathlib import Path

import pytest

from orchestrator.agent.process import identity_of
from tests.cluster.api import Api, ApiError, Document, Unreachable
from tests.cluster.container import TPU, CannotCreate, Machine, container_of
from tests.cluster.fabric import GKE, Fabric, condition, jobset

POOL_OF = f"{GKE}/gke-nodepool"
WORDS = """
import json, os, sys, time
given = ("JOB_", "TPU_", "MEGASCALE_")
print(json.dumps({name: value for name, value in os.environ.items() if name.startswith(given)}), flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.02)
"""
WAITS = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: (print("asked to end", flush=True), sys.exit(3)))
print("up", flush=True)
signal.pause()
"""
LEAVES_A_CHILD = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], start_new_session=True)
print(child.pid, flush=True)
sys.exit(7)
"""
STUBBORN = """
import signal, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], start_new_session=True)
signal.signal(signal.SIGTERM, lambda *_: print("not yet", flush=True))
print(child.pid, flush=True)
while True:
    signal.pause()
"""
JAX = """
import os, time
from pathlib import Path
hosts = [Path(os.environ["CLUSTER_DNS_FOLDER"], name) for name in os.environ["TPU_WORKER_HOSTNAMES"].split(",")]
while not all(host.exists() for host in hosts):
    time.sleep(0.02)
import jax
jax.distributed.initialize(f"{hosts[0].read_text()}:8476", len(hosts), int(os.environ["TPU_WORKER_ID"]))
from jax.experimental.multihost_utils import process_allgather
print(jax.local_device_count(), jax.device_count(), process_allgather(jax.process_index()).tolist(), flush=True)
"""


def test_a_jobset_of_two_slices_runs_to_its_end_with_one_slice_a_pool(cluster: Fabric) -> None:
    for pool in ("a", "b"):
        cluster.pool(pool, topology="2x2x2")
    go = cluster.folder / "go"
    cluster.submit(jobset("r", ["python", "-c", WORDS, str(go)], slices=2, hosts=2, topology="2x2x2"))
    cluster.until(lambda: all_running(cluster, 4, saying="}"), "four pods run at once")
    go.touch()
    cluster.until(lambda: condition(cluster.jobset("r"), "Completed") == "True", "the JobSet is complete")

    pods = cluster.pods()
    assert [pod["status"]["phase"] for pod in pods] == ["Succeeded"] * 4
    pools: dict[str, set[str]] = {}
    for pod in pods:
        slice_index = pod["metadata"]["labels"]["jobset.sigs.k8s.io/job-index"]
        pools.setdefault(slice_index, set()).add(cluster.node(pod["spec"]["nodeName"])["metadata"]["labels"][POOL_OF])
    assert sorted(map(sorted, pools.values())) == [["a"], ["b"]], "one slice, one pool"
    assert len({pod["spec"]["nodeName"] for pod in pods}) == 4
    said = [json.loads(cluster.log(pod)) for pod in pods]
    assert [words["JOB_COMPLETION_INDEX"] for words in said] == ["0", "1", "0", "1"]
    assert [words["TPU_WORKER_ID"] for words in said] == ["0", "1", "0", "1"]
    assert [words["MEGASCALE_SLICE_ID"] for words in said] == ["0", "0", "1", "1"]
    assert {words["TPU_WORKER_HOSTNAMES"] for words in said} == {
        "r-slice-0-0.r,r-slice-0-1.r",
        "r-slice-1-0.r,r-slice-1-1.r",
    }


def test_the_pods_of_a_slice_are_one_jax_program_on_cpu_devices(cluster: Fabric) -> None:
    cluster.pool("a", topology="2x2x2", devices=2)
    cluster.submit(jobset("r", ["python", "-c", JAX], hosts=2, topology="2x2x2"))
    cluster.until(lambda: condition(cluster.jobset("r"), "Completed") == "True", "the JobSet is complete")
    assert [cluster.log(pod).splitlines()[-1] for pod in cluster.pods()] == ["2 4 [0, 1]"] * 2


def test_deleting_a_jobset_asks_the_processes_to_end_and_then_nothing_is_left(cluster: Fabric) -> None:
    cluster.pool("a", topology="2x2x2")
    cluster.submit(jobset("r", ["python", "-c", WAITS], hosts=2, topology="2x2x2"))
    pods = cluster.until(lambda: all_running(cluster, 2, saying="up"), "two pods run")
    cluster.delete_jobset("r")
    cluster.until(lambda: not cluster.pods(), "no pod is left", seconds=30)
    assert [cluster.log(pod) for pod in pods] == ["up\nasked to end\n"] * 2


def test_who_does_not_end_is_killed_after_the_grace_with_all_its_processes(cluster: Fabric) -> None:
    cluster.pool("a", topology="2x2x1")
    cluster.submit(jobset("r", ["python", "-c", STUBBORN], topology="2x2x1", grace=2))
    (pod,) = cluster.until(lambda: all_running(cluster, 1, saying="\n"), "the pod runs")
    child = int(cluster.log(pod))
    assert identity_of(child) is not None
    begun = time.monotonic()
    cluster.delete_jobset("r")
    cluster.until(lambda: not cluster.pods(), "no pod is left", seconds=30)
    assert time.monotonic() - begun >= 2
    assert "not yet" in cluster.log(pod)
    assert identity_of(child) is None


def test_exits_and_crashes_are_reported_as_a_container_s(cluster: Fabric) -> None:
    cluster.pool("a", topology="2x2x1")
    cluster.submit(jobset("r", ["python", "-c", LEAVES_A_CHILD], topology="2x2x1"))
    cluster.until(lambda: condition(cluster.jobset("r"), "Failed") == "True", "the JobSet failed")
    assert how_it_ended(cluster) == ("Failed", 7, "Error")
    assert identity_of(int(cluster.log(cluster.pods()[0]))) is None, "with its first process a container ends"
    cluster.delete_jobset("r")
    cluster.until(lambda: not cluster.pods(), "no pod is left")

    cluster.submit(jobset("s", ["python", "-c", WAITS], topology="2x2x1"))
    (pod,) = cluster.until(lambda: all_running(cluster, 1, saying="up"), "the pod runs")
    cluster.kill_container(pod)
    cluster.until(lambda: condition(cluster.jobset("s"), "Failed") == "True", "the JobSet failed")
    assert how_it_ended(cluster) == ("Failed", 137, "Error")


def test_a_killed_host_is_not_ready_while_its_pod_stays_running_and_jobset_is_silent(cluster: Fabric) -> None:
    lost, kept = cluster.pool("a", topology="2x2x2")
    cluster.submit(jobset("r", ["python", "-c", WAITS], hosts=2, topology="2x2x2"))
    pods = cluster.until(lambda: all_running(cluster, 2, saying="up"), "two pods run")
    cluster.kill_host(lost)
    cluster.until(lambda: condition(cluster.node(lost), "Ready") == "Unknown", f"{lost} is not ready", seconds=60)
    unreachable = "node.kubernetes.io/unreachable"
    cluster.until(lambda: unreachable in [taint["key"] for taint in cluster.node(lost)["spec"]["taints"]], "the taint")

    after = cluster.pods()
    assert [pod["metadata"]["uid"] for pod in after] == [pod["metadata"]["uid"] for pod in pods]
    assert [pod["status"]["phase"] for pod in after] == ["Running", "Running"]
    assert condition(cluster.jobset("r"), "Failed") is None
    assert cluster.is_ready(kept)
    (gone,) = [pod for pod in pods if pod["spec"]["nodeName"] == lost]
    assert cluster.log(gone) == "up\n", "a lost host's processes are not asked to end"

    cluster.start_host(lost)
    cluster.until(lambda: condition(cluster.jobset("r"), "Failed") == "True", "the host is back and tells what it lost")


def test_a_node_made_anew_under_its_name_is_another(cluster: Fabric) -> None:
    (node,) = cluster.pool("a", topology="2x2x1")
    before = cluster.node(node)["metadata"]
    cluster.recreate_node(node)
    after = cluster.node(node)["metadata"]
    assert (after["name"], after["labels"]) == (before["name"], before["labels"])
    assert after["uid"] != before["uid"]


def test_a_node_shows_the_chips_that_its_device_plugin_offers(cluster: Fabric) -> None:
    (node,) = cluster.pool("a", topology="2x2x1")
    cluster.offer_chips(node, 0)
    cluster.until(lambda: cluster.node(node)["status"]["allocatable"][TPU] == "0", "no chip is offered")
    assert cluster.node(node)["status"]["capacity"][TPU] == "4"
    assert cluster.is_ready(node)
    cluster.submit(jobset("r", ["python"], topology="2x2x1"))
    cluster.until(lambda: [condition(pod, "PodScheduled") for pod in cluster.pods()] == ["False"], "no node fits")


def test_a_host_that_is_cut_off_works_on_and_is_ready_again_when_it_is_back(cluster: Fabric) -> None:
    (node,) = cluster.pool("a", topology="2x2x1")
    cluster.submit(jobset("r", ["python", "-c", WAITS], topology="2x2x1"))
    (pod,) = cluster.until(lambda: all_running(cluster, 1, saying="up"), "the pod runs")
    cluster.cut_off(node)
    cluster.until(lambda: condition(cluster.node(node), "Ready") == "Unknown", "the node is silent")
    cluster.reconnect(node)
    cluster.until(lambda: cluster.is_ready(node), "the node is back")
    (after,) = cluster.pods()
    assert (after["metadata"]["uid"], after["status"]["phase"]) == (pod["metadata"]["uid"], "Running")


def test_pods_that_a_host_cannot_run_say_why(cluster: Fabric) -> None:
    (node,) = cluster.pool("a", topology="2x2x1")
    missing = jobset("image", ["python"], topology="2x2x1")
    container(missing)["image"] = "registry.example/trainer:missing"
    cluster.submit(missing)
    cluster.until(lambda: waiting_reasons(cluster) == ["ImagePullBackOff"], "the image is not to be had")
    cluster.delete_jobset("image")
    cluster.until(lambda: not cluster.pods(), "no pod is left")

    cluster.submit(jobset("program", ["no-such-program"], topology="2x2x1"))
    cluster.until(lambda: condition(cluster.jobset("program"), "Failed") == "True", "there is no such program")
    assert cluster.pods()[0]["status"]["containerStatuses"][0]["state"]["terminated"]["reason"] == "StartError"

    cluster.break_devices(node)
    cluster.submit(jobset("devices", ["python"], topology="2x2x1"))
    cluster.until(lambda: condition(cluster.jobset("devices"), "Failed") == "True", "no healthy chips")
    status = cluster.pods()[0]["status"]
    assert (status["reason"], status.get("containerStatuses")) == ("UnexpectedAdmissionError", None)


def test_a_user_may_do_what_a_role_says_and_nothing_else(cluster: Fabric) -> None:
    somebody = Api(cluster.plane.user("somebody"))
    pods = f"/api/v1/namespaces/{cluster.namespace}/pods"
    with pytest.raises(ApiError, match="forbidden") as refused:
        somebody.get(pods)
    assert refused.value.status == 403

    rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{cluster.namespace}"
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]
    cluster.api.create(f"{rbac}/roles", {"metadata": {"name": "reader"}, "rules": rules})
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"}
    reader = {"kind": "ServiceAccount", "name": "reader", "namespace": cluster.namespace}
    cluster.api.create(f"{rbac}/rolebindings", {"metadata": {"name": "reader"}, "roleRef": role, "subjects": [reader]})
    account = Api(cluster.plane.service_account(cluster.namespace, "reader"))
    cluster.until(lambda: may(account, pods), "the role counts")
    with pytest.raises(ApiError, match="forbidden"):
        account.delete(f"{pods}/any")


def test_pods_live_through_an_api_server_that_is_down_and_their_end_is_told_afterwards(cluster: Fabric) -> None:
    cluster.pool("a", topology="2x2x1")
    go = cluster.folder / "go"
    cluster.submit(jobset("r", ["python", "-c", WORDS, str(go)], topology="2x2x1"))
    (pod,) = cluster.until(lambda: all_running(cluster, 1, saying="}"), "the pod runs")
    cluster.plane.components["kube-apiserver"].kill()
    with pytest.raises(Unreachable):
        cluster.pods()
    go.touch()
    cluster.plane.start("kube-apiserver")
    cluster.until(lambda: condition(cluster.jobset("r"), "Completed") == "True", "its end was told")
    assert [found["metadata"]["uid"] for found in cluster.pods()] == [pod["metadata"]["uid"]]


def test_a_mended_control_plane_works_as_before(cluster: Fabric) -> None:
    cluster.pool("a", topology="2x2x1")
    components = cluster.plane.components
    components["kube-scheduler"].pause()
    components["jobset"].stop()
    components["etcd"].kill()
    cluster.plane.mend()
    cluster.submit(jobset("r", ["python", "-c", "pass"], topology="2x2x1"))
    cluster.until(lambda: condition(cluster.jobset("r"), "Completed") == "True", "the JobSet is complete")


def test_a_kind_that_was_defined_is_served_and_discovered(cluster: Fabric) -> None:
    served = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {"type": "object"}}}
    names = {"plural": "things", "singular": "thing", "kind": "Thing"}
    spec = {"group": "example.dev", "scope": "Namespaced", "names": names, "versions": [served]}
    kind = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"}
    cluster.plane.define({**kind, "metadata": {"name": "things.example.dev"}, "spec": spec})
    assert cluster.api.items("/apis/example.dev/v1/things") == []
    assert "example.dev" in cluster.api.groups()


def test_no_pod_of_a_jobset_is_made_while_its_webhooks_are_down(cluster: Fabric) -> None:
    cluster.plane.components["jobset"].stop()
    try:
        with pytest.raises(ApiError, match="failed calling webhook"):
            cluster.submit(jobset("r", ["python"]))
    finally:
        cluster.plane.start("jobset")
    cluster.until(lambda: submitted(cluster, "r"), "JobSets are taken again")


def test_a_container_gets_its_pod_s_fields_and_volumes(tmp_path: Path) -> None:
    pod: Document = {
        "metadata": {"name": "p", "namespace": "n", "uid": "u", "annotations": {"example/index": "5"}},
        "spec": {
            "nodeName": "host",
            "restartPolicy": "Never",
            "volumes": [
                {"name": "scratch", "emptyDir": {}},
                {"name": "disk", "hostPath": {"path": str(tmp_path / "disk")}},
            ],
            "containers": [
                {
                    "command": [sys.executable, "$(WHERE)/$(INDEX)", "$$(INDEX)", "$(UNKNOWN)"],
                    "args": ["--to=/disk", "/diskette"],
                    "env": [
                        {
                            "name": "INDEX",
                            "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['example/index']"}},
                        },
                        {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                        {"name": "WHERE", "value": "/scratch/$(INDEX)"},
                    ],
                    "volumeMounts": [
                        {"name": "scratch", "mountPath": "/scratch"},
                        {"name": "disk", "mountPath": "/disk/"},
                    ],
                }
            ],
        },
    }
    machine = Machine(address="127.0.0.9", labels={}, image={"PATH": "/bin"}, names=tmp_path)
    made = container_of(pod, machine=machine, folder=tmp_path / "pod")
    scratch = f"{tmp_path}/pod/volumes/scratch"
    assert made.command[1:] == [f"{scratch}/5/5", "$(INDEX)", "$(UNKNOWN)", f"--to={tmp_path}/disk", "/diskette"]
    assert (made.environment["IP"], made.environment["WHERE"]) == ("127.0.0.9", f"{scratch}/5")
    pod["spec"]["volumes"][0] = {"name": "scratch", "secret": {}}
    with pytest.raises(CannotCreate, match="volume scratch"):
        container_of(pod, machine=machine, folder=tmp_path / "pod")


def all_running(cluster: Fabric, count: int, *, saying: str) -> list[Document] | None:
    """The pods, once all run and have printed that."""
    pods = cluster.pods()
    running = [pod for pod in pods if pod["status"]["phase"] == "Running" and saying in cluster.log(pod)]
    return running if len(running) == count else None


def how_it_ended(cluster: Fabric) -> tuple[str, int, str]:
    """Phase, exit code and reason of the only pod."""
    (pod,) = cluster.pods()
    ended = pod["status"]["containerStatuses"][0]["state"]["terminated"]
    return pod["status"]["phase"], ended["exitCode"], ended["reason"]


def container(document: Document) -> Document:
    spec: Document = document["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"][0]
    return spec


def waiting_reasons(cluster: Fabric) -> list[str]:
    statuses = [status for pod in cluster.pods() for status in pod["status"].get("containerStatuses", [])]
    return [status["state"]["waiting"]["reason"] for status in statuses if "waiting" in status["state"]]


def may(api: Api, path: str) -> bool:
    try:
        api.get(path)
    except ApiError:
        return False
    return True


def submitted(cluster: Fabric, name: str) -> bool:
    try:
        cluster.submit(jobset(name, ["python"]))
    except ApiError:
        return False
    return True
