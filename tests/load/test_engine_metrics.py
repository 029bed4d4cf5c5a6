"""The engine's own counters over a window."""

from specschedule.load.engine_metrics import difference, over, read, running

BEFORE = """\
# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 100.0
vllm:spec_decode_num_drafts_total{engine="1",model_name="m"} 50.0
vllm:spec_decode_num_drafts_created{engine="0",model_name="m"} 1.7e+09
vllm:generation_tokens_total{engine="0",model_name="m"} 1e+03
vllm:num_requests_running{engine="0",model_name="m"} 5.0
vllm:num_requests_running{engine="1",model_name="m"} 3.0
vllm:prefix_cache_hits_total{engine="0",model_name="m"} NaN
process_cpu_seconds_total 12.5
"""


def test_series_of_several_engines_are_summed() -> None:
    after = BEFORE.replace("100.0", "400.0").replace("} 50.0", "} 150.0")
    delta = difference(read(BEFORE), read(after))
    assert delta.drafts == 400
    assert delta.output_tokens == 0
    assert delta.fault is None
    assert running(read(BEFORE)) == 8


def test_absent_series_and_nan_stay_absent() -> None:
    delta = difference(read(BEFORE), read(BEFORE))
    assert delta.accepted_tokens is None
    assert delta.prefix_hits is None
    assert difference({}, {}).drafts is None


def test_a_series_that_appears_in_the_window_counts_from_zero() -> None:
    later = BEFORE + 'vllm:num_preemptions_total{engine="0",model_name="m"} 3.0\n'
    assert difference(read(BEFORE), read(later)).preemptions == 3


def test_a_counter_that_shrinks_is_a_fault_even_where_the_sum_grows() -> None:
    after = BEFORE.replace("100.0", "900.0").replace("} 50.0", "} 40.0")
    delta = difference(read(BEFORE), read(after))
    assert delta.fault is not None
    assert 'engine="1"' in delta.fault
    assert "from 50 to 40" in delta.fault


def test_a_series_that_vanishes_is_a_fault() -> None:
    delta = difference(read(BEFORE), {})
    assert delta.fault is not None
    assert "to nothing" in delta.fault


def test_aborted_requests_are_told_from_others_that_ended() -> None:
    def ended(stopped: int, aborted: int) -> str:
        return (
            f'vllm:request_success_total{{engine="0",finished_reason="stop"}} {stopped}\n'
            f'vllm:request_success_total{{engine="0",finished_reason="abort"}} {aborted}\n'
        )

    assert difference(read(ended(3, 1)), read(ended(9, 3))).aborted == 2
    assert difference(read(BEFORE), read(BEFORE)).aborted is None


def by_position(*counts: int, engine: int = 0) -> str:
    return "".join(
        f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="{engine}",model_name="m",'
        f'position="{at}"}} {count}.0\n'
        for at, count in enumerate(counts)
    )


def test_accepted_tokens_by_draft_position_are_summed_over_engines() -> None:
    before = by_position(100, 40, 5) + by_position(10, 4, 0, engine=1)
    after = by_position(160, 70, 15) + by_position(30, 9, 2, engine=1)
    assert difference(read(before), read(after)).accepted_by_position == [80, 35, 12]


def test_positions_are_in_order_where_the_page_is_not() -> None:
    rising = by_position(*range(20, 0, -1))
    shuffled = "\n".join(sorted(rising.splitlines())) + "\n"
    assert shuffled != rising
    assert difference({}, read(shuffled)).accepted_by_position == list(range(20, 0, -1))


def test_a_missing_position_leaves_all_positions_out() -> None:
    torn = "".join(by_position(9, 5, 2).splitlines(keepends=True)[1:])
    assert difference({}, read(torn)).accepted_by_position is None
    assert difference(read(BEFORE), read(BEFORE)).accepted_by_position is None


def test_counters_that_jump_between_processes_are_found_out_by_the_readings_between() -> None:
    pages = [read(f'vllm:spec_decode_num_drafts_total{{engine="0"}} {n}') for n in (100, 40, 120)]
    assert difference(pages[0], pages[-1]).fault is None
    fault = over(pages).fault
    assert fault is not None
    assert "from 100 to 40" in fault
    rising = [pages[1], pages[0], pages[2]]
    assert (over(rising).drafts, over(rising).fault) == (80, None)
