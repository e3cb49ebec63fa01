"""Verdicts made of several cells (method §5): a teacher against all copiers that were tried, and an η over calibration seeds.

A verdict of `verdicts.py` is about one teacher and one way of copying it. Statements about an η have calibrated teachers as their
top level: students of one teacher say nothing about the next calibration with the same η."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from distillknob.eval.rules import VerdictRules
from distillknob.eval.statistics import Combination, mean_interval, welch_combination
from distillknob.eval.verdicts import (
    AGAINST,
    COLLAPSE,
    HOLDS,
    MINIMUM_SEEDS,
    UNDECIDED,
    Outcome,
    Verdict,
    above,
    below,
    without_headroom,
)

_Cells = Sequence[Sequence[float]]


def against_all(collapses: Mapping[str, Mapping[str, Any]]) -> Verdict:
    """Undistillable by every copier that was tried: each one's students collapse (intersection–union: no correction is needed).

    `collapses`: copier (SID) -> its collapse verdict as in summary.json. One that does not hold decides against. Value and limits
    are those of the strongest, whose students come nearest to the control's (the largest L), which is named in the extra
    `strongest`."""
    judged = {sid: one for sid, one in collapses.items() if one["value"] is not None}
    extras: dict[str, Any] = {"strongest": None, "copiers": list(collapses)}
    if not judged:
        return Verdict(None, None, None, UNDECIDED, "no copier was measured against the control", extras)
    strongest = max(judged, key=lambda sid: judged[sid]["value"])
    outcomes = {one["verdict"] for one in collapses.values()}
    verdict = AGAINST if AGAINST in outcomes else HOLDS if outcomes == {HOLDS} else UNDECIDED
    held = sum(one["verdict"] == HOLDS for one in collapses.values())
    reason = f"collapse holds for {held} of the {len(collapses)} copiers tried; the strongest is {strongest}"
    if verdict != HOLDS:
        first = next(sid for sid, one in collapses.items() if one["verdict"] == verdict)
        reason += f"; {first}: {verdict}, {collapses[first]['reason']}"
    top = judged[strongest]
    return Verdict(top["value"], top["low"], top["high"], verdict, reason, {**extras, "strongest": strongest})


def eta_keeps_utility(losses: Sequence[float], rules: VerdictRules) -> Verdict:
    """Utility kept at an η: the mean over calibrated teachers of acc(T_η) − acc(T_orig) lies above −margin."""
    found = mean_interval(losses, rules.confidence)
    if found.low is None or found.high is None or len(losses) < MINIMUM_SEEDS:
        return Verdict(found.value, found.low, found.high, UNDECIDED, _few(len(losses)))
    verdict, reason = above(found.low, found.high, -rules.utility_margin, "acc(T_η) − acc(T_orig) over calibrated teachers")
    return Verdict(found.value, found.low, found.high, verdict, reason)


def eta_collapses(tuned: _Cells, control: _Cells, floor: float, rules: VerdictRules) -> Verdict:
    """Collapse at an η: the mean of L over pairs of a calibrated teacher and its control, same calibration seed, lies below 0.

    `tuned`, `control`: accuracies of the students of each teacher, teachers in the same order. Headroom as in `collapse_verdict`,
    over the controls' means."""
    f = rules.collapse_fraction
    pairs = list(zip(_means(tuned), _means(control), strict=True))
    found = mean_interval([mine - f * its - (1 - f) * floor for mine, its in pairs], rules.confidence)
    headroom = mean_interval([its - floor for _, its in pairs], rules.confidence)
    verdict, reason = UNDECIDED, None if len(pairs) >= MINIMUM_SEEDS else _few(len(pairs))
    if reason is None and found.low is not None and found.high is not None:
        reason = without_headroom(headroom, rules)
        if reason is None:
            verdict, reason = below(found.low, found.high, f"{COLLAPSE}, over calibrated teachers")
    extras = {"headroom": headroom.as_dict()}
    return Verdict(found.value, found.low, found.high, verdict, reason or "the limits are undefined", extras)


def eta_is_better(tuned: _Cells, control: _Cells, greedy: Sequence[float] | None, rules: VerdictRules) -> Verdict:
    """Better teacher at an η: over calibrated teachers, students' means lie above those of their controls (paired by calibration
    seed), and above those of students of the original's greedy samples (`greedy`, one accuracy a seed; Welch)."""
    means = _means(tuned)
    first = mean_interval([mine - its for mine, its in zip(means, _means(control), strict=True)], rules.confidence)
    second = welch_combination([means, greedy], [1.0, -1.0], confidence=rules.confidence) if greedy else None
    if len(means) < MINIMUM_SEEDS or first.low is None or first.high is None:
        return Verdict(first.value, first.low, first.high, UNDECIDED, _few(len(means)), _greedy(second, UNDECIDED))
    outcome, reason = above(first.low, first.high, 0.0, "acc(S←T_η) − acc(S←T_ctl) over calibrated teachers")
    other, other_reason = UNDECIDED, "students of T_orig sampled greedily: not measured"
    if second is not None and second.low is not None and second.high is not None:
        other, other_reason = above(second.low, second.high, 0.0, "acc(S←T_η) − acc(S←T_orig sampled greedily)")
    both = (outcome, other)
    verdict: Outcome = AGAINST if AGAINST in both else HOLDS if both == (HOLDS, HOLDS) else UNDECIDED
    return Verdict(first.value, first.low, first.high, verdict, f"{reason}; {other_reason}", _greedy(second, other))


def _greedy(found: Combination | None, verdict: Outcome) -> dict[str, Any]:
    if found is None:
        return {"greedy_original": None}
    return {"greedy_original": {"value": found.value, "low": found.low, "high": found.high, "verdict": verdict}}


def _means(cells: _Cells) -> list[float]:
    return [fmean(cell) for cell in cells]


def _few(count: int) -> str:
    teachers = "1 calibrated teacher" if count == 1 else f"{count} calibrated teachers"
    return f"{teachers}, and a statement about an η needs at least {MINIMUM_SEEDS} (calibration_seeds)"
