"""Cases B31, B33, B34, B35: group normalisation, group sizes and group identity (method §2)."""

from __future__ import annotations

import re
import statistics
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from datasets import Dataset

from distillknob.rewards.advantages import EPSILON, combined_advantages, group_zscores
from distillknob.rewards.errors import UserError
from distillknob.trainer.calibration import CalibrationTrainer
from distillknob.trainer.calibration_config import CalibrationConfig
from distillknob.trainer.groups import check_groups


def zscores(values: list[float], epsilon: float = EPSILON) -> list[float]:
    """The formula of method §2 in plain Python."""
    mean, std = statistics.fmean(values), statistics.stdev(values)
    return [(v - mean) / (std + epsilon) for v in values]


class Recorder(CalibrationTrainer):
    """Keeps what every generation batch was paid and what came of it, in sampler order."""

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        output = super()._generate_and_score_completions(inputs)
        self.seen = [*getattr(self, "seen", []), (self._rewards_B_K[:, 0].tolist(), output["advantages"].tolist())]
        return output


class Paid:
    """A task reward from `by_id`: row id -> the rewards of its visits one after another; keeps the ids in the order seen."""

    def __init__(self, by_id: dict[str, list[float]]) -> None:
        self.left, self.__name__ = {key: list(values) for key, values in by_id.items()}, "paid"
        self.order: list[str] = []

    def __call__(self, prompts: list[str], completions: list[str], id: list[str], **columns: Any) -> list[float]:
        self.order += id
        return [self.left[key].pop(0) for key in id]


def control(output: Path, rows: list[dict[str, str]], paid: Paid, **changes: Any) -> Recorder:
    """A control run (eta 0) without a proxy on one prompt set."""
    model, tokenizer = tiny.teacher()
    args = tiny.arguments(CalibrationConfig, output, **({"beta": 0.0, "max_completion_length": 4, "max_steps": 1} | changes))
    return Recorder(model, paid, args, proxy=None, train_dataset=Dataset.from_list(rows), processing_class=tokenizer)


def test_B31_groups_without_spread_get_zero() -> None:
    case = tiny.CASES["B31"]
    groups, expected = case["input"]["groups"], case["expected"]
    got = [group_zscores(torch.tensor([g], dtype=torch.float32))[0] for g in groups]
    for values, wanted in zip(got[:2], expected["advantages"][:2], strict=True):
        assert values.tolist() == wanted
    assert got[2].abs().max() < float(re.findall(r"[\d.]+", expected["advantages"][2])[0])
    exact = group_zscores(torch.tensor([groups[2]], dtype=torch.float64))[0]
    assert exact.tolist() == pytest.approx(expected["z_eps_1e-4_third"], abs=1e-8)
    assert float(sum(not v.any() for v in got)) / len(got) == pytest.approx(expected["frac_zero_std_groups"])


def test_B31_the_share_of_groups_without_spread_is_logged(tmp_path: Path) -> None:
    groups = {"a": [1.0] * 4, "b": [0.35] * 4, "c": [0.0, 1.0, 0.0, 0.0]}
    rows = [{"id": key, "prompt": tiny.TASK.rows("train", 3, 0)[i]["prompt"]} for i, key in enumerate(groups)]
    trainer = control(tmp_path, rows, Paid(groups), per_device_train_batch_size=12)
    trainer.train()
    share = next(entry["frac_zero_std/paid"] for entry in trainer.state.log_history if "frac_zero_std/paid" in entry)
    assert share == pytest.approx(tiny.CASES["B31"]["expected"]["frac_zero_std_groups"])


@pytest.mark.parametrize("size", [2, 3, 8, 64])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_B31_equal_up_to_float32_rounding_is_no_spread_at_any_size(size: int, scale: float) -> None:
    generator = torch.Generator().manual_seed(size)
    level = scale * (torch.rand(20, 1, generator=generator) + 0.5).float()
    last_bit = torch.randint(0, 2, (20, size), generator=generator).float() * torch.finfo(torch.float32).eps
    rewards = (level * (1 + last_bit)).float()
    assert (rewards != rewards[:, :1]).any()
    assert not group_zscores(rewards, epsilon=0.0).any()
    spread = level * (1 + 0.01 * torch.arange(size).float())
    assert group_zscores(spread, epsilon=0.0).abs().amax(1).min() > 0.5


@pytest.mark.parametrize("size", [2, 5, 16])
def test_B31_left_out_members_enter_nothing(size: int) -> None:
    generator = torch.Generator().manual_seed(size)
    rewards = torch.randn(30, size, generator=generator, dtype=torch.float64)
    rewards[torch.rand(30, size, generator=generator) < 0.4] = torch.nan
    got = group_zscores(rewards)
    assert got.isfinite().all()
    for row, z in zip(rewards.tolist(), got.tolist(), strict=True):
        valid = [v for v in row if v == v]
        wanted = iter(zscores(valid) if len(valid) > 1 else [0.0] * len(valid))
        assert z == pytest.approx([next(wanted) if v == v else 0.0 for v in row], abs=1e-9)


def test_B33_each_reward_is_normalised_by_itself() -> None:
    case = tiny.CASES["B33"]
    given, expected = case["input"], case["expected"]
    task, calibration = torch.tensor([given["task"]]), torch.tensor([given["calibration"]])
    assert group_zscores(task, given["eps"])[0].tolist() == pytest.approx(expected["task_z"], abs=1e-6)
    assert group_zscores(calibration, given["eps"])[0].tolist() == pytest.approx(expected["calibration_z"], abs=1e-6)
    for eta, key in ((1.0, "sum_eta_+1"), (-1.0, "sum_eta_-1")):
        got = combined_advantages(task[:, :, None], torch.tensor(given["weights"][:1]), calibration, eta, epsilon=given["eps"])
        assert got[0].tolist() == pytest.approx(expected[key], abs=1e-6)
        assert got[0].tolist() != pytest.approx(case["wrong_value"]["sum_then_normalise"], abs=0.1)


@pytest.mark.parametrize("size", [2, 4, 9])
@pytest.mark.parametrize("gate_at", [None, 1.0])
def test_B33_random_groups_with_two_task_rewards_and_a_gate(size: int, gate_at: float | None) -> None:
    generator = torch.Generator().manual_seed(size)
    right = (torch.rand(25, size, generator=generator) < 0.6).double()
    second = 50 * torch.randn(25, size, generator=generator, dtype=torch.float64)
    calibration = 1e3 * torch.randn(25, size, generator=generator, dtype=torch.float64) - 4e3
    got = combined_advantages(torch.stack([right, second], -1), torch.tensor([2.0, 0.5]), calibration, -0.7, gate_at=gate_at)
    for r, s, c, a in zip(right.tolist(), second.tolist(), calibration.tolist(), got.tolist(), strict=True):
        taking_part = [i for i in range(size) if gate_at is None or r[i] >= gate_at]
        chosen = [c[i] for i in taking_part]
        z_cal = dict(zip(taking_part, zscores(chosen) if len(chosen) > 1 else [0.0] * len(chosen), strict=True))
        z_right = zscores(r) if len(set(r)) > 1 else [0.0] * size
        wanted = [2 * zr + 0.5 * zs - 0.7 * z_cal.get(i, 0.0) for i, (zr, zs) in enumerate(zip(z_right, zscores(s), strict=True))]
        assert a == pytest.approx(wanted, abs=1e-9)


def sizes(config: dict[str, int]) -> dict[str, Any]:
    """A case's config as check_groups' arguments."""
    return {
        "processes": config["processes"],
        "per_device_batch": config["per_device_batch"],
        "accumulation": config["grad_accum"],
        "group": config["num_generations"],
        "prompts": config.get("n_prompts"),
    }


def test_B34_group_sizes_of_the_case() -> None:
    bad, lonely, accumulated, rest = map(sizes, tiny.CASES["B34"]["input"]["configs"])
    results = tiny.CASES["B34"]["expected"]["results"]
    with pytest.raises(UserError, match=re.escape(re.findall(r"valid sizes \[7\]", results[0])[0].replace("sizes", "sizes:"))):
        check_groups(**bad)
    with pytest.raises(UserError, match="at least 2 generations"):
        check_groups(**lonely)
    assert "8 = 1 prompt x 8" in check_groups(**accumulated)
    assert "2 prompts x 4" in check_groups(**rest)
    assert "1 of 5 prompts left over" in check_groups(**rest)


@pytest.mark.parametrize("index", [0, 1, 2, 3])
def test_B34_through_the_config_and_before_a_model_is_loaded(tmp_path: Path, index: int) -> None:
    case = tiny.CASES["B34"]["input"]["configs"][index]
    settings = {
        "per_device_train_batch_size": case["per_device_batch"],
        "gradient_accumulation_steps": case["grad_accum"],
        "num_generations": case["num_generations"],
    }
    if index < 2:
        with pytest.raises(UserError, match=r"valid sizes: \[7\]" if index == 0 else "at least 2 generations"):
            tiny.arguments(CalibrationConfig, tmp_path, **settings)
        return
    args = tiny.arguments(CalibrationConfig, tmp_path, **settings)
    assert args.generation_batch_size == case["per_device_batch"] * case["grad_accum"]
    with pytest.raises(UserError, match="do not fill one generation batch"):
        CalibrationTrainer("/no/such/model", tiny.digits, args, proxy=None, train_dataset=tiny.prompts(0))


def test_B34_prompts_left_over_are_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = tiny.CASES["B34"]["input"]["configs"][3]
    rows = tiny.TASK.rows("train", config["n_prompts"], 0)
    with caplog.at_level("WARNING", "distillknob"):
        control(tmp_path, rows, Paid({}), num_generations=config["num_generations"])
    assert "1 of 5 prompts left over" in caplog.text


@pytest.mark.parametrize("batch", range(1, 40))
def test_B34_valid_sizes_are_exactly_those_that_are_accepted(batch: int) -> None:
    accepted, listed = [], set[str]()
    for group in range(2, batch + 3):
        try:
            check_groups(processes=1, per_device_batch=batch, accumulation=1, group=group)
            accepted.append(group)
        except UserError as error:
            listed.add(str(error).partition("valid sizes: ")[2])
    assert listed == {str(accepted)}
    assert accepted == [n for n in range(2, batch + 1) if batch % n == 0]


def test_B35_the_case_through_the_trainer(tmp_path: Path) -> None:
    case = tiny.CASES["B35"]
    paid: dict[str, list[float]] = {}
    for row in case["input"]["rows"]:
        paid.setdefault(row["group"], []).append(row["r"])
    wanted: dict[str, list[float]] = {}
    for row, value in zip(case["input"]["rows"], case["expected"]["advantages"], strict=True):
        wanted.setdefault(row["group"], []).append(value)
    rows = [{"id": key, "prompt": tiny.TASK.rows("train", 2, 0)[i]["prompt"]} for i, key in enumerate(paid)]
    reward = Paid(paid)
    trainer = control(tmp_path, rows, reward, per_device_train_batch_size=4, num_generations=2)
    trainer.train()
    _, advantages = trainer.seen[0]
    centred = {key: [] for key in paid}
    for key, advantage in zip(reward.order, advantages, strict=True):
        centred[key].append(advantage * (statistics.stdev(paid[key]) + EPSILON))
    for key, values in wanted.items():
        assert centred[key] == pytest.approx(values, abs=1e-6)


@pytest.mark.parametrize("size", [2, 4, 8])
def test_B35_a_prompt_twice_in_a_batch_stays_two_groups(tmp_path: Path, size: int) -> None:
    prompt, other = (row["prompt"] for row in tiny.TASK.rows("train", 2, 0))
    rows = [{"id": str(i), "prompt": text} for i, text in enumerate((prompt, prompt, other, prompt), start=1)]
    generator = torch.Generator().manual_seed(size)
    by_id = {row["id"]: (1000 * int(row["id"]) + torch.randn(size, generator=generator)).tolist() for row in rows}
    reward = Paid(by_id)
    trainer = control(tmp_path, rows, reward, per_device_train_batch_size=4 * size, num_generations=size)
    trainer.train()
    rewards, advantages = trainer.seen[0]
    assert sorted(set(reward.order)) == ["1", "2", "3", "4"]
    for start in range(0, 4 * size, size):
        assert len(set(reward.order[start : start + size])) == 1
        group = rewards[start : start + size]
        assert advantages[start : start + size] == pytest.approx(zscores(group), abs=1e-3)
        assert max(map(abs, advantages[start : start + size])) > 0.5
