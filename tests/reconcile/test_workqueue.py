"""The queue: one call in flight per key, no mark lost, failures retried, timed re-looks."""

import threading
import time
from collections import Counter

import pytest

from specschedule.ports import Key
from specschedule.workqueue import WorkQueue

A, B = Key("ns", "a"), Key("ns", "b")


def wait_for(claim, timeout_s=10.0):
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        if claim():
            return
        time.sleep(0.005)
    pytest.fail("not within the time")


@pytest.fixture
def queues():
    started = []
    yield started
    for queue in started:
        queue.stop()


def test_marks_from_many_threads_never_put_two_calls_of_a_key_in_flight(queues):
    in_flight: Counter[Key] = Counter()
    worst: Counter[Key] = Counter()
    calls: Counter[Key] = Counter()
    lock = threading.Lock()

    def work(key):
        with lock:
            in_flight[key] += 1
            worst[key] = max(worst[key], in_flight[key])
        time.sleep(0.002)
        with lock:
            in_flight[key] -= 1
            calls[key] += 1

    queue = WorkQueue(work, threads=8)
    queues.append(queue)
    queue.start()
    markers = [
        threading.Thread(target=lambda: [queue.mark(k) for _ in range(300) for k in (A, B)])
        for _ in range(4)
    ]
    for marker in markers:
        marker.start()
    for marker in markers:
        marker.join()
    wait_for(lambda: queue.stalled_s() == 0.0)
    assert worst == {A: 1, B: 1}
    assert 1 <= calls[A] < 1200


def test_a_mark_during_a_call_leads_to_exactly_one_more_call(queues):
    entered, go = threading.Event(), threading.Event()
    calls = []

    def work(key):
        calls.append(key)
        if len(calls) == 1:
            entered.set()
            assert go.wait(10)

    queue = WorkQueue(work)
    queues.append(queue)
    queue.start()
    queue.mark(A)
    assert entered.wait(10)
    for _ in range(50):
        queue.mark(A)
    go.set()
    wait_for(lambda: len(calls) == 2)
    time.sleep(0.1)
    assert len(calls) == 2


def test_a_hanging_key_does_not_hold_up_another(queues):
    hang = threading.Event()
    done = []

    def work(key):
        if key == A:
            hang.wait(30)
        done.append(key)

    queue = WorkQueue(work, threads=2)
    queues.append(queue)
    queue.start()
    queue.mark(A)
    queue.mark(B)
    wait_for(lambda: done == [B])
    hang.set()


def test_a_returned_delay_brings_the_key_back_and_an_earlier_mark_wins(queues):
    seen = []

    def work(key):
        seen.append(key)
        return 0.05 if len(seen) == 1 else (3600 if len(seen) == 2 else None)

    queue = WorkQueue(work)
    queues.append(queue)
    queue.start()
    queue.mark(A)
    wait_for(lambda: len(seen) == 2)
    queue.mark(A)
    wait_for(lambda: len(seen) == 3)


def test_a_call_that_raises_is_repeated_and_counted_as_failing(queues, caplog):
    outcomes = iter([RuntimeError("first"), None])

    def work(key):
        error = next(outcomes)
        if error:
            raise error

    queue = WorkQueue(work)
    queues.append(queue)
    queue.start()
    queue.mark(A)
    wait_for(lambda: queue.failing_s() > 0)
    wait_for(lambda: queue.failing_s() == 0)
    assert "once more in 1 s" in caplog.text


def test_a_due_key_that_nobody_takes_shows_as_stalled():
    queue = WorkQueue(lambda key: None, threads=0)
    queue.mark(A)
    time.sleep(0.05)
    assert queue.stalled_s() >= 0.04
