"""The engine's own counters over a window."""

from specschedule.load.engine_metrics import difference, read, running

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
