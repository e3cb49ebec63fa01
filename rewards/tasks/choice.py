"""Multiple choice with a rationale (ours): the answer follows from facts that a teacher may state or leave out.

The world is a table, the same for ever: each of 20 relations `g` … `z` takes each of 5 entities `a` … `e` to an entity, no two to
the same one (so no answer is likelier than another). A prompt `bqtwz?WAXDYEZB` starts at `b`, follows four different relations
from left to right, and offers four entities, in capitals, after their letters. A completion `q=at=w=bz=e#EWAXDYE` repeats each
relation; after its `=` the fact's result is stated or left out (in training texts never two left out in a row). After `#` it names
the entity and goes through the options up to this one, whose letter counts: a small model that has to name the letter at once
learns to find it late or never.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from typing import Literal

from distillknob.rewards.tasks.base import Grade, Row, Split, Splits, shown

ENTITIES = "abcde"
OFFERED = ENTITIES.upper()  # an entity as an option, so that it is found among the options and not among the facts stated
RELATIONS = "ghijklmnopqrstuvwxyz"
LETTERS = "WXYZ"
HOPS = 4
FORMS = 2 * len(LETTERS)  # each question twice with each letter right, the other options drawn anew
ALPHABET = ENTITIES + OFFERED + RELATIONS + LETTERS + "=*#?"
UNIT = f"[{LETTERS}][{OFFERED}]|."  # what a token of the lab's BPE may hold at most: one option
_STEP = re.compile(f"([{RELATIONS}])=([{ENTITIES}]?)")
_TRACE = re.compile(f"(?:[{RELATIONS}]=[{ENTITIES}]?)*#([{OFFERED}])((?:[{LETTERS}][{OFFERED}])+)")
_ANSWER = re.compile(rf"#[{OFFERED}]?(?:[{LETTERS}][{OFFERED}])*([{LETTERS}])[{OFFERED}]\s*\Z")
_world = random.Random("a small world")
FACTS = {relation: dict(zip(ENTITIES, _world.sample(ENTITIES, len(ENTITIES)), strict=True)) for relation in RELATIONS}


def _count() -> int:
    size = len(ENTITIES)
    for used in range(HOPS):
        size *= len(RELATIONS) - used
    return size


QUESTIONS = _count()
_SPLITS = Splits("choice", QUESTIONS, "multiple choice", forms=FORMS)


@dataclass(frozen=True)
class Question:
    """A start entity, the relations to follow, and the entities on offer, the one under `W` first."""

    start: str
    relations: str
    options: str

    @property
    def prompt(self) -> str:
        """The question as the model reads it."""
        return f"{self.start}{self.relations}?{self._read(len(LETTERS))}"

    @property
    def results(self) -> str:
        """The entity that each relation leads to."""
        return _follow(self.start, self.relations)

    @property
    def letter(self) -> str:
        """The right letter."""
        return LETTERS[self.options.index(self.results[-1])]

    @property
    def reply(self) -> str:
        """The entity, and the options with their letters up to this one."""
        return f"#{self.results[-1].upper()}" + self._read(LETTERS.index(self.letter) + 1)

    def _read(self, count: int) -> str:
        return "".join(map("".join, zip(LETTERS[:count], self.options.upper()[:count], strict=True)))


def _follow(start: str, relations: str) -> str:
    results = ""
    for relation in relations:
        results += FACTS[relation][results[-1] if results else start]
    return results


def question(number: int) -> Question:
    """Form `number` % 8 of question `number` // 8 of the 581,400 that there are."""
    rng = random.Random(f"options {number}")
    index, form = divmod(number, FORMS)
    index, first = divmod(index, len(ENTITIES))
    left, relations = list(RELATIONS), ""
    for _ in range(HOPS):
        index, pick = divmod(index, len(left))
        relations += left.pop(pick)
    right = _follow(ENTITIES[first], relations)[-1]
    options = rng.sample([entity for entity in ENTITIES if entity != right], len(LETTERS) - 1)
    options.insert(form % len(LETTERS), right)
    return Question(ENTITIES[first], relations, "".join(options))


def parse(prompt: str) -> Question:
    """The question that a prompt states."""
    head, options = prompt.split("?")
    return Question(head[0], head[1:], options[1::2].lower())


@dataclass(frozen=True)
class ChoiceTask:
    """The task object. `verifier`: `answer` looks at the letter alone, `steps` also asks that every stated fact is true."""

    verifier: Literal["answer", "steps"] = "answer"
    name: str = "choice"
    explicit_max: float | None = float(HOPS)
    alphabet: str = ALPHABET
    unit: str = UNIT
    symbols: str = ENTITIES
    max_new_tokens: int = 3 * HOPS + 2 * len(LETTERS) + 6
    train_rows: int = _SPLITS.train_rows
    base_steps: int = 4600
    proxy_width: int = 96
    proxy_steps: int = 1400
    proxy_problems: int = 8000

    def rows(self, split: Split, count: int, seed: int) -> list[Row]:
        """Rows of a split; `test` and `validation` are two fixed sets of 4,096 questions, `train` is drawn from all others."""
        items = [(index, question(index)) for index in _SPLITS.numbers(split, count, seed)]
        return [{"id": f"choice-{i}", "prompt": item.prompt, "gold": item.letter} for i, item in items]

    def grade(self, text: str, row: Row) -> Grade:
        """Letter, explicitness (facts stated, of 4) and validity (all asked for, in order, and true) of one completion."""
        found = _ANSWER.search(text)
        answer = found.group(1) if found else None
        item = parse(row["prompt"])
        steps, trace = _STEP.findall(text), _TRACE.fullmatch(text.strip())
        valid = (
            trace is not None
            and [relation for relation, _ in steps] == list(item.relations)
            and all(result in ("", right) for (_, result), right in zip(steps, item.results, strict=True))
            and row["prompt"].split("?")[1].startswith(trace.group(2))  # the options are the prompt's …
            and trace.group(2).endswith(trace.group(1))  # … up to the entity that it names
        )
        stated = {relation for relation, result in steps if result and relation in item.relations}
        return Grade(answer, int(answer == row["gold"]), float(len(stated)), int(valid))

    def reward(self, text: str, row: Row) -> float | None:
        """1 for a right letter (and, with `steps`, a valid rationale), else 0."""
        grade = self.grade(text, row)
        return float(bool(grade.correct) and (self.verifier == "answer" or bool(grade.valid)))

    def worked(self, row: Row, written: float, rng: random.Random) -> str:
        """A right completion that states each fact with probability `written`, and always after one that was left out."""
        item = parse(row["prompt"])
        steps = zip(item.relations, item.results, shown(HOPS, written, rng), strict=True)
        stated = "".join(f"{relation}={result if mark else ''}" for relation, result, mark in steps)
        return stated + item.reply

    def gold_text(self, row: Row) -> str:
        """The rationale with every fact stated."""
        return self.worked(row, 1.0, random.Random(0))

    def answer_text(self, row: Row) -> str:
        """The entity and the options up to it, without any rationale."""
        return parse(row["prompt"]).reply
