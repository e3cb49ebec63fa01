"""The three verdicts of method §5: utility kept, collapse, better teacher. Each holds, does not hold, or is undecided, with a
reason in words."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from distillknob.eval.power import needed_items
from distillknob.eval.rules import VerdictRules
from distillknob.eval.statistics import Combination, Interval, mean_interval, paired_difference, permutation_p, welch_combination

Outcome = Literal["holds", "does not hold", "undecided"]
HOLDS: Outcome = "holds"
AGAINST: Outcome = "does not hold"
UNDECIDED: Outcome = "undecided"
COLLAPSE = "L = acc(S←T_η) less the point between b and acc(S←T_ctl)"
MINIMUM_SEEDS = 5  # method §5: 3 against 3 can never get a permutation p under .05


@dataclass(frozen=True)
class Verdict:
    """A judged number: value and limits (fractions, None where not measured), the verdict, why, and what belongs beside it."""

    value: float | None
    low: float | None
    high: float | None
    verdict: Outcome
    reason: str
    extras: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """The verdict as the object that summary.json holds, the extras beside the five common keys."""
        numbers = {"value": self.value, "low": self.low, "high": self.high}
        return {**numbers, "verdict": self.verdict, "reason": self.reason, **self.extras}


def points(value: float) -> str:
    """A fraction in words, in points of accuracy."""
    return f"{100 * value:+.1f} points" if value else "0"


def above(low: float, high: float, bound: float, what: str) -> tuple[Outcome, str]:
    """The rule "lower limit above bound", and its reason in words."""
    if low > bound:
        return HOLDS, f"the lower limit of {what}, {points(low)}, is above {points(bound)}"
    if high < bound:
        return AGAINST, f"the upper limit of {what}, {points(high)}, is below {points(bound)}"
    return UNDECIDED, f"the limits of {what}, {points(low)} to {points(high)}, include {points(bound)}"


def below(low: float, high: float, what: str) -> tuple[Outcome, str]:
    """The rule "upper limit below 0", and its reason in words."""
    if high < 0:
        return HOLDS, f"the upper limit of {what}, {points(high)}, is below 0"
    if low > 0:
        return AGAINST, f"the lower limit of {what}, {points(low)}, is above 0"
    return UNDECIDED, f"the limits of {what}, {points(low)} to {points(high)}, include 0"


def without_headroom(headroom: Interval, rules: VerdictRules) -> str | None:
    """Why the control's students gained too little for a verdict on collapse; None where they gained enough.

    A limit that equals the bound in decimals may miss it by one rounding of the subtraction."""
    if headroom.low is None or headroom.low >= rules.minimum_headroom - 1e-12:
        return None
    return (
        f"the lower limit of acc(S←T_ctl) − b is {points(headroom.low)}, under the {points(rules.minimum_headroom)} "
        "that the rule asks for: a collapse could not be told from a task that is not taught"
    )


def _too_few(first: Sequence[float], second: Sequence[float]) -> str | None:
    if min(len(first), len(second)) >= MINIMUM_SEEDS:
        return None
    return f"{len(first)} against {len(second)} seeds, and a verdict needs at least {MINIMUM_SEEDS} in each cell"


def utility_verdict(calibrated: Sequence[int], original: Sequence[int], rules: VerdictRules) -> Verdict:
    """Utility kept: the paired difference in accuracy to the original teacher lies above −margin (method §5).

    Takes 0/1 outcomes of the same items in the same order. The limits alone decide; the extras are margin, items, discordant,
    needed_items (80 % power) and the exact p of no difference. Raises ValueError where the lengths differ or there is no item."""
    paired = paired_difference(calibrated, original, rules.confidence)
    discordant = max(1, paired.discordant) / paired.n  # none seen is not none there
    needed = needed_items(discordant, rules.utility_margin, rules.confidence)
    verdict, reason = above(paired.low, paired.high, -rules.utility_margin, "acc(T_η) − acc(T_orig)")
    if verdict == UNDECIDED:
        reason += f"; {paired.discordant} of {paired.n} items are discordant, about {needed} items would be needed for 80 % power"
    extras = {
        "margin": rules.utility_margin,
        "items": paired.n,
        "discordant": paired.discordant,
        "needed_items": needed,
        "sign_test_p": paired.p,
    }
    return Verdict(paired.value, paired.low, paired.high, verdict, reason, extras)


def collapse_verdict(calibrated: Sequence[float], control: Sequence[float] | None, floor: float, rules: VerdictRules) -> Verdict:
    """Collapse: L = acc(S←T_η) − f·acc(S←T_ctl) − (1 − f)·b lies below 0, f = collapse_fraction (method §5).

    Takes one greedy accuracy a seed and cell, and b (`floor`). Undecided under 5 seeds a cell, and unless the lower limit of
    acc(S←T_ctl) − b reaches minimum_headroom. The permutation p is of acc(S←T_η) < acc(S←T_ctl)."""
    if not control:
        extras = {"permutation_p": None, "headroom": None}
        return Verdict(None, None, None, UNDECIDED, "students of the control teacher were not measured", extras)
    f = rules.collapse_fraction
    result = welch_combination([calibrated, control], [1.0, -f], -(1 - f) * floor, rules.confidence)
    headroom = mean_interval([value - floor for value in control], rules.confidence)
    measured = {"permutation_p": permutation_p(calibrated, control, "less"), "headroom": headroom.as_dict()}
    verdict, reason = UNDECIDED, _too_few(calibrated, control)
    if reason is None and result.low is not None and result.high is not None:
        reason = without_headroom(headroom, rules)
        if reason is None:
            verdict, reason = below(result.low, result.high, COLLAPSE)
    return Verdict(result.value, result.low, result.high, verdict, reason or "the limits are undefined", measured)


def _comparison(
    first: Sequence[float], second: Sequence[float] | None, name: str, rules: VerdictRules
) -> tuple[Outcome, str, Combination | None, float | None]:
    what = f"acc(S←T_η) − acc(S←{name})"
    if not second:
        return UNDECIDED, f"{what}: not measured{' (controls: [greedy] adds it)' if 'greedily' in name else ''}", None, None
    result = welch_combination([first, second], [1.0, -1.0], confidence=rules.confidence)
    p = permutation_p(first, second, "greater")
    few = _too_few(first, second)
    if few is not None or result.low is None or result.high is None:
        return UNDECIDED, f"{what}: {few}", result, p
    verdict, reason = above(result.low, result.high, 0.0, what)
    return verdict, reason, result, p


def better_verdict(
    calibrated: Sequence[float], control: Sequence[float] | None, greedy_original: Sequence[float] | None, rules: VerdictRules
) -> Verdict:
    """Better teacher: acc(S←T_η) lies above both acc(S←T_ctl) and acc(S←T_orig sampled at T = 0), Welch limits (method §5).

    Takes one greedy accuracy a seed and cell, None or empty for a cell that was not measured. One comparison that does not hold
    decides against, whatever the other; both must hold; else undecided. Value, limits and permutation p are those against the
    control; the extra `greedy_original` holds the same of the second comparison, or None where it was not measured."""
    first, first_reason, versus_control, p = _comparison(calibrated, control, "T_ctl", rules)
    second, second_reason, versus_greedy, greedy_p = _comparison(calibrated, greedy_original, "T_orig sampled greedily", rules)
    both = (first, second)
    verdict = AGAINST if AGAINST in both else HOLDS if both == (HOLDS, HOLDS) else UNDECIDED
    greedy = None
    if versus_greedy is not None:
        limits = {"value": versus_greedy.value, "low": versus_greedy.low, "high": versus_greedy.high}
        greedy = {**limits, "verdict": second, "permutation_p": greedy_p}
    value, low, high = (versus_control.value, versus_control.low, versus_control.high) if versus_control else (None, None, None)
    extras = {"permutation_p": p, "greedy_original": greedy}
    return Verdict(value, low, high, verdict, f"{first_reason}; {second_reason}", extras)
