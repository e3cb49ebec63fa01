"""Tiny random models and settings that the tests share: a teacher with BPE tokens and a proxy with characters."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import TrainerCallback

from distillknob.rewards.tasks.base import TaskReward
from distillknob.rewards.tasks.chain import ALPHABET, ChainTask, parse, working
from distillknob.trainer.lab import bpe_tokenizer, character_tokenizer, tiny_llama

__all__ = ["TrainerCallback", "parse"]  # shared with the tests
torch.set_num_threads(1)
CASES = {case["id"]: case for case in map(json.loads, (Path(__file__).parent / "cases" / "cases.jsonl").read_text().splitlines())}
TASK = ChainTask()


def texts(count: int = 300, seed: int = 0) -> list[str]:
    """Prompts and workings of the chain task."""
    rng = random.Random(seed)
    rows = TASK.rows("train", count, seed)
    return [t for row in rows for t in (row["prompt"], working(parse(row["prompt"]), 0.5, rng))]


def teacher(seed: int = 0, width: int = 32) -> tuple[Any, Any]:
    """A random teacher and its tokenizer."""
    tokenizer = bpe_tokenizer(texts(), TASK, 128)
    return tiny_llama(tokenizer, width=width, layers=1, seed=seed), tokenizer


def proxy(seed: int = 1) -> tuple[Any, Any]:
    """A random proxy and its character tokenizer."""
    tokenizer = character_tokenizer(ALPHABET)
    return tiny_llama(tokenizer, width=16, layers=1, seed=seed), tokenizer


def prompts(count: int = 8, seed: int = 0) -> Dataset:
    """A training set of the chain task."""
    return Dataset.from_list(TASK.rows("train", count, seed))


def digits(prompts: list[str], completions: list[str], **columns: Any) -> list[float | None]:
    """A task reward that random models do get: the share of digits in the completion."""
    return [sum(c.isdigit() for c in text) / max(1, len(text)) for text in completions]


def arguments(config: type, output: Path, **changes: Any) -> Any:
    """Trainer arguments of a three-step CPU run."""
    settings: dict[str, Any] = {
        "output_dir": str(output),
        "max_steps": 2,
        "per_device_train_batch_size": 8,
        "num_generations": 4,
        "max_completion_length": 12,
        "learning_rate": 1e-3,
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "beta": 0.05,
        "top_k": 0,
        "disable_tqdm": True,
        "seed": 1,
        "dataloader_pin_memory": False,
        "lr_scheduler_type": "constant",
    }
    return config(**(settings | changes))


class StopAfter(TrainerCallback):  # type: ignore[misc]
    """Ends a training as an interrupt does, right after the checkpoint of a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.step:
            raise KeyboardInterrupt


task_reward: Callable[..., Any] = TaskReward(TASK)
