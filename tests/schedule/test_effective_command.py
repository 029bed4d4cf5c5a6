"""``specschedule effective`` as a person runs it."""

import json

import pytest
from click.testing import CliRunner

from specschedule.cli.main import main


def run(*arguments):
    return CliRunner().invoke(main, ["effective", *arguments])


def test_the_answer_has_ranges_and_warnings():
    result = run("[[1,16,3],[32,64,1]]", "--max-tokens", "3", "--max-num-seqs", "128", "-o", "json")
    assert result.exit_code == 0
    answer = json.loads(result.output)
    assert answer["ranges"] == [[1, 31, 3], [32, 128, 1]]
    assert [(w["reason"], w["row"]) for w in answer["warnings"]] == [("Gap", 0), ("Tail", 1)]
    assert "17-31" in answer["warnings"][0]["message"]


def test_the_text_says_the_same():
    result = run("[[1,16,3],[32,64,1]]", "--max-tokens", "3", "--max-num-seqs", "128")
    assert result.output.splitlines()[:2] == ["batch size 1-31: K=3", "batch size 32-128: K=1"]


def test_the_last_context_range_has_no_end():
    rows = "[[1,4,1,10,2],[1,4,11,20,3]]"
    result = run(rows, "--max-tokens", "3", "--max-num-seqs", "4")
    assert result.output.splitlines()[:2] == [
        "batch size 1-4  context 1-10: K=2",
        "batch size 1-4  context 11 and longer: K=3",
    ]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("[[8,1,3]]", "rows[0]"),
        ("nonsense", "not JSON"),
        ("[" * 100000, "not JSON"),
        ("[]", "Empty"),
    ],
)
def test_bad_input_is_one_clear_line(rows, said):
    result = run(rows, "--max-tokens", "3", "--max-num-seqs", "128")
    assert result.exit_code == 2
    assert said in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_the_help_says_what_a_batch_size_is():
    """Case 33: vLLM counts every scheduled request, not only those that decode."""
    said = " ".join(CliRunner().invoke(main, ["effective", "--help"]).output.split())
    assert "the number of requests scheduled in an engine step, prefills included" in said
