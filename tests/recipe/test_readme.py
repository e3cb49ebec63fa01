"""The examples of the README: the Python ones are run as they stand there, the YAML ones are loaded."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tiny

from distillknob.rewards.models import find_model
from distillknob.rewards.tasks.chain import parse, working
from distillknob.scripts.calibrate import CalibrateFile
from distillknob.scripts.distill import DistillFile
from distillknob.scripts.study.config import Study
from distillknob.scripts.study.loading import load_config
from distillknob.trainer.supervised import Supervised, save_model, train_on_pairs

README = Path(__file__).parents[2] / "README.md"
FILES = {"run": Study, "calibrate": CalibrateFile, "distill": DistillFile}


def example(mark: str = "python") -> str:
    """The one block of the README under the comment `<!-- test: MARK -->`."""
    blocks = re.findall(rf"<!-- test: {mark} -->\n```\w+\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 1
    return str(blocks[0])


@pytest.mark.parametrize("mark", ["python", "python lora"])
def test_a_python_example_has_15_lines_at_most(mark: str) -> None:
    assert len(example(mark).splitlines()) <= 15


def test_the_python_example_runs_where_teacher_and_proxy_lie(tmp_path: Path) -> None:
    save_model(*tiny.teacher(), tmp_path / "teacher")
    save_model(*tiny.proxy(), tmp_path / "proxy")
    before = (tmp_path / "teacher" / "model.safetensors").read_bytes()

    done = subprocess.run([sys.executable, "-c", example()], cwd=tmp_path, capture_output=True, text=True, timeout=300)

    assert done.returncode == 0, done.stderr
    assert (tmp_path / "calibrated" / "model.safetensors").stat().st_size > 1000
    assert (tmp_path / "calibrated" / "tokenizer.json").is_file()
    assert (tmp_path / "teacher" / "model.safetensors").read_bytes() == before


def test_the_lora_example_runs_after_the_first_one_and_continues(tmp_path: Path) -> None:
    model, tokenizer = tiny.teacher()  # taught the format, so that it is right at times and there is something to learn from
    pairs = [(row["prompt"], working(parse(row["prompt"]), 1.0, random.Random(0))) for row in tiny.TASK.rows("train", 1000, 0)]
    train_on_pairs(model, tokenizer, pairs, Supervised(100), seed=0, work=tmp_path / "work")
    save_model(model, tokenizer, tmp_path / "teacher")
    save_model(*tiny.proxy(), tmp_path / "proxy")
    script = example() + example("python lora")
    adapter = tmp_path / "adapter" / "checkpoint-2" / "adapter_model.safetensors"
    bytes_of, said = [], []

    for _ in range(2):
        shutil.rmtree(adapter.parent, ignore_errors=True)  # as if it had been cut off after the first step
        done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        bytes_of.append(adapter.read_bytes())
        said.append(done.stdout.splitlines()[-1])

    assert bytes_of[0] == bytes_of[1] and said == ["[]", "[]"]
    assert (tmp_path / "adapter" / "start" / "adapter_model.safetensors").is_file()
    find_model(str(tmp_path / "merged"), "teacher")
    assert (tmp_path / "merged" / "model.safetensors").read_bytes() != (tmp_path / "teacher" / "model.safetensors").read_bytes()


@pytest.mark.parametrize("command", FILES)
def test_the_yaml_examples_are_valid_files_of_their_commands(tmp_path: Path, command: str) -> None:
    path = tmp_path / f"{command}.yaml"
    path.write_text(example(f"yaml {command}"), encoding="utf-8")

    given = load_config(FILES[command], path)

    assert given.task.name == "jsonl"
