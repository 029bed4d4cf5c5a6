"""What a setting would deliver: throughput, TPOT and SLO goodput, with their uncertainty.

At a fixed number of requests in flight a shorter TPOT is more throughput and more good requests,
so ranking by goodput mostly ranks by TPOT; the limits decide how steeply.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import exp, log, log2, sqrt
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from specschedule.core.acceptance import Acceptance, acceptance
from specschedule.core.cost import Graphs, Setting, StepTimes
from specschedule.core.evidence import Quantiles
from specschedule.core.spec import Slo
from specschedule.core.sweep import Sweep, Window
from specschedule.core.values import Value

Floats = NDArray[np.float64]

Z90, Z95 = 1.2816, 1.96
"""Standard deviations up to the 90th percentile, and of half a 95 % interval."""
LEAST_SPREAD = 0.01
"""Standard deviation of the logarithm of latency between requests, at least."""
LEAST_ATTAINMENT = 1e-3
HOPELESS = 0.02
"""Where no K lets this share of requests meet the limits, K is ranked by throughput."""
STEEPEST = 10.0
"""Most percent of goodput that one percent of TPOT counts for at the edge of a limit."""


class Interval(Value):
    """A predicted number and its 95 % interval."""

    value: float
    """Best estimate."""
    low: float
    """Lower end of the interval."""
    high: float
    """Upper end of the interval."""


class Predicted(Value):
    """What one setting would deliver."""

    at: int
    """Requests in flight."""
    context: int | None = None
    """Mean context, in tokens, where it varies."""
    tokens: int
    """K there."""
    throughput: Interval
    """Output tokens per second."""
    tpot_ms: Interval
    """Median time per output token, in milliseconds."""
    goodput: Interval
    """Good requests per second."""
    windows: int
    """Windows measured at exactly this setting."""
    basis: Literal["measured", "predicted", "extrapolated"]
    """extrapolated: outside the batch sizes that were measured."""


@dataclass(frozen=True)
class _Spread:
    """How one latency of requests lies around its median."""

    by_batch: tuple[tuple[float, float], ...]
    """(log2 batch size, logarithm of the median over the predicted one)."""
    sd: float
    """Standard deviation of the logarithm."""

    def median(self, batch: int, predicted: Floats) -> Floats:
        """Return the logarithm of the median latency."""
        at, ratios = zip(*self.by_batch, strict=True)
        return np.log(predicted) + float(np.interp(np.log2(batch), at, ratios))


class Forecast:
    """Predictions from the windows of a sweep.

    Args:
        sweep: Windows that count; at least one on the schedule's path.
        slo: Limits of a good request.
        max_tokens: Largest K that may be proposed.
        output_tokens: Output length of a request.
        graphs: Captured graph sizes.
        unavailable: Ks that the engine does not start with.
    """

    def __init__(
        self,
        sweep: Sweep,
        slo: Slo,
        *,
        max_tokens: int,
        output_tokens: int,
        graphs: Graphs,
        unavailable: Collection[int] = (),
    ) -> None:
        self.sweep, self.slo, self.output_tokens, self.graphs = sweep, slo, output_tokens, graphs
        self.acceptance: Acceptance = acceptance(w.cell for w in sweep.schedule)
        timed = [*(w.timed for w in sweep.schedule), *sweep.timed]
        self.steps = StepTimes(timed, self.acceptance, graphs)
        self.windows: dict[Setting, int] = {}
        for window in sweep.schedule:
            self.windows[window.setting] = self.windows.get(window.setting, 0) + 1
        measured = [each.setting.batch for each in timed]
        self.range = (min(measured), max(measured))
        """Smallest and largest batch size at which steps were measured."""
        first = 0 if any(w.setting.tokens == 0 for w in sweep.schedule) else 1
        known = range(first, min(max_tokens, self.acceptance.largest) + 1)
        self.tokens: tuple[int, ...] = tuple(k for k in known if k not in unavailable)
        """Ks that can be proposed: 0 only where it was measured on the schedule's own path, and
        none that is unavailable, whatever its neighbours would predict."""
        every = [*sweep.schedule, *sweep.none]
        self._ttft = _spread(every, lambda w: w.cell.ttft_ms, lambda w: w.seconds)
        self._tpot = _spread(every, lambda w: w.cell.tpot_ms, _mean_tpot)

    @cached_property
    def _none(self) -> StepTimes | None:
        nothing = Acceptance(np.ones(1), np.zeros(1), ())
        windows = [w.timed for w in self.sweep.none]
        return StepTimes(windows, nothing, self.graphs) if windows else None

    @property
    def missing(self) -> list[str]:
        """Limits of the SLO that no window tells anything about."""
        out = []
        if self._ttft is None and (self.slo.ttft is not None or self.slo.e2e is not None):
            out.append("ttft")
        if self._tpot is None and (self.slo.tpot is not None or self.slo.e2e is not None):
            out.append("tpot")
        return out

    def attainment(self, batch: int, seconds: Floats, tpot: Floats) -> Floats:
        """Return the share of requests that meet every limit; limits are met independently.

        Args:
            batch: Requests in flight.
            seconds: Seconds of a step, by setting.
            tpot: Seconds per output token, by setting.
        """
        share = np.ones(len(seconds))
        ttft_sd = self._ttft.sd if self._ttft else LEAST_SPREAD
        tpot_sd = self._tpot.sd if self._tpot else LEAST_SPREAD
        first = self._ttft.median(batch, seconds) if self._ttft else np.log(seconds)
        each = self._tpot.median(batch, tpot) if self._tpot else np.log(tpot)
        if self.slo.ttft is not None and self._ttft is not None:
            share *= ndtr((log(self.slo.ttft) - first) / ttft_sd)
        if self.slo.tpot is not None:
            share *= ndtr((log(self.slo.tpot) - each) / tpot_sd)
        if self.slo.e2e is not None:
            whole = np.log(np.exp(first) + (self.output_tokens - 1) * np.exp(each))
            share *= ndtr((log(self.slo.e2e) - whole) / tpot_sd)
        return np.asarray(share)

    def scores(self, settings: Sequence[Setting]) -> tuple[Floats, Floats]:
        """Return the logarithm of the objective at settings, and its covariance.

        The objective is tokens per second of good requests. At a batch size and context at which
        no K among the settings can meet the limits it is tokens per second.
        """
        mean, covariance = self.steps.predict(settings)
        tokens = np.array([s.tokens for s in settings])
        length = np.log(self.acceptance.lengths[tokens])
        rate, slope = np.empty(len(settings)), np.ones(len(settings))
        places: dict[tuple[int, int | None], list[int]] = {}
        for at, setting in enumerate(settings):
            places.setdefault((setting.batch, setting.context), []).append(at)
        for (batch, _), own in places.items():
            rate[own], slope[own] = self._objective(batch, mean[own], length[own])
        sd = self.acceptance.sd[tokens]
        shared = np.where(tokens[:, None] == tokens[None, :], np.outer(sd, sd), 0.0)
        return rate, (covariance + shared) * np.outer(slope, slope)

    def table(self, batches: Sequence[int], context: int | None) -> Floats:
        """Return scores without their uncertainty: a row per batch size, a column per K."""
        settings = [Setting(b, k, context) for b in batches for k in self.tokens]
        shape = (len(batches), len(self.tokens))
        mean = np.log(self.steps.seconds(settings)).reshape(shape)
        length = np.log(self.acceptance.lengths[list(self.tokens)])
        rows = [
            self._objective(batch, steps, length)[0]
            for batch, steps in zip(batches, mean, strict=True)
        ]
        return np.array(rows)

    def _objective(self, batch: int, mean: Floats, length: Floats) -> tuple[Floats, Floats]:
        """Return its logarithm at one place, and how many percent one percent of TPOT is."""
        rate = np.asarray(np.log(batch) + length - mean)
        step = 0.01
        good = self.attainment(batch, np.exp(mean), np.exp(mean - length))
        if good.max() < HOPELESS:
            return rate, np.ones(len(rate))
        worse = self.attainment(batch, np.exp(mean + step), np.exp(mean + step - length))
        met = np.log(np.maximum(good, LEAST_ATTAINMENT))
        lost = met - np.log(np.maximum(worse, LEAST_ATTAINMENT))
        return rate + met, np.minimum(1.0 + lost / step, STEEPEST)

    def predicted(self, setting: Setting) -> Predicted:
        """Return what a setting on the schedule's path would deliver."""
        mean, covariance = self.steps.predict([setting])
        length = log(self.acceptance.lengths[setting.tokens])
        sd = sqrt(float(covariance[0, 0]) + float(self.acceptance.sd[setting.tokens]) ** 2)
        return self._predicted(
            setting, float(mean[0]), length, sd, self.windows.get(setting, 0), self.range
        )

    def without_speculation(self, batch: int, context: int | None) -> Predicted | None:
        """Return what no speculation at all would deliver; None when it was never measured."""
        if self._none is None:
            return None
        setting = Setting(batch, 0, context)
        mean, covariance = self._none.predict([setting])
        count = sum(w.setting == setting for w in self.sweep.none)
        measured = [w.setting.batch for w in self.sweep.none]
        sd = sqrt(float(covariance[0, 0]))
        return self._predicted(
            setting, float(mean[0]), 0.0, sd, count, (min(measured), max(measured))
        )

    def _predicted(
        self,
        setting: Setting,
        mean: float,
        length: float,
        sd: float,
        count: int,
        measured: tuple[int, int],
    ) -> Predicted:
        tpot = np.exp(mean - length + Z95 * sd * np.array([0.0, -1.0, 1.0]))
        rate = setting.batch / tpot
        good = self.attainment(setting.batch, tpot * exp(length), tpot)
        inside = measured[0] <= setting.batch <= measured[1]
        return Predicted(
            at=setting.batch,
            context=setting.context,
            tokens=setting.tokens,
            throughput=_interval(rate),
            tpot_ms=_interval(1000 * tpot),
            goodput=_interval(rate * good / self.output_tokens),
            windows=count,
            basis="measured" if count else "predicted" if inside else "extrapolated",
        )


def _interval(values: Floats) -> Interval:
    """Return (value, one end, other end) as an interval, to five digits."""
    value, one, other = (float(f"{v:.5g}") for v in values)
    return Interval(value=value, low=min(one, other), high=max(one, other))


def _mean_tpot(window: Window) -> float:
    """Return seconds per output token of one request."""
    return window.cell.window_seconds * window.setting.batch / _output(window)


def _output(window: Window) -> int:
    return window.cell.engine_output_tokens or window.cell.output_tokens or 1


def _spread(
    windows: Sequence[Window],
    quantiles: Callable[[Window], Quantiles | None],
    predicted: Callable[[Window], float],
) -> _Spread | None:
    """Return how a latency lies around what the model predicts; None when no window tells it."""
    ratios: dict[int, list[float]] = {}
    spreads = []
    for window in windows:
        found = quantiles(window)
        if found is None or found.p50 is None or found.p50 <= 0:
            continue
        ratios.setdefault(window.setting.batch, []).append(
            log(found.p50 / 1000 / predicted(window))
        )
        if found.p90 is not None:
            spreads.append(log(max(found.p90, found.p50) / found.p50) / Z90)
    if not ratios:
        return None
    by_batch = tuple((log2(b), sum(r) / len(r)) for b, r in sorted(ratios.items()))
    sd = max(LEAST_SPREAD, sum(spreads) / len(spreads) if spreads else 0.0)
    return _Spread(by_batch, sd)
