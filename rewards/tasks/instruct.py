"""An instruction task (ours): carry out operations on a three-letter word; the response may show its way or leave it out.

A prompt `R1V0U1S2:cab?` asks for four different operations, from left to right, on the word after the colon. A completion
`R1=abcV0=U1=dcbS2=dbc#dbc` repeats each operation; after its `=` the word so far is shown or left out (in training texts never two
left out in a row), and `#` gives the final word. The task reward of a study comes from a reward model that is trained in the lab
(`rewards/reward_model.py`, `trainer/lab_reward.py`); accuracy is judged by rule, so that what the reward model lets pass is seen.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from distillknob.rewards.tasks.base import Grade, Row, Split, Splits, shown

SYMBOLS = "abcdefgh"
LENGTH = 3
STEPS = 4
# R: rotate left by n places; S: swap place n and the next; V: reverse; U: each letter one further, `a` after `h`
OPERATIONS = ("R1", "R2", "S1", "S2", "V0", "U1")
ALPHABET = SYMBOLS + "RSVU" + "012" + ":=*#?"
UNIT = r"[RSVU][0-2]|."  # what a token of the lab's BPE may hold at most: one operation
_STEP = re.compile(f"([RSVU][0-2])=([{SYMBOLS}]*)")
_TRACE = re.compile(rf"(?:[RSVU][0-2]=(?:[{SYMBOLS}]{{{LENGTH}}})?)*#[{SYMBOLS}]{{{LENGTH}}}")
_ANSWER = re.compile(rf"#([{SYMBOLS}]{{{LENGTH}}})\s*\Z")


def _count() -> int:
    size: int = len(SYMBOLS) ** LENGTH
    for used in range(STEPS):
        size *= len(OPERATIONS) - used
    return size


INSTRUCTIONS = _count()
_SPLITS = Splits("instruct", INSTRUCTIONS, "instructions on words")


def apply(operation: str, word: str) -> str:
    """The word after one operation."""
    kind, n = operation[0], int(operation[1])
    if kind == "R":
        return word[n:] + word[:n]
    if kind == "S":
        return word[: n - 1] + word[n] + word[n - 1] + word[n + 1 :]
    if kind == "V":
        return word[::-1]
    return "".join(SYMBOLS[(SYMBOLS.index(letter) + n) % len(SYMBOLS)] for letter in word)


@dataclass(frozen=True)
class Instruction:
    """The operations and the word that they start from."""

    operations: tuple[str, ...]
    word: str

    @property
    def prompt(self) -> str:
        """The instruction as the model reads it."""
        return "".join(self.operations) + f":{self.word}?"

    @property
    def words(self) -> list[str]:
        """The word after each operation."""
        words, word = [], self.word
        for operation in self.operations:
            word = apply(operation, word)
            words.append(word)
        return words


def instruction(index: int) -> Instruction:
    """Instruction number `index` of all that there are."""
    word, left, operations = "", list(OPERATIONS), []
    for _ in range(LENGTH):
        index, pick = divmod(index, len(SYMBOLS))
        word += SYMBOLS[pick]
    for _ in range(STEPS):
        index, pick = divmod(index, len(left))
        operations.append(left.pop(pick))
    return Instruction(tuple(operations), word)


def parse(prompt: str) -> Instruction:
    """The instruction that a prompt states."""
    operations, word = prompt.rstrip("?").split(":")
    return Instruction(tuple(operations[i : i + 2] for i in range(0, len(operations), 2)), word)


def response(operations: Sequence[str], words: Sequence[str], marks: Sequence[bool], final: str) -> str:
    """A response's text: each operation with its word where `marks` says so, and the final word."""
    steps = zip(operations, words, marks, strict=True)
    return "".join(f"{operation}={word if mark else ''}" for operation, word, mark in steps) + f"#{final}"


Fault = Literal["final", "step", "slip", "order", "omitted", "other", "bare", "cut", "noise"]


def faulty(item: Instruction, fault: Fault, written: float, rng: random.Random) -> str:
    """A response as a policy could write it that has one fault (by chance the result may still be right: judge it).

    `final`: a wrong final word; `step`: one word shown is wrong, the rest right; `slip`: a wrong word, all that follows from it
    right; `order`: two operations swapped; `omitted`: one left out; `other`: one replaced; `bare`: the final word alone; `cut`: cut
    off; `noise`: a stretch of random characters.
    """
    operations, words, place = list(item.operations), item.words, rng.randrange(STEPS)
    if fault == "final":
        return response(operations, words, shown(STEPS, written, rng), _slip(words[-1], rng))
    if fault == "bare":
        return f"#{words[-1]}"
    if fault in ("step", "slip"):
        marks = shown(STEPS, written, rng)
        marks[place] = True
        changed = [*words[:place], _slip(words[place], rng), *words[place + 1 :]]
        if fault == "slip":
            changed[place + 1 :] = Instruction(tuple(operations[place + 1 :]), changed[place]).words
        return response(operations, changed, marks, changed[-1] if fault == "slip" else words[-1])
    if fault == "order":
        one, two = rng.sample(range(STEPS), 2)
        operations[one], operations[two] = operations[two], operations[one]
    elif fault == "omitted":
        operations.pop(place)
    elif fault == "other":
        operations[place] = rng.choice([operation for operation in OPERATIONS if operation not in operations])
    words = Instruction(tuple(operations), item.word).words
    text = response(operations, words, shown(len(operations), written, rng), words[-1])
    start, end = sorted(rng.sample(range(len(text) + 1), 2))
    if fault == "cut":
        return text[: max(start, 1)]
    if fault == "noise":
        return text[:start] + "".join(rng.choices(ALPHABET, k=end - start)) + text[end:]
    return text


def _slip(word: str, rng: random.Random) -> str:
    """Another word: one letter changed, or two places swapped."""
    one, two = rng.sample(range(LENGTH), 2)
    if word[one] == word[two] or rng.random() < 0.5:
        other = rng.choice([letter for letter in SYMBOLS if letter != word[one]])
        return word[:one] + other + word[one + 1 :]
    letters = list(word)
    letters[one], letters[two] = letters[two], letters[one]
    return "".join(letters)


@dataclass(frozen=True)
class InstructTask:
    """The task object. `verifier`, for a study without a reward model: `answer` looks at the final word alone, `steps` also asks
    that every word shown is true."""

    verifier: Literal["answer", "steps"] = "answer"
    name: str = "instruct"
    explicit_max: float | None = float(STEPS)
    alphabet: str = ALPHABET
    unit: str = UNIT
    symbols: str = SYMBOLS
    max_new_tokens: int = (LENGTH + 3) * STEPS + LENGTH + 5
    train_rows: int = _SPLITS.train_rows
    base_steps: int = 4600
    proxy_width: int = 48
    proxy_steps: int = 1800
    proxy_problems: int = 8000

    def rows(self, split: Split, count: int, seed: int) -> list[Row]:
        """Rows of a split; `test` and `validation` are two fixed sets of 4,096 instructions, `train` is drawn from all others."""
        items = [(index, instruction(index)) for index in _SPLITS.numbers(split, count, seed)]
        return [{"id": f"instruct-{i}", "prompt": item.prompt, "gold": item.words[-1]} for i, item in items]

    def grade(self, text: str, row: Row) -> Grade:
        """Final word, explicitness (words shown, of 4) and validity (all operations, in order, true words) of one completion."""
        found = _ANSWER.search(text)
        answer = found.group(1) if found else None
        item = parse(row["prompt"])
        steps = _STEP.findall(text)
        valid = (
            _TRACE.fullmatch(text.strip()) is not None
            and [operation for operation, _ in steps] == list(item.operations)
            and all(word in ("", right) for (_, word), right in zip(steps, item.words, strict=True))
        )
        written = {operation for operation, word in steps if word and operation in item.operations}
        return Grade(answer, int(answer == row["gold"]), float(len(written)), int(valid))

    def reward(self, text: str, row: Row) -> float | None:
        """1 for a right final word (and, with `steps`, a valid response), else 0."""
        grade = self.grade(text, row)
        return float(bool(grade.correct) and (self.verifier == "answer" or bool(grade.valid)))

    def worked(self, row: Row, written: float, rng: random.Random) -> str:
        """A right completion that shows each word with probability `written`, and always after one that was left out."""
        item = parse(row["prompt"])
        return response(item.operations, item.words, shown(STEPS, written, rng), item.words[-1])

    def gold_text(self, row: Row) -> str:
        """The response with every word shown."""
        return self.worked(row, 1.0, random.Random(0))

    def answer_text(self, row: Row) -> str:
        """The final word without anything before it."""
        return f"#{row['gold']}"
