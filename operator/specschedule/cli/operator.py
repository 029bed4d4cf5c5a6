"""``specschedule operator``: puts the operator together and runs it until it is told to stop."""

import logging
import os
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version

import click

from specschedule import handlers
from specschedule.adapters.kubernetes import KubernetesWorld, fields_not_served
from specschedule.adapters.prometheus import PrometheusMetrics
from specschedule.reconcile import Reconciler
from specschedule.workqueue import WorkQueue

log = logging.getLogger(__name__)

UNHEALTHY_AFTER_S = 180.0
"""Longer than every bounded call together; a stuck or locked-out operator is restarted."""


@click.command("operator", help="Run the operator, in a cluster or against KUBECONFIG.")
@click.option(
    "--namespace",
    "namespaces",
    multiple=True,
    envvar="SPECSCHEDULE_NAMESPACES",
    help="Namespace to watch, repeatable. All of them when left out.",
)
@click.option(
    "--image",
    envvar="SPECSCHEDULE_IMAGE",
    required=True,
    help="Image of load jobs, and of what trial pods carry.",
)
@click.option(
    "--prometheus-url",
    envvar="SPECSCHEDULE_PROMETHEUS_URL",
    default=None,
    help="Prometheus for objects that name none.",
)
@click.option(
    "--priority-class",
    envvar="SPECSCHEDULE_PRIORITY_CLASS",
    default=None,
    help="PriorityClass of trial pods.",
)
@click.option(
    "--instruments/--no-instruments",
    envvar="SPECSCHEDULE_INSTRUMENTS",
    default=True,
    show_default=True,
    help="Let trial pods carry what observes the engine from inside: the same in every arm.",
)
@click.option("--health-port", default=8080, show_default=True, help="Port of /healthz.")
@click.option("--verbose", is_flag=True, help="Log every call.")
def command(
    namespaces: tuple[str, ...],
    image: str,
    prometheus_url: str | None,
    priority_class: str | None,
    instruments: bool,
    health_port: int,
    verbose: bool,
) -> None:
    """Run until SIGTERM."""
    logging.basicConfig(
        level=logging.DEBUG if verbose else logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    logging.getLogger("kopf").setLevel(logging.WARNING)
    if missing := fields_not_served():
        raise click.ClickException(
            f"CRD older than operator: {', '.join(missing[:5])} missing; upgrade the chart's CRDs "
            "(helm upgrade does it), or run the operator of their version"
        )
    world = KubernetesWorld(
        metrics=PrometheusMetrics(),
        image=image,
        image_pull_policy=os.environ.get("SPECSCHEDULE_IMAGE_PULL_POLICY", "IfNotPresent"),
        prometheus_url=prometheus_url,
        priority_class=priority_class,
        instruments=instruments,
    )
    log.info(
        "specschedule %s operates on %s, trial pods and load from image %s",
        *(version("specschedule"), ", ".join(namespaces) or "all namespaces", image),
    )
    queue = WorkQueue(Reconciler(world, time.time))
    queue.start()
    _serve_health(health_port, queue)
    try:
        handlers.run(queue.mark, namespaces)
    finally:
        queue.stop()


def _serve_health(port: int, queue: WorkQueue) -> None:
    class Health(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            ill = max(queue.stalled_s(), queue.failing_s())
            self.send_response(200 if ill < UNHEALTHY_AFTER_S else 503)
            self.end_headers()
            self.wfile.write(f"stuck or failing for {ill:.0f} s\n".encode())

        def log_message(self, format: str, *args: object) -> None:
            """Probes are not news."""

    server = ThreadingHTTPServer(("", port), Health)
    threading.Thread(target=server.serve_forever, name="health", daemon=True).start()
