"""A user's mistake gives one or two lines on stderr and exit status 2, before any weight is loaded."""

from __future__ import annotations

import json
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
JSONL = "task: {name: jsonl, train: v.jsonl, validation: u.jsonl, test: t.jsonl}\n"
OTHER = TINY + "others: [{name: jsonl, train: v.jsonl, validation: u.jsonl, test: TEST, max_new_tokens: 8}]\n"
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
    "trl value of another type": (
        ["run", "s.yaml", "--calibration.trl={epsilon: abc}"],
        "calibration.trl.epsilon: 'abc': input should be a valid number",
        TINY,
    ),
    "trl loss": (["run", "s.yaml", "--calibration.trl={loss_type: x}"], "loss_type: 'x'; valid: grpo, bnpo", TINY),
    "trl temperature": (["run", "s.yaml", "--calibration.trl={temperature: -1}"], "temperature: -1; valid: above 0", TINY),
    "guard below 0": (["run", "s.yaml", "--calibration.kl_ceiling=-1"], "kl_ceiling: must be above 0, or null", TINY),
    "share above 1": (["run", "s.yaml", "--calibration.truncation_ceiling=2"], "above 0 and at most 1", TINY),
    "eta out of all bounds": (["run", "s.yaml", "--etas=[0, 1e300]"], "etas: must be from -100 to 100", TINY),
    "eta of one calibration": (
        ["calibrate", "--teacher=m", "--proxy=m", "--eta=1e300", "--output=o"],
        "eta: must be from -100 to 100",
    ),
    "batch": (["run", "s.yaml", "--measure.batch_size=0"], "measure.batch_size: must be at least 1", TINY),
    "more problems than there are": (
        ["run", "s.yaml", "--lab.proxy.problems=10000000"],
        "lab.proxy.problems: 10,000,000 rows, but task chain has 244,933",
        TINY,
    ),
    "more updates than rows": (["run", "s.yaml", "--lab.base.steps=99999"], "lab.base.steps: 99,999 updates of 32 rows", TINY),
    "more validation items than there are": (
        ["run", "s.yaml", "--lab.teacher.validation_items=5000"],
        "lab.teacher.validation_items: 5000, but the task has 4096",
        TINY,
    ),
    "output below a file": (["run", "s.yaml", "--output=v.jsonl/x"], "v.jsonl is a file, not a folder", TINY),
    "distill into the teacher": (
        ["distill", "--student=s", "--teacher=m", "--output=m/o"],
        "--output: m/o lies in the teacher's model folder",
    ),
    "a whole solution as the answer": (
        ["run", "s.yaml"],
        "solved.jsonl:1: answer: holds '####', which marks the answer in completions",
        OWN + "task: {name: jsonl, train: solved.jsonl, validation: u.jsonl, test: t.jsonl}\n",
    ),
    "power from no run": (["power", "s.yaml", "--pilot=bare"], "--pilot: bare has no measures/summary.json", TINY),
    "power from a damaged run": (["power", "s.yaml", "--pilot=damaged"], "damaged/measures/summary.json: not a summary", TINY),
    "power of no share": (["power", "s.yaml", "--student-sd=3"], "--student-sd: 3; valid: a fraction from 0 to 1", TINY),
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
    "other task's name is a folder above": (
        ["run", "s.yaml"],
        "others: '..' would be a folder's name",
        OTHER.replace("TEST", "...jsonl"),
    ),
    "other task's name is too long": (["run", "s.yaml"], "up to 100 bytes", OTHER.replace("TEST", f"{'x' * 101}.jsonl")),
    "other task's file": (["run", "s.yaml"], "others.test: none.jsonl: no such file", OTHER.replace("TEST", "none.jsonl")),
    "other task without answers": (
        ["run", "s.yaml", "--measure.items=2"],
        "others: unverified: none of its first 2 test items has an answer",
        OTHER.replace("TEST", "unverified.jsonl"),
    ),
    "other task in characters that the lab doesn't know": (
        ["run", "s.yaml"],
        "others: reverse: the lab's teacher doesn't know 'vwxyz'",
        TINY + "others: [{name: reverse, symbols: vwxyz}]\n",
    ),
    "other task longer than the lab's models": (
        ["run", "s.yaml"],
        "others: max_new_tokens 256 of t does not fit",
        OTHER.replace("TEST", "t.jsonl").replace(", max_new_tokens: 8", ""),
    ),
    "completions longer than the lab's models": (
        ["run", "s.yaml", "--task.max_new_tokens=128"],
        "max_new_tokens 128 of chain",
        TINY,
    ),
    "completions longer than the student": (
        ["run", "s.yaml", "--measure.items=2"],
        "it does not fit into the model's 128 positions",
        OWN + JSONL,
    ),
    "more samples than there are": (["run", "s.yaml"], "300000 training rows asked for", TINY + "recipes: [{samples: 300000}]\n"),
    "lengths of no teacher": (
        ["run", "s.yaml", "--etas=[0]"],
        "controls: length_matched needs",
        TINY + "controls: [length_matched]\n",
    ),
    "a gate that none passes": (["run", "s.yaml", "--calibration.gate_at=2"], "gate_at: must be above 0 and at most 1", TINY),
    "reward is no reward model": (["run", "s.yaml", "--reward=m"], "reward: m: not a reward model with one output", TINY),
    "reward to calibrate by": (
        ["calibrate", "--teacher=m", "--proxy=m", "--eta=0", "--reward=m", "--output=o"],
        "reward: m: not a reward model with one output",
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
    (folder / "damaged" / "measures").mkdir(parents=True)
    empty = {"students": {}, "controls": {"control": {}}, "teachers": {"t": {"eta": 1, "utility": {"discordant": 1, "items": 0}}}}
    (folder / "damaged" / "measures" / "summary.json").write_text(json.dumps(empty))
    (folder / "solved.jsonl").write_text('{"prompt": "g", "answer": "6 * 2 = 12\\n#### 12"}\n')
    unverified = "".join(json.dumps({"prompt": str(i), "answer": "1" if i > 1 else ""}) + "\n" for i in range(3))
    (folder / "unverified.jsonl").write_text(unverified)
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
