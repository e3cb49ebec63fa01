"""What the calibration reward is made of, variant against variant, on one root seed of each side of the dial."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.show.results import Figure
from benchmarks.show.runs import config_file, lab, predicted, run_own
from distillknob.eval.cells import read_predictions, right_of, share
from distillknob.eval.statistics import mean_interval, wilson_interval
from distillknob.rewards.jsonl import read_json
from distillknob.rewards.seeds import derive_seed
from distillknob.scripts.study.config import Study
from distillknob.scripts.study.engine import Stage
from distillknob.scripts.study.loading import load_config
from distillknob.trainer.calibrate import CalibrateConfig, Calibration
from distillknob.trainer.distil import DistilConfig

ROOT_SEED, STUDENTS = 1, 3
VARIANTS: list[dict[str, Any]] = [
    {"calibration": kind, "gate": gate, "floor": floor}
    for kind, gate, floor in product(("log_ratio", "proxy_only"), ("correct_only", "none"), (-2.0, None))
]
ETA = {"A": -0.5, "B": 0.5}


def variants() -> dict[str, Figure]:
    """Every variant on both sides; nothing is asked of them: the defaults were chosen from this table."""
    shared, teachers = lab(ROOT_SEED)
    names = [(side, variant) for side in ETA for variant in VARIANTS]
    stages = [stage for side, variant in names for stage in _stages(side, variant, shared, teachers[side])]
    run, figures = run_own(stages, "variants"), dict[str, Figure]()
    for side, variant in names:
        figures |= _figures(run, side, variant)
    return figures


def _name(side: str, variant: dict[str, Any]) -> str:
    gate = "gated" if variant["gate"] == "correct_only" else "ungated"
    return f"{side}-{variant['calibration']}-{gate}-{'no-floor' if variant['floor'] is None else 'floor'}"


def _stages(side: str, variant: dict[str, Any], shared: Path, teacher: Path) -> list[Stage]:
    study, name = load_config(Study, config_file(side)), _name(side, variant)
    settings: Calibration = replace(study.calibration, **variant, check_proxy="warn")
    tuned = f"{name}/teacher"
    config = CalibrateConfig(study.task, settings, ETA[side], derive_seed(ROOT_SEED, "calibration", "0"))
    files = {"teacher": teacher, "proxy": shared / "lab" / "proxy"}
    stages = [
        Stage(tuned, tuned, "distillknob.trainer.calibrate:calibrate", config, files=files),
        predicted(tuned, study, ROOT_SEED),
    ]
    for seed in range(STUDENTS):
        target = f"{name}/students/{seed}"
        recipe = DistilConfig(study.task, study.recipes[0], derive_seed(ROOT_SEED, "distil", seed))
        base = {"student": shared / "students" / "none" / "lab-base" / str(seed)}
        stages += [
            Stage(target, target, "distillknob.trainer.distil:distil", recipe, {"teacher": tuned}, base),
            predicted(target, study, ROOT_SEED),
        ]
    return stages


def _figures(run: Path, side: str, variant: dict[str, Any]) -> dict[str, Figure]:
    name = _name(side, variant)
    record = read_json(run / name / "teacher" / "calibration.json")
    teacher = read_predictions(run / name / "teacher" / "predictions.jsonl")
    students = [share(right_of(read_predictions(path).greedy.values())) for path in sorted((run / name).glob("students/*/pred*"))]
    right, sampled = right_of(teacher.greedy.values()), list(teacher.t1.values())
    found = {
        "teacher, greedy": wilson_interval(sum(right), len(right)),
        "steps written": mean_interval([p.explicit for p in sampled if p.explicit is not None]),
        "step validity": mean_interval([float(p.valid) for p in sampled if p.valid is not None]),
        "students, greedy": mean_interval(students),
    }
    figures = {f"variant {name}: {words}": Figure(one.value, one.low, one.high) for words, one in found.items()}
    kl = record["kl"]["full_vocabulary"]
    figures[f"variant {name}: KL, nats a token"] = Figure(kl["value"], kl["low"], kl["high"])
    figures[f"variant {name}: proxy check passes"] = Figure(float(record["proxy_check"]["passes"]))
    figures[f"variant {name}: updates until it stopped"] = Figure(float(record["steps"]))
    return figures
