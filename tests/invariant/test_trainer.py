"""Equivalences that the calibration trainer must keep (method §2)."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from peft import LoraConfig, get_peft_model
from trl import GRPOConfig, GRPOTrainer

from distillknob.rewards.advantages import combined_advantages
from distillknob.rewards.calibration import CalibrationReward
from distillknob.rewards.errors import UserError
from distillknob.rewards.forward import completion_logps
from distillknob.rewards.scoring import TextScorer
from distillknob.trainer.calibration import CalibrationTrainer
from distillknob.trainer.calibration_config import CalibrationConfig
from distillknob.trainer.policy import GRPOPolicy

LORA = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.1)


def make(output: Path, *, model: Any = None, peft_config: Any = None, **changes: Any) -> CalibrationTrainer:
    """A two-step run on random models."""
    teacher, tokenizer = tiny.teacher()
    proxy, proxy_tokenizer = tiny.proxy()
    return CalibrationTrainer(
        model if model is not None else teacher,
        tiny.digits,
        tiny.arguments(CalibrationConfig, output, **({"eta": -0.5} | changes)),
        proxy=proxy,
        proxy_tokenizer=proxy_tokenizer,
        train_dataset=tiny.prompts(),
        processing_class=tokenizer,
        peft_config=peft_config,
    )


def first_kl(trainer: CalibrationTrainer) -> float:
    trainer.train()
    return float(next(entry["kl"] for entry in trainer.state.log_history if "kl" in entry))


def test_kl_is_zero_at_step_0_full(tmp_path: Path) -> None:
    assert abs(first_kl(make(tmp_path))) <= 1e-6


def test_kl_is_zero_at_step_0_new_lora(tmp_path: Path) -> None:
    assert abs(first_kl(make(tmp_path, peft_config=LORA))) <= 1e-6


def test_kl_is_zero_at_step_0_and_the_anchor_includes_a_given_adapter(tmp_path: Path) -> None:
    model = get_peft_model(tiny.teacher()[0], LORA)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.3)
    assert abs(first_kl(make(tmp_path, model=model))) <= 1e-6


def test_a_wrong_anchor_is_refused_at_the_first_step(tmp_path: Path) -> None:
    trainer = make(tmp_path)
    with torch.no_grad():
        for parameter in trainer.ref_model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    with pytest.raises(UserError, match="anchor is not the model"):
        trainer.train()


def test_the_anchor_is_the_model_in_memory_not_its_path(tmp_path: Path) -> None:
    model, _ = tiny.teacher()
    model.save_pretrained(tmp_path / "m")
    model.config._name_or_path = str(tmp_path / "m")
    with torch.no_grad():
        model.lm_head.weight.add_(0.5)
    trainer = make(tmp_path / "run", model=model)
    assert torch.equal(trainer.ref_model.lm_head.weight, model.lm_head.weight)
    before = copy.deepcopy(trainer.ref_model.state_dict())
    trainer.train()
    assert all(torch.equal(before[k], v) for k, v in trainer.ref_model.state_dict().items())
    assert not torch.equal(trainer.ref_model.lm_head.weight, trainer.model.lm_head.weight)


@pytest.mark.parametrize("end_token", ["both", "none"])
def test_r_cal_times_n_is_the_difference_of_sums_for_equal_tokenizers(tmp_path: Path, end_token: str) -> None:
    model, tokenizer = tiny.teacher()
    other, _ = tiny.teacher(seed=5)
    trainer = make(tmp_path, model=model)
    reward = CalibrationReward(TextScorer(other, tokenizer, end_token=end_token), per="bytes")  # type: ignore[arg-type]
    reward.attach(GRPOPolicy(trainer))
    rows = tiny.TASK.rows("train", 6, 3)
    prompts = [row["prompt"] for row in rows]
    completions = [tiny.TASK.gold_text(row) for row in rows]
    ids = [[*tokenizer(c, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id] for c in completions]
    got = reward(prompts=prompts, completions=completions, completion_ids=ids)
    scored = ids if end_token == "both" else [row[:-1] for row in ids]
    heads = [tokenizer(p)["input_ids"] for p in prompts]
    own = completion_logps(model, heads, scored)
    foreign = completion_logps(other, heads, scored)
    for value, text, mine, theirs in zip(got, completions, own, foreign, strict=True):
        assert value is not None
        assert value * len(text.encode()) == pytest.approx(float(theirs.sum() - mine.sum()), abs=1e-4)


def test_scaling_r_cal_changes_no_advantage_without_epsilon() -> None:
    torch.manual_seed(0)
    task, calibration, weights = torch.rand(5, 8, 1).round(), torch.randn(5, 8), torch.ones(1)
    for scale in (1e-3, 7.0, 1e4):
        one = combined_advantages(task, weights, calibration, -0.5, epsilon=0.0)
        other = combined_advantages(task, weights, calibration * scale, -0.5, epsilon=0.0)
        assert torch.allclose(one, other, atol=2e-6)


def test_ours_is_trls_normalize_then_sum_apart_from_whitening(tmp_path: Path) -> None:
    """The stock trainer with our reward functions, unchanged: its advantages are ours, whitened over the batch."""
    model, tokenizer = tiny.teacher()
    proxy, proxy_tokenizer = tiny.proxy()
    reward = CalibrationReward(TextScorer(proxy, proxy_tokenizer))
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []

    class Recorder(GRPOTrainer):  # type: ignore[misc]
        def _calculate_rewards(self, *args: Any) -> torch.Tensor:
            self.kept: torch.Tensor = super()._calculate_rewards(*args)
            return self.kept

        def _generate_and_score_completions(self, inputs: Any) -> Any:
            output = super()._generate_and_score_completions(inputs)
            seen.append((self.kept.clone(), output["advantages"].clone()))
            return output

    args = tiny.arguments(
        GRPOConfig,
        tmp_path,
        multi_objective_aggregation="normalize_then_sum",
        reward_weights=[1.0, -0.5],
        beta=0.0,
        max_completion_length=24,
        per_device_train_batch_size=32,
        num_generations=8,
    )
    trainer = Recorder(model, [tiny.digits, reward], args, train_dataset=tiny.prompts(), processing_class=tokenizer)
    reward.attach(GRPOPolicy(trainer))
    trainer.train()
    assert len(seen) == 2
    for rewards_B_2, theirs in seen:
        assert rewards_B_2[:, 1].isfinite().any()
        rewards_P_G_2 = rewards_B_2.view(-1, 8, 2)
        ours = combined_advantages(rewards_P_G_2[:, :, :1], torch.ones(1), rewards_P_G_2[:, :, 1], -0.5).flatten().float()
        whitened = (ours - ours.mean()) / (ours.std() + 1e-4)
        assert torch.allclose(whitened, theirs, atol=1e-4)
        assert not torch.allclose(ours, theirs, atol=1e-2)


def test_batch_split_and_accumulation_give_the_same_step(tmp_path: Path) -> None:
    weights = []
    for per_device, accumulation in ((16, 1), (8, 2), (4, 4)):
        trainer = make(
            tmp_path / str(per_device),
            per_device_train_batch_size=per_device,
            gradient_accumulation_steps=accumulation,
            max_steps=1,
            learning_rate=1e-2,
            optim="sgd",
        )
        trainer.train()
        weights.append(torch.cat([p.detach().flatten() for p in trainer.model.parameters()]))
    start = torch.cat([p.detach().flatten() for p in tiny.teacher()[0].parameters()])
    assert (weights[0] - start).abs().max() > 1e-5
    assert torch.allclose(weights[0], weights[1], atol=1e-6)
    assert torch.allclose(weights[0], weights[2], atol=1e-6)


@pytest.mark.parametrize("lora", [False, True])
def test_resume_is_exact_at_a_generation_window(tmp_path: Path, lora: bool) -> None:
    settings = {"save_strategy": "steps", "save_steps": 2, "max_steps": 4, "peft_config": LORA if lora else None}
    whole = make(tmp_path / "whole", **settings)
    whole.train()
    again = make(tmp_path / "whole", **settings)
    again.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    for (name, one), (_, other) in zip(whole.model.named_parameters(), again.model.named_parameters(), strict=True):
        assert torch.equal(one, other), name


def test_resuming_with_a_checkpoint_as_the_anchor_is_refused(tmp_path: Path) -> None:
    settings = {"save_strategy": "steps", "save_steps": 1, "max_steps": 2}
    first = make(tmp_path, **settings)
    first.train()
    again = make(tmp_path, model=first.model, **settings)
    with pytest.raises(UserError, match="another anchor"):
        again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
