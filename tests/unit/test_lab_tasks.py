"""What the lab asks of each of its tasks: worked texts that are right, and as explicit as they were to be."""

import random
import re
from itertools import pairwise

import pytest

from distillknob.rewards.tasks import LAB_TASKS, LabName, lab_task

STEPS = 4


@pytest.mark.parametrize("written", [0.0, 0.35, 0.8, 1.0])
@pytest.mark.parametrize("name", LAB_TASKS)
def test_worked_texts_are_right_and_as_explicit_as_asked(name: LabName, written: float) -> None:
    task, rng, total = lab_task(name, "steps"), random.Random(1), 0.0
    assert task.explicit_max == STEPS
    for row in task.rows("train", 400, 3):
        text = task.worked(row, written, rng)
        grade = task.grade(text, row)
        assert (grade.correct, grade.valid, task.reward(text, row)) == (1, 1, 1.0)
        left_out = [result == "" for result in re.findall(f"=([{task.symbols}]*)", _apart(name, text))]
        assert len(left_out) == STEPS and not any(one and two for one, two in pairwise(left_out))
        assert grade.explicit == STEPS - sum(left_out)
        assert len(text) + 4 <= task.max_new_tokens
        assert set(row["prompt"] + text + "=*#?") <= set(task.alphabet)
        total += grade.explicit
    q, share, out = 1 - written, 0.0, 0.0
    for _ in range(STEPS):
        out = q * (1 - out)
        share += (1 - out) / STEPS
    assert total / (400 * STEPS) == pytest.approx(share, abs=0.03)


def _apart(name: LabName, text: str) -> str:
    """The text with a space between steps, where a result and the step after it use the same symbols."""
    return re.sub(r"(?=[a-d][+*-])", " ", text) if name == "chain" else text
