"""The policy's log-probabilities of what it sampled don't depend on the batch that a row lies in, whatever the positions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from peft import LoraConfig
from transformers import GPT2Config, GPT2LMHeadModel

from distillknob.trainer.calibration import CalibrationTrainer
from distillknob.trainer.calibration_config import CalibrationConfig
from distillknob.trainer.policy import GRPOPolicy


def learned_positions(tokenizer: Any) -> Any:
    """A small GPT-2, wide awake, whose learned positions matter."""
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=len(tokenizer), n_positions=64, n_embd=16, n_layer=1, n_head=2, initializer_range=0.5)
    return GPT2LMHeadModel(config).eval()


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_sampled_logps_of_a_mixed_batch_are_those_of_each_row_alone(tmp_path: Path, kind: str, temperature: float) -> None:
    model, tokenizer = tiny.teacher()
    if kind == "gpt2":
        model = learned_positions(tokenizer)
    args = tiny.arguments(CalibrationConfig, tmp_path, temperature=temperature, beta=0.0)
    data = tiny.prompts(2)
    trainer = CalibrationTrainer(model, tiny.digits, args, proxy=None, train_dataset=data, processing_class=tokenizer)
    policy = GRPOPolicy(trainer)
    whole = tiny.TASK.rows("train", 5, 1)
    prompts = [row["prompt"][: 2 + 3 * i] for i, row in enumerate(whole)]
    ids = [tokenizer(tiny.TASK.gold_text(row)[: 4 + 4 * (i % 3)])["input_ids"] for i, row in enumerate(whole)]
    heads = [tokenizer(prompt)["input_ids"] for prompt in prompts]
    assert len({len(head) for head in heads}) > 2 and len({len(tail) for tail in ids}) > 1

    got = policy.sampled_logps(prompts, ids)

    for prompt, head, tail, values in zip(prompts, heads, ids, got, strict=True):
        assert values == pytest.approx(policy.sampled_logps([prompt], [tail])[0], abs=1e-4)
        with torch.no_grad():
            logps_T_V = trainer.model.eval()(input_ids=torch.tensor([[*head, *tail]])).logits[0].log_softmax(-1)
        by_hand = [float(logps_T_V[len(head) - 1 + i, token]) for i, token in enumerate(tail)]
        assert values == pytest.approx(by_hand, abs=1e-4)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("kind", ["gpt2", "llama", "lora"])
def test_what_generation_says_is_what_a_pass_of_its_own_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, temperature: float
) -> None:
    model, tokenizer = tiny.teacher()
    if kind == "gpt2":
        model = learned_positions(tokenizer)
        model.config.eos_token_id = model.generation_config.eos_token_id = tokenizer.eos_token_id
    proxy, proxy_tokenizer = tiny.proxy()
    trainer = CalibrationTrainer(
        model,
        tiny.digits,
        tiny.arguments(CalibrationConfig, tmp_path, temperature=temperature, eta=-0.5, learning_rate=0.05),
        proxy=proxy,
        proxy_tokenizer=proxy_tokenizer,
        train_dataset=tiny.prompts(),
        processing_class=tokenizer,
        peft_config=LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.1) if kind == "lora" else None,
    )
    apart = []
    whole = GRPOPolicy.sampled_logps

    def both(policy: GRPOPolicy, prompts: Any, ids: Any) -> list[list[float]]:
        recorded = policy.sampled.for_ids(ids)
        assert recorded is not None and policy.sampled.for_ids(ids) == recorded
        assert policy.sampled.for_ids([*ids[1:], ids[0]]) is None or ids[0] == ids[-1]
        policy.sampled.broken = True
        for mine, passed in zip(recorded, whole(policy, prompts, ids), strict=True):
            assert len(mine) == len(passed)
            apart.extend(abs(a - b) for a, b in zip(mine, passed, strict=True))
        return recorded

    monkeypatch.setattr(GRPOPolicy, "sampled_logps", both)
    trainer.train()
    assert len(apart) > 40 and max(apart) < 1e-4
    assert not trainer.accelerator.unwrap_model(trainer.model)._forward_hooks


@pytest.mark.parametrize("changes", [{"bf16": True}, {"disable_dropout": False}, {"calibration": "proxy_only"}])
def test_generation_is_recorded_only_where_it_is_exact_and_wanted(tmp_path: Path, changes: dict[str, Any]) -> None:
    model, tokenizer = tiny.teacher()
    proxy, proxy_tokenizer = tiny.proxy()
    trainer = CalibrationTrainer(
        model,
        tiny.digits,
        tiny.arguments(CalibrationConfig, tmp_path, eta=0.5, max_steps=1, **changes),
        proxy=proxy,
        proxy_tokenizer=proxy_tokenizer,
        train_dataset=tiny.prompts(),
        processing_class=tokenizer,
    )
    trainer.train()
    assert trainer._policy.sampled._ids == []
