"""calibration.json: what it says of a run that learnt nothing, and of one that went too far in its last step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tiny
from safetensors.torch import load_file

from distillknob.rewards.errors import UserError
from distillknob.rewards.tasks import TaskConfig
from distillknob.trainer.calibrate import CalibrateConfig, Calibration, calibrate
from distillknob.trainer.supervised import save_model

SETTINGS: dict[str, Any] = {
    "steps": 2,
    "prompts_per_step": 2,
    "num_generations": 4,
    "truncation_ceiling": None,
    "check_proxy": "off",
    "validation_items": 16,
    "learning_rate": 1e-2,
}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Random models: their answers are wrong."""
    root = tmp_path_factory.mktemp("models")
    save_model(*tiny.teacher(), root / "teacher")
    save_model(*tiny.proxy(), root / "proxy")
    return {"teacher": root / "teacher", "proxy": root / "proxy"}


def run(inputs: dict[str, Path], folder: Path, **changes: Any) -> tuple[dict[str, Any], bool]:
    """The record of a run, and whether its weights are the teacher's."""
    settings = Calibration(**(SETTINGS | changes))
    (folder / "out").mkdir()
    calibrate(CalibrateConfig(TaskConfig(), settings, -0.5, 1), inputs, folder / "out", folder / "work")
    before, after = (load_file(path / "model.safetensors") for path in (inputs["teacher"], folder / "out"))
    record: dict[str, Any] = json.loads((folder / "out" / "calibration.json").read_text())
    return record, all(before[name].equal(after[name]) for name in before)


def test_a_run_without_any_signal_says_that_it_learnt_nothing(inputs: dict[str, Path], tmp_path: Path) -> None:
    record, unchanged = run(inputs, tmp_path, gate="correct_only")  # no right answer: neither reward has a spread
    assert record["learnt_nothing"] is True and unchanged
    assert record["shares"]["groups_with_signal"] == 0
    assert record["guards"] == [] and record["kl"]["full_vocabulary"]["value"] == pytest.approx(0, abs=1e-9)


def test_a_last_step_beyond_the_ceiling_is_told_at_the_end(inputs: dict[str, Path], tmp_path: Path) -> None:
    # Its one log entry was measured before its one update: the guard saw a KL of zero.
    record, unchanged = run(inputs, tmp_path, gate="none", steps=1, prompts_per_step=8, kl_ceiling=1e-4)
    assert record["learnt_nothing"] is False and not unchanged
    assert record["shares"]["groups_with_signal"] > 0
    assert max(record["kl"]["optimised"]["last_steps"]) < 1e-4 < record["kl"]["full_vocabulary"]["value"]
    assert record["guards"] == [
        {
            "step": 1,
            "guard": "kl_ceiling",
            "value": record["kl"]["full_vocabulary"]["value"],
            "limit": 1e-4,
            "action": "told at the end",
            "restored": None,
        }
    ]


def test_prompts_that_do_not_fit_are_refused_before_the_training(inputs: dict[str, Path], tmp_path: Path) -> None:
    config = CalibrateConfig(TaskConfig(max_new_tokens=125), Calibration(**SETTINGS), -0.5, 1)
    with pytest.raises(UserError, match=r"prompt 0 .* has \d+ tokens; with 125 new ones .* model's 128 positions"):
        calibrate(config, inputs, tmp_path / "out", tmp_path / "work")
    assert not (tmp_path / "work").exists()
