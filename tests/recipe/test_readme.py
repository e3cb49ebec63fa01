"""The examples of the README: the Python one is run as it stands there, the YAML ones are loaded."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import tiny

from distillknob.scripts.calibrate import CalibrateFile
from distillknob.scripts.distill import DistillFile
from distillknob.scripts.study.config import Study
from distillknob.scripts.study.loading import load_config
from distillknob.trainer.supervised import save_model

README = Path(__file__).parents[2] / "README.md"
FILES = {"run": Study, "calibrate": CalibrateFile, "distill": DistillFile}


def example(mark: str = "python") -> str:
    """The one block of the README under the comment `<!-- test: MARK -->`."""
    blocks = re.findall(rf"<!-- test: {mark} -->\n```\w+\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 1
    return str(blocks[0])


def test_the_python_example_has_15_lines_at_most() -> None:
    assert len(example().splitlines()) <= 15


def test_the_python_example_runs_where_teacher_and_proxy_lie(tmp_path: Path) -> None:
    save_model(*tiny.teacher(), tmp_path / "teacher")
    save_model(*tiny.proxy(), tmp_path / "proxy")
    before = (tmp_path / "teacher" / "model.safetensors").read_bytes()

    done = subprocess.run([sys.executable, "-c", example()], cwd=tmp_path, capture_output=True, text=True, timeout=300)

    assert done.returncode == 0, done.stderr
    assert (tmp_path / "calibrated" / "model.safetensors").stat().st_size > 1000
    assert (tmp_path / "calibrated" / "tokenizer.json").is_file()
    assert (tmp_path / "teacher" / "model.safetensors").read_bytes() == before


@pytest.mark.parametrize("command", FILES)
def test_the_yaml_examples_are_valid_files_of_their_commands(tmp_path: Path, command: str) -> None:
    path = tmp_path / f"{command}.yaml"
    path.write_text(example(f"yaml {command}"), encoding="utf-8")

    given = load_config(FILES[command], path)

    assert given.task.name == "jsonl"
