"""A proxy that knows nothing is refused, by its own command and before a calibration; who wants it can go on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tiny

from distillknob.scripts.cli import main
from distillknob.trainer.supervised import save_model

SMALL = ["--calibration.steps=2", "--calibration.prompts_per_step=2", "--calibration.num_generations=4"]
SMALL += ["--calibration.truncation_ceiling=null", "--calibration.validation_items=8"]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Flags that name a random teacher and a random proxy."""
    folder = tmp_path_factory.mktemp("models")
    save_model(*tiny.teacher(), folder / "teacher")
    save_model(*tiny.proxy(), folder / "proxy")
    return [f"--teacher={folder / 'teacher'}", f"--proxy={folder / 'proxy'}"]


def test_the_command_says_why_and_ends_with_1(models: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-proxy", *models, "--eta=-0.5"]) == 1
    said = capsys.readouterr().out
    assert "proxy check: does not pass: " in said and said.startswith("explicitness")


def test_a_calibration_is_refused_unless_overridden(models: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["calibrate", *models, *SMALL]
    assert main([*words, "--eta=-0.5", f"--output={tmp_path / 'refused'}"]) == 2
    assert "proxy check: " in capsys.readouterr().err and not (tmp_path / "refused").exists()
    for name, flags in {"warned": ["--calibration.check_proxy=warn"], "off": ["--calibration.check_proxy=off"]}.items():
        assert main([*words, "--eta=-0.5", *flags, f"--output={tmp_path / name}"]) == 0
    assert main([*words, "--eta=0", f"--output={tmp_path / 'control'}"]) == 0  # the control needs no proxy check
    records = {name: json.loads((tmp_path / name / "calibration.json").read_text()) for name in ("warned", "off", "control")}
    assert records["warned"]["proxy_check"]["passes"] is False
    assert records["off"]["proxy_check"] is None and records["control"]["proxy_check"] is None
