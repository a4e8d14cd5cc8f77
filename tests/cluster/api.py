"""The Kubernetes API over plain HTTPS: enough for the fabric and its tests.

Not the official client that the product uses: a kubelet for every host has to be small (that client takes 40 MB and
most of a second to import), and a test should not look at the cluster through the code it tests.
"""

import contextlib
import http.client
import json
import ssl
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Document = dict[str, Any]

SECONDS = 30.0
"""For one request, and the longest silence of a watch: the server ends a watch before."""
WATCH_SECONDS = 25
DISCOVERY = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
KINDS_OF_PATCH = {
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "apply": "application/apply-patch+yaml",
}


class ApiError(Exception):
    """The API server refused."""

    def __init__(self, what: str, status: int, answer: Document) -> None:
        super().__init__(f"{what}: {status} {answer.get('reason', '')}: {answer.get('message', '')}")
        self.status = status
        self.answer = answer


class Unreachable(Exception):
    """The API server did not answer."""


class Api:
    """As the user of a kubeconfig that ``certificates`` wrote. Threads may share it."""

    def __init__(self, kubeconfig: Path) -> None:
        document = json.loads(kubeconfig.read_text())
        cluster, user = document["clusters"][0]["cluster"], document["users"][0]["user"]
        self._server = urllib.parse.urlsplit(cluster["server"]).netloc
        self._tls = ssl.create_default_context(cafile=cluster["certificate-authority"])
        self._tls.verify_flags |= ssl.VERIFY_X509_STRICT  # as Python 3.13 does by itself
        self._tls.load_cert_chain(user["client-certificate"], user["client-key"])

    def get(self, path: str, **query: str | int) -> Document:
        return self._ask("GET", path, query=query)

    def groups(self) -> set[str]:
        """The API groups that clients discover, some seconds after the CRD of one was made."""
        found = self._ask("GET", "/apis", accept=DISCOVERY)["items"]
        return {group["metadata"]["name"] for group in found}

    def items(self, path: str, **query: str | int) -> list[Document]:
        found: list[Document] = self.get(path, **query)["items"]
        return found

    def create(self, path: str, body: Document) -> Document:
        return self._ask("POST", path, body=body)

    def patch(self, path: str, body: Document, *, kind: str = "merge") -> Document:
        query = {"fieldManager": "tests", "force": "true"} if kind == "apply" else {}
        return self._ask("PATCH", path, body=body, query=query, content=KINDS_OF_PATCH[kind])

    def delete(self, path: str, **options: Any) -> Document:
        """``options`` are those of DeleteOptions; in the body, where alone a grace period of 0 counts."""
        return self._ask("DELETE", path, body={"kind": "DeleteOptions", "apiVersion": "v1", **options})

    def watch(self, path: str, **query: str | int) -> Iterator[Document]:
        """Events until the server ends the watch. Raises ApiError (410: list again) and Unreachable."""
        query = {**query, "watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": WATCH_SECONDS}
        with self._asked("GET", path, query=query) as answer:
            for line in answer:
                event = json.loads(line)
                if event["type"] == "ERROR":
                    raise ApiError(f"watch {path}", event["object"]["code"], event["object"])
                yield event

    def _ask(self, method: str, path: str, **request: Any) -> Document:
        with self._asked(method, path, **request) as answer:
            document: Document = json.loads(answer.read())
            return document

    @contextlib.contextmanager
    def _asked(
        self,
        method: str,
        path: str,
        *,
        body: Document | None = None,
        query: dict[str, str | int] | None = None,
        content: str = "application/json",
        accept: str = "application/json",
    ) -> Iterator[http.client.HTTPResponse]:
        target = f"{path}?{urllib.parse.urlencode(query)}" if query else path
        with contextlib.closing(http.client.HTTPSConnection(self._server, timeout=SECONDS, context=self._tls)) as line:
            try:
                headers = {"Content-Type": content, "Accept": accept}
                line.request(method, target, None if body is None else json.dumps(body), headers)
                answer = line.getresponse()
                if answer.status >= 300:
                    raise ApiError(f"{method} {target}", answer.status, _refusal(answer.read()))
                yield answer
            except (OSError, http.client.HTTPException) as error:
                raise Unreachable(f"{method} {target}: {error!r}") from error


def _refusal(text: bytes) -> Document:
    try:
        document: Document = json.loads(text)
    except ValueError:  # some handlers answer in plain words
        return {"message": text.decode(errors="replace")}
    return document
