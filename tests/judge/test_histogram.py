"""Histograms give bounds at real bucket edges, and nothing between."""

import json
from collections.abc import Mapping
from math import inf
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from specschedule.cli.main import main
from specschedule.core.histogram import BetweenEdges, Bounds, attained, grown, joint, quantile

from .test_judge_command import SCHEDULE

ALL_FAST = {0.3: 1000.0, 0.5: 1000.0, inf: 1000.0}
SOME_STUCK = {0.3: 10.0, 0.5: 70.0, inf: 100.0}


def test_all_requests_in_the_first_bucket_are_below_its_edge_and_no_number() -> None:
    """vLLM 48175: interpolation read 297 ms out of a bucket that ends at 300 ms."""
    assert str(quantile(ALL_FAST, 0.99)) == "< 0.3 s"


def test_the_top_bucket_has_no_number_either() -> None:
    assert str(quantile(SOME_STUCK, 0.99)) == "> 0.5 s"
    assert str(quantile(SOME_STUCK, 0.5)) == "0.3-0.5 s"


def test_two_arms_inside_one_bucket_are_a_tie() -> None:
    assert quantile(ALL_FAST, 0.99) == quantile({0.3: 7.0, 0.5: 7.0, inf: 7.0}, 0.99)


def test_a_limit_at_an_edge_is_exact_and_one_between_is_refused() -> None:
    assert attained(SOME_STUCK, 0.5) == Bounds(0.7, 0.7)
    with pytest.raises(BetweenEdges, match=r"0\.4 s lies between the bucket edges 0\.3 and 0\.5"):
        attained(SOME_STUCK, 0.4)
    assert attained(SOME_STUCK, 0.4, bounds_accepted=True) == Bounds(0.1, 0.7)
    assert attained(SOME_STUCK, 0.1, bounds_accepted=True) == Bounds(0.0, 0.1)
    assert attained(SOME_STUCK, 9.0, bounds_accepted=True) == Bounds(0.7, 1.0)


@pytest.mark.parametrize("buckets", [{}, {0.3: 0.0, inf: 0.0}, {0.3: 5.0}])
def test_no_requests_are_no_quantile(buckets: dict[float, float]) -> None:
    with pytest.raises(ValueError, match="no requests"):
        quantile(buckets, 0.5)


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0, 2), st.floats(0, 2)), min_size=1, max_size=50))
def test_the_true_joint_share_lies_within_the_bounds(requests: list[tuple[float, float]]) -> None:
    edges = (0.25, 0.5, 1.0, inf)
    n = len(requests)
    shares = [
        attained({edge: float(sum(r[at] <= edge for r in requests)) for edge in edges}, limit)
        for at, limit in ((0, 0.5), (1, 1.0))
    ]
    bounds = joint(shares)
    both = sum(r[0] <= 0.5 and r[1] <= 1.0 for r in requests) / n
    assert bounds.low - 1e-9 <= both <= bounds.high + 1e-9


def test_what_grew_between_two_scrapes_counts_and_a_restart_is_found_out() -> None:
    assert grown(SOME_STUCK, {0.3: 15.0, 0.5: 90.0, inf: 130.0}) == {0.3: 5.0, 0.5: 20.0, inf: 30.0}
    with pytest.raises(ValueError, match="the server restarted"):
        grown(SOME_STUCK, {0.3: 4.0, 0.5: 90.0, inf: 130.0})


TTFT = "vllm:time_to_first_token_seconds"
TPOT = "vllm:request_time_per_output_token_seconds"


def page(path: Path, families: Mapping[str, Mapping[float, int]], *, engines: int = 1) -> str:
    """Write a scrape whose every engine has these cumulative counts."""
    lines = []
    for family, buckets in families.items():
        lines.append(f"# TYPE {family} histogram")
        for engine in range(engines):
            labels = f'engine="{engine}",model_name="m"'
            for edge, count in buckets.items():
                le = "+Inf" if edge == inf else f"{edge:g}"
                lines.append(f'{family}_bucket{{{labels},le="{le}"}} {count}.0')
            lines.append(f"{family}_count{{{labels}}} {buckets[inf]}.0")
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def ask(tmp_path: Path, *more: str) -> Result:
    schedule = {**SCHEDULE, "spec": {**SCHEDULE["spec"], "slo": {"ttft": "500ms", "tpot": "50ms"}}}
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(schedule))
    return CliRunner().invoke(main, ["judge", "-f", str(tmp_path / "s.yaml"), *more])


def served(first: int, later: int) -> dict[str, dict[float, int]]:
    """100 requests, of which so many had a first token in 0.5 s and so many kept 50 ms a token."""
    return {TTFT: {0.25: 1, 0.5: first, inf: 100}, TPOT: {0.05: later, 0.1: later, inf: 100}}


@pytest.mark.parametrize(
    ("claim", "incumbent", "candidate", "low", "high", "answer"),
    [
        ("clear of all overlap", served(50, 60), served(99, 98), 0.47, 0.88, "Met"),
        ("misses may fall on the same requests or not", served(90, 90), served(95, 95), 0, 0.15,
         "Unproven"),
        ("shown to be worse", served(99, 98), served(50, 60), -0.88, -0.47, "NotMet"),
    ],
)  # fmt: skip
def test_two_servers_compare_by_bounds(
    tmp_path: Path, claim: str, incumbent: dict[str, dict[float, int]],
    candidate: dict[str, dict[float, int]], low: float, high: float, answer: str,
) -> None:  # fmt: skip
    pages = [
        f"incumbent={page(tmp_path / 'a.txt', incumbent, engines=2)}",
        f"candidate-card={page(tmp_path / 'b.txt', candidate)}",
    ]
    options = [part for text in pages for part in ("--histograms", text)]
    result = ask(tmp_path, *options, "-o", "json")
    assert result.exit_code == 0, result.output
    said = json.loads(result.output)
    (difference,) = said["differences"]
    assert difference["low"] == pytest.approx(low), claim
    assert difference["high"] == pytest.approx(high), claim
    assert difference["answer"] == answer, claim
    assert [arm["requests"] for arm in said["arms"]] == [200, 100]
    text = ask(tmp_path, *options).output
    assert "nothing is promoted on them" in text
    assert "ttft: p50 " in text


def test_a_limit_between_edges_is_refused_until_bounds_are_accepted(tmp_path: Path) -> None:
    between = {TTFT: {0.3: 40, 0.8: 90, inf: 100}, TPOT: {0.05: 100, inf: 100}}
    path = page(tmp_path / "a.txt", between)
    options = ["--histograms", f"incumbent={path}", "--histograms", f"candidate-card={path}"]
    result = ask(tmp_path, *options)
    assert result.exit_code == 2
    assert "slo.ttft: the limit 0.5 s lies between the bucket edges 0.3 and 0.8" in result.output
    assert "--accept-bounds" in result.output
    result = ask(tmp_path, *options, "--accept-bounds", "-o", "json")
    assert json.loads(result.output)["arms"][0]["attainment"] == {"low": 0.4, "high": 0.9}


@pytest.mark.parametrize(
    ("claim", "options", "words"),
    [
        ("a histogram that is not there",
         ["--histograms", "incumbent={old}", "--histograms", "candidate-card={good}"],
         f"metric not found: {TPOT}; vLLM's histograms there: {TTFT}, vllm:inter_token"),
        ("no incumbent", ["--histograms", "candidate-card={good}"], "give incumbent=PAGE"),
        ("an arm twice",
         ["--histograms", "incumbent={good}", "--histograms", "incumbent={good}"], "once"),
        ("no file", ["--histograms", "incumbent=/nowhere"], "/nowhere: No such file"),
        ("no arm", ["--histograms", "{good}"], "is not ARM=PAGE"),
        ("neither histograms nor trials", [], "either --trials or --histograms"),
        ("after a restart",
         ["--histograms", "incumbent={good},{old}", "--histograms", "candidate-card={good}"],
         f"{TTFT}: its counts shrank"),
    ],
)  # fmt: skip
def test_pages_that_cannot_be_used_get_one_line(
    tmp_path: Path, claim: str, options: list[str], words: str
) -> None:
    inter_token = "vllm:inter_token_latency_seconds"
    old = {TTFT: {0.25: 0, 0.5: 9, inf: 10}, inter_token: {0.05: 9, inf: 10}}
    paths = {
        "good": page(tmp_path / "good.txt", served(90, 90)),
        "old": page(tmp_path / "old.txt", old),
    }
    result = ask(tmp_path, *(option.format(**paths) for option in options))
    assert result.exit_code == 2, claim
    assert words in result.output, claim
    assert len(result.output.strip().splitlines()) == 1
