"""Changing the one speculative argument of a container, and nothing else.

An edit keeps every other byte and is proven before it is handed out: the edited container is
read again and must differ in the speculative config only. What cannot be edited exactly is
refused by name.

Where the container's scheduler is ours, the additional config holds the table of a config with rows
by context (``vllm_facts/by_context.py``). It is written anew then, in one way whatever the config,
so that the same template is the same without it.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from specschedule.core.target import Unreadable
from specschedule.vllm_facts.by_context import apart, config_of, follows, others_in
from specschedule.vllm_facts.flags import (
    ADDITIONAL,
    COMPILATION,
    SPECULATIVE,
    Flag,
    FlagError,
    Token,
    canonical_head,
    json_object,
    scan,
    speculative_flags,
    speculative_of,
    write_dotted,
    write_json,
)
from specschedule.vllm_facts.launch import Field, Launch, Place, launch_of, refuse
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


def with_speculative(
    container: Mapping[str, Any],
    speculative: Mapping[str, Any] | None,
    *,
    graph_mode: str | None = None,
    added: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> ArgumentEdit | Unreadable:
    """Return the edit that gives the server exactly this speculative config.

    Args:
        container: The container of the pod template, one that ``read_container`` reads: what a
            ``--config`` file holds is checked there.
        speculative: The config; None takes the argument away in all its forms.
        graph_mode: ``cudagraph_mode`` to add to the compilation config; None leaves that alone.
        added: More arguments to put behind all others.
        environment: As for ``read_container``.
    """
    launch = launch_of(container, environment)
    if isinstance(launch, Unreadable):
        return launch
    try:
        extra = _compilation(launch, graph_mode) if graph_mode is not None else []
        extra += added
        changes, added_here = _edit(scan(launch.tokens), speculative)
        edited = _render(container, launch, changes, [*added_here, *extra])
        if isinstance(edited, Unreadable):
            return edited
        return _proven(container, launch, edited, speculative, extra, graph_mode, environment)
    except FlagError as error:
        return refuse(container, "UnsupportedArgumentForm", str(error))


def with_added(
    container: Mapping[str, Any],
    added: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
) -> ArgumentEdit | Unreadable:
    """Return the edit that puts arguments behind all others and leaves those as they are.

    Args:
        container: As for ``with_speculative``.
        added: The arguments.
        environment: As for ``read_container``.
    """
    launch = launch_of(container, environment)
    if isinstance(launch, Unreadable):
        return launch
    try:
        edited = _render(container, launch, {}, added)
        if isinstance(edited, Unreadable):
            return edited
        speculative = config_of(scan(launch.tokens))
        return _proven(container, launch, edited, speculative, added, None, environment)
    except FlagError as error:
        return refuse(container, "UnsupportedArgumentForm", str(error))


def edited_container(container: Mapping[str, Any], edit: ArgumentEdit) -> dict[str, Any]:
    """Return the container with an edit made."""
    changed = dict(container)
    if edit.new:
        changed[edit.field] = list(edit.new)
    else:
        changed.pop(edit.field, None)
    return changed


def _compilation(launch: Launch, graph_mode: str) -> list[str]:
    """Return arguments that, added at the end, change nothing but the graph mode.

    In vLLM the last whole form counts, and dotted forms replace whole ones altogether.
    """
    flags = [flag for flag in scan(launch.tokens) if flag.name == COMPILATION]
    dotted = [canonical_head(flag) for flag in flags if flag.path]
    if dotted:
        return [f"{list(dict.fromkeys(dotted))[-1]}.cudagraph_mode={graph_mode}"]
    own = json_object(flags, COMPILATION) or {}
    return [COMPILATION, write_json(own | {"cudagraph_mode": graph_mode})]


@dataclass(frozen=True)
class _Change:
    """What happens to one token: another text, none at all, or only texts put behind it."""

    kind: Literal["replace", "remove", "keep"]
    text: str = ""
    behind: tuple[str, ...] = ()


_Edit = tuple[dict[int, _Change], list[str]]
"""What happens to tokens, and what is added behind all of them."""


def _edit(flags: Sequence[Flag], speculative: Mapping[str, Any] | None) -> _Edit:
    if not follows(flags):
        return _speculative(flags, speculative)
    speculative, table = apart(speculative)
    (changes, added), (more, behind) = _speculative(flags, speculative), _additional(flags, table)
    return changes | more, [*added, *behind]


def _speculative(flags: Sequence[Flag], speculative: Mapping[str, Any] | None) -> _Edit:
    carrying = speculative_flags(flags)
    before = speculative_of(flags)
    if speculative is None:
        return _removals(carrying), []
    written = write_json(dict(speculative))
    if not carrying:
        return {}, [SPECULATIVE, written]
    if before == dict(speculative) and _plainly_once(carrying):
        return {}, []
    if _all_dotted(carrying) and (dotted := _dotted_changes(carrying, before or {}, speculative)):
        return dotted, []
    return _written_once(carrying, _first_to_keep(carrying), SPECULATIVE, written), []


def _additional(flags: Sequence[Flag], table: dict[str, Any]) -> _Edit:
    carrying = [flag for flag in flags if flag.name == ADDITIONAL]
    after = others_in(flags) | table
    if not after:
        return _removals(carrying), []
    if not carrying:
        return {}, [ADDITIONAL, write_json(after)]
    return _written_once(carrying, carrying[-1], ADDITIONAL, write_json(after)), []


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
    return {at: _Change("remove") for flag in flags for at in range(flag.first, flag.last + 1)}


def _written_once(
    carrying: Sequence[Flag], kept: Flag, name: str, value: str
) -> dict[int, _Change]:
    """Write a value whole in the place of one of the flags that carry it, and nowhere else."""
    changes = _removals([flag for flag in carrying if flag is not kept])
    written = name if kept.path or kept.name != name else kept.written
    if kept.joined:
        return changes | {kept.first: _Change("replace", f"{written}={value}")}
    if written != kept.written:
        changes[kept.first] = _Change("replace", written)
    return changes | {kept.last: _Change("replace", value)}


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
            changes[flag.last] = _Change("replace", text)
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
        changes[at] = replace(changes.get(at, _Change("keep")), behind=behind)
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
        return refuse(
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
            if change.kind != "remove":
                new.append(_escaped(change.text) if change.kind == "replace" else text)
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
        removed = change.kind == "remove"
        before = launch.places[at - 1] if at and removed else launch.places[at]
        if not (launch.places[at].exact and before.exact):
            return refuse(
                container,
                "UnsupportedShell",
                "a variable puts its speculative argument in; write the argument out",
            )
        behind = "".join(f" {quote(_escaped(text))}" for text in change.behind)
        if not removed:
            text = _word(change.text) if change.kind == "replace" else script[start:end]
            pieces.append((start, end, text + behind))
            continue
        gap_start = spans[at - 1][1] if at else start
        if not at or not _BLANKS.fullmatch(script[gap_start:start]):
            return refuse(
                container,
                "UnsupportedShell",
                "something stands between its arguments; write the speculative argument apart",
            )
        pieces.append((gap_start, end, behind))
    if added and not launch.after.exact:
        return refuse(
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
    graph_mode: str | None,
    environment: Mapping[str, str] | None,
) -> ArgumentEdit | Unreadable:
    """Read the edited container again: the config is the wanted one, all else is as it was."""
    again = launch_of(edited_container(container, edit), environment)
    if isinstance(again, Launch):
        wanted = None if speculative is None else dict(speculative)
        edited = again.tokens[: len(again.tokens) - len(extra)]
        compiled = json_object(scan(again.tokens), COMPILATION) or {}
        if (
            config_of(scan(edited)) == wanted
            and _others(edited) == _others(launch.tokens)
            and graph_mode in (None, compiled.get("cudagraph_mode"))
        ):
            return edit
    return refuse(
        container,
        "UnsupportedArgumentForm",
        "its arguments cannot be changed exactly; write them as list items of args",
    )


def _others(tokens: Sequence[Token]) -> tuple[list[str], dict[str, Any]]:
    """Return the arguments that no edit changes, and what stays of one that is written anew."""
    flags = scan(tokens)
    ours = follows(flags)
    changed = [*speculative_flags(flags), *(f for f in flags if ours and f.name == ADDITIONAL)]
    gone = {at for flag in changed for at in range(flag.first, flag.last + 1)}
    texts = [token.text for at, token in enumerate(tokens) if at not in gone]
    return texts, others_in(flags) if ours else {}
