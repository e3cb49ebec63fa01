"""A model's answers to the test items, graded: the file that every accuracy and verdict is computed from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distillknob.eval.generation import Generated, generate
from distillknob.rewards.jsonl import write_jsonl
from distillknob.rewards.models import Dtype, load_model, load_tokenizer
from distillknob.rewards.seeds import derive_seed
from distillknob.rewards.tasks import TaskConfig, load_task
from distillknob.rewards.tasks.base import Row, Task

DECODINGS = {"greedy": 0.0, "t1": 1.0}


@dataclass(frozen=True)
class PredictConfig:
    """`items` of the test split, each answered greedily and at temperature 1. `seed` of the sampled answers; `dtype` of weights."""

    task: TaskConfig
    items: int
    seed: int
    batch_size: int = 512
    dtype: Dtype = "float32"


def predict(config: PredictConfig, inputs: Mapping[str, Path], output: Path, work: Path) -> None:
    """Stage: input `model` (a folder), output predictions.jsonl (docs/formats.md)."""
    task = load_task(config.task)
    rows = task.rows("test", config.items, seed=0)
    model, tokenizer = load_model(inputs["model"], config.dtype), load_tokenizer(inputs["model"])
    lines: list[dict[str, Any]] = []
    for decoding, temperature in DECODINGS.items():
        written = generate(
            model,
            tokenizer,
            [row["prompt"] for row in rows],
            temperature=temperature,
            max_new_tokens=config.task.longest,
            seed=derive_seed(config.seed, decoding),
            batch_size=config.batch_size,
        )
        lines += [_line(task, row, one, decoding) for row, one in zip(rows, written, strict=True)]
    write_jsonl(output, lines)


def _line(task: Task, row: Row, one: Generated, decoding: str) -> dict[str, Any]:
    grade = task.grade(one.text, row)
    return {
        "id": row["id"],
        "split": "test",
        "sample": 0,
        "text": one.text,
        "answer": grade.answer,
        "gold": row["gold"],
        "correct": grade.correct,
        "finished": one.finished,
        "tokens": one.tokens,
        "bytes": len(one.text.encode()),
        "decoding": decoding,
        "explicit": grade.explicit,
        "valid": grade.valid,
    }
