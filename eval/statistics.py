"""Intervals and tests behind the verdicts (method §5): t-based over seeds, Wilson's and Tango's score intervals over items, exact
permutations and sign tests. What a number of seeds or items can show is in `power.py`.

Every interval is two-sided with level `confidence` (.95), so that each end is a one-sided 97.5 % limit. Units are those of the
input: fractions for accuracies. A limit that cannot be computed (one seed, an unbounded ratio) is None, never a number that
looks like one."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import numpy as np
from scipy import optimize, stats

_FloatSequence = Sequence[float]


@dataclass(frozen=True)
class Interval:
    """An estimate with its limits and the number of observations behind it; None where undefined."""

    value: float | None
    low: float | None
    high: float | None
    n: int

    def as_dict(self) -> dict[str, float | int | None]:
        """The interval as the object that summary.json holds."""
        return {"value": self.value, "low": self.low, "high": self.high, "n": self.n}


@dataclass(frozen=True)
class Combination:
    """A linear combination of group means with its Welch limits; df is None where no variance could be estimated or all were
    zero."""

    value: float
    low: float | None
    high: float | None
    df: float | None


@dataclass(frozen=True)
class PairedDifference:
    """A difference of two paired shares over n items, of which `discordant` came out differently; `p` of the exact sign test."""

    value: float
    low: float
    high: float
    n: int
    discordant: int
    p: float


def _t_quantile(confidence: float, df: float) -> float:
    return float(stats.t.ppf(0.5 + confidence / 2, df))


def _mean_and_variance(values: _FloatSequence) -> tuple[float, float]:
    """Mean and the variance *of the mean* (unbiased variance over n); exactly 0 for equal values, whatever the rounding of the
    mean."""
    array = np.asarray(values, dtype=np.float64)
    if np.all(array == array[0]):
        return float(array[0]), 0.0
    return float(array.mean()), float(array.var(ddof=1)) / len(array)


def mean_interval(values: _FloatSequence, confidence: float = 0.95) -> Interval:
    """Mean with a t interval over independent values (seeds, items); under two values the limits are None, under one the value
    too (method §5)."""
    if not values:
        return Interval(None, None, None, 0)
    mean, variance = _mean_and_variance(values)
    if len(values) == 1:
        return Interval(mean, None, None, 1)
    half = _t_quantile(confidence, len(values) - 1) * math.sqrt(variance)
    return Interval(mean, mean - half, mean + half, len(values))


def wilson_interval(k: int, n: int, confidence: float = 0.95) -> Interval:
    """Share k/n with Wilson's score interval; n = 0 gives an undefined one (scipy.stats.binomtest)."""
    if n == 0:
        return Interval(None, None, None, 0)
    limits = stats.binomtest(k, n).proportion_ci(confidence_level=confidence, method="wilson")
    return Interval(k / n, float(limits.low), float(limits.high), n)


def welch_combination(
    groups: Sequence[_FloatSequence], coefficients: _FloatSequence, constant: float = 0.0, confidence: float = 0.95
) -> Combination:
    """Σ c_i · mean(group_i) + constant with Welch-Satterthwaite limits (method §5: coefficients 1 and −½ for collapse, 1 and −1
    for better).

    A group without spread adds no variance and no degrees of freedom; with no spread anywhere both limits are the estimate. A
    group of one value with a coefficient other than 0 leaves the limits undefined. Raises ValueError for an empty group or
    unequal lengths."""
    if not all(groups):
        raise ValueError("welch_combination needs at least one value in every group")
    moments = [_mean_and_variance(group) if len(group) > 1 else (float(group[0]), math.nan) for group in groups]
    pairs = list(zip(coefficients, moments, strict=True))
    value = sum(c * mean for c, (mean, _) in pairs) + constant
    terms = [0.0 if c == 0 else c * c * variance for c, (_, variance) in pairs]
    total = sum(terms)
    if math.isnan(total):
        return Combination(value, None, None, None)
    if total == 0:
        return Combination(value, value, value, None)
    df = total**2 / sum(term**2 / (len(group) - 1) for term, group in zip(terms, groups, strict=True) if term > 0)
    half = _t_quantile(confidence, df) * math.sqrt(total)
    return Combination(value, value - half, value + half, df)


def ratio_interval(numerator: _FloatSequence, denominator: _FloatSequence, confidence: float = 0.95) -> Interval:
    """mean(numerator) / mean(denominator) of two independent groups with Fieller's limits, degrees of freedom after Welch at
    the estimate.

    Limits are None where a group has one value or the denominator is not clearly different from 0 (Fieller's set is then
    unbounded); the value too where the denominator is 0. n is the smaller group. Used for retained (method §5; the interval is
    ours)."""
    n = min(len(numerator), len(denominator))
    (top, top_variance), (bottom, bottom_variance) = _mean_and_variance(numerator), _mean_and_variance(denominator)
    if bottom == 0:
        return Interval(None, None, None, n)
    ratio = top / bottom
    if n < 2:
        return Interval(ratio, None, None, n)
    df = welch_combination([numerator, denominator], [1.0, -ratio], confidence=confidence).df
    if df is None:
        return Interval(ratio, ratio, ratio, n)
    t = _t_quantile(confidence, df)
    g = t * t * bottom_variance / bottom**2
    if g >= 1:
        return Interval(ratio, None, None, n)
    half = t / abs(bottom) * math.sqrt(top_variance * (1 - g) + ratio**2 * bottom_variance)
    return Interval(ratio, (ratio - half) / (1 - g), (ratio + half) / (1 - g), n)


def paired_difference(a: Sequence[int], b: Sequence[int], confidence: float = 0.95) -> PairedDifference:
    """mean(a) − mean(b) over paired 0/1 outcomes with Tango's (1998) score limits, corrected for continuity.

    A limit is the difference D at which the score statistic (|value − D|·n − ½) / √(n·(2·q_D + D·(1 − D))) reaches the quantile,
    q_D the likeliest share of lost items given D. Unlike the Wald kind it keeps its level where few items differ, all in one
    direction, as they do between good teachers (docs/decisions.md; choice of interval: ours). `p` is the exact sign test of no
    difference (McNemar), two-sided. Raises ValueError where the lengths differ or there is no item."""
    if len(a) != len(b) or not a:
        raise ValueError(f"paired outcomes need equal lengths of at least 1, got {len(a)} and {len(b)}")
    gained = sum(x > y for x, y in zip(a, b, strict=True))
    lost = sum(x < y for x, y in zip(a, b, strict=True))
    low, high = _score_limits(gained, lost, len(a), confidence)
    p = float(stats.binomtest(gained, gained + lost).pvalue) if gained + lost else 1.0
    return PairedDifference((gained - lost) / len(a), low, high, len(a), gained + lost, p)


def _score_limits(gained: int, lost: int, n: int, confidence: float) -> tuple[float, float]:
    """The differences on either side of the estimate at which the corrected score reaches z."""
    z, value = float(stats.norm.ppf(0.5 + confidence / 2)), (gained - lost) / n

    def score(difference: float) -> float:
        b = (2 * n - gained + lost) * difference - gained - lost
        lost_share = (math.sqrt(max(0.0, b * b + 8 * n * lost * difference * (1 - difference))) - b) / (4 * n)
        variance = n * (2 * lost_share + difference * (1 - difference))
        gap = max(0.0, n * abs(value - difference) - 0.5)
        return gap / math.sqrt(variance) if variance > 0 else math.inf if gap else 0.0

    def limit(end: float) -> float:
        if score(end) <= z:  # even the end is not excluded
            return end
        return float(optimize.brentq(lambda d: min(score(d), 99.0) - z, end, value, xtol=1e-12))

    return limit(-1.0), limit(1.0)


def between_deviation(groups: Sequence[_FloatSequence], confidence: float = 0.95) -> Interval:
    """Standard deviation between the true means of equally treated groups (teachers), beyond what their members (students) differ.

    One-way random effects by analysis of variance, √max(0, (MS_between − MS_within) / m); limits after Williams and Tukey, never
    under 0; for groups of unequal size m is their harmonic mean. Raises ValueError for under two groups or two members."""
    sizes = [len(group) for group in groups]
    if len(groups) < 2 or min(sizes) < 2:
        raise ValueError("between_deviation needs two groups or more of two members or more")
    members, outer, inner = len(sizes) / sum(1 / size for size in sizes), len(groups) - 1, sum(sizes) - len(groups)
    means = [float(np.mean(group)) for group in groups]
    between = members * float(np.var(means, ddof=1))
    within = sum(float(np.var(group, ddof=1)) * (len(group) - 1) for group in groups) / inner

    def limit(q: float) -> float:
        scaled = outer * (between - within * float(stats.f.ppf(q, outer, inner))) / (members * float(stats.chi2.ppf(q, outer)))
        return math.sqrt(max(0.0, scaled))

    tail = (1 - confidence) / 2
    return Interval(math.sqrt(max(0.0, (between - within) / members)), limit(1 - tail), limit(tail), len(groups))


def permutation_p(a: _FloatSequence, b: _FloatSequence, direction: Literal["greater", "less"]) -> float:
    """Exact one-sided p of mean(a) − mean(b) over all ways to divide the values; never under 1/C(n_a+n_b, n_a) (method §5).

    `greater` asks whether a is larger. Raises ValueError for an empty group. Meant for seeds: the number of divisions grows
    fast."""
    if not a or not b:
        raise ValueError("permutation_p needs at least one value on both sides")
    sign = 1.0 if direction == "greater" else -1.0
    pooled = sign * np.asarray([*a, *b], dtype=np.float64)
    # With the pooled values fixed, the sum of the first group orders the divisions as the difference of means does.
    # scipy.stats.permutation_test refuses groups of one value, hence the enumeration here.
    chosen = np.array(list(combinations(range(len(pooled)), len(a))))
    sums = pooled[chosen].sum(axis=1)
    observed = sums[0]  # the first combination is the division as observed
    return float(np.mean(sums >= observed - 1e-12 * max(1.0, abs(observed))))  # equal sums differ by rounding: they count as ties
