"""Reading and editing of arguments: parse, edit, parse gives the edit and nothing else."""

import json
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specschedule.core.target import ServerFacts, Unreadable
from specschedule.vllm_facts.arguments import (
    ArgumentEdit,
    edited_container,
    read_container,
    with_speculative,
)
from specschedule.vllm_facts.flags import ALIASES, READ
from tests.vllm_facts.containers import ARGUMENTS, container, script, vllm

words = st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\x00"), max_size=8)


values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 999) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=6,
)


configs = st.dictionaries(
    st.sampled_from(["method", "model", "num_speculative_tokens", "x_1", "y"]), values, min_size=1
)


others = st.lists(
    st.sampled_from(
        [
            ("--port", "9000"),
            ("-tp=2",),
            ("--enforce-eager",),
            ("--seed", "3"),
            ("--api-key", "a b$"),
        ]
    ),
    max_size=3,
)


FORM_NAMES = ("pair", "joined", "short", "underscored", "dotted", "dotted joined", "absent")


def written(form, config):
    text = json.dumps(config)
    dotted = [(f"--speculative-config.{key}", json.dumps(value)) for key, value in config.items()]
    return {
        "pair": ["--speculative-config", text],
        "joined": [f"--speculative-config={text}"],
        "short": ["-sc", text],
        "underscored": ["--speculative_config", text],
        "dotted": [part for pair in dotted for part in pair],
        "dotted joined": ["=".join(pair) for pair in dotted],
        "absent": [],
    }[form]


def flat(groups):
    return [part for group in groups for part in group]


@st.composite
def servers(draw):
    form, config = draw(st.sampled_from(FORM_NAMES)), draw(configs)
    before, after = flat(draw(others)), flat(draw(others))
    arguments = [*before, *written(form, config), *after]
    return None if form == "absent" else config, before, after, arguments


def escaped(arguments):
    return [text.replace("$", "$$") for text in arguments]


@pytest.mark.fuzz
@given(servers(), configs | st.none())
def test_parse_edit_parse_gives_the_edit_and_nothing_else(server, wanted):
    config, before, after, arguments = server
    given_ = vllm(*escaped(arguments))
    facts = read_container(given_)
    assert facts.speculative == config
    edit = with_speculative(given_, wanted)
    assert isinstance(edit, ArgumentEdit), edit
    again = read_container(edited_container(given_, edit))
    assert again.speculative == wanted
    size = len(edit.new) - len(before) - len(after)
    assert edit.new[: len(before)] == escaped(before)
    if config is None:
        assert edit.new[: len(before) + len(after)] == escaped([*before, *after])
    else:
        assert edit.new[len(before) + size :] == escaped(after)


def argv_of(text, shell):
    """What the shell itself makes of a script that calls vllm."""
    told = subprocess.run(
        [shell, "-c", f"vllm() {{ printf '%s\\0' \"$@\"; }}\n{text}"],
        capture_output=True,
        check=True,
        env={"PATH": "/usr/bin:/bin"},
    )
    return told.stdout.decode().split("\0")[:-1]


def quoted(text, style):
    if style == "single":
        return "'" + text.replace("'", "'\\''") + "'"
    marked = text.replace("\\", "\\\\").replace('"', '\\"').replace("`", "\\`").replace("$", "\\$")
    return f'"{marked}"'


@settings(max_examples=60, deadline=None)
@given(
    servers(),
    configs | st.none(),
    st.sampled_from(["single", "double"]),
    st.sampled_from([" ", "  ", " \\\n   "]),
    st.sampled_from(["", " # and so on", "; true", " > /dev/stdout"]),
    st.sampled_from(["sh", "bash"]),
)
def test_a_script_means_to_the_shell_itself_what_the_edit_says(
    server, wanted, style, gap, tail, shell
):
    config, before, after, arguments = server
    parts = ["vllm", "serve", "m", *(quoted(text, style) for text in arguments)]
    text = f"true\n{gap.join(parts)}{tail}"
    given_ = script(text.replace("$", "$$"), shell)
    read = read_container(given_)
    if isinstance(read, Unreadable):
        # A dollar sign between quotes may be Kubernetes' or the shell's: refused by name.
        assert "$" in text
        return
    assert read.speculative == config
    edit = with_speculative(given_, wanted)
    assert isinstance(edit, ArgumentEdit), edit
    argv = argv_of(edit.new[-1].replace("$$", "$"), shell)
    plain = read_container(container(command=["vllm", *escaped(argv)]))
    assert plain.speculative == wanted
    kept = [part for part in argv if part not in written_parts(edit, argv)]
    assert kept[:2] == ["serve", "m"]
    assert sorted(kept[2:]) == sorted([*before, *after])


def written_parts(edit, argv):
    """The parts of an argument list that carry the speculative config."""
    out = []
    for at, part in enumerate(argv):
        if part.startswith(("--speculative", "-sc")):
            out.append(part)
            if "=" not in part:
                out.append(argv[at + 1])
    return out


def test_every_beginning_of_a_flag_that_decides_is_refused_or_another_flags_name():
    names = {name for argument in ARGUMENTS for name in argument["names"]}
    for flag in READ:
        for end in range(3, len(flag)):
            beginning = flag[:end]
            if beginning in names | {"--no"}:
                continue
            facts = read_container(vllm(f"{beginning}=1"))
            assert isinstance(facts, Unreadable), beginning
            assert f"{beginning} is an abbreviation" in facts.message
    # What vLLM's parser knows by its whole name is never an abbreviation.
    for name in sorted(names - READ - ALIASES.keys() - {"-h", "--help"}):
        facts = read_container(vllm(f"{name}=1"))
        assert isinstance(facts, ServerFacts), facts
