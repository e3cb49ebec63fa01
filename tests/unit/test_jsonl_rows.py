"""What a row of a user's own data file must hold, beside what test_tasks.py tries."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from distillknob.rewards.errors import UserError
from distillknob.rewards.tasks.jsonl import JsonlTask


def write(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_messages_are_read_without_their_other_keys(tmp_path: Path) -> None:
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "1/2?", "name": "x"}]
    (row,) = JsonlTask({"test": write(tmp_path / "test.jsonl", [{"prompt": messages, "answer": 2}])}).rows("test", 1, 0)
    assert row["prompt"] == [messages[0], {"role": "user", "content": "1/2?"}] and row["gold"] == "2"


def test_a_row_without_a_solution_is_no_training_text_for_sft(tmp_path: Path) -> None:
    rows = [{"prompt": "a", "answer": "1", "solution": "one"}, {"prompt": "b", "answer": "2"}]
    task = JsonlTask({"test": write(tmp_path / "test.jsonl", rows)})
    assert task.gold_text(task.rows("test", 1, 0)[0]) == "one\n#### 1"
    with pytest.raises(UserError, match=r"test\.jsonl:2: solution: recipe sft trains on it"):
        task.gold_text(task.rows("test", 2, 0)[1])


def test_a_split_without_any_verifiable_answer_is_refused(tmp_path: Path) -> None:
    rows = [{"prompt": f"p{i}", "answer": " "} for i in range(3)]
    with pytest.raises(UserError, match=r"v\.jsonl: every answer is empty"):
        JsonlTask({"validation": write(tmp_path / "v.jsonl", rows)})
    JsonlTask({"validation": write(tmp_path / "v.jsonl", [*rows, {"prompt": "p", "answer": "1"}])})


def test_ids_of_a_split_must_differ_but_may_recur_in_another(tmp_path: Path) -> None:
    rows = [{"id": 7, "prompt": "a", "answer": "1"}, {"id": "7", "prompt": "b", "answer": "2"}]
    with pytest.raises(UserError, match=r"t\.jsonl:2: id: '7' stands in an earlier row"):
        JsonlTask({"train": write(tmp_path / "t.jsonl", rows)})
    files = {split: write(tmp_path / f"{split}.jsonl", [row]) for split, row in zip(("train", "test"), rows, strict=True)}
    assert [JsonlTask(files).rows(split, 1, 0)[0]["id"] for split in ("train", "test")] == ["7", "7"]  # type: ignore[arg-type]


def test_prompts_of_two_kinds_and_half_characters_are_refused(tmp_path: Path) -> None:
    text, messages = {"prompt": "a", "answer": "1"}, {"prompt": [{"role": "user", "content": "b"}], "answer": "2"}
    files = {"train": write(tmp_path / "train.jsonl", [text]), "test": write(tmp_path / "test.jsonl", [messages])}
    with pytest.raises(UserError, match=r"test\.jsonl:1: prompts are texts in some rows and messages in others"):
        JsonlTask(files)
    with pytest.raises(UserError, match=r"half\.jsonl:2: holds half a character"):
        JsonlTask({"train": write(tmp_path / "half.jsonl", [text, {"prompt": "a\ud83d", "answer": "1"}])})
