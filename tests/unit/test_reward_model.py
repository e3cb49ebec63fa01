"""A reward model as a reward function, and what the lab's one learns from."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from transformers import LlamaConfig, LlamaForSequenceClassification, set_seed

from distillknob.rewards.errors import UserError
from distillknob.rewards.reward_model import ModelReward, load_reward_model
from distillknob.rewards.tasks.instruct import INSTRUCTIONS, Fault, InstructTask, faulty, instruction
from distillknob.trainer.lab import LabReward, Made, character_tokenizer, tiny_llama
from distillknob.trainer.lab_reward import judged, make_reward
from distillknob.trainer.supervised import save_model
from distillknob.trainer.verifier import Lesson

TASK = InstructTask()


def reward_model(labels: int = 1, positions: int = 64) -> tuple[Any, Any]:
    """A random classifier and its tokenizer; weights large enough that scores differ."""
    tokenizer = character_tokenizer(TASK.alphabet)
    set_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=1,
        max_position_embeddings=positions,
        pad_token_id=tokenizer.pad_token_id,
        num_labels=labels,
        initializer_range=1.0,
    )
    return LlamaForSequenceClassification(config), tokenizer


def texts(count: int) -> tuple[list[str], list[str]]:
    """Prompts, and completions of very different lengths."""
    rng, rows = random.Random(0), TASK.rows("train", count, 0)
    return [row["prompt"] for row in rows], [TASK.worked(row, 1.0, rng)[: rng.randrange(1, 40)] for row in rows]


def test_batches_give_what_single_texts_give_in_the_order_of_the_texts() -> None:
    prompts, completions = texts(23)
    model, tokenizer = reward_model()
    single = [ModelReward(model, tokenizer).probabilities([p], [c])[0] for p, c in zip(prompts, completions, strict=True)]
    batched = ModelReward(model, tokenizer, batch_size=5).probabilities(prompts, completions)
    assert batched == pytest.approx(single, abs=1e-5)
    assert len({round(p or 0.0, 3) for p in single}) > 8  # so a wrong order would be seen


def test_a_reward_is_a_rounded_probability_and_has_trls_signature() -> None:
    prompts, completions = texts(9)
    reward = ModelReward(*reward_model())
    given = reward(prompts=prompts, completions=completions, gold=["a"] * 9, trainer_state=object())
    exact = [p or 0.0 for p in reward.probabilities(prompts, completions)]
    assert given == [float(p > 0.5) for p in exact]  # 0 decimals: a verdict
    one, all_of_them = (ModelReward(reward.model, reward.tokenizer, decimals)(prompts, completions) for decimals in (1, None))
    assert one == [round(p, 1) for p in exact] and all_of_them == exact and len(set(exact)) > 2
    assert all(value is not None and 0 <= value <= 1 for value in given) and reward.__name__ == "reward_model"
    chat: list[Any] = [[{"role": "user", "content": prompt}] for prompt in prompts]
    answers = [[{"role": "assistant", "content": text}] for text in completions]
    assert reward(chat, answers) == reward([prompt + "\n" for prompt in prompts], completions)


def test_what_cannot_be_scored_has_no_reward() -> None:
    prompts, completions = texts(3)
    given = ModelReward(*reward_model())(prompts * 2, [completions[0], "", completions[1], " \n", completions[2], "a" * 99])
    assert [value is None for value in given] == [False, True, False, True, False, True]
    assert ModelReward(*reward_model())(prompts[:1], ["\x00é"])[0] is not None
    assert ModelReward(*reward_model())([], []) == []


def test_a_folder_is_read_back_and_the_wrong_ones_are_refused(tmp_path: Path) -> None:
    prompts, completions = texts(5)
    model, tokenizer = reward_model()
    save_model(model, tokenizer, tmp_path / "good")
    loaded = load_reward_model(str(tmp_path / "good"), "reward_model")
    read, written = loaded.model.state_dict(), model.state_dict()
    assert read.keys() == written.keys() and all(torch.equal(read[name], written[name]) for name in written)
    given = ModelReward(model, tokenizer).probabilities(
        prompts, completions
    )  # kernels differ in the last bit with where weights lie
    assert loaded.probabilities(prompts, completions) == pytest.approx(given, abs=1e-6)
    save_model(reward_model(labels=2)[0], tokenizer, tmp_path / "two")
    with pytest.raises(UserError, match=r"reward_model: .*not a reward model with one output \(num_labels 2\)"):
        load_reward_model(str(tmp_path / "two"), "reward_model")
    causal = tiny_llama(tokenizer, width=16, layers=1, seed=0)
    causal.config.num_labels = 1
    save_model(causal, tokenizer, tmp_path / "causal")
    with pytest.raises(UserError, match=r"weights are missing .*score"):
        load_reward_model(str(tmp_path / "causal"), "reward_model")
    with pytest.raises(UserError, match="no such folder"):
        load_reward_model(str(tmp_path / "none"), "reward_model")


def test_every_fault_is_there_and_no_faulty_text_is_right() -> None:
    rows = {row["prompt"]: row for row in TASK.rows("train", 400, 5)}
    given = judged("train", 400, 5)
    assert given == judged("train", 400, 5) and len(given) == 800
    for text in given:
        grade = TASK.grade(text.text, rows[text.prompt])
        assert bool(grade.correct and grade.valid) == (text.fault is None)
    assert {text.fault for text in given} == {None, *get_args(Fault)}


def test_padding_does_not_change_what_a_lesson_costs_and_labels_do() -> None:
    judge, tokenizer = reward_model()
    base = tiny_llama(tokenizer, width=16, layers=1, seed=0)
    judge.config.num_hidden_layers = 2
    lesson = Lesson(LlamaForSequenceClassification(judge.config), base)
    ids, labels = torch.tensor([[5, 6, 7, 8, 9, 1]]), torch.tensor([[-100, -100, 1, 1, 1, -100]])

    def cost(padding: int, good: int, labels: torch.Tensor = labels) -> float:
        pad = torch.full((1, padding), 0)
        mask = torch.cat([pad, torch.ones_like(ids)], 1)
        ignored = torch.full((1, padding), -100)
        given = {"input_ids": torch.cat([pad, ids], 1), "attention_mask": mask, "labels": torch.cat([ignored, labels], 1)}
        return float(lesson(**given, good=torch.tensor([good]))["loss"])

    assert cost(3, 1) == pytest.approx(cost(0, 1), abs=1e-5)
    assert abs(cost(0, 1) - cost(0, 0)) > 1e-3  # the verdict on the whole text
    assert abs(cost(0, 1) - cost(0, 1, torch.tensor([[-100, -100, -100, -100, 1, -100]]))) > 1e-3  # the tokens' own
    assert not any(parameter.requires_grad for parameter in base.parameters())


def test_a_reward_model_with_broken_weights_is_refused(tmp_path: Path) -> None:
    model, tokenizer = reward_model()
    save_model(model, tokenizer, tmp_path / "whole")
    load_reward_model(str(tmp_path / "whole"), "reward")
    model.score.weight.data.fill_(float("nan"))
    save_model(model, tokenizer, tmp_path / "broken")
    with pytest.raises(UserError, match=r"reward: .*broken: gives scores that are not finite"):
        load_reward_model(str(tmp_path / "broken"), "reward")


@pytest.mark.parametrize("fault", get_args(Fault))
def test_a_fault_mostly_makes_a_text_wrong_and_says_where(fault: Fault) -> None:
    rng, wrong, answered = random.Random(0), 0, 0
    for number in rng.sample(range(INSTRUCTIONS), 200):
        item = instruction(number)
        row = {"prompt": item.prompt, "gold": item.words[-1]}
        grade = TASK.grade(faulty(item, fault, 0.8, rng), row)
        wrong += not (grade.correct and grade.valid)
        answered += bool(grade.correct)
    assert wrong >= 190
    assert (answered == 200) == (fault in ("step", "bare"))  # those hide behind a right final word


def test_the_stage_writes_a_folder_that_is_the_same_again_and_refuses_a_weak_judge(tmp_path: Path) -> None:
    tokenizer = character_tokenizer(TASK.alphabet)
    save_model(tiny_llama(tokenizer, width=16, layers=1, seed=0), tokenizer, tmp_path / "base")
    inputs = {"base": tmp_path / "base"}
    weak = LabReward(steps=3, required=0.0, validation_items=8)
    for name in ("one", "two"):
        make_reward(Made(weak, 1), inputs, tmp_path / name, tmp_path / f"work-{name}")
    files = [(tmp_path / name / file).read_bytes() for file in ("model.safetensors", "metrics.jsonl") for name in ("one", "two")]
    assert files[0] == files[1] and files[2] == files[3]
    load_reward_model(str(tmp_path / "one"), "reward_model")
    with pytest.raises(UserError, match="told rightly after 3 steps"):
        make_reward(Made(LabReward(steps=3, required=1.0, validation_items=8), 1), inputs, tmp_path / "x", tmp_path / "work-x")
    for settings in ({"steps": 0}, {"required": 1.5}, {"learning_rate": 0.0}):
        with pytest.raises(ValueError, match="must be"):
            LabReward(**settings)  # type: ignore[arg-type]
