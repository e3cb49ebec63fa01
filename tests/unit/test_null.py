"""The parts of `make show-null` that plant, split and count, on made-up outcomes."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.show import null
from distillknob.eval.verdicts import AGAINST, HOLDS, UNDECIDED, Outcome
from tests.exact import levels


def test_splits_are_disjoint() -> None:
    for one, two in null.splits(12, 5, 50, np.random.default_rng(0)):
        assert len({*one}) == len({*two}) == 5 and not {*one} & {*two}


def test_rates_and_their_jackknife() -> None:
    """Where one member makes all the difference, its jackknife interval is wide; where none does, it has no width."""
    rng = np.random.default_rng(0)
    members = [set(rng.permutation(10)[:4]) for _ in range(400)]
    outcomes: list[Outcome] = [HOLDS if 0 in chosen else UNDECIDED for chosen in members]
    found = null.rates("x", outcomes, members, 10)
    figure = found["x: holds"]
    assert figure.value == pytest.approx(0.4, abs=0.05) and figure.holds is False
    assert figure.low is not None and figure.high is not None and figure.high - figure.low > 0.5
    never = found["x: does not hold"]
    assert (never.value, never.low, never.high, never.holds) == (0.0, 0.0, 0.0, True)
    plain = null.rates("x", [AGAINST] + [UNDECIDED] * 99)["x: does not hold"]
    assert plain.value == 0.01 and plain.high == pytest.approx(0.0545, abs=1e-3)


def test_what_is_planted_is_there() -> None:
    rng = np.random.default_rng(0)
    control = (rng.random((48, 1024)) < 0.9).astype(np.int8)
    floor = np.tile((rng.random(1024) < 0.3).astype(np.int8), (48, 1))
    half = null.mixed(control, floor, 0.5, rng)
    assert half.mean() == pytest.approx((control.mean() + floor.mean()) / 2, abs=0.005)
    assert ((half == control) | (half == floor)).all()
    weak = null.lowered(control, 0.1, rng)
    assert control.mean() - weak.mean() == pytest.approx(0.1, abs=0.005) and (weak <= control).all()


def test_the_utility_pool_loses_exactly_the_margin() -> None:
    """However the two differed before; and the rates at the margin are the exact ones, less the noise of 2,000 trials, and at most
    what is asked."""
    rng = np.random.default_rng(0)
    original = (rng.random(8192) < 0.99).astype(np.int64)
    mine = np.where(rng.random(8192) < 0.003, 1 - original, original)
    figures = null.utility(mine, original, rng)
    assert figures["(b) pool: loss"].value == pytest.approx(0.02, abs=1e-4)
    assert figures["(b) 512 items: n"].value == 512
    share, loss = (figures[f"(b) pool: {words}"].value or 0.0 for words in ("discordant items", "loss"))
    for words in ("512 items", "the items of the power rule"):
        items = round(figures[f"(b) {words}: n"].value or 0)
        exact = levels(items, (share - loss) / 2, (share + loss) / 2, null.RULES.utility_margin)
        for outcome, chance in zip((HOLDS, AGAINST), exact, strict=True):
            value = figures[f"(b) utility at the margin, {words}: {outcome}"].value
            assert value == pytest.approx(chance, abs=4 * (chance / null.TRIALS) ** 0.5) and value <= 0.035
