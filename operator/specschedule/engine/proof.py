"""Planned against observed K: whether the engine does what the scheduler planned."""

from collections import Counter

ENOUGH = 4
"""Matching drafts of a request after which a K counts as proven."""
PATIENCE = 64
"""Times that a request drafted something else after which never having seen a K is a finding."""


class Proof:
    """Compares, request by request, the drafts planned with those that the engine scheduled.

    Fewer than planned can be right: a request near the model's length, a step whose token budget
    is used up, a drafter that found nothing. More never is, and neither is a K that was planned
    over and over where only fewer ever came. A K that is not ``proven`` is not disproven either:
    whoever needs it must see it there.
    """

    def __init__(self) -> None:
        self._seen: dict[int, Counter[int]] = {}
        self.finding: str | None = None
        """The first mismatch; it stands for good."""

    def observe(self, planned: int, observed: int, times: int = 1) -> None:
        """Take the drafts of so many requests in one step."""
        seen = self._seen.setdefault(planned, Counter())
        seen[observed] += times
        if self.finding:
            return
        if observed > planned:
            self.finding = f"K={planned} was planned and {observed} drafts were scheduled"
        elif not seen[planned] and seen.total() - seen[0] >= PATIENCE:
            found = ", ".join(f"K={k} {n} times" for k, n in sorted(seen.items()) if n)
            self.finding = f"K={planned} was planned {seen.total()} times and never came: {found}"

    @property
    def proven(self) -> list[int]:
        """Every K that came as planned, often enough."""
        return sorted(k for k, seen in dict(self._seen).items() if seen[k] >= ENOUGH)

    def plain(self) -> dict[str, object]:
        """Return JSON-ready data: planned K to observed K to how often."""
        # Read from another thread than the one that observes: copies, each made in one step.
        seen = {
            str(planned): {str(k): n for k, n in sorted(dict(counts).items()) if n}
            for planned, counts in sorted(dict(self._seen).items())
        }
        return {"finding": self.finding, "proven": self.proven, "observed": seen}
