"""A number that was selected is measured again on seeds that nobody has looked at."""

from __future__ import annotations

import numpy as np
import pytest

from distillknob.eval.selection import fresh_seeds, select


def test_fresh_seeds_were_never_used() -> None:
    assert fresh_seeds([], 3) == (0, 1, 2)
    assert fresh_seeds([4, 0, 2], 2) == (5, 6)
    assert fresh_seeds([-7], 1) == (0,)


def test_the_best_is_measured_again_and_both_are_kept() -> None:
    asked: list[tuple[str, tuple[int, ...]]] = []

    def measure(name: str, seeds: tuple[int, ...]) -> list[float]:
        asked.append((name, seeds))
        return [0.5, 0.7]

    values = {"a": {0: 0.6, 1: 0.8}, "b": {0: 0.9, 3: 0.7}, "c": {0: 0.1, 1: 0.2}}
    found = select(values, measure)
    assert asked == [("b", (4, 5))]  # after every seed that any candidate has used
    assert (found.name, found.candidates, found.seeds) == ("b", 3, (4, 5))
    assert (found.selected.value, found.fresh.value) == pytest.approx((0.8, 0.6))
    assert found.as_dict()["fresh"]["n"] == 2
    assert select(values, measure, "lowest").name == "c"


def test_what_it_refuses() -> None:
    for candidates in ({}, {"a": {}}):
        with pytest.raises(ValueError):
            select(candidates, lambda name, seeds: [0.0])
    with pytest.raises(ValueError, match="2 values for 1 seeds"):
        select({"a": {0: 1.0}}, lambda name, seeds: [0.0, 0.0])


def test_planted_winners() -> None:
    """Twenty candidates alike: the one chosen looks better than it is, by the expected maximum of twenty means; measured again it
    does not. One that really is better is found, and its fresh mean is its own."""
    rng = np.random.default_rng(0)
    for gain, bias in ((0.0, 1.867 * 0.1 / np.sqrt(5)), (0.5, 0.0)):
        chosen, again = [], []
        for _ in range(400):
            truth = {f"c{i}": 0.5 + gain * (i == 7) for i in range(20)}
            values = {name: dict(enumerate(rng.normal(mean, 0.1, 5))) for name, mean in truth.items()}
            found = select(values, lambda name, seeds, truth=truth: rng.normal(truth[name], 0.1, len(seeds)))  # type: ignore[misc]
            assert found.name == "c7" or not gain
            chosen.append((found.selected.value or 0) - truth[found.name])
            again.append((found.fresh.value or 0) - truth[found.name])
        assert np.mean(chosen) == pytest.approx(bias, abs=0.01)
        assert np.mean(again) == pytest.approx(0, abs=0.01)
