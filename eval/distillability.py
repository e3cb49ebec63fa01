"""Distillability, the measured result of a run: accuracies, retained, DI and the verdicts, as the summary that report and
tables read (method §5)."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from distillknob.eval.cells import (
    ORIGINAL,
    Cell,
    Prediction,
    Predictions,
    Run,
    check_same_items,
    control_of,
    greedy_original_of,
    load_run,
    majority_of,
    read_predictions,
    right_of,
    share,
)
from distillknob.eval.joint_verdicts import against_all, eta_collapses, eta_is_better, eta_keeps_utility
from distillknob.eval.rules import VerdictRules
from distillknob.eval.statistics import mean_interval, ratio_interval, wilson_interval
from distillknob.eval.verdicts import better_verdict, collapse_verdict, utility_verdict
from distillknob.rewards.errors import UserError
from distillknob.rewards.jsonl import read_json
from distillknob.rewards.tasks import LAB_TASKS, lab_task

SCHEMA = 1
MINIMUM_DENOMINATOR = 0.02  # method §5: DI is undefined where the teacher is under 2 points above S_0
EXPLICIT_MAX: dict[str, float | None] = {
    name: lab_task(name).explicit_max for name in LAB_TASKS
}  # top of the explicitness measure, by task

Json = dict[str, Any]


def _calibrated(cell: Cell) -> bool:
    return cell.eta is not None and cell.eta != 0


def _traces(predictions: Predictions, rules: VerdictRules) -> Json:
    """What the teacher's texts at temperature 1 look like, with t intervals over items; undefined measures carry a reason."""
    texts = list(predictions.t1.values())

    def mean(values: list[float | None]) -> Json:
        interval = mean_interval([float(v) for v in values if v is not None], rules.confidence).as_dict()
        return (
            interval
            if interval["value"] is not None
            else {**interval, "reason": "the task has no such measure, or no text allows it"}
        )

    return {
        "explicit": mean([p.explicit for p in texts]),
        "tokens": mean([p.tokens for p in texts]),
        "bytes": mean([p.bytes for p in texts]),
        "step_validity": mean([p.valid for p in texts]),
        "step_validity_right": mean([p.valid for p in texts if p.correct == 1]),
    }


def _utility(mine: Predictions, original: Predictions, majority: float, rules: VerdictRules) -> Json:
    """The utility verdict over the items that are verified on both sides."""
    pairs = [(p.correct, original.greedy[key].correct) for key, p in mine.greedy.items()]
    both = [(a, b) for a, b in pairs if a is not None and b is not None]
    if not both:
        raise UserError(f"{mine.path}: no item is verified both here and in {original.path}")
    verdict = utility_verdict([a for a, _ in both], [b for _, b in both], rules).as_dict()
    start = wilson_interval(sum(b for _, b in both), len(both), rules.confidence)
    if start.low is not None and start.low <= majority:
        verdict["reason"] += "; the original is not clearly better than the most frequent answer, so there is little to keep"
    return {**verdict, "unverified": len(pairs) - len(both)}


def _other(cell: Cell, other: str, run: Run, rules: VerdictRules) -> Json:
    """Greedy accuracy on a task that the teacher was not calibrated on, and what was lost of the original's."""
    mine = read_predictions(cell.others_path(run.folder, other))
    original = read_predictions(run.teachers[ORIGINAL].others_path(run.folder, other))
    check_same_items([original, mine])
    right = right_of(mine.greedy.values())
    accuracy = wilson_interval(sum(right), len(right), rules.confidence).as_dict()
    majority = majority_of([p.gold for p in original.greedy.values() if p.correct is not None])[1]
    kept = None if cell.tid == ORIGINAL else _utility(mine, original, majority, rules)
    return {"accuracy": accuracy, "majority": majority, "kept": kept}


def _teacher(tid: str, run: Run, rules: VerdictRules) -> Json:
    cell, mine = run.teachers[tid], run.teacher_predictions[tid]

    def accuracy(items: dict[str | int, Prediction]) -> Json:
        right = right_of(items.values())
        return wilson_interval(sum(right), len(right), rules.confidence).as_dict()

    calibration = run.folder / "teachers" / tid / "calibration.json"
    return {
        "eta": cell.eta,
        "calibration_seed": cell.calibration_seed,
        "beta": cell.beta,
        "accuracy": accuracy(mine.greedy),
        "accuracy_t1": accuracy(mine.t1),
        "unverified": mine.unverified(),
        "utility": None if tid == ORIGINAL else _utility(mine, run.teacher_predictions[ORIGINAL], majority_of(run.golds)[1], rules),
        "traces": _traces(mine, rules),
        "others": {other: _other(cell, other, run, rules) for other in cell.others},
        "calibration": read_json(calibration) if calibration.exists() else None,
    }


def _retained(mine: list[float], control: list[float] | None, floor: float, rules: VerdictRules) -> Json:
    if control is None:
        reason = "students of the control teacher were not measured"
        return {"value": None, "low": None, "high": None, "n": 0, "corrected": None, "reason": reason}
    ratio = ratio_interval(mine, control, rules.confidence)
    headroom = sum(control) / len(control) - floor
    corrected = (sum(mine) / len(mine) - floor) / headroom if headroom >= MINIMUM_DENOMINATOR else None
    reasons = []
    if ratio.value is None:
        reasons.append("the control's students have accuracy 0")
    elif ratio.low is None:
        reasons.append("the limits are unbounded or there are under 2 seeds")
    if corrected is None:
        reasons.append("corrected is undefined: the control's students are under 2 points above b")
    return {**ratio.as_dict(), "corrected": corrected, "reason": "; ".join(reasons) or None}


def _distillability_index(tid: str, mine: list[float], run: Run) -> Json:
    if tid not in run.teachers:
        return {"value": None, "reason": "trained without a teacher"}
    start = sum(run.base.greedy) / len(run.base.greedy)
    denominator = share(right_of(run.teacher_predictions[tid].greedy.values())) - start
    if denominator < MINIMUM_DENOMINATOR - 1e-12:  # .95 − .93 is a rounding under .02
        return {
            "value": None,
            "reason": f"the teacher is {100 * denominator:.1f} points above S_0, under the 2 points that DI needs",
        }
    return {"value": (sum(mine) / len(mine) - start) / denominator, "reason": None}


def _student_summary(tid: str, sid: str, run: Run, rules: VerdictRules) -> Json:
    mine = run.students[tid][sid]
    cell = mine.cells[0]
    summary: Json = {
        "student": cell.student,
        "recipe": cell.recipe,
        "sampling": cell.sampling,
        "seeds": [c.seed for c in mine.cells],
        "accuracy": mean_interval(mine.greedy, rules.confidence).as_dict(),
        "accuracy_t1": mean_interval(mine.t1, rules.confidence).as_dict(),
        "per_seed": mine.greedy,
        "per_seed_t1": mine.t1,
        "unverified": mine.unverified,
        "retained": None,
        "di": _distillability_index(tid, mine.greedy, run),
        "collapse": None,
        "better": None,
    }
    if tid not in run.teachers or not _calibrated(run.teachers[tid]):
        return summary
    control_tid = control_of(run.teachers[tid], run.teachers)
    found = run.students.get(control_tid, {}).get(sid) if control_tid is not None else None
    control = found.greedy if found is not None else None
    original = greedy_original_of(cell, run)
    better = better_verdict(mine.greedy, control, original[1].greedy if original else None, rules).as_dict()
    if original is not None:
        better["greedy_original"] = {"sid": original[0], **better["greedy_original"]}
    summary["retained"] = _retained(mine.greedy, control, run.floor, rules)
    summary["collapse"] = {**collapse_verdict(mine.greedy, control, run.floor, rules).as_dict(), "control": control_tid}
    summary["better"] = {**better, "control": control_tid}
    return summary


def _etas(teachers: Json, students: Json, run: Run, rules: VerdictRules) -> Json:
    """What a run says about each η other than 0, beyond single teachers: calibration seeds are the top level (method §5)."""
    calibrated: dict[str, list[str]] = {}
    for tid, cell in run.teachers.items():
        if _calibrated(cell):
            beta = "" if cell.beta is None else f", beta {cell.beta:g}"
            calibrated.setdefault(f"eta {cell.eta:+g}{beta}", []).append(tid)
    return {name: _eta(tids, teachers, students, run, rules) for name, tids in calibrated.items()}


def _eta(tids: list[str], teachers: Json, students: Json, run: Run, rules: VerdictRules) -> Json:
    sids = dict.fromkeys(sid for tid in tids for sid in students.get(tid, {}))
    found: Json = {"teachers": tids, "students": {}}
    found["utility"] = eta_keeps_utility([teachers[tid]["utility"]["value"] for tid in tids], rules).as_dict()
    for sid in sids:
        mine = [tid for tid in tids if sid in students.get(tid, {})]
        controls = [(tid, control_of(run.teachers[tid], run.teachers)) for tid in mine]
        found_in = [(tid, other) for tid, other in controls if other is not None and sid in students.get(other, {})]
        both = [(students[tid][sid]["per_seed"], students[other][sid]["per_seed"]) for tid, other in found_in]
        if both:
            tuned, control = [one for one, _ in both], [its for _, its in both]
            original = greedy_original_of(run.students[mine[0]][sid].cells[0], run)
            better = eta_is_better(tuned, control, original[1].greedy if original else None, rules)
            collapse = eta_collapses(tuned, control, run.floor, rules)
            found["students"][sid] = {"collapse": collapse.as_dict(), "better": better.as_dict()}
    return found


def _config(run: Path) -> tuple[str, str]:
    path = run / "config.yaml"
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
        return str(config["name"]), str(config["task"]["name"])
    except (OSError, ValueError, yaml.YAMLError, KeyError, TypeError) as error:
        raise UserError(f"{path}: not a run's config ({error!r}); it must hold the keys 'name' and 'task.name'") from error


def summarise(run: Path, rules: VerdictRules, seconds: dict[str, float]) -> Json:
    """The summary of a run folder (measures/summary.json, schema 1), from config.yaml, cells.jsonl and the predictions alone
    (method §5).

    Accuracies are fractions; a prediction whose `correct` is null is left out of the denominator and counted as unverified. b
    is the larger of S_0's mean greedy accuracy and the share of the most frequent gold answer. `seconds`: wall time a stage,
    passed through. Raises UserError for a missing or broken file, and where the models did not answer the same items."""
    name, task = _config(run)
    loaded = load_run(run)
    answer, majority = majority_of(loaded.golds)
    base = mean_interval(loaded.base.greedy, rules.confidence)
    teachers = {tid: _teacher(tid, loaded, rules) for tid in loaded.teachers}
    students = {tid: {sid: _student_summary(tid, sid, loaded, rules) for sid in by_sid} for tid, by_sid in loaded.students.items()}
    for tid, teacher in teachers.items():
        collapses = {sid: cell["collapse"] for sid, cell in students.get(tid, {}).items() if cell["collapse"]}
        below = teacher["eta"] is not None and teacher["eta"] < 0
        teacher["undistillable"] = against_all(collapses).as_dict() if below and collapses else None
    return {
        "schema": SCHEMA,
        "name": name,
        "task": {"name": task, "items": loaded.items, "majority": majority, "explicit_max": EXPLICIT_MAX.get(task)},
        "teachers": teachers,
        "students": students,
        "etas": _etas(teachers, students, loaded, rules),
        "controls": {
            "S_0": {"accuracy": base.as_dict(), "per_seed": loaded.base.greedy},
            "majority": {"accuracy": majority, "answer": answer},
            "floor": {"value": loaded.floor, "source": "majority" if majority >= loaded.floor else "S_0"},
            "original": ORIGINAL,
            "control": {tid: control_of(cell, loaded.teachers) for tid, cell in loaded.teachers.items() if _calibrated(cell)},
        },
        "rules": asdict(rules),
        "seconds": dict(seconds),
    }
