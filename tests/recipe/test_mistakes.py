"""A user's mistake gives one or two lines on stderr and exit status 2, before any weight is loaded."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
import tiny

from distillknob.rewards import models as loading
from distillknob.scripts.cli import COMMANDS, main
from distillknob.trainer.supervised import save_model

TINY = "name: x\n"
OWN = TINY + "teacher: m\nproxy: m\nstudent: s\n"
MISTAKES = {
    "missing file": (["run", "nowhere.yaml"], "nowhere.yaml"),
    "unknown key": (["run", "s.yaml"], "s.yaml:2: etaa: unknown key", TINY + "etaa: 1\n"),
    "nested unknown key": (["run", "s.yaml"], "s.yaml:3: calibration.betaa: unknown key", TINY + "calibration:\n  betaa: 1\n"),
    "wrong type": (["run", "s.yaml"], "s.yaml:2: seed: must be a whole number", TINY + "seed: abc\n"),
    "wrong flag": (["run", "s.yaml", "--calibration.beta=-1"], "beta: must be 0 or above", TINY),
    "group of one": (["run", "s.yaml", "--calibration.num_generations=1"], "at least 2 generations", TINY),
    "accumulation": (["run", "s.yaml", "--calibration.gradient_accumulation_steps=7"], "must divide the 128", TINY),
    "no control": (["run", "s.yaml", "--etas=[-0.5]"], "etas: must hold 0", TINY),
    "direction": (["run", "s.yaml", "--calibration.direction=distillable"], "-0.5 contradicts calibration.direction", TINY),
    "no such model": (["run", "s.yaml", "--teacher=./none"], "teacher: ./none: no such folder", TINY),
    "no such hub name": (
        ["run", "s.yaml", "--teacher=no/where"],
        "teacher: no/where: no such folder, and not in the hub's cache",
        TINY,
    ),
    "adapter": (["run", "s.yaml", "--teacher=adapter"], "an adapter, not a whole model", TINY),
    "not a model": (["run", "s.yaml", "--teacher=."], "teacher: .: not a model folder (no config.json)", TINY),
    "pickled": (["run", "s.yaml", "--proxy=pickled"], "no *.safetensors", TINY),
    "no tokenizer": (["run", "s.yaml", "--proxy=bare"], "no tokenizer", TINY),
    "too many items": (["run", "s.yaml", "--measure.items=5000"], "valid: up to 4096", TINY),
    "trl key": (["run", "s.yaml", "--calibration.trl={colour: 1}"], "calibration.trl.colour: unknown key", TINY),
    "trl key of ours": (["run", "s.yaml", "--calibration.trl={beta: 1}"], "calibration.trl.beta: set by the study", TINY),
    "yaml": (["run", "s.yaml"], "s.yaml", "name: [x\n"),
    "output is something else": (["run", "s.yaml", "--output=bare"], "--output: bare is not an empty folder", TINY),
    "data": (
        ["run", "s.yaml"],
        "data.jsonl:2: prompt: must be",
        OWN + "task: {name: jsonl, train: data.jsonl, validation: v.jsonl, test: t.jsonl}\n",
    ),
    "sft without solutions": (
        ["run", "s.yaml", "--measure.items=2"],
        "v.jsonl:1: solution: recipe sft trains on it",
        OWN + "recipes: [{recipe: sft}]\ntask: {name: jsonl, train: v.jsonl, validation: u.jsonl, test: t.jsonl}\n",
    ),
    "proxy is the student": (["run", "s.yaml"], "proxy: must not be the student", TINY + "proxy: m\nstudent: m\n"),
    "lab width": (["run", "s.yaml", "--lab.base.width=33"], "width: must be a multiple of 16", TINY),
    "output in a model": (["run", "s.yaml", "--output=m/runs", "--measure.items=2"], "lies in the teacher's model folder m", OWN),
    "not a run": (["measure", "bare"], "not a run folder"),
    "not measured": (["report", "nowhere"], "not a run folder"),
    "no teacher": (["distill", "--student=m", "--output=o"], "teacher: seqkd needs one"),
    "gkd without a teacher": (["distill", "--student=m", "--recipe.recipe=gkd", "--output=o"], "teacher: gkd needs one"),
    "gkd across tokenizers": (
        ["distill", "--student=c", "--teacher=m", "--recipe.recipe=gkd", "--output=o"],
        "recipe gkd: needs one tokenizer",
    ),
    "gkd across tokenizers in a study": (
        ["run", "s.yaml", "--measure.items=2", "--student=c"],
        "recipe gkd: needs one tokenizer",
        OWN + "recipes: [{recipe: gkd}]\ntask: {name: jsonl, train: v.jsonl, validation: u.jsonl, test: t.jsonl}\n",
    ),
    "calibrate without eta": (["calibrate", "--teacher=m", "--proxy=m", "--output=o"], "eta"),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mistakes")
    save_model(*tiny.teacher(), folder / "m")
    save_model(*tiny.teacher(), folder / "s")
    save_model(*tiny.proxy(), folder / "c")
    for name in ("pickled", "bare"):
        (folder / name).mkdir()
        (folder / name / "config.json").write_text('{"model_type": "llama"}')
    (folder / "adapter").mkdir()
    (folder / "adapter" / "adapter_config.json").write_text("{}")
    (folder / "pickled" / "pytorch_model.bin").write_bytes(b"x")
    (folder / "bare" / "model.safetensors").write_bytes(b"x")
    (folder / "data.jsonl").write_text('{"prompt": "a", "answer": "b"}\n{"prompt": 3, "answer": "b"}\n')
    (folder / "v.jsonl").write_text('{"prompt": "c", "answer": "b"}\n')
    (folder / "u.jsonl").write_text('{"prompt": "e", "answer": "b"}\n')
    (folder / "t.jsonl").write_text('{"prompt": "d", "answer": "b"}\n{"prompt": "f", "answer": "b"}\n')
    return folder


@pytest.mark.parametrize("name", MISTAKES)
def test_mistake(name: str, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    words, said, *text = MISTAKES[name]
    monkeypatch.chdir(place)
    monkeypatch.setattr(loading, "load_model", lambda *_: pytest.fail("a weight was loaded"))
    if text:
        (place / "s.yaml").write_text(text[0])
    assert main(list(words)) == 2
    error = capsys.readouterr().err
    assert error.startswith("distillknob: error: ") and said in error
    assert len(error.strip().splitlines()) <= 2 and "Traceback" not in error
    assert not (place / "runs").exists() and not (place / "o").exists()


@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_there_and_imports_no_torch(command: str) -> None:
    code = f"""
import sys
from distillknob.scripts.cli import main
try:
    main(["{command}", "--help"])
except SystemExit:
    pass
assert "torch" not in sys.modules and "scipy" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "usage: distillknob" in done.stdout


def test_a_second_run_in_one_folder_is_refused_with_the_first_ones_process_id(tmp_path: Path) -> None:
    first = subprocess.Popen(
        [sys.executable, "-m", "distillknob.scripts.cli", "run", "tiny", "--output", str(tmp_path / "r")], stderr=subprocess.DEVNULL
    )
    try:
        lock, deadline = tmp_path / "r" / "lock", time.monotonic() + 60
        while not (lock.is_file() and lock.read_text().strip()) and time.monotonic() < deadline:
            time.sleep(0.05)
        second = subprocess.run(
            [sys.executable, "-m", "distillknob.scripts.cli", "run", "tiny", "--output", str(tmp_path / "r")],
            capture_output=True,
            text=True,
        )
        assert second.returncode == 2 and str(first.pid) in second.stderr
    finally:
        first.kill()
        first.wait()
