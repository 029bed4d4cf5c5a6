"""Reading a container's vLLM arguments, and changing the one speculative argument in them.

An edit keeps every other byte and is proven before it is handed out: the edited container is
read again and must differ in the speculative config only. What cannot be edited exactly is
refused by name.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specschedule.core.observed import ServerFacts, Unreadable
from specschedule.vllm_facts.flags import (
    KNOWN_KEYS,
    SPECULATIVE,
    SPECULATIVE_PARTS,
    Flag,
    FlagError,
    config_file_tokens,
    integer,
    json_object,
    scan,
    write_dotted,
    write_json,
)
from specschedule.vllm_facts.launch import (
    Field,
    Launch,
    Place,
    launch_of,
    names_vllm,
)
from specschedule.vllm_facts.shell import quote

_BLANKS = re.compile(r"(?:[ \t]|\\\n)+")


@dataclass(frozen=True)
class ArgumentEdit:
    """A change of one list of the container: whole lists before and after.

    ``old`` is empty when the container has no such list yet.
    """

    field: Field
    old: list[str]
    new: list[str]


def find_container(
    pod_spec: Mapping[str, Any], name: str | None = None
) -> Mapping[str, Any] | Unreadable:
    """Return the vLLM container of a pod spec: the named one, else the one that starts vLLM."""
    containers = [c for c in pod_spec.get("containers") or [] if isinstance(c, Mapping)]
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
            return _refuse(
                container,
                "SpeculativeConfigInFile",
                "its speculative config is in the --config file, where it cannot be taken away; "
                "move it to the container's arguments",
            )
        return _facts(container, launch, [*from_file, *flags], notes)
    except FlagError as error:
        return _refuse(container, "UnsupportedArgumentForm", str(error))


def speculative_of(flags: Sequence[Flag]) -> dict[str, Any] | None:
    """Return the one speculative config that vLLM makes of all forms together.

    Raises:
        FlagError: The forms contradict each other or cannot be read.
    """
    config = json_object(flags, SPECULATIVE)
    parts: dict[str, Any] = {}
    for flag in flags:
        if key := SPECULATIVE_PARTS.get(flag.name):
            if flag.value is None:
                raise FlagError(f"{flag.written} has no value")
            parts[key] = integer(flag) if flag.name == "--spec-tokens" else flag.value
    for key in parts:
        if config and key in config:
            raise FlagError(f"--{key} and {SPECULATIVE} both set {key}; vLLM refuses that")
    if config is None and not parts:
        return None
    return {str(k).replace("-", "_"): v for k, v in ((config or {}) | parts).items()}


def speculative_flags(flags: Sequence[Flag]) -> list[Flag]:
    """Return the flags that carry the speculative config, in any form."""
    return [flag for flag in flags if flag.name == SPECULATIVE or flag.name in SPECULATIVE_PARTS]


def with_speculative(
    container: Mapping[str, Any],
    speculative: Mapping[str, Any] | None,
    *,
    extra: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> ArgumentEdit | Unreadable:
    """Return the edit that gives the server exactly this speculative config.

    Args:
        container: The container of the pod template, one that ``read_container`` reads: what a
            ``--config`` file holds is checked there.
        speculative: The config; None takes the argument away in all its forms.
        extra: Further arguments to add at the end.
        environment: As for ``read_container``.
    """
    launch = launch_of(container, environment)
    if isinstance(launch, Unreadable):
        return launch
    try:
        edited = _edit(container, launch, speculative, extra)
        if isinstance(edited, Unreadable):
            return edited
        return _proven(container, launch, edited, speculative, extra, environment)
    except FlagError as error:
        return _refuse(container, "UnsupportedArgumentForm", str(error))


def edited_container(container: Mapping[str, Any], edit: ArgumentEdit) -> dict[str, Any]:
    """Return the container with an edit made."""
    changed = dict(container)
    if edit.new:
        changed[edit.field] = list(edit.new)
    else:
        changed.pop(edit.field, None)
    return changed


@dataclass
class _Change:
    """What happens to one token: a new text, or None when it goes; and texts put behind it."""

    text: str | None
    behind: tuple[str, ...] = ()


def _edit(
    container: Mapping[str, Any],
    launch: Launch,
    speculative: Mapping[str, Any] | None,
    extra: Sequence[str],
) -> ArgumentEdit | Unreadable:
    flags = scan(launch.tokens)
    carrying = speculative_flags(flags)
    before = speculative_of(flags)
    changes: dict[int, _Change] = {}
    added: list[str] = []
    if speculative is None:
        changes = _removals(carrying)
    elif not carrying:
        added = [SPECULATIVE, write_json(dict(speculative))]
    elif before == dict(speculative) and _plainly_once(carrying):
        pass
    elif _all_dotted(carrying) and (dotted := _dotted_changes(carrying, before or {}, speculative)):
        changes = dotted
    else:
        first = _first_to_keep(carrying)
        changes = _removals([flag for flag in carrying if flag is not first])
        changes |= _replacement(first, write_json(dict(speculative)))
    return _render(container, launch, changes, [*added, *extra])


def _plainly_once(carrying: Sequence[Flag]) -> bool:
    """One whole argument, or dotted ones only: nothing to tidy up."""
    return len(carrying) == 1 or _all_dotted(carrying)


def _all_dotted(carrying: Sequence[Flag]) -> bool:
    heads = {flag.written.split(".")[0] for flag in carrying}
    return len(heads) == 1 and all(len(flag.path) == 1 for flag in carrying)


def _first_to_keep(carrying: Sequence[Flag]) -> Flag:
    whole = [flag for flag in carrying if flag.name == SPECULATIVE and not flag.path]
    return (whole or list(carrying))[0]


def _removals(flags: Sequence[Flag]) -> dict[int, _Change]:
    return {at: _Change(None) for flag in flags for at in range(flag.first, flag.last + 1)}


def _replacement(flag: Flag, value: str) -> dict[int, _Change]:
    written = SPECULATIVE if flag.path or flag.name != SPECULATIVE else flag.written
    if flag.joined:
        return {flag.first: _Change(f"{written}={value}")}
    changes = {flag.last: _Change(value)}
    if written != flag.written:
        changes[flag.first] = _Change(written)
    return changes


def _dotted_changes(
    carrying: Sequence[Flag], before: Mapping[str, Any], after: Mapping[str, Any]
) -> dict[int, _Change]:
    """Change single keys of the dotted form; empty when a key is written more than once."""
    keys = [flag.path[0].replace("-", "_") for flag in carrying]
    if len(set(keys)) != len(keys) or any(key.endswith("+") for key in keys):
        return {}
    head = carrying[0].written.split(".")[0]
    changes: dict[int, _Change] = {}
    for key, flag in zip(keys, carrying, strict=True):
        if key not in after:
            changes |= _removals([flag])
        elif after[key] != before[key]:
            value = write_dotted(after[key])
            text = f"{flag.written}={value}" if flag.joined else value
            changes[flag.last] = _Change(text)
    kept = [flag for key, flag in zip(keys, carrying, strict=True) if key in after]
    fresh = [key for key in after if key not in keys]
    if not kept:
        return {}
    behind = tuple(
        text
        for key in fresh
        for text in (
            [f"{head}.{key}={write_dotted(after[key])}"]
            if kept[-1].joined
            else [f"{head}.{key}", write_dotted(after[key])]
        )
    )
    if behind:
        at = kept[-1].last
        changes[at] = _Change(changes[at].text if at in changes else "", behind)
    return changes


def _render(
    container: Mapping[str, Any],
    launch: Launch,
    changes: Mapping[int, _Change],
    added: Sequence[str],
) -> ArgumentEdit | Unreadable:
    places = {launch.places[at] for at in changes}
    if added or not places:
        places.add(launch.after or Place("args", 0))
    fields: set[Field] = {place.field for place in places}
    if len(fields) > 1:
        return _refuse(
            container,
            "SplitArguments",
            "its arguments stand in both command and args; write all of them in one list",
        )
    field = fields.pop()
    old = [str(item) for item in container.get(field) or []]
    if launch.scripted:
        return _render_script(container, launch, changes, added, field, old)
    by_item = {launch.places[at].item: change for at, change in changes.items()}
    new: list[str] = []
    for item, text in enumerate(old):
        change = by_item.get(item)
        if change is None:
            new.append(text)
        else:
            if change.text is not None:
                new.append(_escaped(change.text) if change.text else text)
            new += [_escaped(text) for text in change.behind]
    return ArgumentEdit(field, old, [*new, *(_escaped(text) for text in added)])


def _render_script(
    container: Mapping[str, Any],
    launch: Launch,
    changes: Mapping[int, _Change],
    added: Sequence[str],
    field: Field,
    old: list[str],
) -> ArgumentEdit | Unreadable:
    assert launch.after is not None
    item = launch.after.item
    script = old[item]
    spans = [place.span or (0, 0) for place in launch.places]
    pieces: list[tuple[int, int, str]] = []
    for at, change in changes.items():
        start, end = spans[at]
        before = launch.places[at - 1] if at and change.text is None else launch.places[at]
        if not (launch.places[at].exact and before.exact):
            return _refuse(
                container,
                "UnsupportedShell",
                "a variable puts its speculative argument in; write the argument out",
            )
        behind = "".join(f" {quote(_escaped(text))}" for text in change.behind)
        if change.text is not None:
            pieces.append((start, end, (_word(change.text) or script[start:end]) + behind))
            continue
        gap_start = spans[at - 1][1] if at else start
        if not at or not _BLANKS.fullmatch(script[gap_start:start]):
            return _refuse(
                container,
                "UnsupportedShell",
                "something stands between its arguments; write the speculative argument apart",
            )
        pieces.append((gap_start, end, behind))
    if added and not launch.after.exact:
        return _refuse(
            container, "UnsupportedShell", "its script ends in a variable; write the value out"
        )
    if added:
        end = (launch.after.span or (0, 0))[1]
        pieces.append((end, end, "".join(f" {_word(text)}" for text in added)))
    for start, end, text in sorted(pieces, reverse=True):
        script = script[:start] + text + script[end:]
    return ArgumentEdit(field, old, [*old[:item], script, *old[item + 1 :]])


def _word(text: str) -> str:
    """Write ``--flag=value`` with only the value between quotes, as people do."""
    if not text:
        return ""
    flag, equals, value = text.partition("=")
    if equals and flag.startswith("-"):
        return f"{flag}={quote(_escaped(value))}"
    return quote(_escaped(text))


def _escaped(text: str) -> str:
    """Write a text so that Kubernetes puts nothing in."""
    return text.replace("$", "$$")


def _proven(
    container: Mapping[str, Any],
    launch: Launch,
    edit: ArgumentEdit,
    speculative: Mapping[str, Any] | None,
    extra: Sequence[str],
    environment: Mapping[str, str] | None,
) -> ArgumentEdit | Unreadable:
    """Read the edited container again: the config is the wanted one, all else is as it was."""
    again = launch_of(edited_container(container, edit), environment)
    if isinstance(again, Launch):
        wanted = None if speculative is None else dict(speculative)
        if speculative_of(scan(again.tokens)) == wanted and _others(again, extra) == _others(
            launch, ()
        ):
            return edit
    return _refuse(
        container,
        "UnsupportedArgumentForm",
        "its arguments cannot be changed exactly; write them as list items of args",
    )


def _others(launch: Launch, extra: Sequence[str]) -> list[str]:
    """Return all arguments but the speculative ones and those added on purpose."""
    gone = {
        at
        for flag in speculative_flags(scan(launch.tokens))
        for at in range(flag.first, flag.last + 1)
    }
    texts = [token.text for at, token in enumerate(launch.tokens) if at not in gone]
    return texts[: len(texts) - len(extra)] if extra else texts


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


def _facts(
    container: Mapping[str, Any], launch: Launch, flags: Sequence[Flag], notes: list[str]
) -> ServerFacts:
    last = {flag.name: flag for flag in flags if not flag.path}

    def number(name: str, default: int) -> int:
        return integer(last[name]) if name in last else default

    def optional(name: str) -> int | None:
        return integer(last[name]) if name in last else None

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
    compilation = json_object(flags, "--compilation-config") or {}
    attention = json_object(flags, "--attention-config") or {}
    max_model_len = text("--max-model-len")
    role = kv_transfer.get("kv_role")
    field = _edited_field(launch)
    speculative = speculative_of(flags)
    strange = sorted(set(speculative or {}) - KNOWN_KEYS)
    if strange:
        notes = [
            *notes,
            f"speculative config key {', '.join(strange)} is not one of vLLM 0.32, which "
            "refuses to start with it",
        ]
    return ServerFacts(
        container=str(container.get("name") or ""),
        image=str(container.get("image") or "") or None,
        model=_model(launch, flags),
        port=number("--port", 8000),
        max_num_seqs=number("--max-num-seqs", 256),
        max_num_seqs_given="--max-num-seqs" in last,
        max_model_len=None
        if max_model_len in (None, "auto", "-1")
        else optional("--max-model-len"),
        max_num_batched_tokens=optional("--max-num-batched-tokens"),
        data_parallel_size=number("--data-parallel-size", 1),
        tensor_parallel_size=number("--tensor-parallel-size", 1),
        pipeline_parallel_size=number("--pipeline-parallel-size", 1),
        enforce_eager=switch("--enforce-eager") or False,
        async_scheduling=switch("--async-scheduling"),
        enable_lora=switch("--enable-lora") or False,
        graph_mode=_text(compilation.get("cudagraph_mode")),
        attention_backend=text("--attention-backend") or _text(attention.get("backend")),
        quantization=text("--quantization"),
        scheduler_class=text("--scheduler-cls"),
        kv_role=_text(role),
        speculative=speculative,
        arguments=[str(item) for item in container.get(field) or []],
        arguments_field=field,
        environment=dict(launch.environment),
        notes=notes,
    )


def _edited_field(launch: Launch) -> Field:
    """Return the list that an edit of the speculative argument changes."""
    carrying = speculative_flags(scan(launch.tokens))
    if carrying:
        return launch.places[carrying[0].first].field
    return launch.after.field if launch.after else "args"


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _model(launch: Launch, flags: Sequence[Flag]) -> str | None:
    named = [flag.value for flag in flags if flag.name == "--model" and not flag.path]
    first = launch.tokens[0] if launch.tokens else None
    positional = first.text if first and not first.text.startswith("-") else None
    if launch.form in ("serve", "entrypoint", "sim") and positional:
        return positional
    return named[-1] if named else None


def _refuse(container: Mapping[str, Any], reason: str, message: str) -> Unreadable:
    return Unreadable(
        reason=reason, message=f"container {container.get('name', '(unnamed)')}: {message}"
    )
