"""A study that is killed at a random moment goes on as if nothing had happened; a built wheel runs outside the checkout."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "distillknob.scripts.cli", "run", "tiny", "--output"]


def finished(run: Path) -> dict[str, str]:
    """When each stage finished."""
    root = run / ".stages"
    return {str(p.relative_to(root)): json.loads(p.read_text())["finished"] for p in root.rglob("*.json")}


@pytest.mark.slow
def test_a_killed_study_continues_to_the_same_predictions(tmp_path: Path) -> None:
    subprocess.run([*COMMAND, str(tmp_path / "whole")], check=True, capture_output=True)
    cut, rng = tmp_path / "cut", random.Random(time.time_ns())
    for _ in range(3):
        before = finished(cut)
        process = subprocess.Popen([*COMMAND, str(cut)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(rng.uniform(2, 14))
        process.kill()
        process.wait()
        assert {name: stamp for name, stamp in finished(cut).items() if name in before} == before
    subprocess.run([*COMMAND, str(cut)], check=True, capture_output=True)
    for path in (tmp_path / "whole").rglob("predictions.jsonl"):
        assert (cut / path.relative_to(tmp_path / "whole")).read_bytes() == path.read_bytes(), path
    one, other = (json.loads((run / "measures" / "summary.json").read_text()) for run in (tmp_path / "whole", cut))
    one.pop("seconds"), other.pop("seconds")
    assert one == other


@pytest.mark.slow
def test_a_built_wheel_runs_outside_the_checkout(tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    source = tmp_path / "source"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(source)], check=True)
    subprocess.run([*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(tmp_path), str(source)], check=True)
    wheel = next(tmp_path.glob("distillknob-*.whl"))
    subprocess.run([*pip, "install", "--no-deps", "--target", str(tmp_path / "site"), str(wheel)], check=True)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    code = "import distillknob.scripts.cli as c, sys; print(c.__file__); sys.exit(c.main(['run', 'undistillable', '--dry-run']))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(tmp_path / "site")) and "teachers/eta-0.5-c0" in done.stdout
    page = tmp_path / "site" / "distillknob" / "scripts" / "report" / "template.html"
    assert page.is_file()
