"""JobSet outside its cluster: its own manifests, from its module, with webhooks on this machine's loopback."""

import base64
import json
from pathlib import Path

import yaml

from tests.cluster.api import Api, Document
from tests.programs.build import source

MODULE = "sigs.k8s.io/jobset"
WEBHOOKS = {
    "MutatingWebhookConfiguration": "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
    "ValidatingWebhookConfiguration": "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations",
}
OF_JOBSETS_ALONE = {"matchExpressions": [{"key": "jobset.sigs.k8s.io/jobset-name", "operator": "Exists"}]}


def definitions() -> list[Document]:
    """Its CustomResourceDefinitions."""
    return [yaml.safe_load(path.read_text()) for path in sorted((_manifests() / "crd" / "bases").glob("*.yaml"))]


def install_webhooks(api: Api, *, address: str, authority: Path) -> None:
    """Served at ``address``, with a certificate that ``authority`` signed."""
    bundle = base64.b64encode(authority.read_bytes()).decode()
    for document in yaml.safe_load_all((_manifests() / "webhook" / "manifests.yaml").read_text()):
        configured = _on_loopback(document, address=address, bundle=bundle)
        path = f"{WEBHOOKS[document['kind']]}/{configured['metadata']['name']}"
        api.patch(path, configured, kind="apply")


def configuration(*, webhooks: tuple[str, int], certificates: Path, health: str) -> str:
    """Its configuration file: JSON is YAML."""
    return json.dumps(
        {
            "apiVersion": "config.jobset.x-k8s.io/v1alpha1",
            "kind": "Configuration",
            "webhook": {"host": webhooks[0], "port": webhooks[1], "certDir": str(certificates)},
            "health": {"healthProbeBindAddress": health},
            "metrics": {"bindAddress": "0"},
            "leaderElection": {"leaderElect": False},
            "internalCertManagement": {"enable": False},
        }
    )


def _manifests() -> Path:
    return source("jobset", module=MODULE) / "config" / "components"


def _on_loopback(document: Document, *, address: str, bundle: str) -> Document:
    document["metadata"]["name"] = f"jobset-{document['metadata']['name']}"
    for webhook in document["webhooks"]:
        path = webhook["clientConfig"]["service"]["path"]
        webhook["clientConfig"] = {"url": f"https://{address}{path}", "caBundle": bundle}
        if webhook["rules"][0]["resources"] == ["pods"]:  # as its kustomize patches do: no other pod is its business
            webhook["objectSelector"] = OF_JOBSETS_ALONE
    return document
