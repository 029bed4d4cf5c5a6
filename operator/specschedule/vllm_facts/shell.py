"""The words of a shell script with the bytes they stand at, for scripts that start a server.

Reads the part of the POSIX shell language that start scripts use. A word whose text depends on
something that is not known here says so; constructs that could hide words are refused.
"""

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_BRACED = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\+?=")
_PLAIN = re.compile(r"[-A-Za-z0-9_./:=@,+%]*")
_SPECIAL = re.compile(r"\$[0-9@*#?!$-]")
_OPENING = {"if", "case", "while", "until", "for", "select"}
_CLOSING = {"fi", "esac", "done", "}"}
_BETWEEN = {"then", "else", "elif", "do", "!", "time"}
_LOOPS = {"while", "until", "for", "select"}
_SETTING = {"export", "declare", "typeset", "readonly", "local"}

Lookup = Callable[[str], str | None]
"""Returns a variable's value; None when it is not known."""


class ShellError(ValueError):
    """The script uses something that could hide words of a command."""


@dataclass
class Word:
    """One word of a command.

    ``value`` is exact unless ``unknown``; an unknown word is surely one word only if ``single``.
    """

    start: int
    end: int
    value: str = ""
    unknown: bool = False
    single: bool = True


@dataclass
class Command:
    """A simple command without its redirections and reserved words."""

    words: list[Word]
    """Program and arguments; none where it only assigns."""
    assigned: list[Word] = field(default_factory=list)
    """The assignments in front."""
    joined: str = ""
    """What joins it to the command before, such as ``&&``."""
    guard: str | None = None
    """What decides whether it runs: if, case, a function's call, or ``||``."""
    sometimes: bool = False
    """Whether it may run in a shell of its own, more than once or not at all."""
    defines: bool = False
    """Whether it is no command but the name of a function whose body follows."""


def quote(text: str) -> str:
    """Write a text as one shell word."""
    return text if text and _PLAIN.fullmatch(text) else "'" + text.replace("'", "'\\''") + "'"


def commands(script: str, variables: Lookup) -> list[Command]:
    """Return the simple commands of a script, in order.

    Args:
        script: The text after ``sh -c``, as the shell gets it.
        variables: Values for ``$NAME``; not asked for names that the script itself sets.

    Raises:
        ShellError: The script cannot be read with certainty.
    """
    own = _names_set_by(script)
    reader = _Reader(script, lambda name: None if name in own else variables(name))
    return _simple_commands(reader.read())


def variables_of(
    read: Sequence[Command], at: int, present: Collection[str]
) -> dict[str, str | None]:
    """Return the variables that a script gives to one of its commands; None: value not known.

    Args:
        read: The commands of the script.
        at: Position of the command.
        present: Variables that the shell itself was given: it hands on what it assigns to those.
    """
    set_: dict[str, str | None] = {}
    handed_on = set(present)
    everything = False
    for i, command in enumerate(read[:at]):
        first = command.words[0].value if command.words else None
        words = (
            command.words[1:] if first in _SETTING else command.assigned if first is None else []
        )
        if first in _SETTING:
            handed_on.update(word.value.partition("=")[0].rstrip("+") for word in words)
        everything = everything or (first == "set" and any("a" in w.value for w in command.words))
        if first == "unset":
            set_.update((word.value, None) for word in command.words[1:])
        all_and = all(each.joined == "&&" for each in read[i + 1 : at + 1])
        doubtful = command.sometimes or (command.joined in ("&&", "||") and not all_and)
        for word in words:
            if match := _ASSIGNMENT.match(word.value):
                plain = not (doubtful or word.unknown or "+" in match.group(0))
                set_[match.group(1)] = word.value[match.end() :] if plain else None
    mine = {name: value for name, value in set_.items() if everything or name in handed_on}
    return mine | assignments(read[at].assigned)


def assignments(words: Sequence[Word]) -> dict[str, str | None]:
    """Return what ``NAME=value`` words assign; None where a value is not known."""
    found = ((_ASSIGNMENT.match(word.value), word) for word in words)
    return {
        match.group(1): None if word.unknown or "+" in match.group(0) else word.value[match.end() :]
        for match, word in found
        if match
    }


def _names_set_by(script: str) -> set[str]:
    """Return every name that the script might set; too many do no harm."""
    assigned = {match.group(1) for match in _ASSIGNMENT.finditer(script)}
    taken = re.findall(r"\b(?:for|read|unset|getopts)\s+(?:-\w+\s+)*([A-Za-z_]\w*)", script)
    return assigned | set(taken)


def _simple_commands(lines: Sequence[tuple[str, list[Word]]]) -> list[Command]:
    """Tell commands from the words of the language around them, and what those make of them."""
    out: list[Command] = []
    frames: list[str] = []
    depth = 0
    body_follows = False
    for i, (before, words) in enumerate(lines):
        depth = max(0, depth + before.count("(") - before.count(")"))
        joined = before.strip("\n")
        at = 0
        while at < len(words):
            value = words[at].value
            if value in _OPENING:
                frames.append(value)
            elif value in _CLOSING and frames:
                frames.pop()
            elif value == "{":
                frames.append("function" if body_follows else "{")
                body_follows = False
            elif value not in _BETWEEN and value != "function":
                break
            at += 1
            if value in ("case", "for", "select"):
                at = len(words)
            if value == "function":
                break
        named = at > 0 and words[at - 1].value == "function"
        rest = words[at:]
        called = i + 1 < len(lines) and lines[i + 1][0].startswith("()") and len(rest) == 1
        if rest and (named or called):
            out.append(Command(rest[:1], defines=True))
            opened = len(rest) > 1 and rest[1].value == "{"
            frames += ["function"] if opened else []
            body_follows = not opened
            rest = rest[2:]
        count = next((n for n, w in enumerate(rest) if not _ASSIGNMENT.match(w.value)), len(rest))
        if not rest:
            continue
        guards = [frame for frame in frames if frame not in _LOOPS and frame != "{"]
        guard = next(iter(guards), "||" if joined == "||" else None)
        sometimes = guard is not None or depth > 0 or bool(_LOOPS & set(frames))
        out.append(Command(rest[count:], rest[:count], joined, guard, sometimes))
    return out


class _Reader:
    """Reads a script once, from left to right."""

    def __init__(self, script: str, variables: Lookup) -> None:
        self._text = script
        self._at = 0
        self._variables = variables

    def read(self) -> list[tuple[str, list[Word]]]:
        """Return the words between operators, with the operators that stand before them."""
        lines: list[tuple[str, list[Word]]] = [("", [])]
        target_follows = False
        while self._at < len(self._text):
            here = self._text[self._at]
            if self._text.startswith("\\\n", self._at):
                self._at += 2
            elif here in " \t":
                self._at += 1
            elif here == "#":
                end = self._text.find("\n", self._at)
                self._at = len(self._text) if end < 0 else end
            elif here in "<>" or self._text.startswith("&>", self._at):
                self._redirection()
                target_follows = True
            elif here in "\n;&|()":
                self._at += 1
                if lines[-1][1]:
                    lines.append(("", []))
                lines[-1] = (lines[-1][0] + here, [])
            else:
                word = self._word()
                digits = word.value.isdigit() and self._text[self._at : self._at + 1] in ("<", ">")
                if target_follows:
                    target_follows = False
                elif not digits:
                    lines[-1][1].append(word)
        for _, words in lines:
            if words and words[0].value in ("eval", "source", "."):
                raise ShellError(f"{words[0].value} can set any variable")
        return lines

    def _redirection(self) -> None:
        if self._text.startswith(("<<", "<("), self._at):
            raise ShellError("it has a here-document or a process substitution")
        while self._at < len(self._text) and self._text[self._at] in "<>&|":
            self._at += 1

    def _word(self) -> Word:
        word = Word(self._at, self._at)
        if self._text[self._at] == "~":
            word.unknown = True
        while self._at < len(self._text):
            here = self._text[self._at]
            if here in " \t\n;&|()<>" or self._text.startswith("\\\n", self._at):
                break
            if here == "'":
                self._single_quoted(word)
            elif here == '"':
                self._double_quoted(word)
            elif here == "\\":
                word.value += self._text[self._at + 1 : self._at + 2]
                self._at += 2
            elif here in "$`":
                self._expansion(word, quoted=False)
            else:
                if here in "*?[":
                    word.unknown = True
                if here == "{":
                    word.unknown, word.single = True, False
                word.value += here
                self._at += 1
        word.end = min(self._at, len(self._text))
        if word.value == "{":
            word.unknown, word.single = False, True
        return word

    def _single_quoted(self, word: Word) -> None:
        end = self._text.find("'", self._at + 1)
        if end < 0:
            raise ShellError("a quote is not closed")
        word.value += self._text[self._at + 1 : end]
        self._at = end + 1

    def _double_quoted(self, word: Word) -> None:
        self._at += 1
        while self._at < len(self._text):
            here = self._text[self._at]
            if here == '"':
                self._at += 1
                return
            if here == "\\" and self._text[self._at + 1 : self._at + 2] in ('"', "\\", "$", "`"):
                word.value += self._text[self._at + 1]
                self._at += 2
            elif self._text.startswith("\\\n", self._at):
                self._at += 2
            elif here in "$`":
                self._expansion(word, quoted=True)
            else:
                word.value += here
                self._at += 1
        raise ShellError("a quote is not closed")

    def _expansion(self, word: Word, *, quoted: bool) -> None:
        rest = self._text[self._at :]
        if match := _BRACED.match(rest) or re.match(rf"\$({_NAME.pattern})", rest):
            value = self._variables(match.group(1))
            self._at += match.end()
            if value is None or (not quoted and not (value and _PLAIN.fullmatch(value))):
                word.unknown = True
                word.single = word.single and quoted
                word.value += match.group(0)
            else:
                word.value += value
            return
        start = self._at
        if rest.startswith(("$(", "`")):
            self._skip_substitution()
        elif rest.startswith("${"):
            self._skip_to("}")
        elif match := _SPECIAL.match(rest):
            self._at += match.end()
        elif rest.startswith("$'"):
            raise ShellError("it has a $'...' quote")
        else:
            word.value += "$"
            self._at += 1
            return
        word.unknown = True
        # "$@" is several words even between quotes.
        word.single = word.single and quoted and not rest.startswith("$@")
        word.value += self._text[start : self._at]

    def _skip_to(self, end: str) -> None:
        found = self._text.find(end, self._at)
        if found < 0:
            raise ShellError("an expansion is not closed")
        self._at = found + 1

    def _skip_substitution(self) -> None:
        if self._text[self._at] == "`":
            self._at += 1
            self._skip_to("`")
            return
        depth = 0
        self._at += 1
        while self._at < len(self._text):
            here = self._text[self._at]
            self._at += 1
            if here == "(":
                depth += 1
            elif here == ")":
                depth -= 1
                if depth == 0:
                    return
            elif here in "'\"":
                self._skip_to(here)
        raise ShellError("an expansion is not closed")
