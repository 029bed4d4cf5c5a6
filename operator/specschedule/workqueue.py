"""A queue of dirty keys: each key once, at most one call in flight per key, timed re-looks.

Marking is cheap and may come from any thread, as often as it likes: a key that is marked while
its call is in flight is called once more afterwards, however many marks there were.
"""

import heapq
import logging
import threading
import time
from collections.abc import Callable

from specschedule.ports import Key

log = logging.getLogger(__name__)

RETRY_FIRST_S = 1.0
RETRY_LONGEST_S = 60.0


class WorkQueue:
    """Calls ``work(key)`` for dirty keys on a few threads.

    ``work`` returns the seconds until its key wants to be looked at again, or None. A call that
    raises is repeated with growing delays.
    """

    def __init__(self, work: Callable[[Key], float | None], *, threads: int = 4) -> None:
        self._work = work
        self._changed = threading.Condition()
        self._due: dict[Key, float] = {}
        self._heap: list[tuple[float, Key]] = []
        self._in_flight: set[Key] = set()
        self._failures: dict[Key, int] = {}
        self._stopping = False
        self._last_progress = time.monotonic()
        self._failing_since: float | None = None
        self._threads = [
            threading.Thread(target=self._loop, name=f"reconcile-{n}", daemon=True)
            for n in range(threads)
        ]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def stop(self, timeout: float = 5.0) -> None:
        """Let calls in flight end; call nothing more."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(timeout)

    def mark(self, key: Key, after: float = 0.0) -> None:
        """Say that a key wants a call, now or in some seconds; the earliest wish wins."""
        due = time.monotonic() + after
        with self._changed:
            if key in self._due and self._due[key] <= due:
                return
            self._due[key] = due
            heapq.heappush(self._heap, (due, key))
            self._changed.notify()

    def stalled_s(self) -> float:
        """Return how long a due key has waited without any call ending; 0 when none waits."""
        now = time.monotonic()
        with self._changed:
            waiting = [due for due in self._due.values() if due <= now]
            if not waiting and not self._in_flight:
                return 0.0
            return now - max(self._last_progress, min(waiting, default=self._last_progress))

    def failing_s(self) -> float:
        """Return for how long every call has raised; 0 after a call that did not."""
        with self._changed:
            since = self._failing_since
        return 0.0 if since is None else time.monotonic() - since

    def _take(self) -> Key | None:
        with self._changed:
            while not self._stopping:
                now = time.monotonic()
                wait: float | None = None
                postponed = []
                found: Key | None = None
                while self._heap:
                    due, key = self._heap[0]
                    if self._due.get(key) != due:
                        heapq.heappop(self._heap)
                        continue
                    if due > now:
                        wait = due - now
                        break
                    heapq.heappop(self._heap)
                    if key in self._in_flight:
                        postponed.append((due, key))
                        continue
                    found = key
                    break
                for item in postponed:
                    heapq.heappush(self._heap, item)
                if found is not None:
                    del self._due[found]
                    self._in_flight.add(found)
                    return found
                self._changed.wait(wait if not postponed else min(wait or 1.0, 1.0))
            return None

    def _loop(self) -> None:
        while (key := self._take()) is not None:
            again: float | None
            failing_since: float | None = None
            try:
                again = self._work(key)
                self._failures.pop(key, None)
            except Exception:
                failing_since = self._failing_since or time.monotonic()
                failures = self._failures.get(key, 0) + 1
                self._failures[key] = failures
                again = min(RETRY_LONGEST_S, RETRY_FIRST_S * 2 ** (failures - 1))
                log.exception("%s/%s: reconcile failed, once more in %.0f s", *key, again)
            with self._changed:
                self._in_flight.discard(key)
                self._failing_since = failing_since
                self._last_progress = time.monotonic()
                self._changed.notify_all()
            if again is not None:
                self.mark(key, again)
