"""The Kubernetes API as verbs on plain objects, with bounded waits and errors of our own.

Objects stay the plain data the server sent, so that what is written back (an argument list, say)
is byte for byte what was read. This is the only module that imports the Kubernetes client.
"""

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import urllib3
from kubernetes import client, config

from specschedule.api.v1alpha1 import GROUP, VERSION
from specschedule.ports import Conflict, Refused, Unavailable

Object = dict[str, Any]

FIELD_MANAGER = "specschedule"
PAGE = 500
CONNECT_SECONDS = 3.0
READ_SECONDS = 15.0

RETRIES = urllib3.Retry(
    connect=1,
    read=1,
    redirect=0,
    status=0,
    other=0,
    allowed_methods={"GET"},
    backoff_factor=0.2,
    respect_retry_after_header=False,
    raise_on_status=False,
)
"""Once more, and only what surely changed nothing: a connection never made, or a read."""

_ROOTS = {
    "configmaps": "/api/v1",
    "events": "/api/v1",
    "nodes": "/api/v1",
    "persistentvolumeclaims": "/api/v1",
    "pods": "/api/v1",
    "services": "/api/v1",
    "deployments": "/apis/apps/v1",
    "jobs": "/apis/batch/v1",
    "specschedules": f"/apis/{GROUP}/{VERSION}",
    "spectrials": f"/apis/{GROUP}/{VERSION}",
}


class AlreadyExists(Exception):
    """An object of that name exists."""


class Forbidden(Refused):
    """The operator's role, a quota or an admission check says no."""


class Unprocessable(Refused):
    """The object is invalid, or a test of a JSON Patch failed."""


def connect(kubeconfig: str | None = None) -> client.ApiClient:
    """Return a client for a kubeconfig, else KUBECONFIG's, else for the cluster around us.

    Raises:
        kubernetes.config.ConfigException: None of them is there.
    """
    settings = client.Configuration()
    path = kubeconfig or os.environ.get("KUBECONFIG")
    if path is None and "KUBERNETES_SERVICE_HOST" in os.environ:
        config.load_incluster_config(settings)  # type: ignore[no-untyped-call]
    else:
        config.load_kube_config(path, client_configuration=settings)  # type: ignore[no-untyped-call]
    settings.retries = RETRIES
    return client.ApiClient(settings)


class Api:
    """Verbs on objects. Every call ends within a few seconds, in an answer or in an error.

    Every method raises ``Unavailable`` when the server does not answer, is overloaded or does not
    know the token just now; a reader raises it too where it may not read.
    """

    def __init__(
        self,
        api_client: client.ApiClient,
        *,
        connect_seconds: float = CONNECT_SECONDS,
        read_seconds: float = READ_SECONDS,
    ) -> None:
        self._client = api_client
        self._timeout = (connect_seconds, read_seconds)

    def get(self, resource: str, namespace: str | None, name: str) -> Object | None:
        """Return an object; None when there is none."""
        status, body = self._call("GET", _path(resource, namespace, name))
        if status == 404:
            return None
        return _answer(status, body, reading=True)

    def document(self, path: str) -> Object:
        """Return a JSON document that is no object, such as the server's own description."""
        return _answer(*self._call("GET", path), reading=True)

    def list(
        self,
        resource: str,
        namespace: str | None,
        *,
        labels: str | None = None,
        fields: str | None = None,
    ) -> list[Object]:
        """Return the objects that both selectors match, page by page."""
        query = {"labelSelector": labels, "fieldSelector": fields, "limit": str(PAGE)}
        found: list[Object] = []
        while True:
            status, body = self._call("GET", _path(resource, namespace), query)
            page = _answer(status, body, reading=True)
            found.extend(page.get("items") or [])
            query["continue"] = (page.get("metadata") or {}).get("continue")
            if not query["continue"]:
                return found

    def log(
        self,
        namespace: str,
        pod: str,
        container: str,
        *,
        tail_lines: int | None = None,
        limit_bytes: int = 4 << 20,
        since: str | None = None,
        timestamps: bool = False,
    ) -> str | None:
        """Return a container's log from its beginning (or its last lines); None when it has none.

        Lines written before ``since`` (RFC 3339) are left out; with ``timestamps`` each begins
        with its time.

        A server that reports a failure to read as log text gives such text; callers look for
        what they expect in it.
        """
        query = {
            "container": container,
            "limitBytes": str(limit_bytes),
            "tailLines": str(tail_lines) if tail_lines else None,
            "sinceTime": since,
            "timestamps": "true" if timestamps else None,
        }
        status, body = self._call("GET", _path("pods", namespace, pod, "log"), query)
        if status in (400, 404):
            return None
        if status >= 300:
            _fail(status, body, reading=True)
        return body.decode("utf-8", errors="replace")

    def create(self, resource: str, body: Object) -> Object:
        """Create an object.

        Raises:
            AlreadyExists: One of that name exists.
            Refused: The server says no, in its own words.
        """
        path = _path(resource, body["metadata"]["namespace"])
        return _answer(*self._call("POST", path, {"fieldManager": FIELD_MANAGER}, body))

    def patch(
        self,
        resource: str,
        namespace: str,
        name: str,
        body: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        *,
        subresource: str | None = None,
    ) -> Object:
        """Apply a JSON merge patch (a mapping) or a JSON Patch (a list).

        Raises:
            Conflict: The object is gone, or a precondition in the patch does not hold.
            Unprocessable: The result is invalid, or a test in the patch failed.
            Refused: The server says no, in its own words.
        """
        path = _path(resource, namespace, name, subresource)
        return _answer(*self._call("PATCH", path, {"fieldManager": FIELD_MANAGER}, body))

    def delete(self, resource: str, target: Object) -> None:
        """Delete exactly this object, its dependents in the background; gone already is fine."""
        metadata = target["metadata"]
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Background",
            "preconditions": {"uid": metadata["uid"]},
        }
        path = _path(resource, metadata["namespace"], metadata["name"])
        status, body = self._call("DELETE", path, None, options)
        # 409: another object carries the name now, so this one is gone.
        if status >= 300 and status not in (404, 409):
            _fail(status, body)

    def _call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str | None] | None = None,
        body: Any = None,
    ) -> tuple[int, bytes]:
        headers = {"Accept": "application/json, */*"}
        if body is not None:
            kind = "json"
            if method == "PATCH":
                kind = "merge-patch+json" if isinstance(body, Mapping) else "json-patch+json"
            headers["Content-Type"] = f"application/{kind}"
        asked = [(name, value) for name, value in (query or {}).items() if value is not None]
        try:
            request = self._client.param_serialize(
                method,
                path,
                query_params=asked,
                header_params=headers,
                body=body,
                auth_settings=["BearerToken"],
            )
            response = self._client.call_api(*request, _request_timeout=self._timeout)
            return response.status, bytes(response.response.data)
        except (urllib3.exceptions.HTTPError, client.ApiException, OSError) as error:
            raise Unavailable(f"{method} {path}: {error}") from error


def _path(
    resource: str, namespace: str | None, name: str | None = None, subresource: str | None = None
) -> str:
    parts = [_ROOTS[resource]]
    if namespace is not None:
        parts += ["namespaces", namespace]
    parts += [part for part in (resource, name, subresource) if part is not None]
    return "/".join(parts)


def _answer(status: int, body: bytes, *, reading: bool = False) -> Object:
    if status >= 300:
        _fail(status, body, reading=reading)
    try:
        answer: Object = json.loads(body)
    except ValueError as error:
        raise Unavailable("the API server's answer is not JSON") from error
    return answer


def _fail(status: int, body: bytes, *, reading: bool = False) -> NoReturn:
    """Raise what the status means, in the server's own words."""
    try:
        said = json.loads(body)
        message, reason = str(said.get("message") or ""), said.get("reason")
    except (ValueError, AttributeError):
        message, reason = body[:300].decode("utf-8", errors="replace"), None
    message = message or f"the API server answered {status}"
    if reading or status in (401, 408, 429) or status >= 500:
        raise Unavailable(f"{status}: {message}")
    if reason == "AlreadyExists":
        raise AlreadyExists(message)
    if status in (404, 409):
        raise Conflict(message)
    if status == 403:
        raise Forbidden(message)
    if status == 422:
        raise Unprocessable(message)
    raise Refused(message)
