"""vLLM's command line, flag by flag, refused in argparse's words where vLLM would refuse it."""

from collections.abc import Callable, Sequence
from typing import Any

from specschedule.sim.known_flags import TAKES_SEVERAL, TAKES_VALUE
from specschedule.vllm_facts import flags
from specschedule.vllm_facts.flags import Flag, FlagError, Token


class Refused(Exception):
    """vLLM would exit before loading the model.

    Attributes:
        status: Exit status.
        message: What vLLM prints last.
    """

    def __init__(self, message: str, status: int = 1) -> None:
        super().__init__(message)
        self.message = message
        self.status = status


class Arguments:
    """vLLM's arguments by flag.

    Args:
        argv: The words after the program, with or without ``serve`` before them.
        read_file: Reads the file of ``--config``.

    Raises:
        Refused: There is a flag or a word that vLLM does not know.
    """

    def __init__(self, argv: Sequence[str], read_file: Callable[[str], str] | None) -> None:
        tokens = [Token(text) for text in argv]
        if tokens and tokens[0].text == "serve":
            tokens = tokens[1:]
        try:
            flags_given = flags.scan(tokens)
            for flag in flags_given:
                if flag.name == "--config" and flag.value and read_file is not None:
                    from_file = flags.config_file_tokens(read_file(flag.value))
                    tokens = [*from_file, *tokens]
                    flags_given = flags.scan(tokens)
                    break
        except (FlagError, OSError) as error:
            raise Refused(f"vllm serve: error: {error}", 2) from error
        self._tokens, self._flags = tokens, flags_given
        spare = self._spare()
        self.positional = spare[0] if spare else None
        unknown = [flag.written for flag in flags_given if not _known(flag.name)] + spare[1:]
        if unknown:
            raise Refused(f"vllm: error: unrecognized arguments: {' '.join(unknown)}", 2)

    def text(self, name: str) -> str | None:
        """Return the last value of a flag."""
        values = [flag.value for flag in self._flags if flag.name == name and not flag.path]
        return values[-1] if values else None

    def texts(self, name: str) -> tuple[str, ...]:
        """Return all values of a flag that takes several."""
        found: tuple[str, ...] = ()
        for flag in self._flags:
            if flag.name == name and flag.value is not None:
                found = (flag.value, *self._following(flag))
        return found

    def number(self, name: str, default: int) -> int:
        """Return a flag's whole number.

        Raises:
            Refused: It is none.
        """
        given = [flag for flag in self._flags if flag.name == name]
        if not given:
            return default
        try:
            return flags.integer(given[-1])
        except FlagError:
            raise Refused(
                f"vllm serve: error: argument {name}: invalid int value: {given[-1].value!r}", 2
            ) from None

    def switch(self, name: str, *, default: bool) -> bool:
        """Return a flag that stands alone, or its ``--no-`` form."""
        for flag in reversed(self._flags):
            if flag.name == name:
                return flag.value is None or flag.value.lower() == "true"
            if flag.name == f"--no-{name.removeprefix('--')}":
                return False
        return default

    def json(self, name: str) -> dict[str, Any] | None:
        """Return a flag's JSON object, whole and dotted forms together.

        Raises:
            Refused: It is none.
        """
        try:
            return flags.json_object(self._flags, name)
        except FlagError as error:
            raise Refused(f"vllm serve: error: argument {name}: {error}", 2) from None

    @property
    def non_default(self) -> dict[str, Any]:
        """Arguments given, by vLLM's names, for its log line."""
        out: dict[str, Any] = {}
        for flag in self._flags:
            key = flag.name.lstrip("-").replace("-", "_")
            if flag.path or flag.name in (flags.SPECULATIVE, flags.ADDITIONAL):
                out[key] = self.json(flag.name)
            elif flag.value is None:
                out[key.removeprefix("no_")] = not key.startswith("no_")
            else:
                out[key] = _plain(flag.value)
        return out

    def _following(self, flag: Flag) -> list[str]:
        out = []
        for token in self._tokens[flag.last + 1 :]:
            if token.text.startswith("-"):
                break
            out.append(token.text)
        return out

    def _spare(self) -> list[str]:
        """Return the tokens that belong to no flag; flags that take lists keep theirs."""
        taken: set[int] = set()
        for flag in self._flags:
            taken.update(range(flag.first, flag.last + 1))
            if (
                flag.value is not None
                and not flag.joined
                and flag.name.lstrip("-") in TAKES_SEVERAL
            ):
                taken.update(range(flag.last + 1, flag.last + 1 + len(self._following(flag))))
        return [token.text for at, token in enumerate(self._tokens) if at not in taken]


def _known(name: str) -> bool:
    """Say whether vLLM has a flag; ``-O3`` and ``-O.mode`` are its short forms of levels."""
    return (
        name.removeprefix("--") in TAKES_VALUE
        or flags.takes_no_value(name)
        or name.startswith("-O")
    )


def _plain(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
