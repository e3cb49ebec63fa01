"""What the trainer and its arguments refuse, and that a caller's arguments stay the caller's."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import tiny
from datasets import Dataset
from trl import GRPOConfig

from distillknob.rewards.errors import UserError
from distillknob.trainer.calibration import CalibrationTrainer
from distillknob.trainer.calibration_config import CalibrationConfig
from distillknob.trainer.supervised import save_model


def make(args: Any, *, proxy_seed: int = 1, reward_funcs: Any = tiny.digits, data: Any = None, model: Any = None) -> Any:
    """A trainer on random models, with a proxy."""
    teacher, tokenizer = tiny.teacher()
    proxy, proxy_tokenizer = tiny.proxy(proxy_seed)
    return CalibrationTrainer(
        model or teacher,
        reward_funcs,
        args,
        proxy=proxy,
        proxy_tokenizer=proxy_tokenizer,
        train_dataset=tiny.prompts() if data is None else data,
        processing_class=tokenizer,
    )


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"gate": "foo"}, "gate: must be one of 'none', 'correct_only', not 'foo'"),
        ({"calibration_per": "words"}, "calibration_per: must be one of 'bytes', 'none', 'own_tokens'"),
        ({"calibration": "ratio"}, "calibration: must be one of 'log_ratio', 'proxy_only'"),
        ({"calibration": None}, "calibration: must be one of"),
        ({"end_token": True}, "end_token: must be one of 'both', 'none', not True"),
        ({"guard_action": "halt"}, "guard_action: must be one of 'stop', 'rollback'"),
        ({"on_bad_reward": "ignore"}, "on_bad_reward: must be one of 'error', 'leave_out'"),
        ({"direction": "up"}, "direction: must be one of 'distillable', 'undistillable'"),
        ({"beta": -1.0}, "beta: must be 0 or above, not -1"),
        ({"beta": float("inf")}, "beta: must be a finite number"),
        ({"eta": None}, "eta: must be a finite number, not None"),
        ({"kl_ceiling": "x"}, "kl_ceiling: must be a finite number, not 'x'"),
        ({"truncation_ceiling": True}, "truncation_ceiling: must be a finite number, not True"),
        ({"proxy_batch_size": 0}, "proxy_batch_size: must be at least 1"),
    ],
)
def test_wrong_values_are_refused(tmp_path: Path, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        tiny.arguments(CalibrationConfig, tmp_path, **settings)


def test_every_right_choice_is_taken(tmp_path: Path) -> None:
    for name, choices in {
        "gate": ("none", "correct_only"),
        "calibration_per": ("bytes", "none", "own_tokens"),
        "calibration": ("log_ratio", "proxy_only"),
        "end_token": ("both", "none"),
        "on_bad_reward": ("error", "leave_out"),
        "kl_ceiling": (None, 1, 0.5),
    }.items():
        for choice in choices:
            assert getattr(tiny.arguments(CalibrationConfig, tmp_path, **{name: choice}), name) == choice


def test_what_the_trainer_cannot_use_is_refused(tmp_path: Path) -> None:
    args = tiny.arguments(CalibrationConfig, tmp_path, eta=-0.5)
    with pytest.raises(UserError, match="reward_funcs: at least one task reward is needed"):
        make(args, reward_funcs=[])
    with pytest.raises(UserError, match="train_dataset: needs a column prompt"):
        make(args, data=Dataset.from_list([{"question": "a"}] * 8))
    with pytest.raises(UserError, match="args: must be a CalibrationConfig, not GRPOConfig"):
        make(tiny.arguments(GRPOConfig, tmp_path))
    args.reward_weights = [1.0, -0.5]
    with pytest.raises(UserError, match="reward_weights: 2 weights for 1 task rewards"):
        make(args)


@pytest.mark.parametrize("by_path", [False, True])
def test_the_callers_arguments_stay_and_serve_a_second_trainer(tmp_path: Path, by_path: bool) -> None:
    save_model(*tiny.teacher(), tmp_path / "m")
    args = tiny.arguments(CalibrationConfig, tmp_path / "run", eta=-0.5, max_steps=1, max_completion_length=4)
    args.model_init_kwargs = {"attn_implementation": "eager"} if by_path else None
    before = {field.name: getattr(args, field.name) for field in fields(args)}

    trainers = [make(args, model=str(tmp_path / "m") if by_path else None) for _ in range(2)]

    assert {field.name: getattr(args, field.name) for field in fields(args)} == before
    for trainer in trainers:
        assert trainer.ref_model is not None and trainer.beta == trainer.args.beta == 0.05
        assert trainer.args.reward_weights == [1.0, -0.5]
    trainers[1].train()
    assert any("kl" in entry for entry in trainers[1].state.log_history)


def test_resuming_with_another_dial_or_proxy_is_refused(tmp_path: Path) -> None:
    def args(**changes: Any) -> Any:
        settings = {"eta": -0.5, "save_strategy": "steps", "save_steps": 1, "max_completion_length": 4}
        return tiny.arguments(CalibrationConfig, tmp_path, **(settings | changes))

    make(args(max_steps=1)).train()
    with pytest.raises(UserError, match=r"can't resume with another setting: eta was -0\.5, is -0\.25"):
        make(args(eta=-0.25)).train(resume_from_checkpoint=True)
    with pytest.raises(UserError, match=r"can't resume with another setting: beta was 0\.05, is 0\.1$"):
        make(args(beta=0.1)).train(resume_from_checkpoint=True)
    with pytest.raises(UserError, match=r"can't resume with another setting: proxy was \w{16}, is \w{16}$"):
        make(args(), proxy_seed=2).train(resume_from_checkpoint=True)
    same = make(args())
    same.train(resume_from_checkpoint=True)
    assert same.state.global_step == 2
