"""Intervals and exact tests against numbers worked by hand."""

import math
from itertools import pairwise

import numpy as np
import pytest
from scipy import optimize, stats

from distillknob.eval.statistics import (
    Interval,
    mean_interval,
    paired_difference,
    permutation_p,
    ratio_interval,
    welch_combination,
    wilson_interval,
)
from tests.exact import levels


def test_mean_interval() -> None:
    """.5 … .9: mean .7, variance .025, standard error √.005, t(4) = 2.776445."""
    got = mean_interval([0.5, 0.6, 0.7, 0.8, 0.9])
    assert got.value == pytest.approx(0.7)
    assert got.low is not None and got.high is not None
    assert (got.low, got.high) == pytest.approx((0.7 - 0.1963243, 0.7 + 0.1963243), abs=1e-6)
    assert got.as_dict() == {"value": got.value, "low": got.low, "high": got.high, "n": 5}


def test_mean_interval_of_few() -> None:
    """One value has no limits, none has nothing, equal values have a width of exactly 0."""
    assert mean_interval([0.4]) == Interval(0.4, None, None, 1)
    assert mean_interval([]) == Interval(None, None, None, 0)
    assert mean_interval([0.1] * 7) == Interval(0.1, 0.1, 0.1, 7)


def test_confidence_widens() -> None:
    """A higher confidence gives a wider interval, for each kind."""
    a, b = [0.1, 0.2, 0.4], [0.5, 0.7, 0.8]
    widths = []
    for confidence in (0.5, 0.9, 0.99):
        every = (
            mean_interval(a, confidence), wilson_interval(3, 9, confidence), welch_combination([a, b], [1, -1], 0, confidence),
            paired_difference([1, 0, 1], [0, 0, 1], confidence),
        )  # fmt: skip
        widths.append([i.high - i.low for i in every if i.high is not None and i.low is not None])
    assert all(x < y for narrow, wide in pairwise(widths) for x, y in zip(narrow, wide, strict=True))


def test_wilson_interval() -> None:
    """8 of 10: centre (8 + z²/2)/(10 + z²), the published limits .4902 and .9433; 0 of 10 ends at z²/(10 + z²)."""
    got = wilson_interval(8, 10)
    assert (got.value, got.low, got.high, got.n) == pytest.approx((0.8, 0.4901625, 0.9433178, 10), abs=1e-6)
    none = wilson_interval(0, 10)
    assert (none.value, none.low, none.high) == pytest.approx((0.0, 0.0, 3.8414588 / 13.8414588), abs=1e-6)
    assert wilson_interval(0, 0) == Interval(None, None, None, 0)


def test_welch_combination() -> None:
    """[1,2,3] − ½·[2,4,6] − .25: terms 1/3 and ¼·4/3 = 1/3, df = (2/3)²/(2·(1/9)/2) = 4, half = 2.776445·√(2/3)."""
    got = welch_combination([[1, 2, 3], [2, 4, 6]], [1, -0.5], -0.25)
    assert (got.value, got.df) == pytest.approx((-0.25, 4))
    assert (got.low, got.high) == pytest.approx((-0.25 - 2.266958, -0.25 + 2.266958), abs=1e-5)


def test_welch_matches_scipy() -> None:
    """With coefficients 1 and −1 it is Welch's t interval."""
    a, b = [0.31, 0.35, 0.28, 0.40], [0.70, 0.66, 0.81, 0.59, 0.77]
    theirs = stats.ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
    got = welch_combination([a, b], [1, -1])
    assert (got.low, got.high) == pytest.approx((theirs.low, theirs.high), abs=1e-12)


def test_welch_without_spread() -> None:
    """A group without spread adds nothing: df 2 and √(4/3)·4.302653 stay; without any spread the width is 0."""
    got = welch_combination([[1, 1, 1], [2, 4, 6]], [1, -1])
    assert (got.value, got.low, got.high, got.df) == pytest.approx((-3, -3 - 4.968275, -3 + 4.968275, 2), abs=1e-5)
    flat = welch_combination([[0.1] * 5, [0.3] * 5], [1, -0.5])
    assert flat.low == flat.value == flat.high and flat.df is None


def test_welch_of_single_values() -> None:
    """One value leaves the limits undefined unless its coefficient is 0; an empty group is an error."""
    got = welch_combination([[1], [2, 3]], [1, -1])
    assert (got.value, got.low, got.high, got.df) == (-1.5, None, None, None)
    assert welch_combination([[1], [2, 3]], [0, -1]).low is not None
    with pytest.raises(ValueError):
        welch_combination([[], [2, 3]], [1, -1])
    with pytest.raises(ValueError):
        welch_combination([[1, 2], [2, 3]], [1])


def test_ratio_interval() -> None:
    """Fieller's limits are the roots r of (a − r·b)² = t²·(v_a + r²·v_b); here a = .3, b = .8, v = .0005 both, r = .375."""
    top, bottom = [0.25, 0.35, 0.30, 0.25, 0.35], [0.75, 0.85, 0.80, 0.75, 0.85]
    got = ratio_interval(top, bottom)
    df = (1 + 0.375**2) ** 2 / (1 / 4 + 0.375**4 / 4)
    t2v = float(stats.t.ppf(0.975, df)) ** 2 * 0.0005
    roots = sorted(np.roots([0.64 - t2v, -2 * 0.3 * 0.8, 0.09 - t2v]).real)
    assert got.value == pytest.approx(0.375)
    assert (got.low, got.high) == pytest.approx(roots, abs=1e-9)
    assert got.n == 5


def test_ratio_interval_without_limits() -> None:
    """No limits where the denominator may be 0 or a group has one value; no value where it is 0; width 0 without spread."""
    unbounded = ratio_interval([1, 2, 3], [-1, 1, 0.5])
    assert unbounded.value == pytest.approx(12) and (unbounded.low, unbounded.high) == (None, None)
    assert ratio_interval([1], [2]) == Interval(0.5, None, None, 1)
    assert ratio_interval([1, 2], [0, 0]) == Interval(None, None, None, 2)
    assert ratio_interval([1, 1], [2, 2]) == Interval(0.5, 0.5, 0.5, 2)


def test_paired_difference() -> None:
    """100 items, 2 gained and 5 lost. At a limit D the score statistic is z: (|−3 − 100·D| − ½)/√(100·(2·q + D·(1 − D))), where q,
    the likeliest share of lost items, is the root of 2/(q + D) + 5/q = 2·93/(1 − 2·q − D)."""
    a = [1] * 2 + [0] * 5 + [1] * 93
    b = [0] * 2 + [1] * 5 + [1] * 93
    got = paired_difference(a, b)
    assert (got.value, got.n, got.discordant) == pytest.approx((-0.03, 100, 7))
    assert got.p == pytest.approx(2 * (1 + 7 + 21) / 2**7)
    for at in (got.low, got.high):
        q = float(optimize.brentq(lambda q, at=at: 2 / (q + at) + 5 / q - 186 / (1 - 2 * q - at), max(1e-9, 1e-9 - at), 0.4))
        assert (abs(-3 - 100 * at) - 0.5) / math.sqrt(100 * (2 * q + at * (1 - at))) == pytest.approx(1.959964, abs=1e-5)
    assert got.low < got.value < got.high
    swapped = paired_difference(b, a)
    assert (swapped.value, swapped.low, swapped.high) == pytest.approx((-got.value, -got.high, -got.low))


def test_paired_difference_in_one_direction() -> None:
    """Where items are only lost, its far limit is Wilson's for the share of lost items, corrected for continuity."""
    wilson = stats.binomtest(5, 100).proportion_ci(method="wilsoncc")
    assert paired_difference([0] * 5 + [1] * 95, [1] * 100).low == pytest.approx(-wilson.high)
    everything = paired_difference([0] * 9, [1] * 9)
    assert (everything.value, everything.low) == (-1, -1) < (everything.high, 0)


def test_paired_difference_without_discordant_items() -> None:
    """1,022 equal outcomes: D of (n·D − ½)² = z²·n·D·(1 − D), not a width of 0. Unequal or no items are an error."""
    got = paired_difference([1, 0] * 511, [1, 0] * 511)
    assert (got.value, got.p) == (0, 1)
    assert (1022 * got.high - 0.5) ** 2 == pytest.approx(3.841459 * 1022 * got.high * (1 - got.high)) and got.high > 1 / 1022
    assert got.low == pytest.approx(-got.high)
    for a, b in (([1], [1, 0]), ([], [])):
        with pytest.raises(ValueError):
            paired_difference(a, b)


@pytest.mark.parametrize(
    ("items", "gained", "above", "below"),
    [
        (512, 0.0, 0.0082, 0.0312),
        (392, 0.0, 0.0033, 0.0283),
        (417, 0.0, 0.0100, 0.0226),
        (512, 0.01, 0.0165, 0.0212),
        (1024, 0.05, 0.0221, 0.0227),
    ],
)
def test_paired_difference_keeps_its_level_at_the_margin(items: int, gained: float, above: float, below: float) -> None:
    """True loss of exactly 2 points: the lower limit lies above it with a chance of at most 2.5 %, the upper below it of at most
    3.2 %. The expected chances are those of the score test, |gained − lost + .02·n| − ½ over its standard deviation against
    1.959964, with the likeliest share in closed form: no limit is looked for."""
    assert levels(items, gained, gained + 0.02, 0.02) == pytest.approx((above, below), abs=1e-4)
    assert above < 0.025 and below < 0.032


def test_permutation_p() -> None:
    """Apart, 5 against 5 reach 1/252 and 3 against 3 only 1/20; the wrong direction is 1; [1,2,3] and [2,3,4] give 5 of 20."""
    low, high = [1, 2, 3, 4, 5], [6, 7, 8, 9, 10]
    assert permutation_p(low, high, "less") == pytest.approx(1 / 252)
    assert permutation_p(low, high, "greater") == 1
    assert permutation_p(high[:3], low[:3], "greater") == pytest.approx(1 / 20)
    assert permutation_p([1, 2, 3], [2, 3, 4], "less") == pytest.approx(5 / 20)
    assert permutation_p([0.1, 0.1], [0.1, 0.1], "less") == 1
    assert permutation_p([1], [2, 3], "less") == pytest.approx(1 / 3)
    with pytest.raises(ValueError):
        permutation_p([], [1], "less")


def test_permutation_p_counts_ties_despite_rounding() -> None:
    """.1 + .2 and .3 + 0 are one sum: all six divisions of [.1, .2 | .3, 0] but two reach it."""
    assert permutation_p([0.1, 0.2], [0.3, 0.0], "greater") == pytest.approx(4 / 6)
    assert permutation_p([0.3, 0.0], [0.1, 0.2], "greater") == pytest.approx(4 / 6)


def test_permutation_p_matches_scipy() -> None:
    """The enumeration gives scipy's exact p, groups of unequal size included."""
    a, b = [0.31, 0.35, 0.68, 0.40], [0.70, 0.36, 0.81, 0.59, 0.77]
    theirs = stats.permutation_test((a, b), lambda x, y: np.mean(x) - np.mean(y), n_resamples=10_000, alternative="less")
    assert permutation_p(a, b, "less") == pytest.approx(float(theirs.pvalue))
