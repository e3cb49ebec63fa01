"""Every branch of the three verdicts of method §5, on numbers worked by hand."""

import pytest

from distillknob.eval.rules import VerdictRules
from distillknob.eval.verdicts import better_verdict, collapse_verdict, utility_verdict

RULES = VerdictRules()
LOW = [0.29, 0.30, 0.31, 0.30, 0.30]  # mean .30
HIGH = [0.79, 0.80, 0.81, 0.80, 0.80]  # mean .80
WIDE = [0.35, 0.45, 0.55, 0.65, 0.75]  # mean .55, the point between HIGH and b = .30
FLOOR = 0.30


def test_default_rules() -> None:
    """The margins of method §5."""
    assert (RULES.utility_margin, RULES.collapse_fraction, RULES.minimum_headroom, RULES.confidence) == (0.02, 0.5, 0.10, 0.95)


def test_utility_holds() -> None:
    """1,022 equal items: limits ±D of (1,022·D − ½)² = z²·1,022·D·(1 − D), above −.02; 236 items would do."""
    got = utility_verdict([1] * 1022, [1] * 1022, RULES)
    assert got.verdict == "holds" and got.value == 0 and got.low == pytest.approx(-0.00466842, abs=1e-7)
    assert got.extras == {"margin": 0.02, "items": 1022, "discordant": 0, "needed_items": 236, "sign_test_p": 1.0}
    assert "above -2.0 points" in got.reason


def test_utility_does_not_hold() -> None:
    """100 of 1,000 items lost: about −.10 ± .02."""
    got = utility_verdict([0] * 100 + [1] * 900, [1] * 1000, RULES)
    assert got.verdict == "does not hold" and got.high is not None and got.high < -0.02
    assert got.value == pytest.approx(-0.1) and got.extras["discordant"] == 100


def test_utility_undecided() -> None:
    """40 equal items are too few (limits ±.07); the reason names the discordant and the needed items."""
    assert utility_verdict([1] * 40, [1] * 40, RULES).verdict == "undecided"
    got = utility_verdict([0] + [1] * 99, [1] * 99 + [0], RULES)
    assert got.verdict == "undecided"
    assert "2 of 100 items are discordant" in got.reason and "about 442 items" in got.reason
    assert got.extras["needed_items"] == 442


def test_utility_margin_is_a_rule() -> None:
    """40 equal items show 10.9 points, D of (40·D − ½)² = z²·40·D·(1 − D): the same outcomes hold with a margin above that."""
    for margin, verdict in ((0.10, "undecided"), (0.11, "holds")):
        assert utility_verdict([1] * 40, [1] * 40, VerdictRules(utility_margin=margin)).verdict == verdict


def test_collapse_holds() -> None:
    """L = .30 − ½·.80 − ½·.30 = −.25; variances 1e-5 and ¼·1e-5, df (1.25e-5)²/((1e-10 + 6.25e-12)·1e0/4) = 5.8824."""
    got = collapse_verdict(LOW, HIGH, FLOOR, RULES)
    assert got.verdict == "holds" and got.value == pytest.approx(-0.25)
    half = 2.458815 * (1.25e-5) ** 0.5  # t quantile for df 5.8824
    assert (got.low, got.high) == pytest.approx((-0.25 - half, -0.25 + half), abs=1e-5)
    assert got.extras["permutation_p"] == pytest.approx(1 / 252)
    assert got.extras["headroom"]["value"] == pytest.approx(0.5)
    assert "is below 0" in got.reason


def test_collapse_does_not_hold() -> None:
    """L = .80 − .40 − .15 = +.25; nor is the p small."""
    got = collapse_verdict(HIGH, HIGH, FLOOR, RULES)
    assert got.verdict == "does not hold" and got.value == pytest.approx(0.25)
    assert got.extras["permutation_p"] > 0.5 and "is above 0" in got.reason


def test_collapse_undecided_within_limits() -> None:
    """L = .55 − .40 − .15 = 0."""
    got = collapse_verdict(WIDE, HIGH, FLOOR, RULES)
    assert got.verdict == "undecided" and got.value == pytest.approx(0) and "include 0" in got.reason


def test_collapse_fraction_is_a_rule() -> None:
    """With f = .9 the bar is .9·.80 + .1·.30 = .75: the wide group is below it."""
    got = collapse_verdict(WIDE, HIGH, FLOOR, VerdictRules(collapse_fraction=0.9))
    assert got.value == pytest.approx(0.55 - 0.75) and got.verdict == "holds"


@pytest.mark.parametrize("calibrated", [LOW, HIGH])
def test_collapse_needs_headroom(calibrated: list[float]) -> None:
    """With b at .75 the control is 5 points above it: neither a holding nor a failing L decides."""
    got = collapse_verdict(calibrated, HIGH, 0.75, RULES)
    assert got.verdict == "undecided" and "under the +10.0 points" in got.reason
    assert got.value is not None and got.low is not None


def test_headroom_uses_the_lower_limit() -> None:
    """Mean headroom .25 with limits ±.196 is not enough; exactly .10 without spread is."""
    got = collapse_verdict(LOW, WIDE, FLOOR, RULES)
    assert got.verdict == "undecided" and got.extras["headroom"]["low"] == pytest.approx(0.25 - 0.1963243, abs=1e-6)
    assert collapse_verdict([0.1] * 5, [0.4] * 5, FLOOR, RULES).verdict == "holds"
    assert collapse_verdict([0.1] * 5, [0.399] * 5, FLOOR, RULES).verdict == "undecided"


@pytest.mark.parametrize(("mine", "control"), [(LOW[:4], HIGH), (LOW, HIGH[:4]), (LOW[:1], HIGH[:1])])
def test_collapse_needs_five_seeds(mine: list[float], control: list[float]) -> None:
    """Under 5 seeds in either cell nothing is decided, but the numbers stand."""
    got = collapse_verdict(mine, control, FLOOR, RULES)
    assert got.verdict == "undecided" and got.value is not None and got.extras["permutation_p"] is not None
    assert f"{len(mine)} against {len(control)} seeds" in got.reason and "at least 5" in got.reason


@pytest.mark.parametrize("control", [None, []])
def test_collapse_without_control(control: list[float] | None) -> None:
    """No students of the control teacher, no number."""
    got = collapse_verdict(LOW, control, FLOOR, RULES)
    assert (got.value, got.verdict, got.extras["permutation_p"]) == (None, "undecided", None) and "not measured" in got.reason


def test_better_holds_only_against_both() -> None:
    """.80 against .30 and .30: half = t(8)·√2e-5 = 2.306004·.00447214."""
    got = better_verdict(HIGH, LOW, LOW, RULES)
    assert got.verdict == "holds" and got.value == pytest.approx(0.5)
    half = 2.306004 * 2e-5**0.5
    assert (got.low, got.high) == pytest.approx((0.5 - half, 0.5 + half), abs=1e-7)
    assert got.extras["permutation_p"] == pytest.approx(1 / 252)
    assert got.extras["greedy_original"]["verdict"] == "holds"


def test_better_one_failure_decides() -> None:
    """Whichever comparison fails, and whatever the other is: holding, undecided or not measured."""
    for control, greedy in ((LOW, HIGH), (HIGH, LOW), (WIDE, HIGH), (HIGH, WIDE), (HIGH, None), (None, HIGH), (HIGH, HIGH)):
        assert better_verdict(WIDE, control, greedy, RULES).verdict == "does not hold", (control, greedy)
    got = better_verdict(WIDE, LOW, HIGH, RULES)
    assert got.value == pytest.approx(0.25) and got.extras["greedy_original"]["value"] == pytest.approx(-0.25)


@pytest.mark.parametrize(("control", "greedy"), [(LOW, WIDE), (WIDE, LOW), (WIDE, WIDE)])
def test_better_undecided_within_limits(control: list[float], greedy: list[float]) -> None:
    """One comparison that includes 0 leaves it open where the other does not fail."""
    got = better_verdict(WIDE, control, greedy, RULES)
    assert got.verdict == "undecided" and "include 0" in got.reason


def test_better_without_greedy_original() -> None:
    """A gain over the control alone is not enough: the other half was not measured."""
    got = better_verdict(HIGH, LOW, None, RULES)
    assert got.verdict == "undecided" and "T_orig sampled greedily): not measured" in got.reason
    assert got.value == pytest.approx(0.5) and got.extras["greedy_original"] is None


def test_better_without_control() -> None:
    """No control, no value; the greedy comparison stands beside it."""
    got = better_verdict(HIGH, None, LOW, RULES)
    assert (got.value, got.low, got.verdict) == (None, None, "undecided") and "T_ctl): not measured" in got.reason
    assert got.extras["greedy_original"]["verdict"] == "holds"


def test_better_needs_five_seeds() -> None:
    """Under 5 seeds in any cell the comparison is open, with its numbers; even where it looks lost."""
    few = ((HIGH[:4], LOW, LOW), (HIGH, LOW[:4], LOW), (HIGH, LOW, LOW[:4]), (LOW[:3], HIGH[:3], HIGH[:3]))
    for mine, control, greedy in few:
        got = better_verdict(mine, control, greedy, RULES)
        assert got.verdict == "undecided" and "at least 5" in got.reason and got.low is not None


def test_as_dict_has_the_extras_beside() -> None:
    """The shape that summary.json holds."""
    got = utility_verdict([1] * 40, [1] * 40, RULES).as_dict()
    assert list(got) == [
        "value",
        "low",
        "high",
        "verdict",
        "reason",
        "margin",
        "items",
        "discordant",
        "needed_items",
        "sign_test_p",
    ]
