"""Reading a container's vLLM arguments, in every form that people write."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from specschedule.core.target import ServerFacts, Unreadable
from specschedule.engine import settings
from specschedule.vllm_facts.by_context import config_of, follows
from specschedule.vllm_facts.editing import ArgumentEdit, edited_container, with_speculative
from specschedule.vllm_facts.flags import (
    ADDITIONAL,
    COMPILATION,
    DEFAULT_LEVEL,
    LEVELS,
    SCHEDULER,
    Flag,
    FlagError,
    config_file_tokens,
    integer,
    json_object,
    positive,
    refused_of,
    scan,
    speculative_flags,
)
from specschedule.vllm_facts.launch import Field, Launch, launch_of, names_vllm, refuse
from specschedule.vllm_facts.plain import items, mapping

__all__ = [
    "ArgumentEdit",
    "edited_container",
    "find_container",
    "read_container",
    "with_speculative",
]


def find_container(
    pod_spec: Mapping[str, Any], name: str | None = None
) -> Mapping[str, Any] | Unreadable:
    """Return the vLLM container of a pod spec: the named one, else the one that starts vLLM."""
    containers = [c for c in items(pod_spec.get("containers")) if isinstance(c, Mapping)]
    if name is not None:
        named = next((c for c in containers if c.get("name") == name), None)
        listed = ", ".join(str(c.get("name")) for c in containers)
        return named or Unreadable(
            reason="ContainerNotFound",
            message=f"spec.target.container is {name}; the pod template has {listed or 'none'}",
        )
    launches = [(container, launch_of(container)) for container in containers]
    starting = [c for c, launch in launches if isinstance(launch, Launch)]
    starting = starting or [c for c in containers if names_vllm(c)]
    if len(starting) == 1:
        return starting[0]
    if starting:
        return Unreadable(
            reason="SeveralVllmContainers",
            message=f"containers {', '.join(str(c.get('name')) for c in starting)} all start vLLM; "
            "name one in spec.target.container",
        )
    for _, launch in launches:
        if isinstance(launch, Unreadable) and launch.reason == "EngineNotSupported":
            return launch
    for _, launch in launches:
        if isinstance(launch, Unreadable) and len(launches) == 1:
            return launch
    return Unreadable(
        reason="NoVllmContainer",
        message="no container of the pod template starts vLLM; name it in spec.target.container",
    )


def read_container(
    container: Mapping[str, Any],
    *,
    config_files: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> ServerFacts | Unreadable:
    """Return what the container's arguments say about its server.

    Args:
        container: The container of the pod template.
        config_files: Text of files that the container sees, by absolute path.
        environment: Values of variables that come from elsewhere (``valueFrom``, ``envFrom``).
    """
    launch = launch_of(container, environment)
    if isinstance(launch, Unreadable):
        return launch
    try:
        flags = scan(launch.tokens)
        from_file, notes = _config_file(flags, config_files or {})
        if speculative_flags(from_file):
            return refuse(
                container,
                "SpeculativeConfigInFile",
                "its speculative config is in the --config file, where it cannot be taken away; "
                "move it to the container's arguments",
            )
        if why := _table_elsewhere(launch, from_file, flags):
            return refuse(container, "SpeculativeConfigInFile", why)
        return _facts(container, launch, [*from_file, *flags], notes)
    except FlagError as error:
        return refuse(container, "UnsupportedArgumentForm", str(error))


def _config_file(flags: Sequence[Flag], files: Mapping[str, str]) -> tuple[list[Flag], list[str]]:
    """Return the flags that a ``--config`` file adds in front, and notes."""
    given = [flag for flag in flags if flag.name == "--config"]
    notes = [
        f"{flag.written}={flag.value} is not read by vLLM, which wants --config and the path as "
        "two arguments"
        for flag in given
        if flag.joined
    ]
    read = [flag for flag in given if not flag.joined]
    if not read:
        return [], notes
    if len(read) > 1:
        raise FlagError("--config is given more than once")
    path = read[0].value or ""
    if path not in files:
        raise FlagError(
            f"--config names {path or 'no file'}, which cannot be read here; mount it from a "
            "ConfigMap, or write the arguments in args"
        )
    try:
        return scan(config_file_tokens(files[path])), notes
    except FlagError as error:
        raise FlagError(f"--config {path}: {error}") from error


def _table_elsewhere(
    launch: Launch, from_file: Sequence[Flag], flags: Sequence[Flag]
) -> str | None:
    """Say why the table of a scheduler of ours cannot be changed; None where it can be."""
    if not follows([*from_file, *flags]):
        return None
    if launch.environment.get(settings.TABLE) or settings.TABLE in launch.unread:
        return (
            f"its scheduler takes the table from the file that {settings.TABLE} names; give the "
            f"rows in {ADDITIONAL}, and take the variable away"
        )
    if any(flag.name in (ADDITIONAL, SCHEDULER) for flag in from_file):
        return (
            f"its {SCHEDULER} or {ADDITIONAL} is in the --config file, where the rows that the "
            "scheduler follows cannot be changed; move both to the container's arguments"
        )
    return None


def _facts(
    container: Mapping[str, Any], launch: Launch, flags: Sequence[Flag], notes: list[str]
) -> ServerFacts:
    last = {flag.name: flag for flag in flags if not flag.path}

    def number(name: str, default: int) -> int:
        return positive(last[name]) if name in last else default

    def optional(name: str) -> int | None:
        return positive(last[name]) if name in last else None

    def text(name: str) -> str | None:
        return last[name].value if name in last else None

    def switch(name: str) -> bool | None:
        given = [
            flag.name == name
            for flag in flags
            if flag.name in (name, f"--no-{name.removeprefix('--')}")
        ]
        return given[-1] if given else None

    kv_transfer = json_object(flags, "--kv-transfer-config") or {}
    compilation = json_object(flags, COMPILATION) or {}
    logging = json_object(flags, "--logging-config") or {}
    attention = json_object(flags, "--attention-config") or {}
    max_model_len = text("--max-model-len")
    role = kv_transfer.get("kv_role")
    field = _edited_field(launch)
    speculative = config_of(flags)
    port = number("--port", 8000)
    by_argument = (name for name in ("--ssl-certfile", "--ssl-keyfile") if name in last)
    return ServerFacts(
        container=str(container.get("name") or ""),
        image=str(container.get("image") or "") or None,
        model=_model(launch, flags),
        port=port,
        tls=next(by_argument, None) or _probed_by_https(container, port),
        max_num_seqs=number("--max-num-seqs", 256),
        max_num_seqs_given="--max-num-seqs" in last,
        max_model_len=None
        if max_model_len in (None, "auto", "-1")
        else optional("--max-model-len"),
        max_num_batched_tokens=optional("--max-num-batched-tokens"),
        data_parallel_size=number("--data-parallel-size", 1),
        tensor_parallel_size=number("--tensor-parallel-size", 1),
        pipeline_parallel_size=number("--pipeline-parallel-size", 1),
        enable_dbo=(switch("--enable-dbo") or False)
        or ("--ubatch-size" in last and integer(last["--ubatch-size"]) > 1),
        enforce_eager=switch("--enforce-eager") or False,
        async_scheduling=switch("--async-scheduling"),
        enable_lora=switch("--enable-lora") or False,
        optimization_level=_level(text("--optimization-level")),
        graph_mode=_text(compilation.get("cudagraph_mode")),
        attention_backend=text("--attention-backend") or _text(attention.get("backend")),
        quantization=text("--quantization"),
        log_level=text("--log-level") or _text(logging.get("log_level")),
        log_config_file=text("--log-config-file") or _text(logging.get("pylogging_config_file")),
        configure_logging=logging.get("configure_logging") is not False,
        scheduler_class=text(SCHEDULER),
        worker_extension=text("--worker-extension-cls"),
        kv_role=_text(role),
        kv_connectors=_connectors(kv_transfer),
        kv_events_to=_events_to(json_object(flags, "--kv-events-config") or {}),
        speculative=speculative,
        arguments=[str(item) for item in container.get(field) or []],
        arguments_field=field,
        environment=dict(launch.environment),
        refused=refused_of(speculative or {}),
        unread=sorted(launch.unread),
        notes=notes,
    )


def _probed_by_https(container: Mapping[str, Any], port: int) -> str | None:
    """Return the probe that asks a port by HTTPS: TLS may be set up where no argument shows it."""
    named = {
        str(mapping(each).get("name")): mapping(each).get("containerPort")
        for each in items(container.get("ports"))
    }
    for probe in ("readinessProbe", "livenessProbe", "startupProbe"):
        asked = mapping(mapping(container.get(probe)).get("httpGet"))
        at = str(asked.get("port"))
        if asked.get("scheme") == "HTTPS" and str(named.get(at, at)) == str(port):
            return f"{probe}.httpGet.scheme"
    return None


def _edited_field(launch: Launch) -> Field:
    """Return the list that an edit of the speculative argument changes."""
    carrying = speculative_flags(scan(launch.tokens))
    if carrying:
        return launch.places[carrying[0].first].field
    return launch.after.field if launch.after else "args"


def _connectors(kv_transfer: Mapping[str, Any]) -> list[str]:
    """Return the names of the connectors, those that a MultiConnector holds in its place."""
    extra = mapping(kv_transfer.get("kv_connector_extra_config"))
    inner = [name for each in items(extra.get("connectors")) for name in _connectors(mapping(each))]
    own = _text(kv_transfer.get("kv_connector"))
    return inner or ([own] if own else [])


def _events_to(config: Mapping[str, Any]) -> str | None:
    """Return the address that KV cache events are sent to; None where others come for them.

    vLLM listens at an address with ``*`` or ``::`` and at ipc and inproc ones, and connects to any
    other (``distributed/kv_events.py``).
    """
    publishes = config.get("publisher") or ("zmq" if config.get("enable_kv_cache_events") else None)
    address = str(config.get("endpoint") or "tcp://*:5557")
    if publishes != "zmq" or re.search(r"[*]|::|^(ipc|inproc)://", address):
        return None
    return address


def _level(written: str | None) -> int | None:
    """Return an optimization level; None where it is none of vLLM 0.32's."""
    if written is None:
        return DEFAULT_LEVEL
    return int(written) if written in LEVELS else None


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _model(launch: Launch, flags: Sequence[Flag]) -> str | None:
    named = [flag.value for flag in flags if flag.name == "--model" and not flag.path]
    first = launch.tokens[0] if launch.tokens else None
    positional = first.text if first and not first.text.startswith("-") else None
    if launch.form in ("serve", "entrypoint", "sim") and positional:
        return positional
    return named[-1] if named else None
