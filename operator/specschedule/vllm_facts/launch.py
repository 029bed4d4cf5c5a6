"""How a container starts its server: which words of ``command`` and ``args`` are its arguments.

Knows list items, shell scripts given with ``-c``, wrappers such as tini, and images whose
entrypoint is vLLM. Everything else is refused by name: a program that is not known may change
the arguments it is given.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Any, Literal

from specschedule.core.target import Unreadable
from specschedule.vllm_facts.flags import Token
from specschedule.vllm_facts.plain import items
from specschedule.vllm_facts.shell import (
    Command,
    ShellError,
    Word,
    assignments,
    commands,
    variables_of,
)

Field = Literal["args", "command"]

OTHER_ENGINES = {
    "sglang": "SGLang",
    "text-generation-inference": "Text Generation Inference",
    "text-generation-launcher": "Text Generation Inference",
    "tritonserver": "Triton Inference Server",
    "trtllm": "TensorRT-LLM",
    "tensorrt": "TensorRT-LLM",
    "llama-server": "llama.cpp",
    "llama.cpp": "llama.cpp",
    "llama-cpp": "llama.cpp",
    "lmdeploy": "LMDeploy",
    "ollama": "Ollama",
}
_SHELLS = {"sh", "bash", "ash", "dash", "zsh", "ksh"}
_WRAPPERS = {
    "catatonit", "ddtrace-run", "dumb-init", "env", "exec", "ionice", "nice", "nohup", "numactl",
    "nsys", "opentelemetry-instrument", "setsid", "stdbuf", "taskset", "time", "tini", "uv",
}  # fmt: skip
_PYTHON = re.compile(r"python(\d(\.\d+)?)?")
_PYTHON_VALUE_OPTIONS = {"-X", "-W"}
_API_SERVER = "vllm.entrypoints.openai.api_server"
_CLI = "vllm.entrypoints.cli.main"
_VLLM_PACKAGE = re.compile(r"^vllm\b|[/+]vllm\b")
_VLLM_IMAGE = re.compile(r"(^|[-_/.])vllm([-_:@/.]|$)")
_OWN_IMAGE = re.compile(r"(^|[-_/])specschedule([-_:@/.]|$)")
_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_][-A-Za-z0-9_.]*)\)")


@dataclass(frozen=True)
class Place:
    """Where an argument stands: an item of a list, or a span of bytes in that item's script.

    A span is not ``exact`` where Kubernetes puts the text in, so that it cannot be edited there.
    """

    field: Field
    item: int
    span: tuple[int, int] | None = None
    exact: bool = True


@dataclass(frozen=True)
class Launch:
    """The arguments of a vLLM server.

    ``form`` is serve, module, entrypoint or sim; ``after`` is the place behind which an argument
    can be added when there is none yet (None: at the end of ``args``). ``environment`` holds the
    variables of the server with their values, ``unread`` the names of those whose values are not
    known.
    """

    form: str
    tokens: tuple[Token, ...]
    places: tuple[Place, ...]
    after: Place | None
    environment: Mapping[str, str]
    unread: frozenset[str] = frozenset()

    @property
    def scripted(self) -> bool:
        """Whether the arguments stand in a shell script."""
        return self.after is not None and self.after.span is not None


@dataclass(frozen=True)
class _Word:
    token: Token
    place: Place
    single: bool = True


@dataclass(frozen=True)
class _Found:
    """A server in the words of a container: its arguments, and what is set in front of it."""

    form: str
    words: Sequence[_Word]
    last: _Word
    sets: tuple[Mapping[str, str | None], ...] = ()
    cleared: bool = False

    def behind(self, front: Sequence[_Word]) -> "_Found":
        """Return it with what ``env`` among the words in front sets, before anything else."""
        at = next((i for i, word in enumerate(front) if _base(word) == "env"), len(front))
        options = [word.token.text for word in front[at + 1 :]]
        unset = {
            after if option in ("-u", "--unset") else option.removeprefix("--unset=")
            for option, after in pairwise([*options, ""])
            if option in ("-u", "--unset") or option.startswith("--unset=")
        }
        values = [
            Word(0, 0, word.token.text, word.token.unknown or not word.single)
            for word in front[at + 1 :]
        ]
        sets = (dict.fromkeys(unset), assignments(values), *self.sets)
        cleared = any(each in ("-i", "-", "--ignore-environment") for each in options)
        return replace(self, sets=sets, cleared=self.cleared or cleared)


def environment_of(
    container: Mapping[str, Any], resolved: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the environment variables whose values are known.

    Args:
        container: The container.
        resolved: Values of variables that come from elsewhere (``valueFrom``, ``envFrom``).
    """
    given = dict(resolved or {})
    known = dict(given)
    entries = [
        entry
        for entry in items(container.get("env"))
        if isinstance(entry, Mapping) and "name" in entry
    ]
    elsewhere = {str(entry["name"]) for entry in entries if "valueFrom" in entry} - set(given)
    for entry in entries:
        name = str(entry["name"])
        value = _expand(str(entry.get("value") or ""), known, elsewhere)
        known.pop(name, None)
        if "valueFrom" not in entry and not value.unknown:
            known[name] = value.text
        elif "valueFrom" in entry and name in given:
            known[name] = given[name]
    return known


def _in_effect(
    launch: Launch | Unreadable,
    container: Mapping[str, Any],
    changes: Sequence[Mapping[str, str | None]],
    *,
    cleared: bool = False,
) -> Launch | Unreadable:
    """Return the launch with the variables that its server sees, after what starts it set some."""
    if isinstance(launch, Unreadable):
        return launch
    known = {} if cleared else dict(launch.environment)
    unread = set() if cleared else set(_named(container)) - set(known)
    for change in changes:
        for name, value in change.items():
            known.pop(name, None)
            unread.discard(name)
            if value is None:
                unread.add(name)
            else:
                known[name] = value
    return replace(launch, environment=known, unread=frozenset(unread))


def launch_of(
    container: Mapping[str, Any], resolved: Mapping[str, str] | None = None
) -> Launch | Unreadable:
    """Return the server's arguments, or why they cannot be found."""
    environment = environment_of(container, resolved)
    unknown = _names_unknown(container, environment)
    words: list[_Word] = []
    lists: tuple[Field, ...] = ("command", "args")
    for field in lists:
        listed = container.get(field) or []
        if not isinstance(listed, list):
            return refuse(container, "BadManifest", f"{field} is not a list of strings")
        words += [
            _Word(_expand(str(item), environment, unknown), Place(field, at))
            for at, item in enumerate(listed)
        ]
    if engine := _other_engine(container, words):
        return refuse(container, "EngineNotSupported", f"it runs {engine}; only vLLM can be tuned")
    if not container.get("command"):
        return _in_effect(_from_image(container, words, environment), container, [])
    found = _find(container, words, environment, unknown)
    if isinstance(found, Unreadable):
        return found
    if not container.get("args") and found.last.place.span is None:
        # The command holds everything, so an argument is added there.
        after = found.last.place
    elif found.last.place.span is None:
        after = words[-1].place
    else:
        after = found.last.place
    launch = _launch(container, found.form, found.words, after, environment)
    return _in_effect(launch, container, found.sets, cleared=found.cleared)


def _launch(
    container: Mapping[str, Any],
    form: str,
    words: Sequence[_Word],
    after: Place | None,
    environment: Mapping[str, str],
) -> Launch | Unreadable:
    hidden = next((word for word in words if not word.single), None)
    if hidden:
        return refuse(
            container,
            "UnresolvedVariable",
            f"{hidden.token.text} is not known here and may hold several arguments; write them out",
        )
    return Launch(
        form,
        tuple(word.token for word in words),
        tuple(word.place for word in words),
        after,
        environment,
    )


def _from_image(
    container: Mapping[str, Any], words: Sequence[_Word], environment: Mapping[str, str]
) -> Launch | Unreadable:
    """Arguments without a command go to the image's own entrypoint."""
    image = str(container.get("image") or "")
    last = words[-1].place if words else None
    if _OWN_IMAGE.search(image) and words and words[0].token.text == "sim":
        return _launch(container, "sim", words[1:], last, environment)
    if not _VLLM_IMAGE.search(image):
        return refuse(
            container,
            "UnknownEntrypoint",
            f"it has no command, and what image {image or '(none)'} starts is not known; write "
            "command: [vllm, serve]",
        )
    if words and PurePosixPath(words[0].token.text).name in {"vllm", *_SHELLS, "python", "python3"}:
        return refuse(
            container,
            "UnknownEntrypoint",
            f"args begin with {words[0].token.text} but there is no command; move it to command",
        )
    if words and words[0].token.text == "serve":
        return _launch(container, "serve", words[1:], last, environment)
    return _launch(container, "entrypoint", words, last, environment)


def _find(
    container: Mapping[str, Any],
    words: Sequence[_Word],
    environment: Mapping[str, str],
    unknown: set[str] | None,
) -> _Found | Unreadable:
    """Return the server that the container's words start."""
    if direct := _launcher(words):
        return direct
    at = 0
    if _base(words[0]) in _WRAPPERS:
        at = next((i for i, word in enumerate(words) if _base(word) in _SHELLS), 0)
    if _base(words[at]) not in _SHELLS:
        if not (names_vllm(container) or _may_be_script(words[0])):
            return refuse(
                container,
                "NoVllmContainer",
                f"its command is {words[0].token.text}, which does not start vLLM; name the "
                "container that does in spec.target.container",
            )
        return refuse(
            container,
            "EntryScript",
            f"its command is {words[0].token.text}, which may change the arguments it is given; "
            "start vllm serve itself",
        )
    script_at = next(
        (
            i + 1
            for i, word in enumerate(words[at + 1 :], at + 1)
            if re.fullmatch(r"-[a-z]*c[a-z]*", word.token.text)
        ),
        None,
    )
    if script_at is None or script_at >= len(words):
        return refuse(
            container,
            "EntryScript",
            f"its command is {' '.join(w.token.text for w in words[at : at + 2])}, a script whose "
            "text is in the image; start vllm serve itself",
        )
    found = _find_in_script(container, words[script_at].place, environment, unknown)
    return found if isinstance(found, Unreadable) else found.behind(words[:at])


def _find_in_script(
    container: Mapping[str, Any],
    place: Place,
    environment: Mapping[str, str],
    unknown: set[str] | None,
) -> _Found | Unreadable:
    script = str(container[place.field][place.item])

    try:
        text = _Expanded(script, environment, unknown)
        # A name that is set nowhere may still come with the image.
        read = commands(text.text, environment.get)
    except ShellError as error:
        return refuse(
            container,
            "UnsupportedShell",
            f"its script cannot be read exactly: {error}; start vllm serve without a shell",
        )
    found: list[tuple[int, _Found]] = []
    for at, command in enumerate(read):
        words = [
            _Word(
                Token(word.value, word.unknown),
                text.place(place, word.start, word.end),
                word.single,
            )
            for word in command.words
        ]
        if server := _launcher(words):
            found.append((at, server))
    if not found:
        return refuse(
            container, "EntryScript", "its script does not start vllm serve itself; let it do so"
        )
    if len(found) > 1:
        return refuse(
            container,
            "SeveralServers",
            f"its script starts vLLM {len(found)} times; which one runs is not known",
        )
    at, server = found[0]
    if doubt := _doubt(read, at):
        return refuse(container, "UnsupportedShell", f"its script {doubt}")
    present = {*environment, *_named(container)}
    return replace(server, sets=(variables_of(read, at, present), *server.sets))


def _doubt(read: Sequence[Command], at: int) -> str | None:
    """Return why the command that starts the server may not be what it looks like."""
    server = read[at]
    if server.guard:
        return f"starts vLLM behind {server.guard}: whether it runs is not known; start it outside"
    names = {PurePosixPath(word.value).name for word in server.words}
    for command in read[:at]:
        values = [word.value for word in command.words]
        if command.defines and values[0] in names:
            return f"defines a function {values[0]}, which runs instead; take it away"
        aliases = {value.partition("=")[0] for value in values[1:] if values[0] == "alias"}
        if aliases & names:
            return f"has an alias {', '.join(aliases & names)}, which runs instead; take it away"
        package = next((value for value in values if _VLLM_PACKAGE.search(value)), None)
        if "install" in values and package:
            return (
                f"installs {package}, so the image does not tell which vLLM runs; build it into "
                "the image"
            )
    return None


def _launcher(words: Sequence[_Word]) -> _Found | None:
    """Return the server that is started here, if one is."""
    if not words:
        return None

    def found(form: str, program: int, first: int) -> _Found:
        return _Found(form, words[first:], words[-1]).behind(words[:program])

    starts = range(len(words)) if _base(words[0]) in _WRAPPERS else range(1)
    for at in starts:
        texts = [word.token.text for word in words[at : at + 12]]
        base = _base(words[at])
        if base == "vllm" and texts[1:2] == ["serve"]:
            return found("serve", at, at + 2)
        if base == "specschedule" and texts[1:2] == ["sim"]:
            return found("sim", at, at + 2)
        if not _PYTHON.fullmatch(base):
            continue
        i = 1
        while i < len(texts) and texts[i].startswith("-") and texts[i] != "-m":
            i += 2 if texts[i] in _PYTHON_VALUE_OPTIONS else 1
        if texts[i : i + 2] == ["-m", _API_SERVER]:
            return found("module", at, at + i + 2)
        if texts[i : i + 3] == ["-m", _CLI, "serve"]:
            return found("serve", at, at + i + 3)
        if texts[i : i + 3] == ["-m", "specschedule.cli.main", "sim"]:
            return found("sim", at, at + i + 3)
    return None


def names_vllm(container: Mapping[str, Any]) -> bool:
    """Whether the container's image or words mention vLLM, however it is started."""
    texts = [str(container.get("image") or "")]
    for field in ("command", "args"):
        texts += [str(item) for item in items(container.get(field))]
    return any(_VLLM_IMAGE.search(text) for text in texts)


def _may_be_script(word: _Word) -> bool:
    base = PurePosixPath(_base(word))
    return (
        base.suffix in (".sh", ".bash", ".py")
        or "entrypoint" in base.stem
        or bool(_PYTHON.fullmatch(base.name))
    )


def _other_engine(container: Mapping[str, Any], words: Sequence[_Word]) -> str | None:
    """Return the engine that the image or the program names; what it is given may name any."""
    said = [str(container.get("image") or "").lower()]
    if container.get("command") and not _launcher(words):
        said += [text for word in words[:3] if "vllm" not in (text := word.token.text.lower())]
    for text in said:
        for mark, engine in OTHER_ENGINES.items():
            if mark in text and not ("vllm" in text and mark != "sglang"):
                return engine
    return None


def _base(word: _Word) -> str:
    return PurePosixPath(word.token.text).name


def _names_unknown(container: Mapping[str, Any], environment: Mapping[str, str]) -> set[str] | None:
    """Return the variables without a known value; None when there may be any."""
    if any(isinstance(source, Mapping) for source in items(container.get("envFrom"))):
        return None
    return set(_named(container)) - set(environment)


def _named(container: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of the container's own variables."""
    for entry in items(container.get("env")):
        if isinstance(entry, Mapping) and "name" in entry:
            yield str(entry["name"])


def _expand(text: str, environment: Mapping[str, str], unknown: set[str] | None) -> Token:
    """Put values in for ``$(NAME)`` as Kubernetes does."""
    if "$" not in text:
        return Token(text)
    pieces = list(_pieces(text, environment, unknown))
    return Token("".join(piece for _, piece, _ in pieces), any(hidden for *_, hidden in pieces))


def _pieces(
    text: str, environment: Mapping[str, str], unknown: set[str] | None
) -> Iterator[tuple[int, str, bool]]:
    """Yield what Kubernetes makes of a text: (where it stood, what it became, not known).

    ``$$`` stands for ``$``; a name that no variable has stays as it is.
    """
    at = 0
    for match in _REFERENCE.finditer(text):
        yield from ((i, text[i], False) for i in range(at, match.start()))
        name = match.group(1)
        if name is None:
            yield match.start(), "$", False
        elif name in environment:
            yield match.start(), environment[name], False
        else:
            yield match.start(), match.group(0), unknown is None or name in unknown
        at = match.end()
    yield from ((i, text[i], False) for i in range(at, len(text)))


class _Expanded:
    """A script as the shell gets it, which knows where each character stood before."""

    def __init__(
        self, script: str, environment: Mapping[str, str], unknown: set[str] | None
    ) -> None:
        self.text = ""
        self._stood: dict[int, int] = {}
        for at, piece, hidden in _pieces(script, environment, unknown):
            if hidden:
                raise ShellError(f"{piece} is not known here")
            self._stood.setdefault(len(self.text), at)
            self.text += piece
        self._stood[len(self.text)] = len(script)

    def place(self, script: Place, start: int, end: int) -> Place:
        """Return the place of a span of the expanded text."""
        exact = start in self._stood and end in self._stood
        span = (self._stood.get(start, 0), self._stood.get(end, 0))
        return Place(script.field, script.item, span, exact)


def refuse(container: Mapping[str, Any], reason: str, message: str) -> Unreadable:
    """Say why a container cannot be tuned, with its name in front."""
    return Unreadable(
        reason=reason, message=f"container {container.get('name', '(unnamed)')}: {message}"
    )
