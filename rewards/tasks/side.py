"""Two cheap side tasks over a lab task's own symbols: what a teacher could do before, and is not calibrated on (method §5).

`reverse`: `=31420?` is answered `#02413`; `largest`: `*31420?` is answered `#4`. The lab's teacher learns both beside its task.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from itertools import product
from typing import Literal

from distillknob.rewards.tasks.base import Grade, Row, Split

SideName = Literal["reverse", "largest"]
SIDE_TASKS: tuple[SideName, ...] = ("reverse", "largest")
LENGTH = 5
HELD_OUT = 512
_MARK = {"reverse": "=", "largest": "*"}
_ANSWER = re.compile(r"#([^#]*)\Z")


@dataclass(frozen=True)
class SideTask:
    """The task object. `symbols`: five or more different characters, in ascending order."""

    name: SideName
    symbols: str
    explicit_max: float | None = None

    def rows(self, split: Split, count: int, seed: int) -> list[Row]:
        """Rows of a split; `test` and `validation` two fixed sets of 512 words, `train` is drawn with repeats from the others."""
        words = ["".join(word) for word in product(self.symbols[:LENGTH], repeat=LENGTH)]
        random.Random("side tasks").shuffle(words)
        parts = {"test": words[:HELD_OUT], "validation": words[HELD_OUT : 2 * HELD_OUT]}
        drawn = parts[split][:count] if split in parts else random.Random(seed).choices(words[2 * HELD_OUT :], k=count)
        return [{"id": f"{self.name}-{word}", "prompt": f"{_MARK[self.name]}{word}?", "gold": self._answer(word)} for word in drawn]

    def _answer(self, word: str) -> str:
        return word[::-1] if self.name == "reverse" else max(word, key=self.symbols.index)

    def grade(self, text: str, row: Row) -> Grade:
        """The answer after the last `#` against the row's."""
        found = _ANSWER.search(text.strip())
        answer = found.group(1) if found else None
        return Grade(answer, int(answer == row["gold"]))

    def reward(self, text: str, row: Row) -> float | None:
        """1 for a right answer, else 0."""
        return float(bool(self.grade(text, row).correct))

    def gold_text(self, row: Row) -> str:
        """The answer: there is no working."""
        return self.answer_text(row)

    def answer_text(self, row: Row) -> str:
        """The answer."""
        return f"#{row['gold']}"
