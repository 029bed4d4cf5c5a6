"""Launches as the gates between arms see them: in order, unless told otherwise."""

from specschedule.core.evidence import Cell, Launch, Receipt
from specschedule.core.gates import between_arms
from specschedule.core.spec import Spec
from specschedule.core.target import ServerFacts

ROWS = [[1, 2, 5], [3, 16, 1]]


SERVER = ServerFacts(
    container="server",
    max_num_seqs=16,
    speculative={"method": "eagle3", "num_speculative_tokens": 5},
)


def spec(**more):
    return Spec.model_validate(
        {
            "target": {"name": "chat"},
            "slo": {"ttft": "500ms"},
            "candidates": [{"name": "card", "schedule": ROWS}],
            "load": {"points": [1, 8], **more.pop("load", {})},
            "bar": {"improve": [{"by": "15%"}]},
            **more,
        }
    )


def receipt(**more):
    facts = {
        "image_id": "sha256:a",
        "engine_version": "0.32.0",
        "gpu": "H100",
        "model_runner": "V2",
        "graph_mode": "FULL_AND_PIECEWISE",
        "captured_sizes": [1, 2, 4, 8, 16, 32, 64, 96],
        "attention_backend": "FLASH_ATTN",
        "async_scheduling": True,
        "kv_cache_tokens": 100_000,
        "log_level_hides_warnings": False,
        "num_speculative_tokens": 5,
        **more,
    }
    return Receipt.model_validate({k: v for k, v in facts.items() if v is not None})


def cell(at, planned, *, per_draft=None, share=0.6, **more):
    """A window of 1000 drafts that behaves as planned, unless told otherwise."""
    drafted = planned if per_draft is None else per_draft
    drafts = 1000 if drafted else 0
    tokens = round(1000 * drafted)
    plain = {
        "cell": f"hold{at}",
        "arm": "x",
        "launch": 1,
        "profile": {"kind": "hold", "concurrency": at},
        "tokens": planned,
        "context": 400,
        "requestTokens": 400,
        "windowSeconds": 30.0,
        "offered": 20,
        "completed": 20,
        "outputTokens": 4000,
        "engineOutputTokens": 4000,
        "drafts": drafts,
        "draftTokens": tokens,
        "acceptedTokens": round(tokens * share),
        "preemptions": 0,
        "prefixCache": {"queries": 1000, "hits": 0},
        **more,
    }
    return Cell.model_validate({k: v for k, v in plain.items() if v is not None})


def launch(arm, cells=None, *, schedule=None, number=1, void=None, failed=None, **facts):
    planned = {"incumbent": (5, 5), "candidate-card": (5, 1)}.get(arm)
    if cells is None:
        cells = (
            [cell(1, planned[0]), cell(8, planned[1])] if planned else [none_cell(1), none_cell(8)]
        )
    if arm == "candidate-card" and schedule is None:
        schedule = ROWS
    return Launch(
        arm=arm, launch=number, round=1, schedule=schedule, receipt=receipt(**facts),
        cells=[*cells, SAID], void=void, failed=failed,
    )  # fmt: skip


SAID = Cell.model_validate(
    {
        "cell": "equivalence",
        "arm": "x",
        "launch": 1,
        "profile": {"kind": "equivalence", "steps": [[1, 2]]},
        "windowSeconds": 1.0,
        "offered": 2,
        "completed": 2,
        "outputs": {"prompts": "0a1b", "unit": "token", "answers": ["17 4", "23"]},
    }
)
"""What every launch says when it is asked for its outputs."""


def none_cell(at):
    return cell(at, 0, drafts=None, draftTokens=None, acceptedTokens=None)


def arms(**overrides):
    """The three arms of a run that is in order, with launches replaced by name."""
    plain = {
        "incumbent": launch("incumbent"),
        "candidate": launch("candidate-card"),
        "none": launch("none", async_scheduling=True),
        **overrides,
    }
    return [each for each in plain.values() if each is not None]


def answer(gate, launches, spec_=None, server=SERVER):
    found = {each.gate: each for each in between_arms(spec_ or spec(), launches, server)}
    return found[gate]


def candidate(*cells, **more):
    return arms(candidate=launch("candidate-card", list(cells), **more))


def cached(hits):
    return [
        cell(at, planned, prefixCache={"queries": 1000, "hits": hits})
        for at, planned in ((1, 5), (8, 1))
    ]
