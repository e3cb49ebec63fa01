"""The Python example of the README, run as it stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import tiny
from distillknob.trainer.supervised import save_model

README = Path(__file__).parents[2] / "README.md"
_BLOCK = re.compile(r"<!-- test: python -->\n+```python\n(.*?)```", re.DOTALL)


def example() -> str:
    """The one marked block of the README."""
    blocks = _BLOCK.findall(README.read_text(encoding="utf-8"))
    assert len(blocks) == 1
    return str(blocks[0])


def test_example_is_short() -> None:
    assert len([line for line in example().splitlines() if line.strip()]) <= 15


def test_example_runs_where_teacher_and_proxy_lie(tmp_path: Path) -> None:
    save_model(*tiny.teacher(), tmp_path / "teacher")
    save_model(*tiny.proxy(), tmp_path / "proxy")
    before = (tmp_path / "teacher" / "model.safetensors").read_bytes()

    done = subprocess.run(
        [sys.executable, "-c", example()], cwd=tmp_path, env=dict(os.environ), capture_output=True, text=True, timeout=300
    )

    assert done.returncode == 0, done.stderr
    weights = tmp_path / "calibrated" / "model.safetensors"
    assert weights.stat().st_size > 1000
    assert (tmp_path / "calibrated" / "tokenizer.json").is_file()
    assert (tmp_path / "teacher" / "model.safetensors").read_bytes() == before
