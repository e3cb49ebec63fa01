"""The proxy check: its numbers, its rule, and that it refuses a proxy that knows nothing (method §2)."""

from __future__ import annotations

import pytest
import tiny

from distillknob.eval.proxy_check import check_proxy, judged, within_group_correlations
from distillknob.eval.statistics import Interval
from distillknob.rewards.calibration import CalibrationReward
from distillknob.rewards.scoring import TextScorer


def test_correlations_are_taken_within_a_prompt_and_over_right_answers_only() -> None:
    # the first group rises with explicitness, the second falls, and between them explicit texts have lower rewards
    rewards = [0.0, 1.0, 2.0, 9.0, -5.0, -6.0, -7.0, None]
    explicit = [1.0, 2.0, 3.0, 3.0, 11.0, 12.0, 13.0, 99.0]
    rising, falling = within_group_correlations(rewards, explicit, 4)
    assert rising == pytest.approx(8 / 137.5**0.5) and falling == pytest.approx(-1.0)
    assert within_group_correlations([1.0, 2.0, None, None], [1.0, 2.0, 3.0, 4.0], 4) == []  # two members
    assert within_group_correlations([1.0, 2.0, 3.0], [2.0, 2.0, 2.0], 3) == []  # no spread
    assert within_group_correlations([0.5, 0.5, 0.5], [1.0, 2.0, 3.0], 3) == []


@pytest.mark.parametrize(
    ("correlation", "right", "passes", "said"),
    [
        ((0.5, 0.2, 0.8), 0.9, True, "right on 90 %"),
        ((0.1, -0.1, 0.3), 0.9, False, "does not tell explicit text from other text"),
        ((-0.5, -0.8, -0.2), 0.9, False, "the wrong way"),
        ((0.5, 0.2, 0.8), 0.5, False, "does not know the task"),
        ((0.5, 0.2, 0.8), None, False, "no explicit trace"),
        ((None, None, None), 0.9, False, "too few prompts"),
        ((0.4, None, None), 0.9, False, "too few prompts"),
    ],
)
def test_the_rule(correlation: tuple[float | None, ...], right: float | None, passes: bool, said: str) -> None:
    value, low, high = correlation
    check = judged(Interval(value, low, high, 10), Interval(right, right, right, 10), {"4": (10, 9, 10, 9)})
    assert check.passes is passes
    assert said in check.reason
    assert ("passes" if passes else "does not pass") in check.table()


def test_a_proxy_that_knows_nothing_is_refused_and_the_counts_add_up() -> None:
    teacher, tokenizer = tiny.teacher()
    proxy, proxy_tokenizer = tiny.proxy()
    rows = tiny.TASK.rows("validation", 6, 0)
    reward = CalibrationReward(TextScorer(proxy, proxy_tokenizer))
    check = check_proxy(teacher, tokenizer, reward, tiny.TASK, rows, samples=4, max_new_tokens=20, seed=1)
    assert not check.passes
    assert sum(level[0] for level in check.levels.values()) == sum(level[2] for level in check.levels.values()) == 24
    again = check_proxy(teacher, tokenizer, reward, tiny.TASK, rows, samples=4, max_new_tokens=20, seed=1)
    assert again == check
