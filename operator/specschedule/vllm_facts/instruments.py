"""What a launch carries of ours beside the template's own: arguments and variables, for any arm.

The parts themselves are in ``engine/``. They are laid into a folder that PYTHONPATH names, so
the engine's image stays as it is. The target's own arguments are never overwritten, and what
cannot be carried is left out with the reason: no launch fails because of an instrument.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from specschedule.core import context_axis
from specschedule.core.spec import Slo
from specschedule.core.target import ServerFacts, Unreadable
from specschedule.engine import settings
from specschedule.engine.deliver import table_file
from specschedule.vllm_facts.editing import ArgumentEdit, with_added, with_speculative
from specschedule.vllm_facts.flags import SCHEDULER
from specschedule.vllm_facts.launch import refuse
from specschedule.vllm_facts.plain import items

WORKER_EXTENSION = "--worker-extension-cls"
FINGERPRINT = "specschedule.engine.fingerprint.Fingerprint"
STEP_FLAGS = ("--enable-logging-iteration-details", "--cudagraph-metrics")
"""What lets the engine tell the recorder the batch and the graph mode of each step. vLLM writes
both to its log as well, unless the recorder counts them (``engine/recording.py``)."""
PROBE = "specschedule.engine.probe.EitherProbeScheduler"
PROBE_PORT = 9108
"""Port on loopback of the probe scheduler's page."""
PLUGIN = "specschedule"
"""Name of the recorder among vLLM's plugins."""

_THEIRS = "SPECSCHEDULE_THEIR_"
"""Begins the name under which a variable of the template lives on that comes from elsewhere."""

_ANY_SPECULATIVE = {"method": "ngram", "num_speculative_tokens": 1}

_NEW_PATH = re.compile(r"(?:^|[\s;&|'\"])PYTHONPATH=(?!\S*\$[({]?PYTHONPATH)")
_NO_VARIABLES = re.compile(r"\benv\s+(?:\S+\s+)*?(?:-i|--ignore-environment|-)(?:\s|$)")
_PATH_REMOVED = re.compile(r"(?:-u\s*|--unset=|\bunset\s+(?:\w+\s+)*)PYTHONPATH\b")
_ISOLATED = re.compile(r"\bpython[\d.]*\s+(?:-\w+\s+)*-[a-zA-Z]*[IE]")


@dataclass(frozen=True)
class Instruments:
    """What one launch carries."""

    arguments: tuple[str, ...] = ()
    """Put behind the server's own."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of the server."""
    left_out: tuple[str, ...] = ()
    """What this target cannot carry, and why."""
    table: Sequence[Sequence[int]] | None = None
    """Rows to deliver for the context-axis scheduler; None for an arm without it."""

    @property
    def carried(self) -> bool:
        """Whether there is anything to deliver."""
        return bool(self.arguments or self.variables)


def observing(
    container: Mapping[str, Any],
    server: ServerFacts,
    slo: Slo,
    environment: Mapping[str, str] | None = None,
) -> Instruments:
    """Return what every arm of a run carries: the same, as it hangs on the target alone.

    That is the recorder's counters of good requests and of steps, with the engine's own flags
    that those need, and the worker's fingerprint.

    Args:
        container: The container of the pod template.
        server: What it runs.
        slo: The limits that good requests meet.
        environment: Variables from elsewhere, as for ``read_container``.
    """
    if why := hidden(container):
        return Instruments(left_out=(why.message,))
    variables = {
        name: f"{seconds * 1000:g}"
        for name, seconds in (
            (settings.TTFT, slo.ttft),
            (settings.TPOT, slo.tpot),
            (settings.E2E, slo.e2e),
        )
        if seconds is not None
    }
    cannot = f"container {server.container} cannot carry"
    if refused := _unable(container, STEP_FLAGS, environment):
        said = f"{cannot} the fingerprint and counters of steps: {refused.message}"
        return Instruments(variables=variables, left_out=(said,))
    variables |= {settings.STEPS: "1"}
    if (theirs := server.worker_extension) is not None:
        said = f"{cannot} the fingerprint: it has a {WORKER_EXTENSION} of its own, {theirs}"
        return Instruments(STEP_FLAGS, variables, (said,))
    return Instruments(
        (*STEP_FLAGS, f"{WORKER_EXTENSION}={FINGERPRINT}"),
        variables | {settings.FINGERPRINT_LOG: "1"},
    )


def scheduled(
    observed: Instruments,
    container: Mapping[str, Any],
    server: ServerFacts,
    scheduler: str,
    variables: Mapping[str, str],
    environment: Mapping[str, str] | None = None,
) -> Instruments | Unreadable:
    """Return the instruments of an arm that also runs a scheduler of ours, or why it cannot.

    Args:
        observed: What every arm carries.
        container: The container of the pod template.
        server: What it runs.
        scheduler: The class, such as ``PROBE``.
        variables: What turns it on.
        environment: Variables from elsewhere, as for ``read_container``.
    """
    if why := hidden(container):
        return why
    # Ours may make way for another of ours: such a launch is never what is promoted.
    if theirs := context_axis.foreign_scheduler(server):
        return refuse(
            container,
            "SchedulerTaken",
            f"it has a {SCHEDULER} of its own, {theirs}, which stays",
        )
    arguments = (*observed.arguments, f"{SCHEDULER}={scheduler}")
    if refused := _unable(container, arguments, environment):
        return refused
    return replace(observed, arguments=arguments, variables={**observed.variables, **variables})


def timing(observed: Instruments) -> Instruments:
    """Return the instruments of a screening launch, whose worker also times its device.

    Args:
        observed: What every arm carries; without the fingerprint there is nobody to do it.
    """
    if settings.FINGERPRINT_LOG not in observed.variables:
        return observed
    return replace(observed, variables={**observed.variables, settings.DEVICE_TIMES: "1"})


def probing(
    observed: Instruments,
    container: Mapping[str, Any],
    server: ServerFacts,
    secret: str,
    environment: Mapping[str, str] | None = None,
    *,
    port: int = PROBE_PORT,
) -> Instruments:
    """Return the instruments of a launch whose K requests switch.

    Where it cannot carry the scheduler it is launched without: its first window then shows that
    nothing is switched, and each K gets a launch.

    Args:
        observed: What every arm carries.
        container: The container of the pod template.
        server: What it runs.
        secret: What a request must carry to switch.
        environment: Variables from elsewhere, as for ``read_container``.
        port: Of its page on loopback, which a pod has to itself.
    """
    variables = {settings.SECRET: secret, settings.SCHEDULER_PORT: str(port)}
    found = scheduled(observed, container, server, PROBE, variables, environment)
    if isinstance(found, Unreadable):
        return replace(observed, left_out=(*observed.left_out, found.message))
    return found


def following(
    observed: Instruments,
    container: Mapping[str, Any],
    server: ServerFacts,
    rows: Sequence[Sequence[int]],
    folder: str,
    environment: Mapping[str, str] | None = None,
) -> Instruments | Unreadable:
    """Return the instruments of a launch whose context-axis scheduler follows a table.

    Where it cannot carry the scheduler there is no such launch: without it the engine would follow
    the rows that name every K.

    Args:
        observed: What every arm carries.
        container: The container of the pod template.
        server: What it runs.
        rows: The table.
        folder: Where ``engine.deliver`` lays the parts, and the table.
        environment: Variables from elsewhere, as for ``read_container``.
    """
    variables = {settings.TABLE: f"{folder}/{table_file(rows)}"}
    found = scheduled(observed, container, server, context_axis.CLASS, variables, environment)
    return found if isinstance(found, Unreadable) else replace(found, table=rows)


def arm_arguments(
    container: Mapping[str, Any],
    *,
    speculative: Mapping[str, Any] | Literal["unchanged"] | None,
    graph_mode: str | None = None,
    instruments: Instruments = Instruments(),
    environment: Mapping[str, str] | None = None,
) -> ArgumentEdit | Unreadable | None:
    """Return the edit that makes a container's arguments those of an arm.

    Args:
        container: The container of the pod template.
        speculative: The arm's speculative config; None serves without; ``unchanged`` keeps the
            template's own arguments byte for byte.
        graph_mode: As for ``with_speculative``.
        instruments: What the launch carries.
        environment: Variables from elsewhere, as for ``read_container``.

    Returns:
        The edit; None where there is nothing to edit.
    """
    if not isinstance(speculative, str):
        return with_speculative(
            container,
            speculative,
            graph_mode=graph_mode,
            added=instruments.arguments,
            environment=environment,
        )
    if not instruments.arguments:
        return None
    return with_added(container, instruments.arguments, environment=environment)


def variables_with(
    container: Mapping[str, Any],
    instruments: Instruments,
    folder: str,
    environment: Mapping[str, str] | None = None,
) -> list[dict[str, Any]]:
    """Return the container's ``env`` with what the instruments need.

    PYTHONPATH and VLLM_PLUGINS keep what the template gives them, in whatever form; what the
    image itself sets is not known here.

    Args:
        container: The container of the pod template.
        instruments: What the launch carries.
        folder: Where ``engine.deliver`` has laid the parts.
        environment: Variables from ``envFrom``, where known.
    """
    sourced = environment or {}
    entries = [
        dict(entry)
        for entry in items(container.get("env"))
        if isinstance(entry, Mapping) and entry.get("name") not in instruments.variables
    ]
    entries = _joined(entries, "PYTHONPATH", ":", folder, sourced)
    if "VLLM_PLUGINS" in sourced or any(e.get("name") == "VLLM_PLUGINS" for e in entries):
        entries = _joined(entries, "VLLM_PLUGINS", ",", PLUGIN, sourced)
    ours = [{"name": name, "value": value} for name, value in instruments.variables.items()]
    return [*entries, *ours]


def _joined(
    entries: Sequence[dict[str, Any]],
    name: str,
    separator: str,
    text: str,
    sourced: Mapping[str, str],
) -> list[dict[str, Any]]:
    """Put a text behind the value of a variable; of several entries the last one counts."""
    at = max((i for i, entry in enumerate(entries) if entry.get("name") == name), default=None)
    if at is None:
        value = f"{sourced[name]}{separator}{text}" if sourced.get(name) else text
        return [*entries, {"name": name, "value": value}]
    entry = entries[at]
    if "valueFrom" in entry:
        # Kubernetes puts in the value of a variable that stands before this one.
        theirs = entry | {"name": f"{_THEIRS}{name}"}
        ours = {"name": name, "value": f"$({_THEIRS}{name}){separator}{text}"}
        return [*entries[:at], theirs, ours, *entries[at + 1 :]]
    given = entry.get("value")
    ours = {"name": name, "value": f"{given}{separator}{text}" if given else text}
    return [*entries[:at], ours, *entries[at + 1 :]]


def hides_path(text: str) -> str | None:
    """Return what a command, or the script that it runs, does to hide PYTHONPATH from Python."""
    said = {
        "sets PYTHONPATH anew": _NEW_PATH,
        "starts the server without the container's variables": _NO_VARIABLES,
        "takes PYTHONPATH away": _PATH_REMOVED,
        "starts Python isolated from PYTHONPATH": _ISOLATED,
    }
    return next((what for what, pattern in said.items() if pattern.search(text)), None)


def hidden(container: Mapping[str, Any]) -> Unreadable | None:
    """Return why the server would not see PYTHONPATH: it would not find what it is told to load."""
    words = [*items(container.get("command")), *items(container.get("args"))]
    what = hides_path(" ".join(map(str, words)))
    if what is None:
        return None
    return refuse(
        container,
        "PythonPathHidden",
        f"its command {what}, so vLLM would not find what is delivered; let it start with the "
        "variables of the container",
    )


def _unable(
    container: Mapping[str, Any],
    arguments: Sequence[str],
    environment: Mapping[str, str] | None,
) -> Unreadable | None:
    """Return why some arm could not have arguments added, although it could be made without."""
    instruments = Instruments(tuple(arguments))
    forms: tuple[Mapping[str, Any] | Literal["unchanged"] | None, ...]
    forms = ("unchanged", None, _ANY_SPECULATIVE)
    for speculative in forms:
        plain, carrying = (
            arm_arguments(
                container, speculative=speculative, instruments=each, environment=environment
            )
            for each in (Instruments(), instruments)
        )
        if isinstance(carrying, Unreadable) and not isinstance(plain, Unreadable):
            return carrying
    return None
