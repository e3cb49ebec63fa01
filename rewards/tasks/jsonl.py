"""A task from the user's own files: JSONL rows with `prompt` (text or messages) and `answer`, optionally `id` and `solution`.

A completion's answer is what stands after the last `answer_after` on its line; it is right where it equals the row's answer as a
number, or as text with case and spaces folded. A row whose answer is empty can't be verified: its reward is None.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

from distillknob.rewards.errors import UserError
from distillknob.rewards.jsonl import read_numbered_jsonl
from distillknob.rewards.tasks.base import Grade, Row, Split

_NUMBER = re.compile(r"[+-]?(?:[0-9]+/[0-9]+|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?)")
_LONGEST_NUMBER = 64


@dataclass(frozen=True)
class JsonlTask:
    """See the module. `files`: the path of each split; they may share no prompt."""

    files: dict[Split, Path]
    answer_after: str = "####"
    name: str = "jsonl"
    explicit_max: float | None = None
    _rows: dict[Split, list[Row]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        seen: dict[str, str] = {}
        for split, path in self.files.items():
            self._rows[split] = []
            for number, row in read_numbered_jsonl(path):
                place = f"{path}:{number}"
                self._rows[split].append(_row(row, place))
                first = seen.setdefault(repr(row["prompt"]), split)
                if first != split:
                    raise UserError(f"{place}: this prompt is in the {first} file too; the splits must share no prompt")
            if not self._rows[split]:
                raise UserError(f"{path}: no rows; valid: one JSON object a line with prompt and answer")

    def rows(self, split: Split, count: int, seed: int) -> list[Row]:
        """`train`: `count` rows drawn by `seed` (again and again where the file has fewer); else the first `count` of the file."""
        if split not in self._rows:
            raise UserError(f"task.{split}: this run needs a {split} file")
        rows = self._rows[split]
        if split != "train":
            return rows[:count]
        rng, drawn = random.Random(seed), list[Row]()
        while len(drawn) < count:
            drawn += rng.sample(rows, min(len(rows), count - len(drawn)))
        return drawn

    def grade(self, text: str, row: Row) -> Grade:
        """The answer after the marker against the row's."""
        _, marker, tail = text.rpartition(self.answer_after)
        answer = tail.strip().split("\n")[0].strip() if marker else None
        gold = str(row["gold"]).strip()
        return Grade(answer, None if not gold else int(answer is not None and _same(answer, gold)))

    def reward(self, text: str, row: Row) -> float | None:
        """1 or 0 for the answer, None where the row has none."""
        correct = self.grade(text, row).correct
        return None if correct is None else float(correct)

    def gold_text(self, row: Row) -> str:
        """The row's `solution` where it has one, and the marked answer."""
        solution = str(row.get("solution") or "").rstrip()
        answer = self.answer_text(row)
        return solution if self.answer_after in solution else f"{solution}\n{answer}".lstrip()

    def answer_text(self, row: Row) -> str:
        """The marker and the answer."""
        return f"{self.answer_after} {row['gold']}"


def _row(row: Row, place: str) -> Row:
    prompt = row.get("prompt")
    messages = (
        isinstance(prompt, list)
        and bool(prompt)
        and all(isinstance(m, dict) and isinstance(m.get("role"), str) and isinstance(m.get("content"), str) for m in prompt)
    )
    if not messages and not (isinstance(prompt, str) and prompt):
        raise UserError(f"{place}: prompt: must be a text or a list of messages with role and content")
    if not isinstance(row.get("answer"), (str, int, float)) or isinstance(row.get("answer"), bool):
        raise UserError(f"{place}: answer: must be a text or a number (an empty text: can't be verified)")
    solution = {"solution": str(row["solution"])} if row.get("solution") else {}
    return {"id": str(row.get("id", place)), "prompt": prompt, "gold": str(row["answer"]), **solution}


def _same(answer: str, gold: str) -> bool:
    one, other = _number(answer), _number(gold)
    if one is not None and other is not None:
        return one == other
    return " ".join(answer.casefold().split()) == " ".join(gold.casefold().split())


def _number(text: str) -> Fraction | None:
    """The number that a text is; None for other texts and for huge ones, which would take for ever to build."""
    plain = text.replace(",", "").rstrip(".")
    if len(plain) > _LONGEST_NUMBER or _NUMBER.fullmatch(plain) is None:
        return None
    try:
        return Fraction(plain)
    except ZeroDivisionError:
        return None
