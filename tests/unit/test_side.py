"""The side tasks: what their rows ask, and that splits share no word."""

from typing import Any, cast

import pytest

from distillknob.eval.generation import Generated
from distillknob.rewards.tasks import LAB_TASKS, TaskConfig, lab_task, load_task
from distillknob.rewards.tasks.side import HELD_OUT, SIDE_TASKS, SideTask
from distillknob.trainer import lab

TASKS = [SideTask(name, lab_task(lab).symbols) for name in SIDE_TASKS for lab in LAB_TASKS]


@pytest.mark.parametrize("task", TASKS, ids=lambda task: f"{task.name}-{task.symbols}")
def test_splits_share_no_word_and_the_lab_can_write_them(task: SideTask) -> None:
    splits = {split: {row["prompt"] for row in task.rows(split, 5000, 3)} for split in ("train", "validation", "test")}  # type: ignore[arg-type]
    assert len(splits["test"]) == len(splits["validation"]) == HELD_OUT
    assert not splits["train"] & (splits["validation"] | splits["test"]) and not splits["validation"] & splits["test"]
    assert task.rows("train", 50, 3) == task.rows("train", 50, 3) != task.rows("train", 50, 4)
    lab = next(lab_task(name) for name in LAB_TASKS if lab_task(name).symbols == task.symbols)
    texts = [row["prompt"] + task.gold_text(row) for row in task.rows("test", HELD_OUT, 0)]
    assert set("".join(texts)) <= set(lab.alphabet)


def test_answers_are_right_and_others_wrong() -> None:
    turned, largest = SideTask("reverse", "01234"), SideTask("largest", "01234")
    row = {"prompt": "=31420?", "gold": "02413"}
    assert turned.grade("#02413", row).correct == 1 and turned.reward(" #02413\n", row) == 1.0
    for text in ("", "#", "#31420", "02413", "#02413#", "#024130", "#02413 #3", "#" * 9000):
        assert turned.grade(text, row).correct == 0 and turned.reward(text, row) == 0.0
    for row in largest.rows("train", 200, 1):
        word = row["prompt"][1:-1]
        assert row["gold"] == max(word) and largest.grade(largest.gold_text(row), row).correct == 1
    for row in turned.rows("train", 200, 1):
        assert row["gold"] == row["prompt"][1:-1][::-1]


def test_the_order_of_symbols_is_the_order_that_is_given() -> None:
    task = SideTask("largest", "edcba")
    assert all(row["gold"] == min(row["prompt"][1:-1]) for row in task.rows("train", 100, 1))
    assert load_task(TaskConfig("largest", symbols="edcba")) == task and TaskConfig("largest").longest < 26
    with pytest.raises(ValueError, match="symbols: must be at least 5 different"):
        TaskConfig("largest", symbols="aabcd")


def test_the_teacher_learns_them_beside_its_task() -> None:
    from distillknob.trainer.lab import _texts
    from distillknob.trainer.supervised import Supervised

    task = lab_task("chain")
    pairs = _texts(task, 0.35, Supervised(10, batch_size=100), 1, "base", side=0.04)
    marks = [prompt[0] for prompt, _ in pairs]
    assert len(pairs) == 1000 and marks.count("=") == marks.count("*") == 40
    assert not any(prompt[0] in "=*" for prompt, _ in _texts(task, 0.35, Supervised(3), 1, "student"))


def test_a_lab_teacher_is_judged_by_the_items_that_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    task = lab_task("chain")
    gold = {row["prompt"]: f"#{row['gold']}" for row in task.rows("validation", 9999, 0)}
    monkeypatch.setattr(lab, "generate", lambda *_, **__: [Generated(text, True, 1) for text in gold.values()])
    assert lab._sampled_accuracy(task, cast(Any, None), cast(Any, None), 9999, 0) == 1.0
