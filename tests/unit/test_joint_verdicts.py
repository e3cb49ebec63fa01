"""Verdicts made of several cells, on numbers worked by hand."""

from __future__ import annotations

from typing import Any

import pytest

from distillknob.eval.joint_verdicts import against_all, eta_collapses, eta_is_better, eta_keeps_utility
from distillknob.eval.rules import VerdictRules

RULES = VerdictRules()
HOLDS, AGAINST, OPEN = "holds", "does not hold", "undecided"
CONTROL = [[0.80, 0.90], [0.84, 0.86], [0.85, 0.85], [0.80, 0.80], [0.90, 0.90]]  # means .85 .85 .85 .80 .90
LOW = [[0.30, 0.32], [0.30, 0.30], [0.29, 0.31], [0.30, 0.30], [0.30, 0.30]]  # means .31 .30 .30 .30 .30


def collapse(value: float | None, verdict: str) -> dict[str, Any]:
    """A collapse verdict as summary.json has it."""
    return {"value": value, "low": None, "high": None, "verdict": verdict, "reason": "why"}


@pytest.mark.parametrize(
    ("outcomes", "verdict"),
    [((HOLDS, HOLDS), HOLDS), ((HOLDS, OPEN), OPEN), ((HOLDS, AGAINST), AGAINST), ((OPEN, AGAINST), AGAINST), ((OPEN, OPEN), OPEN)],
)
def test_every_copier_must_fail(outcomes: tuple[str, str], verdict: str) -> None:
    got = against_all({"a": collapse(-0.3, outcomes[0]), "b": collapse(-0.1, outcomes[1])})
    assert got.verdict == verdict and got.value == -0.1  # b's students come nearest to the control's
    assert got.extras == {"strongest": "b", "copiers": ["a", "b"]}
    assert f"holds for {outcomes.count(HOLDS)} of the 2 copiers tried; the strongest is b" in got.reason


def test_without_a_measured_copier_nothing_is_said() -> None:
    for collapses in ({}, {"a": collapse(None, OPEN)}):
        got = against_all(collapses)
        assert (got.verdict, got.value, got.extras["strongest"]) == (OPEN, None, None)
    mixed = against_all({"a": collapse(None, OPEN), "b": collapse(-0.2, HOLDS)})
    assert mixed.verdict == OPEN and mixed.extras["strongest"] == "b"


def test_utility_of_an_eta() -> None:
    """Five losses of mean −.01 and standard deviation .01·√(1/2): limits −.01 ± 2.776·.00707/√5, the lower one −.0188."""
    got = eta_keeps_utility([-0.02, -0.01, -0.01, -0.01, 0.0], RULES)
    assert got.verdict == HOLDS and got.low == pytest.approx(-0.01 - 2.776445 * 0.0070711 / 5**0.5, abs=1e-6)
    assert eta_keeps_utility([-0.05, -0.05, -0.06, -0.05, -0.05], RULES).verdict == AGAINST
    assert eta_keeps_utility([-0.04, 0.0, -0.02, -0.04, 0.0], RULES).verdict == OPEN
    few = eta_keeps_utility([0.0] * 4, RULES)
    assert few.verdict == OPEN and "4 calibrated teachers" in few.reason


def test_collapse_of_an_eta() -> None:
    """L a pair = mean − ½·control − ½·.3: −.265, −.275, −.275, −.25, −.30; mean −.273, standard deviation .018235."""
    got = eta_collapses(LOW, CONTROL, 0.3, RULES)
    assert got.verdict == HOLDS and got.value == pytest.approx(-0.273)
    assert got.high == pytest.approx(-0.273 + 2.776445 * 0.0182346 / 5**0.5, abs=1e-5)
    assert got.extras["headroom"]["value"] == pytest.approx(0.55) and "over calibrated teachers" in got.reason
    assert eta_collapses(CONTROL, CONTROL, 0.3, RULES).verdict == AGAINST
    none = eta_collapses(LOW, CONTROL, 0.8, RULES)
    assert none.verdict == OPEN and "under the +10.0 points" in none.reason
    assert eta_collapses(LOW[:4], CONTROL[:4], 0.3, RULES).verdict == OPEN


def test_students_do_not_make_up_for_teachers() -> None:
    """A hundred students a teacher are no more than their mean: four teachers stay undecided."""
    many = [[0.30, 0.31] * 50] * 4
    assert eta_collapses(many, [[0.8, 0.9] * 50] * 4, 0.3, RULES).verdict == OPEN


def test_better_at_an_eta() -> None:
    """Both comparisons decide: against each teacher's own control, paired, and against the greedy original."""
    high = [[value + 0.05 for value in cell] for cell in CONTROL]
    got = eta_is_better(high, CONTROL, [0.5, 0.5, 0.51, 0.49, 0.5], RULES)
    assert got.verdict == HOLDS and got.value == pytest.approx(0.05) == got.low
    assert got.extras["greedy_original"]["verdict"] == HOLDS
    assert got.extras["greedy_original"]["value"] == pytest.approx(0.90 - 0.5)
    assert eta_is_better(high, CONTROL, [0.99, 0.99, 0.98, 0.99, 0.99], RULES).verdict == AGAINST
    assert eta_is_better(high, CONTROL, None, RULES).verdict == OPEN
    assert eta_is_better(CONTROL, high, [0.5] * 5, RULES).verdict == AGAINST
    assert eta_is_better(high[:4], CONTROL[:4], [0.5] * 5, RULES).verdict == OPEN
