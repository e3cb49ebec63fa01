"""Chain arithmetic modulo 5: the lab's task (method §7), where a teacher may show its work or leave it out at equal correctness.

A prompt `3a+0b-4c*3d-3?` starts at 3 and applies four labelled operations from left to right, modulo 5. A completion
`a+0=3b-4=c*3=2d-3=4#4` repeats each operation; after its `=` the running state is written or left out (in training texts never
two left out in a row, so that no hop is longer than two operations), and `#` gives the answer.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from typing import Literal

from distillknob.rewards.tasks.base import Grade, Row, Split, Splits, shown

MODULUS = 5
OPERATIONS = "+-*"
LABELS = "abcd"
CHOICES = len(OPERATIONS) * MODULUS
PROBLEMS = MODULUS * CHOICES ** len(LABELS)
ALPHABET = "01234abcd+-*=#?"
UNIT = r"[a-d][+*-][0-4]|."  # what a token of the lab's BPE may hold at most: one operation
_STEP = re.compile(r"([a-d])([+*-])([0-4])=([0-4]?)")
_TRACE = re.compile(r"(?:[a-d][+*-][0-4]=[0-4]?)*#([0-4])")
_ANSWER = re.compile(r"#([0-4])\s*\Z")
_SPLITS = Splits("chain", PROBLEMS, "chain arithmetic")


@dataclass(frozen=True)
class Problem:
    """A start value and four (operation, operand) pairs."""

    start: int
    steps: tuple[tuple[str, int], ...]

    @property
    def prompt(self) -> str:
        """The problem as the model reads it."""
        return f"{self.start}" + "".join(f"{label}{op}{n}" for label, (op, n) in zip(LABELS, self.steps, strict=True)) + "?"

    @property
    def states(self) -> list[int]:
        """The running state after each operation."""
        states, value = [], self.start
        for op, n in self.steps:
            value = {"+": value + n, "-": value - n, "*": value * n}[op] % MODULUS
            states.append(value)
        return states


def problem(index: int) -> Problem:
    """Problem number `index` of the 253,125 that there are."""
    index, start = divmod(index, MODULUS)
    steps = []
    for _ in LABELS:
        index, choice = divmod(index, CHOICES)
        steps.append((OPERATIONS[choice // MODULUS], choice % MODULUS))
    return Problem(start, tuple(steps))


def parse(prompt: str) -> Problem:
    """The problem that a prompt states."""
    return Problem(int(prompt[0]), tuple((prompt[i + 1], int(prompt[i + 2])) for i in range(1, 3 * len(LABELS), 3)))


def working(item: Problem, written: float, rng: random.Random) -> str:
    """A right completion that writes each state with probability `written`, and always after one that was left out."""
    marks = shown(len(item.steps), written, rng)
    steps = zip(LABELS, item.steps, item.states, marks, strict=True)
    parts = [f"{label}{op}{n}={state if mark else ''}" for label, (op, n), state, mark in steps]
    return "".join(parts) + f"#{item.states[-1]}"


@dataclass(frozen=True)
class ChainTask:
    """The task object. `verifier`: `answer` looks at the answer alone, `steps` also asks that every written step is true."""

    verifier: Literal["answer", "steps"] = "answer"
    name: str = "chain"
    explicit_max: float | None = float(len(LABELS))
    alphabet: str = ALPHABET
    unit: str = UNIT
    symbols: str = "01234"
    max_new_tokens: int = 26
    train_rows: int = _SPLITS.train_rows
    base_steps: int = 3200
    proxy_width: int = 48
    proxy_steps: int = 1100
    proxy_problems: int = 2000

    def rows(self, split: Split, count: int, seed: int) -> list[Row]:
        """Rows of a split; `test` and `validation` are two fixed sets of 4,096 problems, `train` is drawn from all others."""
        items = [(index, problem(index)) for index in _SPLITS.numbers(split, count, seed)]
        return [{"id": f"chain-{i}", "prompt": item.prompt, "gold": str(item.states[-1])} for i, item in items]

    def grade(self, text: str, row: Row) -> Grade:
        """Answer, explicitness (states written, of 4) and step validity of one completion."""
        found = _ANSWER.search(text)
        answer = found.group(1) if found else None
        item = parse(row["prompt"])
        steps = _STEP.findall(text)
        asked = [(label, op, str(n)) for label, (op, n) in zip(LABELS, item.steps, strict=True)]
        valid = (
            _TRACE.fullmatch(text.strip()) is not None
            and [step[:3] for step in steps] == asked
            and all(step[3] in ("", str(state)) for step, state in zip(steps, item.states, strict=True))
        )
        return Grade(answer, int(answer == row["gold"]), float(len({step[0] for step in steps if step[3]})), int(valid))

    def reward(self, text: str, row: Row) -> float | None:
        """1 for a right answer (and, with `steps`, a valid trace), else 0."""
        grade = self.grade(text, row)
        return float(bool(grade.correct) and (self.verifier == "answer" or bool(grade.valid)))

    def worked(self, row: Row, written: float, rng: random.Random) -> str:
        """A right completion that writes each state with probability `written`, and always after one that was left out."""
        return working(parse(row["prompt"]), written, rng)

    def gold_text(self, row: Row) -> str:
        """The working with every state written."""
        return working(parse(row["prompt"]), 1.0, random.Random(0))

    def answer_text(self, row: Row) -> str:
        """The answer without any working."""
        return f"#{row['gold']}"
