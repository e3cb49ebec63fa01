"""The tasks: chain arithmetic and the user's own files; hostile text never raises."""

from __future__ import annotations

import json
import random
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from distillknob.rewards.errors import UserError
from distillknob.rewards.tasks import TaskConfig, load_task
from distillknob.rewards.tasks.base import HELD_OUT, Grade, TaskReward, completion_text
from distillknob.rewards.tasks.chain import LABELS, PROBLEMS, ChainTask, parse, problem, working
from distillknob.rewards.tasks.jsonl import JsonlTask

CHAIN, STEPS = ChainTask(), ChainTask("steps")
ROW = {"prompt": "3a+0b-4c*3d-3?", "gold": "4"}  # states 3 4 2 4
RIGHT = "a+0=3b-4=4c*3=2d-3=4#4"
HOSTILE = ["", "#", "#4#", "#5", "#٤", "#4\x00", "\ud800#4x", "<script>#4</script>", "=" * 10_000, "a+0=3" * 2_000, "#4\n#"]


def test_chain_splits_are_disjoint_and_deterministic() -> None:
    sets = {split: CHAIN.rows(split, HELD_OUT, 7) for split in ("train", "validation", "test")}
    ids = {split: {row["id"] for row in rows} for split, rows in sets.items()}
    prompts = [row["prompt"] for rows in sets.values() for row in rows]
    assert [len(v) for v in ids.values()] == [HELD_OUT] * 3
    assert len(set(prompts)) == 3 * HELD_OUT
    assert sets["train"] == CHAIN.rows("train", HELD_OUT, 7) != CHAIN.rows("train", HELD_OUT, 8)
    for split in ("validation", "test"):
        assert CHAIN.rows(split, 50, 1) == CHAIN.rows(split, HELD_OUT, 2)[:50]
    held_out = ids["validation"] | ids["test"]
    assert all(not held_out & {row["id"] for row in CHAIN.rows("train", 2000, seed)} for seed in range(10))


def test_chain_problems_are_numbered_without_repeats_and_read_back() -> None:
    for index in random.Random(0).sample(range(PROBLEMS), 300):
        item = problem(index)
        assert parse(item.prompt) == item
        value = item.start
        for op, n in item.steps:
            value = [value + n, value - n, value * n]["+-*".index(op)] % 5
        assert item.states[-1] == value
    assert len({problem(i).prompt for i in range(20_000)}) == 20_000


@pytest.mark.parametrize(
    ("text", "answer", "correct", "explicit", "valid"),
    [
        (RIGHT, "4", 1, 4.0, 1),
        ("a+0=b-4=4c*3=d-3=4#4", "4", 1, 2.0, 1),
        ("a+0=b-4=c*3=d-3=#4", "4", 1, 0.0, 1),
        ("a+0=3b-4=4c*3=2d-3=4#3", "3", 0, 4.0, 1),
        ("a+0=3b-4=4c*3=1d-3=4#4", "4", 1, 4.0, 0),  # a state is not true
        ("a+0=3b-4=4c*4=2d-3=4#4", "4", 1, 4.0, 0),  # not the operation that is asked for
        ("a+0=3c*3=2b-4=4d-3=4#4", "4", 1, 4.0, 0),  # another order
        ("a+0=3b-4=4c*3=2#4", "4", 1, 3.0, 0),  # a step is missing
        ("#4", "4", 1, 0.0, 0),
        (RIGHT + " \n", "4", 1, 4.0, 1),
        (RIGHT + "x", None, 0, 4.0, 0),
        ("x" + RIGHT, "4", 1, 4.0, 0),
        ("", None, 0, 0.0, 0),
    ],
)
def test_chain_grades(text: str, answer: str | None, correct: int, explicit: float, valid: int) -> None:
    assert CHAIN.grade(text, ROW) == Grade(answer, correct, explicit, valid)
    assert CHAIN.reward(text, ROW) == float(correct)
    assert STEPS.reward(text, ROW) == float(correct and valid)


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: ascii(text[:12]))
def test_hostile_text_is_wrong_and_never_raises(text: str) -> None:
    for task in (CHAIN, STEPS):
        assert task.reward(text, ROW) == 0.0
        assert task.grade(text, ROW).valid == 0


def test_random_text_never_raises(tmp_path: Path) -> None:
    rng = random.Random(0)
    jsonl = jsonl_task(tmp_path)
    row = jsonl.rows("test", 1, 0)[0]
    pieces = ["#4", "a+0=3", "####", "\n", "1/0", "٣", "-", ".", "e5", "_"]
    for _ in range(2_000):
        text = "".join(rng.choice(pieces) if rng.random() < 0.6 else chr(rng.randrange(0x11000)) for _ in range(rng.randrange(12)))
        assert CHAIN.grade(text, ROW).correct in (0, 1)
        assert jsonl.grade(text, row).correct in (0, 1)


def test_explicitness_is_at_most_explicit_max() -> None:
    explicit = CHAIN.grade("a+0=3" * 9 + "#4", ROW).explicit
    assert explicit is not None and CHAIN.explicit_max is not None
    assert explicit <= CHAIN.explicit_max


@pytest.mark.parametrize("written", [0.0, 0.35, 0.8, 1.0])
def test_working_is_right_and_never_leaves_out_two_in_a_row(written: float) -> None:
    rng, states = random.Random(1), 0
    for row in CHAIN.rows("train", 400, 3):
        text = working(parse(row["prompt"]), written, rng)
        grade = STEPS.grade(text, row)
        assert (grade.correct, grade.valid) == (1, 1)
        left_out = ["=" + label in text or (label == "end" and "=#" in text) for label in (*LABELS[1:], "end")]
        assert not any(one and two for one, two in pairwise(left_out))
        states += int(grade.explicit or 0)
    # the share written of the chain "left out, then always written": 1/(1 + q) in the long run; 4 steps from the start here
    q, share, out = 1 - written, 0.0, 0.0
    for _ in LABELS:
        out = q * (1 - out)
        share += (1 - out) / len(LABELS)
    assert states / (400 * len(LABELS)) == pytest.approx(share, abs=0.03)


def test_gold_and_answer_texts_are_right() -> None:
    for row in CHAIN.rows("test", 100, 0):
        assert STEPS.grade(CHAIN.gold_text(row), row) == Grade(row["gold"], 1, 4.0, 1)
        assert CHAIN.reward(CHAIN.answer_text(row), row) == 1.0


@pytest.mark.parametrize("items", [1024, HELD_OUT])
def test_the_majority_guess_is_about_27_percent(items: int) -> None:
    counts = Counter(row["gold"] for row in CHAIN.rows("test", items, 0))
    assert set(counts) == set("01234")
    assert counts.most_common(1)[0][1] / items == pytest.approx(0.27, abs=0.02)


def test_task_reward_gives_each_completion_its_own_row() -> None:
    rows = CHAIN.rows("test", 3, 0)
    golds = [row["gold"] for row in rows]
    first, _, third = (CHAIN.gold_text(row) for row in rows)
    texts: list[Any] = [first, first + "?", [{"role": "assistant", "content": third}]]
    reward = TaskReward(CHAIN)
    assert reward(prompts=[row["prompt"] for row in rows], completions=texts, gold=golds, trainer_state=object()) == [1.0, 0.0, 1.0]
    assert reward.__name__ == "task_chain"
    assert completion_text(texts[2]) == third


def write(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def jsonl_task(folder: Path, **extra: Any) -> JsonlTask:
    """Five training rows, one validation and three test rows, the last of which can't be verified."""
    train = [{"id": f"t{i}", "prompt": f"{i}+1?", "answer": i + 1} for i in range(5)]
    test = [
        {"prompt": "9+9?", "answer": "18", "solution": "9+9=18"},
        {"id": "m", "prompt": "1/2?", "answer": 0.5, "solution": "half: #### 1/2"},
        {"prompt": "?", "answer": ""},
    ]
    files = {"train": train, "validation": [{"prompt": "v", "answer": "Yes"}], "test": test}
    return JsonlTask({k: write(folder / f"{k}.jsonl", v) for k, v in files.items()}, **extra)  # type: ignore[misc]


def test_a_jsonl_task_reads_its_rows(tmp_path: Path) -> None:
    task = jsonl_task(tmp_path)
    plain, marked, open_end = task.rows("test", 10, 0)
    place = f"{tmp_path}/test.jsonl:1"
    assert plain == {"id": place, "prompt": "9+9?", "gold": "18", "place": place, "solution": "9+9=18"}
    assert (marked["id"], marked["gold"], marked["place"], open_end["solution"]) == ("m", "0.5", f"{tmp_path}/test.jsonl:2", "")
    assert task.reward("#### 18", open_end) is None and task.grade("#### 18", open_end).correct is None
    assert task.rows("test", 1, 5) == [plain]
    assert task.gold_text(plain) == "9+9=18\n#### 18" and task.gold_text(marked) == "half: #### 1/2"
    assert task.answer_text(marked) == "#### 0.5"
    for row in (plain, marked):
        assert task.reward(task.gold_text(row), row) == task.reward(task.answer_text(row), row) == 1.0


def test_training_rows_are_drawn_by_seed_and_repeated_evenly(tmp_path: Path) -> None:
    task = jsonl_task(tmp_path)
    drawn = task.rows("train", 13, 1)
    assert drawn == task.rows("train", 13, 1) != task.rows("train", 13, 2)
    assert sorted(Counter(row["id"] for row in drawn).values()) == [2, 2, 3, 3, 3]
    assert len({row["id"] for row in task.rows("train", 4, 0)}) == 4


@pytest.mark.parametrize(
    ("text", "gold", "right"),
    [
        ("so #### 18", "18", 1),
        ("#### 17\n#### 18", "18", 1),
        ("#### 18\n#### 17", "18", 0),
        ("18", "18", 0),
        ("", "18", 0),
        ("#### 18.0", "18", 1),
        ("#### 1,800.", "1800", 1),
        ("#### 1/2", "0.5", 1),
        ("#### 3/6", "1/2", 1),
        ("#### 1/0", "1", 0),
        ("#### yES ", "Yes", 1),
        ("#### new  york", "New York", 1),
        ("#### 180", "18", 0),
        ("#### 18 apples", "18", 0),
        ("####", "18", 0),
        ("#### nan", "nan", 1),
        ("#### -5", "5", 0),
        ("#### 0.1", "1e-1", 1),
        ("####18\nbecause", "18", 1),
    ],
)
def test_answers_are_equal_as_numbers_or_as_folded_text(tmp_path: Path, text: str, gold: str, right: int) -> None:
    task = jsonl_task(tmp_path)
    assert task.grade(text, {"prompt": "p", "gold": gold}).correct == right


def test_a_huge_exponent_costs_no_time(tmp_path: Path) -> None:
    import time

    task, row = jsonl_task(tmp_path), {"prompt": "p", "gold": "5"}
    start = time.perf_counter()
    assert task.grade("#### 1e1000000", row).correct == 0
    assert time.perf_counter() - start < 0.1


def test_the_marker_can_be_another_one(tmp_path: Path) -> None:
    task = jsonl_task(tmp_path, answer_after="Answer:")
    assert task.grade("#### 1 Answer: 18", {"prompt": "p", "gold": "18"}) == Grade("18", 1)
    assert task.answer_text({"gold": "18"}) == "Answer: 18"


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"answer": "1"}, "prompt: must be"),
        ({"prompt": "", "answer": "1"}, "prompt: must be"),
        ({"prompt": [], "answer": "1"}, "prompt: must be"),
        ({"prompt": [{"role": "user"}], "answer": "1"}, "prompt: must be"),
        ({"prompt": [{"role": "user", "content": None}], "answer": "1"}, "prompt: must be"),
        ({"prompt": 3, "answer": "1"}, "prompt: must be"),
        ({"prompt": "p"}, "answer: must be"),
        ({"prompt": "p", "answer": None}, "answer: must be"),
        ({"prompt": "p", "answer": True}, "answer: must be"),
        ({"prompt": "p", "answer": ["1"]}, "answer: must be"),
        ({"prompt": "p", "answer": "1", "solution": 3}, "solution: must be"),
    ],
)
def test_a_bad_row_names_file_and_line(tmp_path: Path, row: dict[str, Any], said: str) -> None:
    path = write(tmp_path / "train.jsonl", [{"prompt": "good", "answer": "1"}, row])
    with pytest.raises(UserError, match=rf"train\.jsonl:2: {said}"):
        JsonlTask({"train": path})


def test_an_overlap_between_splits_is_refused_but_not_one_within(tmp_path: Path) -> None:
    for prompts in (["a", "b", "c"], [[{"role": "user", "content": text}] for text in "abc"]):
        rows = [{"prompt": prompt, "answer": "1"} for prompt in prompts]
        train = write(tmp_path / "train.jsonl", [*rows[:2], rows[0]])
        assert len(JsonlTask({"train": train}).rows("train", 3, 0)) == 3
        test = write(tmp_path / "test.jsonl", [rows[2], rows[1]])
        with pytest.raises(UserError, match=r"test\.jsonl:2: this prompt is in the train file too"):
            JsonlTask({"train": train, "test": test})


def test_an_empty_file_and_a_missing_split_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"empty\.jsonl: no rows"):
        JsonlTask({"train": write(tmp_path / "empty.jsonl", [])})
    task = JsonlTask({"train": write(tmp_path / "t.jsonl", [{"prompt": "p", "answer": 1}])})
    with pytest.raises(UserError, match=r"task\.test: this run needs a test file"):
        task.rows("test", 1, 0)


def test_load_task_takes_what_fits_and_refuses_the_rest(tmp_path: Path) -> None:
    assert load_task(TaskConfig(verifier="steps")) == STEPS
    task = jsonl_task(tmp_path)
    names = {str(split): str(path) for split, path in task.files.items()}
    assert load_task(TaskConfig(name="jsonl", **names)).rows("test", 3, 0) == task.rows("test", 3, 0)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"task\.train: .*no such file"):
        load_task(TaskConfig(name="jsonl", **(names | {"train": str(tmp_path / "none")})))  # type: ignore[arg-type]
    for settings, said in (
        ({"name": "jsonl"}, "needs the files"),
        ({"name": "chain", "train": "x"}, "not of chain"),
        ({"name": "jsonl", "verifier": "steps", **names}, "no steps"),
        ({"max_new_tokens": 0}, "at least 1"),
    ):
        with pytest.raises(ValueError, match=said):
            TaskConfig(**settings)  # type: ignore[arg-type]
