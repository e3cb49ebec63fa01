"""Tasks, one file each with rows, prompt, reward and evaluation; `load_task` turns a config into one of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from distillknob.rewards.errors import UserError
from distillknob.rewards.settings import said
from distillknob.rewards.tasks.base import LabTask, Task
from distillknob.rewards.tasks.chain import ChainTask
from distillknob.rewards.tasks.choice import ChoiceTask
from distillknob.rewards.tasks.instruct import InstructTask
from distillknob.rewards.tasks.jsonl import JsonlTask
from distillknob.rewards.tasks.side import LENGTH, SideName, SideTask

Verifier = Literal["answer", "steps"]
LabName = Literal["chain", "choice", "instruct"]
LAB_TASKS: tuple[LabName, ...] = ("chain", "choice", "instruct")


@dataclass(frozen=True)
class TaskConfig:
    """Which task, and how it is graded.

    `verifier`: what the task reward looks at, `answer` or also every written `steps` (the lab's tasks only); accuracy is always the
    answer's. `train`, `validation`, `test`, `answer_after`: files and answer marker of a `jsonl` task. `symbols`: what the side
    tasks `reverse` and `largest` are made of. `max_new_tokens`: longest completion.
    """

    name: LabName | SideName | Literal["jsonl"] = field(
        default="chain",
        metadata={
            "help": "the lab's chain (arithmetic), choice (multiple choice) or instruct (operations on a word), its side tasks "
            "reverse and largest; jsonl: your own files"
        },
    )
    verifier: Verifier = field(
        default="answer", metadata={"help": "what the task reward checks: the answer, or written steps too (the lab's tasks only)"}
    )
    train: str | None = said(None, "JSONL file to train on: prompt, answer, and solution for recipe sft (jsonl only)")
    validation: str | None = said(None, "JSONL file held out for utility_floor and the final KL (jsonl only)")
    test: str | None = said(None, "JSONL file that every model answers (jsonl only)")
    answer_after: str = said("####", "the answer follows this mark's last occurrence (jsonl only)")
    symbols: str = said("01234", "the symbols of a side task, five or more, in ascending order (reverse and largest only)")
    max_new_tokens: int | None = said(
        None, "longest completion, tokens, in training and measurement (null: what a lab task needs, 256 for jsonl)"
    )

    @property
    def label(self) -> str:
        """The task's name in file names: that of the test file of a jsonl task."""
        return self.name if self.test is None else Path(self.test).stem

    @property
    def longest(self) -> int:
        """The longest completion, in tokens."""
        if self.max_new_tokens is not None:
            return self.max_new_tokens
        if self.name in LAB_TASKS:
            return lab_task(self.name).max_new_tokens
        return 256 if self.name == "jsonl" else LENGTH + 4

    @property
    def files(self) -> dict[str, Path]:
        """The data files by split."""
        named = {"train": self.train, "validation": self.validation, "test": self.test}
        return {split: Path(name) for split, name in named.items() if name is not None}

    def __post_init__(self) -> None:
        files = [self.train, self.validation, self.test]
        if self.name == "jsonl" and None in files:
            raise ValueError("a jsonl task needs the files train, validation and test")
        if self.name != "jsonl" and any(files):
            raise ValueError(f"train, validation and test are files of a jsonl task, not of {self.name}")
        if self.name not in LAB_TASKS and self.verifier == "steps":
            raise ValueError(f"verifier: a {self.name} task has no steps to check; valid: answer")
        if not self.answer_after:
            raise ValueError("answer_after: must not be empty")
        if len(set(self.symbols)) < max(LENGTH, len(self.symbols)):
            raise ValueError(f"symbols: must be at least {LENGTH} different characters")
        if self.max_new_tokens is not None and self.max_new_tokens < 1:
            raise ValueError("max_new_tokens: must be at least 1")


def lab_task(name: LabName, verifier: Verifier = "answer") -> LabTask:
    """A task of the lab by its name."""
    if name == "chain":
        return ChainTask(verifier)
    return ChoiceTask(verifier) if name == "choice" else InstructTask(verifier)


def load_task(config: TaskConfig, key: str = "task") -> Task:
    """The task that a config names; reads and checks its files. `key` names the section in errors."""
    if config.name in LAB_TASKS:
        return lab_task(config.name, config.verifier)
    if config.name in ("reverse", "largest"):
        return SideTask(config.name, config.symbols)
    for split, path in config.files.items():
        if not path.is_file():
            raise UserError(f"{key}.{split}: {path}: no such file; valid: a JSONL file with prompt and answer a line")
    return JsonlTask(config.files, config.answer_after)
