"""Spread between teachers, beyond that of their students."""

import numpy as np
import pytest

from distillknob.eval.statistics import between_deviation


def test_between_deviation() -> None:
    """[1, 3], [3, 5], [6, 8]: means 2, 4, 7, MS_between 2·6.3333, MS_within 2: √((12.6667 − 2)/2)."""
    got = between_deviation([[1, 3], [3, 5], [6, 8]])
    assert got.value == pytest.approx((10.666667 / 2) ** 0.5) and got.n == 3
    assert between_deviation([[1, 3], [1, 3]]).value == 0
    for groups in ([[1, 2]], [[1], [2, 3]]):
        with pytest.raises(ValueError):
            between_deviation(groups)


@pytest.mark.parametrize("true", [0.0, 0.05, 0.2])
def test_its_limits_hold_the_truth(true: float) -> None:
    """Eight teachers with five students each of spread .05: in at least 95 % of 1,000 draws, less the noise of the count."""
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(1000):
        got = between_deviation([list(rng.normal(mean, 0.05, 5)) for mean in rng.normal(0.5, true, 8)])
        assert got.low is not None and got.high is not None
        held += got.low <= true + 1e-12 and true <= got.high
    assert held >= 930
