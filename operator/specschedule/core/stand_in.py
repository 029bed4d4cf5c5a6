"""What stands for the candidates of a search while nothing is found, before any pod."""

from specschedule.core.spec import Candidate, Spec
from specschedule.core.target import ServerFacts

STAND_IN = "search"
"""Name of the candidate that stands for all while nothing is proposed yet."""


def stand_in(spec: Spec, server: ServerFacts) -> Spec:
    """Return the question with one schedule for all that may be found: for gates and for the cost.

    It holds what engines may refuse: the largest K and K=0.
    """
    assert spec.search is not None
    most, largest = spec.search.max_tokens, server.max_num_seqs
    ks = [most, 1, 0] if most > 1 else [1, 0]
    rows = [[at, at, k] for at, k in enumerate(ks, start=1)]
    rows[-1][1] = max(largest, len(ks))
    return spec.testing([Candidate(name=STAND_IN, schedule=rows)])
