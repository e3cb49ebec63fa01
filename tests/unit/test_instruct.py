"""Instructions on a word: operations, splits, grades, worked texts; hostile text never raises."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from distillknob.rewards.tasks import TaskConfig, lab_task, load_task
from distillknob.rewards.tasks.base import HELD_OUT, Grade
from distillknob.rewards.tasks.instruct import (
    INSTRUCTIONS,
    OPERATIONS,
    STEPS,
    SYMBOLS,
    Instruction,
    InstructTask,
    apply,
    instruction,
    parse,
)

TASK, CHECKED = InstructTask(), InstructTask("steps")
HOSTILE = ["", "#", "#abc#", "#abcdef", "#ABC", "#a\x00", "\ud800#ax", "<b>#abcd</b>", "=" * 10_000, "R1=abcd" * 2_000, "#ab\n#"]


def row_and_steps() -> tuple[dict[str, str], list[str], str]:
    """A fixed instruction, its steps as they are written in full, and the final word."""
    item = instruction(INSTRUCTIONS // 3)
    words = item.words
    steps = [f"{operation}={word}" for operation, word in zip(item.operations, words, strict=True)]
    return {"prompt": item.prompt, "gold": words[-1]}, steps, words[-1]


def test_splits_are_disjoint_and_fixed() -> None:
    sets = {split: TASK.rows(split, HELD_OUT, 7) for split in ("train", "validation", "test")}
    prompts = [row["prompt"] for rows in sets.values() for row in rows]
    assert len(set(prompts)) == 3 * HELD_OUT
    assert sets["train"] == TASK.rows("train", HELD_OUT, 7) != TASK.rows("train", HELD_OUT, 8)
    for split in ("validation", "test"):
        assert TASK.rows(split, 50, 1) == TASK.rows(split, HELD_OUT, 2)[:50]
    assert INSTRUCTIONS - 2 * HELD_OUT >= 3400 * 32  # enough for a lab teacher


def test_instructions_are_read_back() -> None:
    for index in random.Random(0).sample(range(INSTRUCTIONS), 300):
        item = instruction(index)
        assert item == parse(item.prompt)
        assert len(set(item.operations)) == STEPS == len(item.words)


@pytest.mark.parametrize(
    ("operation", "word"), [("R1", "bha"), ("R2", "hab"), ("S1", "bah"), ("S2", "ahb"), ("V0", "hba"), ("U1", "bca")]
)
def test_operations(operation: str, word: str) -> None:
    assert apply(operation, "abh") == word


def test_grades() -> None:
    row, steps, final = row_and_steps()
    full, wrong = "".join(steps), apply("U1", final)
    bare = [step.split("=")[0] + "=" for step in steps]
    other = next(operation for operation in OPERATIONS if operation + "=" not in bare)
    last = float(STEPS)
    for text, answer, correct, explicit, valid in (
        (f"{full}#{final}", final, 1, last, 1),
        (f"{full}#{final} \n", final, 1, last, 1),
        ("".join([bare[0], *steps[1:]]) + f"#{final}", final, 1, last - 1, 1),
        ("".join(bare) + f"#{final}", final, 1, 0.0, 1),
        (f"{full}#{wrong}", wrong, 0, last, 1),
        ("".join([*steps[:-1], bare[-1] + wrong]) + f"#{final}", final, 1, last, 0),  # a word is not true
        ("".join([steps[1], steps[0], *steps[2:]]) + f"#{final}", final, 1, last, 0),  # another order
        ("".join(steps[1:]) + f"#{final}", final, 1, last - 1, 0),  # an operation is missing
        ("".join([*steps[:-1], f"{other}={final}"]) + f"#{final}", final, 1, last - 1, 0),  # not one that is asked for
        ("".join([*steps[:-1], steps[-1] + "a"]) + f"#{final}", final, 1, last, 0),  # a word too long
        (f"#{final}", final, 1, 0.0, 0),
        (f"{full}#{final}x", None, 0, last, 0),
        (f"x{full}#{final}", final, 1, last, 0),
        ("", None, 0, 0.0, 0),
    ):
        assert TASK.grade(text, row) == Grade(answer, correct, explicit, valid), text
        assert TASK.reward(text, row) == float(correct), text
        assert CHECKED.reward(text, row) == float(correct and valid), text


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: ascii(text[:12]))
def test_hostile_text_is_wrong_and_never_raises(text: str) -> None:
    row = row_and_steps()[0]
    for task in (TASK, CHECKED):
        assert task.reward(text, row) == 0.0
        assert task.grade(text, row).valid == 0


def test_random_text_never_raises_and_explicitness_has_its_maximum() -> None:
    rng, (row, steps, final) = random.Random(0), row_and_steps()
    pieces = [*steps, f"#{final}", "R1=", "U9=", "\n", SYMBOLS]
    for _ in range(2_000):
        text = "".join(rng.choice(pieces) if rng.random() < 0.6 else chr(rng.randrange(0x11000)) for _ in range(rng.randrange(12)))
        grade = TASK.grade(text, row)
        assert grade.correct in (0, 1) and 0 <= (grade.explicit or 0) <= STEPS
    assert TASK.grade("".join(f"{o}=a" for o in OPERATIONS) * 3, row).explicit == float(STEPS) == TASK.explicit_max


def test_gold_and_answer_texts_are_right() -> None:
    for row in TASK.rows("test", 100, 0):
        assert CHECKED.grade(TASK.gold_text(row), row) == Grade(row["gold"], 1, float(STEPS), 1)
        assert TASK.reward(TASK.answer_text(row), row) == 1.0


def test_no_final_word_can_be_guessed() -> None:
    counts = Counter(row["gold"] for row in TASK.rows("test", HELD_OUT, 0))
    assert counts.most_common(1)[0][1] / HELD_OUT < 0.05


def test_it_is_loaded_by_name() -> None:
    assert load_task(TaskConfig(name="instruct", verifier="steps")) == CHECKED
    assert lab_task("instruct") == TASK
    assert isinstance(parse("R1S1U1V0:abc?"), Instruction)
