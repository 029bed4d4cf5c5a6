"""Tells Prometheus which pods to scrape: those annotated prometheus.io/scrape, every second.

Debian's Prometheus is built without service discovery in Kubernetes. Runs beside it in its pod, on
the standard library alone.
"""

import json
import os
import ssl
import time
import urllib.request
from pathlib import Path

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TARGETS = Path("/targets/pods.json")
ANNOTATION = "prometheus.io/"


def pods() -> list[dict]:
    """Return all pods of the cluster."""
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    request = urllib.request.Request(f"https://{host}:{port}/api/v1/pods")
    request.add_header("Authorization", f"Bearer {(ACCOUNT / 'token').read_text()}")
    context = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
    with urllib.request.urlopen(request, timeout=5, context=context) as answer:
        return json.load(answer)["items"]


def target(pod: dict) -> dict | None:
    """Return the scrape target of a pod; None when it is not to be scraped."""
    annotations = pod["metadata"].get("annotations") or {}
    address = pod["status"].get("podIP")
    wanted = annotations.get(ANNOTATION + "scrape") == "true"
    if not wanted or not address or pod["status"].get("phase") != "Running":
        return None
    return {
        "targets": [f"{address}:{annotations.get(ANNOTATION + 'port', '80')}"],
        "labels": {
            "namespace": pod["metadata"]["namespace"],
            "pod": pod["metadata"]["name"],
            "path": annotations.get(ANNOTATION + "path", "/metrics"),
        },
    }


def main() -> None:
    """Write the list whenever it changes; an API server that is away changes nothing."""
    written = None
    while True:
        try:
            found = [t for t in map(target, pods()) if t is not None]
        except OSError as error:
            print(f"cannot list pods: {error}", flush=True)
        else:
            text = json.dumps(found)
            if text != written:
                fresh = TARGETS.with_suffix(".tmp")
                fresh.write_text(text)
                fresh.rename(TARGETS)
                written = text
        time.sleep(1)


if __name__ == "__main__":
    main()
