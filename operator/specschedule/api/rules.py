"""What the API server refuses by itself: CEL rules and list types, by path into the spec.

A path is the chain of field names, ``[]`` for the items of a list. A rule that sits on a row of
a schedule is answered with that row's own path, so the message need not say which row it is;
messages with numbers in them would cost more than the API server allows.
CEL rules also run on rows that the schema has already found too short, hence their guards.
"""

from typing import Any

from specschedule.core.spec import LARGEST_K

Rule = dict[str, Any]
Path = tuple[str, ...]


def _rule(rule: str, message: str, **more: Any) -> Rule:
    return {"rule": rule, "message": message} | more


_ROW = [
    _rule(
        "size(self) != 4",
        "a row is [first, last, tokens] or [first, last, contextFirst, contextLast, tokens]:"
        " three or five numbers, not four",
    ),
    _rule("size(self) < 3 || self[0] >= 1", "batch sizes start at 1"),
    _rule(
        "size(self) < 3 || self[0] <= self[1]",
        "reversed range: first is above last",
    ),
    _rule("size(self) != 5 || self[2] >= 1", "contexts start at 1"),
    _rule(
        "size(self) != 5 || self[2] <= self[3]",
        "reversed range: contextFirst is above contextLast",
    ),
    _rule(
        f"size(self) < 3 || self[size(self) - 1] <= {LARGEST_K}",
        f"a row drafts {LARGEST_K} tokens at most",
    ),
]

# Two ranges overlap exactly when the first number of one lies in the other, so it is enough to
# count the rows that cover each row's first number: one, itself.
_COVERED_TWICE = "self.filter(q, q[0] <= r[0] && r[0] <= q[1]).size() > 1"
_CELL_TWICE = (
    "self.filter(q, q[0] <= r[0] && r[0] <= q[1] && q[2] <= r[2] && r[2] <= q[3]).size() > 1"
)
_ALL_THREE = "self.all(r, size(r) == 3)"
_ALL_FIVE = "self.all(r, size(r) == 5)"

_SCHEDULE = [
    _rule(
        "self.all(r, size(r) == size(self[0]))",
        "rows of three numbers and rows of five numbers must not be mixed in one schedule",
    ),
    _rule(
        "size(self) == 0 || self.exists(r, size(r) < 3)"
        " || self.exists(r, r[0] == 1 && (size(r) != 5 || r[2] == 1))",
        "no row starts at 1: vLLM needs a row for batch size 1"
        " (and, in rows of five numbers, for context 1)",
    ),
    _rule(
        f"!{_ALL_THREE} || !self.exists(r, {_COVERED_TWICE})",
        "rows overlap: a batch size is in more than one row",
    ),
    _rule(
        f"!{_ALL_FIVE} || !self.exists(r, {_CELL_TWICE})",
        "rows overlap: a batch size and context are in more than one row",
    ),
    _rule(
        f"!{_ALL_FIVE} || self.all(r, self.exists(q, q[0] == r[0] && q[2] == 1))",
        "each range of batch sizes needs a row whose contexts start at 1",
    ),
]


def _points_known(requirements: str) -> Rule:
    unknown = "has(i.at) && i.at.exists(p, !(p in self.load.points))"
    return _rule(
        f"!has(self.bar.{requirements}) || !self.bar.{requirements}.exists(i, {unknown})",
        f"bar.{requirements}: at names a load point that load.points lacks",
        fieldPath=f".bar.{requirements}",
    )


def _attainment_offered(requirements: str) -> Rule:
    wrong = (
        "has(i.metric) && i.metric == 'attainment'"
        " && (has(i.at) || has(i.context)"
        " || !(has(self.load.requestsPerSecond) || has(self.load.trace)))"
    )
    return _rule(
        f"!has(self.bar.{requirements}) || !self.bar.{requirements}.exists(i, {wrong})",
        f"bar.{requirements}: attainment is judged at every load.requestsPerSecond, and at"
        " load.trace: set one, and leave at and context out",
        fieldPath=f".bar.{requirements}",
    )


def _offered_loads_known(requirements: str) -> Rule:
    wrong = (
        "has(i.requestsPerSecond) && (has(i.at) || has(i.context)"
        " || !has(self.load.requestsPerSecond)"
        " || i.requestsPerSecond.exists(r, !(r in self.load.requestsPerSecond)))"
    )
    return _rule(
        f"!has(self.bar.{requirements}) || !self.bar.{requirements}.exists(i, {wrong})",
        f"bar.{requirements}: requestsPerSecond names loads of load.requestsPerSecond, and stands"
        " instead of at and context",
        fieldPath=f".bar.{requirements}",
    )


_ABOVE_ZERO = _rule("self.matches('[1-9]')", "must be longer than 0")

SPEC_RULES: dict[Path, list[Rule]] = {
    (): [
        _rule(
            "(has(self.candidates) && size(self.candidates) > 0) != has(self.search)",
            "exactly one of candidates and search is needed",
        ),
        *(_points_known(field) for field in ("improve", "protect")),
        *(_attainment_offered(field) for field in ("improve", "protect")),
        *(_offered_loads_known(field) for field in ("improve", "protect")),
    ],
    ("slo",): [
        _rule(
            "has(self.ttft) || has(self.tpot) || has(self.e2e)",
            "slo needs at least one of ttft, tpot and e2e",
        )
    ],
    ("slo", "ttft"): [_ABOVE_ZERO],
    ("slo", "tpot"): [_ABOVE_ZERO],
    ("slo", "e2e"): [_ABOVE_ZERO],
    ("load",): [
        _rule(
            "!has(self.trace) || !has(self.prompts)"
            " || self.trace.configMap != self.prompts.configMap",
            "load.trace: its ConfigMap holds load.prompts, and every key there is a category",
        )
    ],
    ("load", "maxSendLag"): [_ABOVE_ZERO],
    ("experiment", "deadline"): [_ABOVE_ZERO],
    ("rollout", "deadline"): [_ABOVE_ZERO],
    ("candidates", "[]", "schedule"): _SCHEDULE,
    ("candidates", "[]", "schedule", "[]"): _ROW,
}
"""CEL rules of SpecSchedule.spec."""

SPEC_LISTS: dict[Path, dict[str, Any]] = {
    ("candidates",): {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    ("load", "points"): {"x-kubernetes-list-type": "set"},
    ("search", "batchSizes"): {"x-kubernetes-list-type": "set"},
    ("search", "contexts"): {"x-kubernetes-list-type": "set"},
    ("load", "requestsPerSecond"): {"x-kubernetes-list-type": "set"},
    ("policy", "overrides"): {
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["gate"],
    },
}
"""Lists of SpecSchedule.spec whose items must differ."""

TRIAL_RULES: dict[Path, list[Rule]] = {
    (): [_rule("self == oldSelf", "the spec of a launch never changes; make a new SpecTrial")]
}
"""CEL rules of SpecTrial.spec."""

STATUS_LISTS: dict[Path, dict[str, Any]] = {
    ("conditions",): {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}
}
"""Lists of SpecSchedule.status that are merged by key."""
