"""Queries, as far as their text decides what is counted."""

import re

import pytest

from specschedule.wire.promql import serving

POINTS = {
    "by ratio, each look near exactly one": (
        [16, 1, 4],
        {1: "> 0 < 2.000", 4: ">= 2.000 < 8.000", 16: ">= 8.000"},
    ),
    "a single point is near whatever is busy": ([8], {8: "> 0"}),
    "no point, no count": ([], {}),
}


@pytest.mark.parametrize(("points", "bounds"), POINTS.values(), ids=POINTS)
def test_busy_time_is_counted_by_the_nearest_load_point(points, bounds):
    query = serving(namespace="llm", pods=["chat-1"], points=points)
    found = re.findall(
        r"count_over_time\(\(vllm:num_requests_running\{[^}]*\} ([^)]*)\)\[3600s:10s\]\)\), "
        r'"fact", "near_(\d+)"',
        query,
    )
    assert {int(point): filtered for filtered, point in found} == bounds
    assert query.count("near_") == len(bounds)
