"""What a task is: rows, a prompt, a verifier, a worked solution; one file a task beside this one."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from distillknob.rewards.errors import UserError

Split = Literal["train", "validation", "test"]
Row = dict[str, Any]
Message = dict[str, Any]
Prompt = str | list[Message]
HELD_OUT = 4096  # items of a lab task's validation and of its test split


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


class LabTask(Task, Protocol):
    """A task whose models are trained from scratch: what the lab needs to know beside the task itself (ours)."""

    @property
    def alphabet(self) -> str:
        """Every character of its prompts and completions, and `=`, `*`, `#` and `?`."""
        ...

    @property
    def unit(self) -> str:
        """A regular expression: what one token of the lab's BPE may hold at most."""
        ...

    @property
    def symbols(self) -> str:
        """Five or more characters of the alphabet that have an order, in this order."""
        ...

    @property
    def max_new_tokens(self) -> int:
        """Enough for the longest worked completion, its end token and a small margin, one token a character."""
        ...

    @property
    def train_rows(self) -> int:
        """Different rows that its split `train` has."""
        ...

    @property
    def base_steps(self) -> int:
        """Updates after which the lab's pre-trained teacher knows the task."""
        ...

    @property
    def proxy_width(self) -> int:
        """Hidden size of a proxy that can learn the task."""
        ...

    @property
    def proxy_steps(self) -> int:
        """Updates after which a proxy knows the task where every step is written, and not where steps are left out."""
        ...

    @property
    def proxy_problems(self) -> int:
        """Different worked problems that it needs for this."""
        ...

    def worked(self, row: Row, written: float, rng: random.Random) -> str:
        """A right completion that writes each step with probability `written`, and always after one that was left out."""
        ...


class Splits:
    """Which of a lab task's `size` numbered items are in which split, each item in `forms` forms that share its split.

    `test` and `validation` are two fixed sets of 4,096 items, one form of each, drawn by the name `seed`; `train` is drawn from all
    forms of all others. Form f of item i has the number i · forms + f.
    """

    def __init__(self, task: str, size: int, seed: str, forms: int = 1) -> None:
        self.task, self.size, self.forms = task, size, forms
        rng = random.Random(seed)
        drawn = rng.sample(range(size), 2 * HELD_OUT)
        numbers = [item * forms + rng.randrange(forms) for item in drawn]
        self._test, self._validation, self._held_out = numbers[:HELD_OUT], numbers[HELD_OUT:], frozenset(drawn)

    @property
    def train_rows(self) -> int:
        """Rows of `train`: every form of every item that is not held out."""
        return (self.size - len(self._held_out)) * self.forms

    def numbers(self, split: Split, count: int, seed: int) -> list[int]:
        """`count` different numbers of a split (of the fixed ones at most all); UserError where `train` has fewer."""
        if split != "train":
            return (self._test if split == "test" else self._validation)[:count]
        if count > self.train_rows:
            raise UserError(f"task {self.task}: {count} training rows asked for; there are {self.train_rows}")
        drawn = random.Random(seed).sample(range(self.size * self.forms), count + len(self._held_out) * self.forms)
        return [number for number in drawn if number // self.forms not in self._held_out][:count]


def shown(steps: int, written: float, rng: random.Random) -> list[bool]:
    """Which of `steps` steps are written: each with probability `written`, and always after one that was left out."""
    marks: list[bool] = []
    for _ in range(steps):
        marks.append((bool(marks) and not marks[-1]) or rng.random() < written)
    return marks


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
