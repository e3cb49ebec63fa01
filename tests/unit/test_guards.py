"""The guards of a calibration, on planted runs, and the settings that are refused (method §2)."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from safetensors.torch import load_file
from transformers import TrainerControl, TrainerState

from distillknob.rewards.errors import UserError
from distillknob.trainer.calibration import CalibrationTrainer
from distillknob.trainer.calibration_config import CalibrationConfig
from distillknob.trainer.guards import GuardCallback, Limits

WINDOW = Limits(None, None, None, None, "stop").window
STEPS = WINDOW + 2


def make(output: Path, **changes: Any) -> CalibrationTrainer:
    """A control run (eta 0, no proxy) that goes on a little longer than the guards' window."""
    model, tokenizer = tiny.teacher()
    settings = {"max_steps": STEPS, "max_completion_length": 6, "learning_rate": 1e-2} | changes
    return CalibrationTrainer(
        model,
        tiny.digits,
        tiny.arguments(CalibrationConfig, output, **settings),
        proxy=None,
        train_dataset=tiny.prompts(),
        eval_dataset=tiny.prompts(2),
        processing_class=tokenizer,
    )


PLANTED = {
    "kl_ceiling": (1e-9, "kl"),
    "entropy_floor": (100.0, "entropy"),
    "truncation_ceiling": (0.01, "completions/clipped_ratio"),
}


@pytest.mark.parametrize("guard", PLANTED)
def test_a_guard_stops_a_planted_run_and_records_the_breach(tmp_path: Path, guard: str) -> None:
    limit, key = PLANTED[guard]
    trainer = make(tmp_path, **{guard: limit})
    trainer.train()
    (breach,) = trainer.guards.record()
    logged = [entry[key] for entry in trainer.state.log_history if key in entry]
    first = 2 if guard == "kl_ceiling" else 1  # before the first update the KL is zero
    assert trainer.state.global_step == first < STEPS
    assert {k: breach[k] for k in ("step", "guard", "limit", "action", "restored")} == {
        "step": first,
        "guard": guard,
        "limit": limit,
        "action": "stop",
        "restored": None,
    }
    assert breach["value"] == pytest.approx(sum(logged[:first]) / first)
    assert (breach["value"] > limit) == guard.endswith("ceiling")


def test_the_utility_floor_stops_at_the_first_bad_evaluation(tmp_path: Path) -> None:
    trainer = make(tmp_path, utility_floor=2.0, eval_strategy="steps", eval_steps=2, per_device_eval_batch_size=8)
    trainer.train()
    (breach,) = trainer.guards.record()
    assert (breach["guard"], breach["step"], trainer.state.global_step) == ("utility_floor", 2, 2)
    seen = [entry["eval_rewards/digits/mean"] for entry in trainer.state.log_history if "eval_rewards/digits/mean" in entry]
    assert breach["value"] == pytest.approx(seen[0])


def test_within_the_limits_and_with_guards_off_nothing_happens(tmp_path: Path) -> None:
    wide = {"kl_ceiling": 1e3, "entropy_floor": 1e-9, "truncation_ceiling": 1.0, "utility_floor": -1.0}
    for name, changes in (("off", {}), ("wide", wide | {"eval_strategy": "steps", "eval_steps": 3})):
        trainer = make(tmp_path / name, per_device_eval_batch_size=8, **changes)
        trainer.train()
        assert trainer.guards.record() == []
        assert trainer.state.global_step == STEPS


def kls(trainer: CalibrationTrainer) -> list[float]:
    """The KL of each step, as logged."""
    return [entry["kl"] for entry in trainer.state.log_history if "kl" in entry]


def good_steps(kl: list[float], ceiling: float) -> list[int]:
    """Steps at which both the value and the mean of the last ones are within the ceiling."""
    return [
        n for n in range(1, len(kl) + 1) if kl[n - 1] <= ceiling and sum(kl[max(0, n - WINDOW) : n]) / min(n, WINDOW) <= ceiling
    ]


def test_rollback_restores_the_newest_checkpoint_from_within_the_limits(tmp_path: Path) -> None:
    free = make(tmp_path / "free")
    free.train()
    ceiling = sorted(kls(free))[2] * 1.0001
    settings = {"kl_ceiling": ceiling, "save_strategy": "steps", "save_steps": 1}
    trainer = make(tmp_path, guard_action="rollback", **settings)
    trainer.train()
    (breach,) = trainer.guards.record()
    # A step's KL was measured on the weights of the checkpoint before it.
    restored = f"checkpoint-{good_steps(kls(free)[: breach['step']], ceiling)[-1] - 1}"
    assert (breach["action"], breach["restored"]) == ("rollback", restored)
    assert 1 <= trainer.guards.steps_kept(trainer.state.global_step) == int(restored[11:]) < breach["step"]
    good = load_file(tmp_path / restored / "model.safetensors")
    weights = trainer.model.state_dict()
    assert good and all(torch.equal(weights[name], value) for name, value in good.items())
    stopped = make(tmp_path / "stop", **settings)
    stopped.train()
    assert not all(torch.equal(stopped.model.state_dict()[name], value) for name, value in good.items())


def test_a_run_resumed_after_its_breach_takes_no_step_more_and_goes_back_to_the_same_checkpoint(tmp_path: Path) -> None:
    free = make(tmp_path / "free")
    free.train()
    ceiling = sorted(kls(free))[2] * 1.0001
    settings = {"kl_ceiling": ceiling, "save_strategy": "steps", "save_steps": 1, "guard_action": "rollback"}
    first = make(tmp_path, **settings)
    first.train()
    again = make(tmp_path, **settings)
    again.train(resume_from_checkpoint=True)
    assert again.guards.record() == first.guards.record()
    assert str(again.guards.record()[0]["restored"]).startswith("checkpoint-")
    assert again.state.global_step == first.state.global_step
    assert all(torch.equal(one, other) for one, other in zip(first.model.parameters(), again.model.parameters(), strict=True))


@pytest.mark.parametrize("resumed", [False, True])
def test_rollback_without_a_good_checkpoint_goes_back_to_the_start(tmp_path: Path, resumed: bool) -> None:
    settings = {"guard_action": "rollback", "kl_ceiling": 1e-9, "save_strategy": "steps", "save_steps": 1}
    trainer = make(tmp_path, **settings)
    begun = [p.detach().clone() for p in trainer.model.parameters()]
    trainer.train()
    if resumed:
        trainer = make(tmp_path, **settings)
        trainer.train(resume_from_checkpoint=True)
    (breach,) = trainer.guards.record()
    assert (breach["step"], breach["restored"], trainer.guards.steps_kept(2)) == (2, "start", 0)
    assert (tmp_path / "start" / "model.safetensors").is_file()
    assert all(torch.equal(one, other) for one, other in zip(begun, trainer.model.parameters(), strict=True))


def test_rollback_to_weights_that_are_gone_is_an_error(tmp_path: Path) -> None:
    trainer = make(tmp_path, guard_action="rollback", kl_ceiling=1e-9, save_strategy="steps", save_steps=1)

    class Loses(tiny.TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *_: Any, **__: Any) -> None:
            shutil.rmtree(tmp_path / "start", ignore_errors=True)

    trainer.add_callback(Loses())
    with pytest.raises(UserError, match=r"kl_ceiling tripped at step 2, and the weights to go back to are gone: .*start"):
        trainer.train()


def test_a_checkpoint_is_judged_by_the_first_entry_after_it(tmp_path: Path) -> None:
    callback, control = GuardCallback(Limits(1.0, None, None, None, "rollback", window=5), "task"), TrainerControl()
    args = tiny.arguments(CalibrationConfig, tmp_path)
    good = []
    for step, kl in enumerate((0.0, 1.5, 0.2, 0.3, 9.0), start=1):  # 1.5 is above the limit, the mean with 0.0 is not
        callback.on_log(args, TrainerState(global_step=step, logging_steps=1), control, logs={"kl": kl})
        good.append(callback.last_good)
        (tmp_path / f"checkpoint-{step}").mkdir()
        callback.on_save(args, TrainerState(global_step=step), control)
    assert good == [None, None, tmp_path / "checkpoint-2", tmp_path / "checkpoint-3", tmp_path / "checkpoint-3"]
    assert callback.breach is not None and callback.breach.step == 5


def test_rarely_logged_metrics_are_looked_at_when_they_are_there(tmp_path: Path) -> None:
    trainer = make(tmp_path, kl_ceiling=1e-9, logging_steps=WINDOW)
    trainer.train()
    assert trainer.guards.record()[0]["step"] == WINDOW


def feed(limits: Limits, values: list[dict[str, Any]]) -> tuple[GuardCallback, TrainerControl, list[bool]]:
    """The callback on logged values, one a step."""
    callback, control, stops = GuardCallback(limits, "task"), TrainerControl(), []
    for step, logs in enumerate(values, start=1):
        callback.on_log(None, TrainerState(global_step=step, logging_steps=1), control, logs=logs)
        stops.append(control.should_training_stop)
    return callback, control, stops


def test_the_window_is_a_moving_mean_and_the_first_breach_stays() -> None:
    limits = Limits(1.0, None, None, None, "stop", window=3)
    callback, _, stops = feed(limits, [{"kl": v} for v in (0.5, 1.4, 0.4, 0.4, 2.3, 9.0)])
    assert stops == [False, False, False, False, True, True]
    assert callback.breach is not None and (callback.breach.step, callback.breach.value) == (5, pytest.approx(3.1 / 3))
    assert feed(limits, [{"kl": v} for v in (1.2, 0.1, 0.1)])[2] == [True] * 3  # fewer entries at the start are enough
    assert feed(limits, [{"kl": v} for v in (0.9, 1.2, 0.1)])[2] == [False, True, True]
    assert not feed(limits, [{"kl": 1.0}] * 5)[2][-1]  # at the limit is within it
    assert not feed(limits, [{"loss": 1.0}] * 5)[2][-1]


@pytest.mark.parametrize(
    ("limits", "key"),
    [
        (Limits(1.0, None, None, None, "stop"), "kl"),
        (Limits(None, 0.1, None, None, "stop"), "entropy"),
        (Limits(None, None, 0.5, None, "stop"), "completions/clipped_ratio"),
    ],
)
def test_nan_trips(limits: Limits, key: str) -> None:
    callback, control, _ = feed(limits, [{key: 0.3}] * (WINDOW - 1) + [{key: math.nan}])
    assert control.should_training_stop and callback.breach is not None and callback.breach.value is None


def test_nan_trips_the_utility_floor() -> None:
    callback, control = GuardCallback(Limits(None, None, None, 0.5, "stop"), "task"), TrainerControl()
    callback.on_log(None, TrainerState(global_step=3, logging_steps=1), control, logs={"eval_rewards/task/mean": math.nan})
    assert control.should_training_stop


def test_nan_trips_in_a_run(tmp_path: Path) -> None:
    class Poisoned(CalibrationTrainer):
        def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
            if "kl" in self._metrics["train"]:
                self._metrics["train"]["kl"] = [math.nan]
            super().log(logs, start_time)

    model, tokenizer = tiny.teacher()
    args = tiny.arguments(CalibrationConfig, tmp_path, max_steps=STEPS, max_completion_length=4, kl_ceiling=1e3)
    trainer = Poisoned(model, tiny.digits, args, proxy=None, train_dataset=tiny.prompts(), processing_class=tokenizer)
    trainer.train()
    assert trainer.guards.record()


@pytest.mark.parametrize(
    ("direction", "eta"), [("distillable", -0.5), ("undistillable", 0.5), ("distillable", 0.0), ("undistillable", 0.0)]
)
def test_a_sign_that_contradicts_the_direction_is_refused(tmp_path: Path, direction: str, eta: float) -> None:
    with pytest.raises(UserError, match=f"contradicts direction: {direction}"):
        tiny.arguments(CalibrationConfig, tmp_path, direction=direction, eta=eta)


@pytest.mark.parametrize(("direction", "eta"), [("distillable", 0.5), ("undistillable", -0.5), (None, -0.5), (None, 0.0)])
def test_an_agreeing_sign_is_taken(tmp_path: Path, direction: str | None, eta: float) -> None:
    assert tiny.arguments(CalibrationConfig, tmp_path, direction=direction, eta=eta).eta == eta


@pytest.mark.parametrize(
    ("settings", "every"),
    [
        ({"steps_per_generation": 4, "save_steps": 2}, 4),
        ({"num_iterations": 3, "save_steps": 4}, 3),
        ({"steps_per_generation": 2, "num_iterations": 3, "gradient_accumulation_steps": 2, "save_steps": 2}, 3),
    ],
)
def test_saving_inside_a_generation_window_is_refused(tmp_path: Path, settings: dict[str, int], every: int) -> None:
    with pytest.raises(UserError, match=f"use a multiple of {every}$"):
        tiny.arguments(CalibrationConfig, tmp_path, save_strategy="steps", **settings)
    tiny.arguments(CalibrationConfig, tmp_path, save_strategy="steps", **(settings | {"save_steps": every}))


def test_other_settings_that_cannot_work_are_refused(tmp_path: Path) -> None:
    for settings, said in (
        ({"sync_ref_model": True}, "sync_ref_model: true would move the anchor"),
        ({"utility_floor": 0.5}, "utility_floor: needs eval_strategy"),
        ({"guard_action": "rollback"}, "guard_action: rollback needs checkpoints"),
        ({"guard_action": "rollback", "save_strategy": "steps", "save_total_limit": 2}, "leave save_total_limit out"),
        ({"eta": math.nan}, "eta: must be a finite number"),
        ({"save_strategy": "steps", "save_steps": 0.5}, "save_steps: must be a whole number"),
    ):
        with pytest.raises(UserError, match=said):
            tiny.arguments(CalibrationConfig, tmp_path, **settings)


def test_eta_without_a_proxy_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    for eta in (-0.5, 0.5):
        args = tiny.arguments(CalibrationConfig, tmp_path, eta=eta)
        with pytest.raises(UserError, match="needs a proxy"):
            CalibrationTrainer("/no/such/model", "/no/such/judge", args, proxy=None, train_dataset=tiny.prompts(2))
