"""Studies that the show-commands run in their own folder, and figures read from their summaries."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from benchmarks.show.results import ROOT, Figure
from distillknob.eval.predict import PredictConfig
from distillknob.rewards.seeds import derive_seed
from distillknob.scripts.study.config import Study
from distillknob.scripts.study.engine import Stage, run_stages
from distillknob.scripts.study.loading import load_config
from distillknob.scripts.study.plan import StudyPlan
from distillknob.scripts.study.storage import RunLock

COMMAND = [str(Path(sys.executable).parent / "distillknob"), "run"]
RUNS = Path(os.environ.get("RUNS", "runs")).resolve() / "show-dial"
ITEMS = 1024  # of stages that are no study's
CONFIG = {"A": "undistillable", "B": "distillable"}
GKD = {"recipe": "gkd", "start": "seqkd", "teachers": "calibrated", "samples": 3840, "steps": 120, "learning_rate": 1e-3}
Json = dict[str, Any]


def config_file(side: str) -> Path:
    """The packaged study of a side of the dial, A or B."""
    return ROOT / "configs" / f"{CONFIG[side]}.yaml"


def study(side: str, root: int, task: str = "chain", *, gkd: bool = False, flags: tuple[str, ...] = ()) -> Json | None:
    """Runs one side of the dial with a root seed, B with what A has made; its summary, None where a model was refused."""
    run = folder(side, root, task)
    words = [*COMMAND, str(config_file(side)), "--output", str(run), "--seed", str(root), "--task.name", task, *flags]
    recipes = yaml.safe_load(config_file("A").read_text(encoding="utf-8"))["recipes"]
    if gkd:
        recipes.append(GKD)
    if gkd or task != "chain":  # the other tasks are harder: both sides' students learn as long as side A's
        words += ["--recipes", json.dumps(recipes)]
    made = folder("A", root, task)
    if side == "B" and (made / ".stages").is_dir():
        words += ["--reuse", str(made)]
    done = subprocess.run(words, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        print(done.stderr[-2000:], flush=True)
        if any(check in done.stderr for check in ("lab teacher:", "proxy check:")):
            return None
        raise SystemExit(f"{' '.join(words)} ended with status {done.returncode}")
    summary: Json = json.loads((run / "measures" / "summary.json").read_text(encoding="utf-8"))
    return summary


def folder(side: str, root: int, task: str = "chain") -> Path:
    """The run folder of a study of ours."""
    return RUNS / f"{task}-{side}-{root}"


def lab(root: int) -> tuple[Path, dict[str, Path]]:
    """The models of the lab for a root seed, made or kept: the folder of side A's run, and both sides' teachers by side."""
    teachers = {}
    for side in CONFIG:
        run = folder(side, root)
        planned = StudyPlan(load_config(Study, config_file(side), {"seed": root}), {})
        wanted = [stage for stage in planned.stages if stage.function.startswith("distillknob.trainer.lab:")]
        with RunLock(run):
            run_stages(wanted, run, jobs=2, reuse=[folder("A", root)] if side == "B" else [])
        teachers[side] = run / "teachers" / "orig"
    return folder("A", root), teachers


def run_own(stages: list[Stage], name: str) -> Path:
    """Runs stages that are no study's in a folder of their own."""
    run = RUNS / name
    with RunLock(run):
        run_stages(stages, run, jobs=2)
    return run


def predicted(target: str, study: Study, root: int) -> Stage:
    """The stage in which the model of another stage of ours answers test items of the study's task."""
    path = f"{target}/predictions.jsonl"
    config = PredictConfig(study.task, ITEMS, derive_seed(root, "predict"))
    return Stage(path, path, "distillknob.eval.predict:predict", config, {"model": target})


def interval(value: Json) -> Figure:
    """A figure of the summary as one of the result file; nothing is asked of it."""
    return Figure(value["value"], value["low"], value["high"])


def held(verdict: Json | None) -> Figure:
    """1 where a verdict holds, else 0."""
    return Figure(float(verdict is not None and verdict["verdict"] == "holds"))


def summary_figures(name: str, summary: Json) -> dict[str, Figure]:
    """Teachers, students and verdicts of one study."""
    figures = {f"{name}: chance": Figure(summary["controls"]["floor"]["value"])}
    for tid, teacher in summary["teachers"].items():
        head = f"{name}: teacher {tid}"
        figures[f"{head}: accuracy, greedy"] = interval(teacher["accuracy"])
        figures[f"{head}: accuracy, T = 1"] = interval(teacher["accuracy_t1"])
        for key, words in (("explicit", "steps written"), ("step_validity", "step validity"), ("tokens", "tokens a text")):
            figures[f"{head}: {words}"] = interval(teacher["traces"][key])
        for other, found in teacher["others"].items():
            figures[f"{head}: {other}, greedy"] = interval(found["accuracy"])
        if teacher["utility"]:
            figures[f"{head}: accuracy less the original's"] = interval(teacher["utility"])
            figures[f"{head}: utility kept holds"] = held(teacher["utility"])
        if teacher["calibration"]:
            figures[f"{head}: KL to the original, nats a token"] = interval(teacher["calibration"]["kl"]["full_vocabulary"])
    for tid, cells in summary["students"].items():
        for sid, cell in cells.items():
            head = f"{name}: students {tid} {sid}"
            figures[f"{head}: accuracy, greedy"] = interval(cell["accuracy"])
            figures[f"{head}: accuracy, T = 1"] = interval(cell["accuracy_t1"])
            eta = (summary["teachers"].get(tid) or {}).get("eta")
            verdict = None if not eta else "collapse" if eta < 0 else "better"
            if verdict:
                figures[f"{head}: {verdict}, margin"] = interval(cell[verdict])
                figures[f"{head}: {verdict} holds"] = held(cell[verdict])
    return figures
