"""A task from the user's own files: JSONL rows with `prompt` (text or messages) and `answer`, optionally `id` and `solution`.

A completion's answer is what stands after the last `answer_after` on its line; it is right where it equals the row's answer as a
number, or as text with case and spaces folded. A row whose answer is empty can't be verified: its reward is None.
"""

from __future__ import annotations

import json
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

    files: dict[str, Path]
    answer_after: str = "####"
    name: str = "jsonl"
    explicit_max: float | None = None
    _rows: dict[str, list[Row]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        seen: dict[str, str] = {}
        kinds: set[type] = set()
        for split, path in self.files.items():
            self._rows[split] = []
            ids: set[str] = set()
            for number, raw in read_numbered_jsonl(path):
                place = f"{path}:{number}"
                row = _row(raw, place)
                if self.answer_after in row["gold"]:
                    bare = row["gold"].rpartition(self.answer_after)[2].strip()
                    raise UserError(
                        f"{place}: answer: holds {self.answer_after!r}, which marks the answer in completions (task.answer_after); "
                        f"valid: the bare answer, here {bare[:40]!r}, and the whole text as solution"
                    )
                self._rows[split].append(row)
                kinds.add(type(row["prompt"]))
                if len(kinds) > 1:
                    raise UserError(f"{place}: prompts are texts in some rows and messages in others; valid: one kind in all files")
                if row["id"] in ids:
                    raise UserError(f"{place}: id: {row['id']!r} stands in an earlier row; valid: an id of its own, or none")
                ids.add(row["id"])
                first = seen.setdefault(repr(row["prompt"]), split)
                if first != split:
                    raise UserError(f"{place}: this prompt is in the {first} file too; the splits must share no prompt")
            if not self._rows[split]:
                raise UserError(f"{path}: no rows; valid: one JSON object a line with prompt and answer")
            if not any(row["gold"].strip() for row in self._rows[split]):
                raise UserError(f"{path}: every answer is empty, so nothing can be verified; valid: an answer in most rows")

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
        """The row's `solution`, and the marked answer where it isn't in it; UserError for a row without a solution."""
        solution, answer = str(row.get("solution") or "").rstrip(), self.answer_text(row)
        if not solution:
            raise UserError(f"{row['place']}: solution: recipe sft trains on it; valid: a worked solution (or recipe answer_only)")
        return solution if self.answer_after in solution else f"{solution}\n{answer}"

    def answer_text(self, row: Row) -> str:
        """The marker and the answer."""
        return f"{self.answer_after} {row['gold']}"


def _row(row: Row, place: str) -> Row:
    prompt, answer, solution = row.get("prompt"), row.get("answer"), row.get("solution")
    if isinstance(prompt, list) and prompt and all(_is_message(message) for message in prompt):
        prompt = [{"role": message["role"], "content": message["content"]} for message in prompt]
    elif not isinstance(prompt, str) or not prompt:
        raise UserError(f"{place}: prompt: must be a text or a list of messages with role and content")
    if not isinstance(answer, (str, int, float)) or isinstance(answer, bool):
        raise UserError(f"{place}: answer: must be a text or a number (an empty text: can't be verified)")
    if not isinstance(solution, str | None):
        raise UserError(f"{place}: solution: must be a text")
    clean = {"id": str(place if row.get("id") is None else row["id"]), "prompt": prompt, "gold": str(answer), "place": place}
    clean["solution"] = solution or ""
    try:
        json.dumps(clean, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise UserError(f"{place}: holds half a character (a lone surrogate), which no tokenizer reads") from error
    return clean


def _is_message(message: object) -> bool:
    return isinstance(message, dict) and isinstance(message.get("role"), str) and isinstance(message.get("content"), str)


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
