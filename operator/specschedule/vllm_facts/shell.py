"""The words of a shell script with the bytes they stand at, for scripts that start a server.

Reads the part of the POSIX shell language that start scripts use. A word whose text depends on
something that is not known here says so; constructs that could hide words are refused.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_BRACED = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\+?=")
_PLAIN = re.compile(r"[-A-Za-z0-9_./:=@,+%]*")
_SPECIAL = re.compile(r"\$[0-9@*#?!$-]")
_RESERVED = {"if", "then", "else", "elif", "do", "while", "until", "!", "{", "time"}

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
    """A simple command without its redirections, reserved words and assignments."""

    words: list[Word] = field(default_factory=list)


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
    return [Command(_bare(words)) for words in reader.read() if _bare(words)]


def _names_set_by(script: str) -> set[str]:
    """Return every name that the script might set; too many do no harm."""
    assigned = {match.group(1) for match in _ASSIGNMENT.finditer(script)}
    taken = re.findall(r"\b(?:for|read|unset|getopts)\s+(?:-\w+\s+)*([A-Za-z_]\w*)", script)
    return assigned | set(taken)


def _bare(words: list[Word]) -> list[Word]:
    """Drop reserved words and assignments in front of a command."""
    at = 0
    while at < len(words) and (words[at].value in _RESERVED or _ASSIGNMENT.match(words[at].value)):
        at += 1
    return words[at:]


class _Reader:
    """Reads a script once, from left to right."""

    def __init__(self, script: str, variables: Lookup) -> None:
        self._text = script
        self._at = 0
        self._variables = variables

    def read(self) -> list[list[Word]]:
        lines: list[list[Word]] = [[]]
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
                lines.append([])
            else:
                word = self._word()
                digits = word.value.isdigit() and self._text[self._at : self._at + 1] in ("<", ">")
                if target_follows:
                    target_follows = False
                elif not digits:
                    lines[-1].append(word)
        for line in lines:
            if line and line[0].value in ("eval", "source", "."):
                raise ShellError(f"{line[0].value} can set any variable")
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
