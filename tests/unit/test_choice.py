"""Multiple choice with a rationale: splits, grades, worked texts; hostile text never raises."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from distillknob.rewards.tasks import TaskConfig, lab_task, load_task
from distillknob.rewards.tasks.base import HELD_OUT, Grade
from distillknob.rewards.tasks.choice import (
    ENTITIES,
    FACTS,
    FORMS,
    HOPS,
    QUESTIONS,
    RELATIONS,
    ChoiceTask,
    Question,
    parse,
    question,
)

TASK, STEPS = ChoiceTask(), ChoiceTask("steps")
HOSTILE = ["", "#", "#WA#", "#EA", "#W", "#WA\x00", "\ud800#WAx", "<b>#WA</b>", "=" * 10_000, "q=a" * 2_000]
HOSTILE += ["#WA\n#", "#WΑ", "#" + "WA" * 5_000]


def fact(entity: str, relations: str) -> str:
    """The table's answer, followed here once more."""
    for relation in relations:
        entity = FACTS[relation][entity]
    return entity


def row_and_steps() -> tuple[dict[str, str], list[str], list[str]]:
    """A fixed question, its steps as they are written in full, and its options, of which the second (of letter X) is right."""
    results = [fact("a", "qrst"[: i + 1]) for i in range(HOPS)]
    others = [entity for entity in ENTITIES if entity != results[-1]][:3]
    item = Question("a", "qrst", others[0] + results[-1] + others[1] + others[2])
    steps = [f"{relation}={entity}" for relation, entity in zip("qrst", results, strict=True)]
    options = [letter + entity.upper() for letter, entity in zip("WXYZ", item.options, strict=True)]
    return {"prompt": item.prompt, "gold": "X"}, steps, options


def test_splits_are_disjoint_and_fixed() -> None:
    sets = {split: TASK.rows(split, HELD_OUT, 7) for split in ("train", "validation", "test")}
    asked = [row["prompt"].split("?")[0] for rows in sets.values() for row in rows]
    assert len({row["prompt"] for rows in sets.values() for row in rows}) == 3 * HELD_OUT
    train, validation, test = (set(asked[i * HELD_OUT : (i + 1) * HELD_OUT]) for i in range(3))
    assert len(validation | test) == 2 * HELD_OUT and not train & (validation | test)  # whatever the options
    assert sets["train"] == TASK.rows("train", HELD_OUT, 7) != TASK.rows("train", HELD_OUT, 8)
    for split in ("validation", "test"):
        assert TASK.rows(split, 50, 1) == TASK.rows(split, HELD_OUT, 2)[:50]
    assert FORMS * (QUESTIONS - 2 * HELD_OUT) >= 3400 * 32  # enough for a lab teacher


def test_questions_are_read_back_and_follow_the_table() -> None:
    for index in random.Random(0).sample(range(FORMS * QUESTIONS), 300):
        item = question(index)
        assert item == question(index) == parse(item.prompt)
        assert len(set(item.relations)) == HOPS and len(set(item.options)) == 4
        assert item.options["WXYZ".index(item.letter)] == fact(item.start, item.relations)
    assert all(sorted(FACTS[relation].values()) == list(ENTITIES) for relation in RELATIONS)


def test_letters_and_answers_are_uniform() -> None:
    rows = TASK.rows("test", HELD_OUT, 0)
    letters = Counter(row["gold"] for row in rows)
    entities = Counter(parse(row["prompt"]).results[-1] for row in rows)
    assert all(count / HELD_OUT == pytest.approx(1 / 4, abs=0.025) for count in letters.values())
    assert all(entities[entity] / HELD_OUT == pytest.approx(1 / 5, abs=0.025) for entity in ENTITIES)


def test_grades() -> None:
    row, steps, options = row_and_steps()
    full, option = "".join(steps), options[1][1] + options[0] + options[1]
    untrue = ENTITIES[(ENTITIES.index(steps[1][-1]) + 1) % len(ENTITIES)]
    for text, answer, correct, explicit, valid in (
        (f"{full}#{option}", "X", 1, 4.0, 1),
        (f"{full}#{option} \n", "X", 1, 4.0, 1),
        (f"q={steps[1]}s={steps[3]}#{option}", "X", 1, 2.0, 1),
        (f"q=r=s=t=#{option}", "X", 1, 0.0, 1),
        (f"{full}#{options[2][1]}{''.join(options[:3])}", "Y", 0, 4.0, 1),
        (f"{full}#{options[0][1]}{options[0]}", "W", 0, 4.0, 1),
        (f"{full}#{option}{options[2]}", "Y", 0, 4.0, 0),  # past the entity that it names
        (f"{full}#{option[1:]}", "X", 1, 4.0, 0),  # without it
        (f"{full}#{option[0]}{options[1]}", "X", 1, 4.0, 0),  # the options were not gone through
        (f"{full}#{options[2][1]}{options[0]}X{options[2][1]}", "X", 1, 4.0, 0),  # the letter of another entity
        (f"{full}#{options[0]}X", None, 0, 4.0, 0),
        (f"{steps[0]}r={untrue}{steps[2]}{steps[3]}#{option}", "X", 1, 4.0, 0),
        (f"{steps[1]}{steps[0]}{steps[2]}{steps[3]}#{option}", "X", 1, 4.0, 0),  # another order
        (f"{steps[0]}{steps[1]}{steps[2]}#{option}", "X", 1, 3.0, 0),  # a step is missing
        (f"{steps[0]}{steps[1]}{steps[2]}u=a#{option}", "X", 1, 3.0, 0),  # not the relation that is asked for
        (f"#{option}", "X", 1, 0.0, 0),
        (f"{full}#{option}x", None, 0, 4.0, 0),
        (f"x{full}#{option}", "X", 1, 4.0, 0),
        ("", None, 0, 0.0, 0),
    ):
        assert TASK.grade(text, row) == Grade(answer, correct, explicit, valid), text
        assert TASK.reward(text, row) == float(correct), text
        assert STEPS.reward(text, row) == float(correct and valid), text


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: ascii(text[:12]))
def test_hostile_text_is_wrong_and_never_raises(text: str) -> None:
    row = row_and_steps()[0]
    for task in (TASK, STEPS):
        assert task.reward(text, row) == 0.0
        assert task.grade(text, row).valid == 0


def test_random_text_never_raises_and_explicitness_has_its_maximum() -> None:
    rng, row = random.Random(0), row_and_steps()[0]
    pieces = ["#WAXB", "q=a", "r=", "t=e", "p", "\n", "WXYZ"]
    for _ in range(2_000):
        text = "".join(rng.choice(pieces) if rng.random() < 0.6 else chr(rng.randrange(0x11000)) for _ in range(rng.randrange(12)))
        grade = TASK.grade(text, row)
        assert grade.correct in (0, 1) and 0 <= (grade.explicit or 0) <= HOPS
    assert TASK.grade("".join(f"{r}=a" for r in RELATIONS) * 3 + "#XA", row).explicit == 4.0 == TASK.explicit_max


def test_gold_and_answer_texts_are_right() -> None:
    for row in TASK.rows("test", 100, 0):
        assert STEPS.grade(TASK.gold_text(row), row) == Grade(row["gold"], 1, 4.0, 1)
        assert TASK.reward(TASK.answer_text(row), row) == 1.0


def test_it_is_loaded_by_name() -> None:
    assert load_task(TaskConfig(name="choice", verifier="steps")) == STEPS
    assert lab_task("choice") == TASK
