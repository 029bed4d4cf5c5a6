"""Runs of other load generators as cells: AIPerf's JSONL and ``vllm bench serve`` JSON.

Both keep one entry per request but neither says how many tokens a chunk held: the first is
taken to hold one, the rest are spread, and the cell says so. Both include the ramp at the start
and the drain at the end; the window taken here is the part between them.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

from specschedule.core.evidence import Cell
from specschedule.core.visit import Visit, Window
from specschedule.load.engine_metrics import EngineDelta
from specschedule.load.records import Prepared, Record, outcome, rfc3339, spread
from specschedule.load.windows import Meter, cell

FORMATS = "AIPerf's profile_export.jsonl, or the JSON of vllm bench serve --save-detailed"


class Run(NamedTuple):
    """A run of another tool."""

    began: float | None
    """Unix time of its first request, where the tool says it."""
    records: list[Record]
    """Its requests; times are seconds since the first."""
    engine: EngineDelta | None = None
    """The engine's counters over the whole run, where the tool has them."""


def read_run(path: Path) -> Run:
    """Read a run in either format.

    Raises:
        ValueError: The file is in neither format, or lacks what a cell needs.
    """
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: {error}") from error
    try:
        document = json.loads(text)
    except ValueError:
        document = None
    try:
        if isinstance(document, dict) and "ttfts" in document:
            return _vllm(document)
        entries = [json.loads(line) for line in text.splitlines() if line.strip()]
        if entries and all("metadata" in entry for entry in entries):
            return _aiperf(entries)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: not understood: {type(error).__name__}: {error}") from error
    raise ValueError(f"{path}: give {FORMATS}")


def as_cell(visit: Visit, window: Window, run: Run) -> Cell:
    """Return the cell that a run amounts to.

    For a hold, the window opens when as many requests have ended as are held in flight (from then
    on every answer belongs to a request that began under full load) and closes when the last
    request is sent. For an open load every request counts.

    Args:
        visit: Arm, launch, round and SLO.
        window: What was run; its profile is taken at its word.
        run: The requests.

    Raises:
        ValueError: The run is too short to hold a window.
    """
    starts = sorted(record.scheduled for record in run.records)
    ends = sorted(_end(record) for record in run.records)
    if window.profile.kind == "hold":
        held = window.profile.concurrency or 1
        if len(ends) <= held or ends[held - 1] >= starts[-1]:
            raise ValueError(f"{len(ends)} requests are too few for a window at {held} in flight")
        opened, closed = ends[held - 1], starts[-1]
        counted = [record for record in run.records if opened < _end(record) <= closed]
        through = [r for r in run.records if r.scheduled <= opened and _end(r) > closed]
        stuck = sum(outcome(record, visit.slo) != "good" for record in through)
    elif window.profile.kind == "open":
        if len(starts) < 2 or starts[0] == starts[-1]:
            raise ValueError(f"{len(starts)} requests are too few for a window")
        opened, closed = starts[0], starts[-1] + (starts[-1] - starts[0]) / (len(starts) - 1)
        counted, stuck = run.records, 0
    else:
        raise ValueError(f"{window.profile.kind}: runs of other tools are read as hold or open")
    meter = Meter(visit.slo, opened=opened)
    for record in counted:
        meter.finish(record)
    for record in run.records:
        meter.tokens(sum(tokens for at, tokens in record.chunks if opened < at <= closed))
    meter.close(closed, stuck)
    void = None
    if meter.tally.offered < window.requests:
        void = f"{meter.tally.offered} requests in the window, {window.requests} are needed"
    return cell(
        visit,
        window,
        meter,
        started_at=None if run.began is None else rfc3339(run.began + opened),
        engine=run.engine,
        void=void,
    )


def _end(record: Record) -> float:
    assert record.ended is not None
    return record.ended


def _aiperf(entries: list[dict[str, Any]]) -> Run:
    """Read AIPerf's records; those of other phases than the measured one are left out."""
    entries = [e for e in entries if e["metadata"].get("benchmark_phase") == "profiling"]
    began = min(entry["metadata"]["request_start_ns"] for entry in entries)
    records = []
    for index, entry in enumerate(entries):
        metadata, metrics = entry["metadata"], entry.get("metrics") or {}
        start = (metadata["request_start_ns"] - began) / 1e9
        error = entry.get("error")
        if error is not None or metadata.get("was_cancelled"):
            words = str((error or {}).get("message") or "cancelled")
            record = _record(index, start, [], 0, words)
            record.ended = (metadata["request_end_ns"] - began) / 1e9
        else:
            first = metrics["time_to_first_token"]["value"] / 1e3
            gaps = (metrics.get("inter_chunk_latency") or {"value": []})["value"]
            times = _times(first, [gap / 1e3 for gap in gaps])
            if not gaps:
                times.append(metrics["request_latency"]["value"] / 1e3)
            tokens = int(metrics["output_sequence_length"]["value"])
            record = _record(index, start, times, tokens, None)
            record.prompt_tokens = (metrics.get("input_sequence_length") or {}).get("value")
        records.append(record)
    return Run(began / 1e9, records)


def _vllm(document: dict[str, Any]) -> Run:
    """Read the lists that ``vllm bench serve`` keeps, one entry per request in each."""
    columns = ("start_times", "ttfts", "itls", "output_lens", "input_lens", "errors")
    missing = [column for column in columns if column not in document]
    if missing:
        raise ValueError(f"no {', '.join(missing)}: run vllm bench serve with --save-detailed")
    began = min(document["start_times"])
    records = []
    rows = zip(*(document[column] for column in columns), strict=True)
    for index, (start, first, gaps, tokens, prompt, error) in enumerate(rows):
        failed = error or (None if first > 0 else "no token came")
        times = [] if failed else _times(first, gaps)
        record = _record(index, start - began, times, int(tokens), failed)
        record.prompt_tokens = int(prompt)
        records.append(record)
    engine = EngineDelta(
        drafts=document.get("spec_decode_num_drafts"),
        draft_tokens=document.get("spec_decode_draft_tokens"),
        accepted_tokens=document.get("spec_decode_accepted_tokens"),
    )
    return Run(None, records, engine)


def _times(first: float, gaps: list[float]) -> list[float]:
    """Return when each chunk came, in seconds since the request was sent."""
    times = [first]
    for gap in gaps:
        times.append(times[-1] + gap)
    return times


def _record(index: int, start: float, times: list[float], tokens: int, error: str | None) -> Record:
    """Return a request whose first chunk held one token and the others the rest."""
    record = Record(Prepared(index, None, b"", tokens), "", start, error=error)
    if times:
        first = 1 if len(times) > 1 else tokens
        chunks = [(times[0], first), *spread(times[1:], tokens - first)]
        record.chunks = [(start + at, held) for at, held in chunks]
    record.counts_estimated = True
    record.ended = record.chunks[-1][0] if record.chunks else start
    return record
