"""A real Kubernetes control plane of processes on loopback: no container, no emulated API.

etcd, kube-apiserver, kube-controller-manager, kube-scheduler and JobSet, in a folder and at an address of their own.
Each can be stopped, killed, paused and started again by name while the others run. Nodes are ``fabric``'s business.
"""

import contextlib
import functools
import itertools
import ssl
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.cluster import jobset, loopback
from tests.cluster.api import Api, ApiError, Document
from tests.cluster.certificates import Authority
from tests.cluster.component import Component
from tests.cluster.loopback import LoopbackNetwork
from tests.cluster.waiting import wait_until
from tests.programs.build import built

ADMIN = "admin"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
NOT_HERE = (
    "endpoints",
    "endpointslice",
    "endpointslice-mirroring",
    "persistentvolume-binder",
    "cronjob",
    "serviceaccount",
)
"""Controllers that would work for nobody: there is no network, no volume, and pods get no token."""


@dataclass(frozen=True)
class Pace:
    """How soon the control plane believes that a node is lost, in seconds."""

    node_silent: float = 5.0
    """Without a renewed lease before a node is NotReady (Kubernetes: 50)."""
    pod_tolerates: int = 300
    """A node that is NotReady or unreachable, before its pods are deleted (Kubernetes: 300)."""


class ControlPlane:
    """One that runs; ``running`` makes it."""

    def __init__(self, folder: Path, *, network: LoopbackNetwork, pace: Pace) -> None:
        self.folder = folder
        self.network = network
        self._authority = Authority(folder)
        self._files = itertools.count()
        self.namespaces = itertools.count(1)
        self._ports = {
            name: network.free_port() for name in ("etcd", "peer", "api", "manager", "scheduler", "webhook", "health")
        }
        self.admin = self.user(ADMIN, groups=("system:masters",))
        self.api = Api(self.admin)
        self._authority.issue("server", name="server", address=network.control_plane)
        self.components: Mapping[str, Component] = {
            component.name: component
            for component in (self._etcd(), self._api(pace), self._manager(pace), self._scheduler(), self._jobset())
        }

    @property
    def server(self) -> str:
        return f"https://{self._address('api')}"

    def user(self, name: str, *, groups: Iterable[str] = ()) -> Path:
        """A kubeconfig of this identity, to which RBAC gives what it gives; of a ServiceAccount too:
        ``system:serviceaccount:<namespace>:<name>`` in the groups that ``service_account`` names."""
        file = f"user-{next(self._files)}"
        self._authority.issue(file, name=name, groups=groups)
        return self._authority.kubeconfig(file, server=self.server)

    def service_account(self, namespace: str, name: str) -> Path:
        """A kubeconfig as a pod with that ServiceAccount has it."""
        groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated")
        return self.user(f"system:serviceaccount:{namespace}:{name}", groups=groups)

    def start(self, *names: str) -> None:
        """Start them together and wait until each is ready. Raises NotReady."""
        chosen = [self.components[name] for name in names]
        for component in chosen:
            component.start()
        for component in chosen:
            component.wait_until_ready()

    def restart(self, *names: str) -> None:
        for name in names:
            self.components[name].stop()
        self.start(*names)

    def begin(self) -> None:
        self.start("etcd")
        self.start("kube-apiserver")
        for definition in jobset.definitions():
            self.define(definition)
        authority = self._authority.certificate
        jobset.install_webhooks(self.api, address=self._address("webhook"), authority=authority)
        self.start("kube-controller-manager", "kube-scheduler", "jobset")

    def define(self, definition: Document) -> None:
        """Install a CustomResourceDefinition; wait until it is served and clients discover its group.

        A controller that starts before that looks again after ten seconds; the garbage collector, which foreground
        deletion and owner references need, looks every thirty.
        """
        spec = definition["spec"]
        self.api.patch(f"{CRDS}/{definition['metadata']['name']}", definition, kind="apply")
        wait_until(lambda: spec["group"] in self.api.groups(), f"the API server tells of {spec['group']}")
        for version in spec["versions"]:
            path = f"/apis/{spec['group']}/{version['name']}/{spec['names']['plural']}"
            wait_until(functools.partial(self._serves, path), f"{path} is served")

    def _serves(self, path: str) -> bool:
        try:
            self.api.get(path, limit=1)
        except ApiError as error:
            if error.status not in (404, 429):  # not yet; its storage is being initialised
                raise
            return False
        return True

    def mend(self) -> None:
        """Whatever a test stopped, killed or paused works again."""
        for component in self.components.values():
            if component.running:
                component.resume()
            else:
                component.start()
            component.wait_until_ready()

    def end(self) -> None:
        """Whatever runs, the newest first."""
        for component in reversed(list(self.components.values())):
            component.kill()

    def _etcd(self) -> Component:
        client, peer = (f"http://{self._address(name)}" for name in ("etcd", "peer"))
        flags = {
            "data-dir": self.folder / "etcd",
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"default={peer}",
            "unsafe-no-fsync": "true",  # a killed process loses nothing; a lost machine is not under test
        }
        return self._component("etcd", flags, health=f"{client}/readyz")

    def _api(self, pace: Pace) -> Component:
        key = self._authority.folder / "server.key"
        flags = {
            "etcd-servers": f"http://{self._address('etcd')}",
            "bind-address": self.network.control_plane,
            "secure-port": self._ports["api"],
            **self._serving(),
            "client-ca-file": self._authority.certificate,
            "service-cluster-ip-range": "10.0.0.0/24",
            "service-account-issuer": self.server,
            "service-account-key-file": key,
            "service-account-signing-key-file": key,
            "authorization-mode": "Node,RBAC",
            "disable-admission-plugins": "ServiceAccount",  # pods' processes need no token
            "allow-privileged": "true",
            "endpoint-reconciler-type": "none",
            "default-not-ready-toleration-seconds": pace.pod_tolerates,
            "default-unreachable-toleration-seconds": pace.pod_tolerates,
        }
        return self._component("kube-apiserver", flags, health=f"{self.server}/readyz", of="kubernetes")

    def _manager(self, pace: Pace) -> Component:
        flags = {
            **self._client("manager"),
            "controllers": ",".join(["*", *(f"-{name}-controller" for name in NOT_HERE)]),
            "root-ca-file": self._authority.certificate,
            "service-account-private-key-file": self._authority.folder / "server.key",
            "use-service-account-credentials": "false",
            "node-monitor-period": "1s",
            "node-monitor-grace-period": f"{pace.node_silent}s",
        }
        health = f"https://{self._address('manager')}/healthz"
        return self._component("kube-controller-manager", flags, health=health, of="kubernetes")

    def _scheduler(self) -> Component:
        health = f"https://{self._address('scheduler')}/healthz"
        return self._component("kube-scheduler", self._client("scheduler"), health=health, of="kubernetes")

    def _jobset(self) -> Component:
        certificates = self.folder / "webhook"
        certificates.mkdir()
        for kind in ("crt", "key"):
            (certificates / f"tls.{kind}").symlink_to(self._authority.folder / f"server.{kind}")
        health = self._address("health")
        settings = self.folder / "jobset.json"
        webhooks = (self.network.control_plane, self._ports["webhook"])
        settings.write_text(jobset.configuration(webhooks=webhooks, certificates=certificates, health=health))
        return self._component(
            "jobset", {"config": settings, "kubeconfig": self.admin}, health=f"http://{health}/readyz"
        )

    def _client(self, port: str) -> dict[str, object]:
        """Flags of a program that works through the API and serves its own health."""
        return {
            "kubeconfig": self.admin,
            "bind-address": self.network.control_plane,
            "secure-port": self._ports[port],
            **self._serving(),
            "leader-elect": "false",
        }

    def _serving(self) -> dict[str, object]:
        folder = self._authority.folder
        return {"tls-cert-file": folder / "server.crt", "tls-private-key-file": folder / "server.key"}

    def _address(self, port: str) -> str:
        return f"{self.network.control_plane}:{self._ports[port]}"

    def _component(self, name: str, flags: Mapping[str, object], *, health: str, of: str | None = None) -> Component:
        return Component(
            name,
            command=[built(name, of=of), *(f"--{flag}={value}" for flag, value in flags.items())],
            log=self.folder / f"{name}.log",
            ready=functools.partial(_answers, health, context=self._trust()),
        )

    def _trust(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self._authority.certificate)
        context.load_cert_chain(self.admin.with_suffix(".crt"), self.admin.with_suffix(".key"))
        return context


def _answers(url: str, *, context: ssl.SSLContext) -> bool:
    here = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    try:
        with here.open(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:  # refused, not served yet, or an HTTPError: not ready
        return False


@contextlib.contextmanager
def running(folder: Path, *, pace: Pace | None = None) -> Iterator[ControlPlane]:
    """A control plane that is ready, with its files and logs in the empty ``folder``. Raises NotReady and NotBuilt."""
    with loopback.claimed() as network:
        plane = ControlPlane(folder, network=network, pace=pace or Pace())
        try:
            plane.begin()
            yield plane
        finally:
            plane.end()
