"""What a task is: rows, a prompt, a verifier, a worked solution; one file a task beside this one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

Split = Literal["train", "validation", "test"]
Row = dict[str, Any]
Message = dict[str, Any]
Prompt = str | list[Message]


@dataclass(frozen=True)
class Grade:
    """What a verifier says of one completion.

    `answer`: the final answer as read, None where there is none. `correct`: 1, 0, or None where the row can't be verified.
    `explicit`: the task's explicitness measure (steps shown), None where it has none. `valid`: 1 where every written step is
    true and is the step that the prompt asks for, 0 where not, None where the task can't tell.
    """

    answer: str | None
    correct: int | None
    explicit: float | None = None
    valid: int | None = None


class Task(Protocol):
    """A verifiable task. Rows hold at least `id`, `prompt` and `gold`; the three splits share no row."""

    @property
    def name(self) -> str:
        """The task's name in cells and reports."""
        ...

    @property
    def explicit_max(self) -> float | None:
        """The largest value of the explicitness measure, None where there is none."""
        ...

    def rows(self, split: Split, count: int, seed: int) -> list[Row]:
        """`count` rows of a split; `train` is drawn by `seed`, the others are the first `count` of a fixed order."""
        ...

    def grade(self, text: str, row: Row) -> Grade:
        """Reads and judges one completion; never raises, whatever the text."""
        ...

    def reward(self, text: str, row: Row) -> float | None:
        """The task reward of one completion: 1, 0, or None where the row can't be verified."""
        ...

    def gold_text(self, row: Row) -> str:
        """The worked solution that `sft` trains on."""
        ...

    def answer_text(self, row: Row) -> str:
        """The bare answer that `answer_only` trains on."""
        ...


class TaskReward:
    """The task's verifier as a TRL reward function `f(prompts, completions, **columns) -> list[float | None]` (method §2)."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.__name__ = f"task_{task.name}"

    def __call__(self, prompts: Sequence[Prompt], completions: Sequence[Any], **columns: Any) -> list[float | None]:
        """One reward a completion; `gold` and the task's other columns come from the data set."""
        rows = [
            {"prompt": prompt} | {key: values[i] for key, values in columns.items() if isinstance(values, list)}
            for i, prompt in enumerate(prompts)
        ]
        return [self.task.reward(completion_text(c), row) for c, row in zip(completions, rows, strict=True)]


def completion_text(completion: Any) -> str:
    """The text of a TRL completion: a plain string, or the content of the assistant's message."""
    return completion if isinstance(completion, str) else str(completion[0]["content"])
