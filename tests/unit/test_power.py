"""What a number of seeds or items can show: against published numbers, simulation, and itself read backwards."""

import math

import numpy as np
import pytest

from distillknob.eval.power import DIFFERENCE, contrast_power, detectable_effect, detectable_margin, needed_items, needed_seeds
from distillknob.eval.statistics import paired_difference, welch_combination


def test_power_of_a_difference_is_the_textbooks() -> None:
    """Two cells of equal spread: 17 a cell see a difference of one standard deviation with 80 % (Cohen's table), 16 do not; at
    d = .5 it takes 64."""
    assert needed_seeds(1.0, (1.0, 1.0), DIFFERENCE) == 17
    assert needed_seeds(0.5, (1.0, 1.0), DIFFERENCE) == 64
    assert (contrast_power(1.0, (1.0, 1.0), DIFFERENCE, 17) or 0) == pytest.approx(0.807, abs=0.001)


@pytest.mark.parametrize(
    ("effect", "spreads", "coefficients", "seeds"),
    [
        (0.10, (0.05, 0.05), (1, -1), 5),
        (-0.10, (0.02, 0.15), (1, -0.5), 5),
        (0.20, (0.02, 0.30), (1, -1), 8),
        (0.0, (0.1, 0.1), (1, -1), 3),
    ],
)
def test_power_is_what_simulation_gives(
    effect: float, spreads: tuple[float, float], coefficients: tuple[float, float], seeds: int
) -> None:
    """Of 4,000 normal draws the share whose Welch limit excludes 0 on the side of the effect."""
    rng = np.random.default_rng(0)
    mean = effect / coefficients[0]
    seen = 0
    for _ in range(4000):
        cells = [list(rng.normal(m, s, seeds)) for m, s in zip((mean, 0.0), spreads, strict=True)]
        found = welch_combination(cells, coefficients)
        assert found.low is not None and found.high is not None
        seen += found.low > 0 if effect >= 0 else found.high < 0
    assert seen / 4000 == pytest.approx(contrast_power(effect, spreads, coefficients, seeds), abs=0.025)


def test_what_is_detectable_has_a_power_of_80_percent() -> None:
    """The smallest effect and the needed seeds invert the power; no spread sees everything, one seed nothing."""
    for spreads in ((0.1, 0.1), (0.01, 0.2)):
        effect = detectable_effect(spreads, (1, -0.5), 5)
        assert effect is not None and contrast_power(effect, spreads, (1, -0.5), 5) == pytest.approx(0.8, abs=1e-6)
        assert needed_seeds(effect * 1.001, spreads, (1, -0.5)) == 5
    assert detectable_effect((0.0, 0.0), DIFFERENCE, 5) == 0 and contrast_power(0.1, (0.0, 0.0), DIFFERENCE, 5) == 1
    assert detectable_effect((0.1, 0.1), DIFFERENCE, 1) is None and contrast_power(0.1, (0.1, 0.1), DIFFERENCE, 1) is None
    assert needed_seeds(0.0, (0.1, 0.1), DIFFERENCE) is None


def test_needed_items() -> None:
    """(1.959964 + .841621)²/.02² = 19,622.2 times the share and about 1/.02 more for the half item: .02·n − ½ =
    2.801585·√(n·share); no fewer than show the margin where all agree. The smallest margin is the same rule backwards."""
    for share, margin in ((1.0, 0.02), (0.1, 0.02), (0.1, 0.04)):
        n = needed_items(share, margin)
        assert -1 < n - 7.848879 * share / margin**2 - 1 / margin < 2
        enough = [margin * k - 0.5 >= 2.801585 * math.sqrt(k * share) for k in (n - 1, n)]
        assert enough == [False, True]
        assert detectable_margin(share, n) == pytest.approx(margin, abs=5e-5) and detectable_margin(share, n) <= margin
    assert needed_items(0.0, 0.02) == needed_items(0.001, 0.02) == 236
    assert paired_difference([1] * 236, [1] * 236).low > -0.02 > paired_difference([1] * 235, [1] * 235).low
    assert detectable_margin(0.0, 236) == pytest.approx(-paired_difference([1] * 236, [1] * 236).low)
