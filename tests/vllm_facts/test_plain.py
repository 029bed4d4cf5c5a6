"""YAML that somebody else wrote: read, or refused before anything walks it without end."""

import pytest

from specschedule.vllm_facts.plain import DEEPEST, bounded, read_yaml


def bomb(levels: int, width: int = 9) -> str:
    """A text of a few lines whose aliases say a value ``width ** levels`` times."""
    lines = [
        f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * width)}]"
        for level in range(1, levels + 1)
    ]
    return "\n".join(["a0: &a0 [x]", *lines])


REFUSED = {
    "a list that holds itself": ("- &a [*a]", "holds itself"),
    "a mapping that holds itself": ("a: &a {b: {c: *a}}", "holds itself"),
    "a list that holds itself many times": (f"&a [{', '.join(['*a'] * 50)}]", "holds itself"),
    "aliases that say far more than is written": (bomb(8), "aliases repeat"),
    "deep lists": ("[" * 300 + "]" * 300, "deeper than 100"),
    "a switch that is none": ("a: !!bool x", "x"),
    "a number without digits": ("a: !!int ''", "index"),
    "a time that is none": ("a: !!timestamp x", "NoneType"),
    "no YAML": ("a: [", "expected node content"),
}


@pytest.mark.parametrize("claim", REFUSED)
def test_what_cannot_be_walked_is_refused(claim: str) -> None:
    text, words = REFUSED[claim]
    with pytest.raises(ValueError, match=words):
        read_yaml(text)


def test_anchors_as_people_use_them_are_read() -> None:
    (shared,) = read_yaml("a: &a {x: 1}\nb: [*a, *a]")
    assert shared == {"a": {"x": 1}, "b": [{"x": 1}, {"x": 1}]}
    assert read_yaml(bomb(4))[0]["a1"] == [["x"]] * 9


def test_as_deep_as_the_limit_is_not_too_deep() -> None:
    plain: object = "x"
    for _ in range(DEEPEST):
        plain = [plain]
    assert bounded(plain) is plain
    with pytest.raises(ValueError, match="deeper"):
        bounded([plain])
