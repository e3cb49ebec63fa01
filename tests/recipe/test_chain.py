"""The commands, run as a user runs them, on models of width 32."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import tiny
import yaml

from distillknob.scripts.cli import main
from distillknob.trainer.supervised import save_model

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of the tiny study."""
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    assert main(["run", "tiny", "--output", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a teacher, a proxy and a student."""
    folder = tmp_path_factory.mktemp("models")
    for name, (model, tokenizer) in {"teacher": tiny.teacher(), "proxy": tiny.proxy(), "student": tiny.teacher(3, 16)}.items():
        save_model(model, tokenizer, folder / name)
    return folder


def stamps(run: Path) -> dict[str, str]:
    """When each stage finished."""
    root = run / ".stages"
    return {str(p.relative_to(root)): json.loads(p.read_text())["finished"] for p in root.rglob("*.json")}


def test_a_study_ends_in_a_summary_that_an_independent_script_agrees_with(run: Path) -> None:
    summary = json.loads((run / "measures" / "summary.json").read_text())
    assert summary["schema"] == 1
    assert set(summary["teachers"]) == {"orig", "eta+0-c0", "eta-0.5-c0", "no-reasoning"}
    assert set(summary["students"]) == {"none", "gold", "orig", "eta+0-c0", "eta-0.5-c0", "no-reasoning"}
    assert set(summary["students"]["gold"]) == {"lab-sft-chain", "lab-answer_only-chain"}
    assert set(summary["students"]["eta-0.5-c0"]) == {"lab-seqkd-t1-chain", "lab-gkd-warm-chain"}
    assert set(summary["students"]["orig"]) == {f"lab-seqkd-{how}-chain" for how in ("t1", "t0", "t1-likeliest8")}
    assert all(set(teacher["others"]) == {"reverse", "largest"} for teacher in summary["teachers"].values())
    independent = subprocess.run(
        [sys.executable, "tests/independent_verdicts.py", str(run)], cwd=ROOT, capture_output=True, text=True
    )
    assert independent.returncode == 0, independent.stdout
    assert (run / "report" / "index.html").is_file()


def test_the_run_folder_is_as_documented(run: Path) -> None:
    for name in ("config.yaml", "manifest.json", "code.diff", "lock", "cells.jsonl", "measures/summary.json", "report/index.html"):
        assert (run / name).is_file(), name
    cells = [json.loads(line) for line in (run / "cells.jsonl").read_text().splitlines()]
    for cell in cells:
        folder = run / "teachers" / cell["tid"]
        if cell["sid"] is not None:
            folder = run / "students" / cell["tid"] / cell["sid"] / str(cell["seed"])
        assert {"config.json", "model.safetensors", "tokenizer.json", "metrics.jsonl", "predictions.jsonl"} <= {
            p.name for p in folder.iterdir()
        }
        rows = [json.loads(line) for line in (folder / "predictions.jsonl").read_text().splitlines()]
        assert len(rows) == 2 * 64
        assert {row["decoding"] for row in rows} == {"greedy", "t1"}
    assert not list(run.rglob("*.bin")) and not list(run.rglob("*.pt"))


def test_students_of_one_seed_share_initialisation_and_prompts(run: Path) -> None:
    def prompts(tid: str, sid: str, seed: int) -> list[str]:
        path = run / "students" / tid / sid / str(seed) / "samples.jsonl"
        return [json.loads(line)["prompt"] for line in path.read_text().splitlines()]

    first = prompts("orig", "lab-seqkd-t1-chain", 0)
    assert first == prompts("eta-0.5-c0", "lab-seqkd-t1-chain", 0) == prompts("gold", "lab-sft-chain", 0)
    assert first != prompts("orig", "lab-seqkd-t1-chain", 1)


def test_a_finished_run_runs_nothing_again_and_a_changed_key_only_what_depends_on_it(run: Path) -> None:
    before = stamps(run)
    assert main(["run", "tiny", "--output", str(run)]) == 0
    assert stamps(run) == before
    assert main(["run", "tiny", "--output", str(run), "--measure.items=32"]) == 0
    changed = {name for name, stamp in stamps(run).items() if before.get(name) != stamp}
    assert changed == {name for name in before if name.endswith("predictions.jsonl.json")}
    assert main(["run", "tiny", "--output", str(run)]) == 0


def test_another_run_takes_over_what_is_the_same(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "tiny", "--output", str(tmp_path / "r"), "--reuse", str(run)]) == 0
    assert stamps(tmp_path / "r") == stamps(run)
    theirs, ours = ((folder / "measures" / "summary.json").read_bytes() for folder in (run, tmp_path / "r"))
    assert ours == theirs
    for other in (tmp_path, tmp_path / "none", tmp_path / "r"):
        assert main(["run", "tiny", "--output", str(tmp_path / "r"), "--reuse", str(other)]) == 2
        assert "--reuse: " in capsys.readouterr().err.splitlines()[-1]
    words = ["run", "tiny", "--output", str(tmp_path / "other"), "--reuse", str(run), "--verdicts.utility_margin=0.5"]
    assert main(words) == 2 and not (tmp_path / "other").exists()
    assert "verdict rules changed: --reuse: " in capsys.readouterr().err


def test_two_studies_in_one_command(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny = (ROOT / "configs" / "tiny.yaml").read_text()
    other = tmp_path / "other.yaml"
    other.write_text(tiny.replace("name: tiny", "name: other"))
    words = ["run", "tiny", str(other), "--output", str(tmp_path / "r")]
    assert main([*words, "--reuse", str(run), "--dry-run"]) == 0 and not (tmp_path / "r").exists()
    assert "done  other: lab/base" in capsys.readouterr().out
    assert main([*words, "--reuse", str(run)]) == 0
    for name in ("tiny", "other"):
        assert stamps(tmp_path / "r" / name) == stamps(run) and (tmp_path / "r" / name / "report" / "index.html").is_file()
        assert f"{name}/report/index.html" in capsys.readouterr().out if name == "other" else True
    mistakes = {
        "name: studies that run together need different names": ["run", "tiny", "tiny"],
        "jobs: differs between tiny and other": words,
        "is a run folder": ["run", "tiny", str(other), "--output", str(run)],
    }
    for said, wrong in mistakes.items():
        other.write_text(tiny.replace("name: tiny", "name: other").replace("jobs: 2", "jobs: 1" if "jobs" in said else "jobs: 2"))
        assert main(wrong) == 2
        assert said in capsys.readouterr().err


@pytest.mark.parametrize("task", ["choice", "instruct"])
def test_the_other_tasks_go_the_same_way(tmp_path: Path, task: str) -> None:
    few = ["--student_seeds=1", "--controls=[]", "--recipes=[{recipe: seqkd, samples: 32, steps: 4, batch_size: 8}]"]
    assert main(["run", "tiny", "--output", str(tmp_path / "r"), f"--task.name={task}", *few]) == 0
    summary = json.loads((tmp_path / "r" / "measures" / "summary.json").read_text())
    assert summary["task"]["name"] == task and summary["task"]["explicit_max"] == 4
    rewarded = (tmp_path / "r" / "teachers" / "eta-0.5-c0" / "metrics.jsonl").read_text()
    assert ("rewards/reward_model/mean" if task == "instruct" else f"rewards/task_{task}/mean") in rewarded


def test_measure_and_report_write_the_same_again(run: Path) -> None:
    before = {name: (run / name).read_bytes() for name in ("measures/summary.json", "report/index.html")}
    assert main(["measure", str(run)]) == 0
    assert main(["report", str(run)]) == 0
    assert before == {name: (run / name).read_bytes() for name in before}


def test_a_lab_that_does_not_learn_is_refused_and_not_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", "tiny", "--output", str(tmp_path / "r"), "--lab.teacher.required=1", "--lab.teacher.rounds=1", "--jobs=1"]
    assert main(words) == 2
    error = capsys.readouterr().err.strip().splitlines()
    assert "lab teacher: 0." in error[-1] and "take another seed" in error[-1]
    assert not (tmp_path / "r" / "teachers").exists() and not (tmp_path / "r" / "measures").exists()


def test_calibrate_then_distill_by_hand(models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "calibrate.yaml"
    settings = {
        "steps": 2,
        "prompts_per_step": 2,
        "num_generations": 4,
        "check_proxy": "off",
        "truncation_ceiling": None,
        "validation_items": 8,
    }
    config.write_text(
        yaml.safe_dump({"teacher": str(models / "teacher"), "proxy": str(models / "proxy"), "eta": -0.5, "calibration": settings})
    )
    assert main(["calibrate", str(config), "--output", str(tmp_path / "calibrated"), "--eta", "0.5"]) == 0
    record = json.loads((tmp_path / "calibrated" / "calibration.json").read_text())
    assert record["eta"] == 0.5 and record["steps"] == 2
    lora = [f"--teacher={tmp_path / 'calibrated'}", "--recipe.lora.r=2", "--recipe.steps=2", "--recipe.samples=200"]
    # random teachers end few completions: what is cut off is not trained on
    assert main(["distill", f"--student={models / 'student'}", "--output", str(tmp_path / "student"), *lora]) in (0, 2)
    gold = [f"--student={models / 'student'}", "--recipe.recipe=sft", "--recipe.steps=2", "--recipe.lora.r=2"]
    assert main(["distill", "--output", str(tmp_path / "sft"), *gold]) == 0
    assert (tmp_path / "sft" / "model.safetensors").is_file() and not (tmp_path / "sft" / "adapter_config.json").exists()
    assert main(["distill", "--output", str(tmp_path / "sft"), *gold]) == 2
    assert "is there already" in capsys.readouterr().err
    assert not [p.name for p in tmp_path.iterdir() if p.name.startswith(".")]


def test_a_study_of_ones_own_models_and_data(models: Path, tmp_path: Path) -> None:
    for split in ("train", "validation", "test"):
        rows = tiny.TASK.rows(split, 40, 1)  # type: ignore[arg-type]
        lines = [json.dumps({"prompt": row["prompt"], "answer": row["gold"], "solution": tiny.TASK.gold_text(row)}) for row in rows]
        (tmp_path / f"{split}.jsonl").write_text("\n".join(lines))
    study = {
        "name": "own",
        "student_seeds": 1,
        "etas": [0, 0.5],
        "teacher": str(models / "teacher"),
        "proxy": str(models / "proxy"),
        "student": str(models / "student"),
        "measure": {"items": 20},
        "task": {
            "name": "jsonl",
            "answer_after": "#",
            "max_new_tokens": 26,
            **{s: str(tmp_path / f"{s}.jsonl") for s in ("train", "validation", "test")},
        },
        "calibration": {
            "steps": 2,
            "prompts_per_step": 2,
            "num_generations": 4,
            "check_proxy": "off",
            "truncation_ceiling": None,
            "lora": {"r": 2},
        },
        "recipes": [{"recipe": "sft", "samples": 16, "steps": 2}],
    }
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(study))
    assert main(["run", str(tmp_path / "own.yaml"), "--output", str(tmp_path / "run")]) == 0
    summary = json.loads((tmp_path / "run" / "measures" / "summary.json").read_text())
    assert summary["teachers"]["eta+0.5-c0"]["accuracy"]["value"] is not None
