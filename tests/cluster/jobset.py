"""JobSet outside its cluster: its own manifests, from its module, with webhooks on this machine's loopback."""

import base64
import json
from pathlib import Path

import yaml

from tests.cluster.api import Api, Document
from tests.programs.build import source

MODULE = "sigs.k8s.io/jobset"
GROUP = "jobset.x-k8s.io"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
WEBHOOKS = {
    "MutatingWebhookConfiguration": "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
    "ValidatingWebhookConfiguration": "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations",
}
OF_JOBSETS_ALONE = {"matchExpressions": [{"key": "jobset.sigs.k8s.io/jobset-name", "operator": "Exists"}]}


def install(api: Api, *, webhooks: str, authority: Path) -> None:
    """The resource and the webhooks at the address ``webhooks``, whose certificate ``authority`` signed."""
    manifests = source("jobset", module=MODULE) / "config" / "components"
    for path in sorted((manifests / "crd" / "bases").glob("*.yaml")):
        _apply(api, CRDS, yaml.safe_load(path.read_text()))
    bundle = base64.b64encode(authority.read_bytes()).decode()
    for document in yaml.safe_load_all((manifests / "webhook" / "manifests.yaml").read_text()):
        _apply(api, WEBHOOKS[document["kind"]], _on_loopback(document, webhooks=webhooks, bundle=bundle))


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


def _on_loopback(document: Document, *, webhooks: str, bundle: str) -> Document:
    document["metadata"]["name"] = f"jobset-{document['metadata']['name']}"
    for webhook in document["webhooks"]:
        path = webhook["clientConfig"]["service"]["path"]
        webhook["clientConfig"] = {"url": f"https://{webhooks}{path}", "caBundle": bundle}
        if webhook["rules"][0]["resources"] == ["pods"]:  # as its kustomize patches do: no other pod is its business
            webhook["objectSelector"] = OF_JOBSETS_ALONE
    return document


def _apply(api: Api, collection: str, document: Document) -> None:
    api.patch(f"{collection}/{document['metadata']['name']}", document, kind="apply")
