"""The summary of a fake run: its figures against the files, what it refuses, its table, and an independent recomputation."""

import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fake_run import GREEDY_SID, HOSTILE, NO_REASONING, SID, add_calibrations, add_controls, add_others, add_student, make_fake_run

from distillknob.eval.distillability import summarise
from distillknob.eval.rules import VerdictRules
from distillknob.eval.table import summary_table
from distillknob.rewards.errors import UserError
from distillknob.rewards.jsonl import write_json, write_jsonl

CHECKER = Path(__file__).parents[1] / "independent_verdicts.py"
ETA = "eta-0.5-c0"
Json = dict[str, Any]


def _summary(run: Path) -> Json:
    return summarise(run, VerdictRules(), {"measure": 2.5})


def _lines(path: Path) -> list[Json]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def _edit(path: Path, **changes: Any) -> None:
    """Changes keys of the first line of a JSONL file."""
    rows = _lines(path)
    rows[0] |= changes
    write_jsonl(path, rows)


def _check(run: Path, summary: Json, monkeypatch: pytest.MonkeyPatch) -> int:
    write_json(run / "measures" / "summary.json", summary)
    monkeypatch.setattr(sys, "argv", [str(CHECKER), str(run)])
    with pytest.raises(SystemExit) as caught:
        runpy.run_path(str(CHECKER), run_name="__main__")
    return int(caught.value.code or 0)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A fake run with the greedy cell, and a recipe in which the calibrated teacher teaches better than both."""
    folder = make_fake_run(tmp_path / "fake")
    add_student(folder, "orig", GREEDY_SID, 0.8, temperature=0.0)
    for tid, accuracy in (("eta+0-c0", 0.5), (ETA, 0.99)):
        add_student(folder, tid, "lab-fkl-t1-chain", accuracy, recipe="fkl")
    add_student(folder, "orig", "lab-fkl-t0-chain", 0.5, recipe="fkl", temperature=0.0)
    add_student(folder, "gold", "lab-sft-chain", 0.97, recipe="sft", temperature=None)
    add_student(folder, ETA, "lab-few-t1-chain", 0.3, recipe="few", seeds=3)
    return folder


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """A fake run with every control, whose teachers answer two further tasks."""
    folder = make_fake_run(tmp_path / "whole")
    add_controls(folder)
    add_others(folder)
    return folder


def test_figures_come_from_the_files(run: Path) -> None:
    """Accuracies, b, traces and the control, recomputed here from the lines."""
    summary = _summary(run)
    assert (summary["schema"], summary["name"], summary["seconds"]) == (1, "fake", {"measure": 2.5})
    assert summary["task"] == {"name": "chain", "items": 40, "majority": 0.3, "explicit_max": 4}
    rows = _lines(run / "teachers" / ETA / "predictions.jsonl")
    greedy = [r["correct"] for r in rows if r["decoding"] == "greedy"]
    sampled = [r for r in rows if r["decoding"] == "t1"]
    teacher = summary["teachers"][ETA]
    assert teacher["accuracy"]["value"] == sum(greedy) / 40 and teacher["accuracy"]["n"] == 40
    assert teacher["accuracy_t1"]["value"] == sum(r["correct"] for r in sampled) / 40
    assert teacher["traces"]["explicit"]["value"] == pytest.approx(sum(r["explicit"] for r in sampled) / 40)
    assert teacher["traces"]["bytes"]["value"] == pytest.approx(sum(r["bytes"] for r in sampled) / 40)
    right = [r["valid"] for r in sampled if r["correct"]]
    assert teacher["traces"]["step_validity_right"]["value"] == pytest.approx(sum(right) / len(right))
    assert teacher["traces"]["step_validity_right"]["n"] == len(right)
    assert teacher["calibration"] == {"eta": -0.5, "steps": 100} and summary["teachers"]["orig"]["calibration"] is None
    assert summary["teachers"]["orig"]["utility"] is None and summary["teachers"]["eta+0-c0"]["utility"]["items"] == 40
    student = summary["students"][ETA][SID]
    for seed, value in zip(student["seeds"], student["per_seed"], strict=True):
        mine = _lines(run / "students" / ETA / SID / str(seed) / "predictions.jsonl")
        assert value == sum(r["correct"] for r in mine if r["decoding"] == "greedy") / 40
    assert student["accuracy"]["value"] == pytest.approx(sum(student["per_seed"]) / 5)
    controls = summary["controls"]
    assert controls["control"] == {ETA: "eta+0-c0"} and controls["original"] == "orig"
    assert controls["majority"] == {"accuracy": 0.3, "answer": "0"}
    assert controls["floor"] == {"value": 0.3, "source": "majority"}


def test_retained_and_di(run: Path) -> None:
    """The ratios of means, raw and less b; DI against S_0 and the teacher."""
    summary = _summary(run)

    def mean(tid: str, sid: str) -> float:
        return float(summary["students"][tid][sid]["accuracy"]["value"])

    mine, control, start = mean(ETA, SID), mean("eta+0-c0", SID), mean("none", "lab-base")
    student = summary["students"][ETA][SID]
    assert student["retained"]["value"] == pytest.approx(mine / control) and student["retained"]["low"] < mine / control
    assert student["retained"]["corrected"] == pytest.approx((mine - 0.3) / (control - 0.3))
    assert student["retained"]["reason"] is None
    teacher = summary["teachers"][ETA]["accuracy"]["value"]
    assert student["di"] == {"value": pytest.approx((mine - start) / (teacher - start)), "reason": None}
    gold = summary["students"]["gold"]["lab-sft-chain"]
    assert gold["di"]["value"] is None and "without a teacher" in gold["di"]["reason"]


def test_verdicts_of_the_fake_run(run: Path) -> None:
    """Collapse holds for one recipe, better for another; a cell without a control, and controls themselves, get none."""
    students = _summary(run)["students"]
    assert students[ETA][SID]["collapse"]["verdict"] == "holds" and students[ETA][SID]["collapse"]["control"] == "eta+0-c0"
    assert students[ETA][SID]["better"]["verdict"] == "does not hold"
    assert students[ETA][SID]["better"]["greedy_original"]["sid"] == GREEDY_SID
    better = students[ETA]["lab-fkl-t1-chain"]["better"]
    assert better["verdict"] == "holds" and better["control"] == "eta+0-c0"
    assert better["greedy_original"]["sid"] == "lab-fkl-t0-chain"
    few = students[ETA]["lab-few-t1-chain"]
    assert few["retained"]["value"] is None and "not measured" in few["retained"]["reason"]
    assert few["collapse"]["verdict"] == few["better"]["verdict"] == "undecided"
    for tid, sid in (("orig", SID), ("eta+0-c0", SID), ("none", "lab-base"), ("gold", "lab-sft-chain")):
        assert [students[tid][sid][key] for key in ("retained", "collapse", "better")] == [None] * 3


def test_control_has_the_same_seed_and_beta(run: Path) -> None:
    """An η = 0 teacher of another calibration seed or beta is no control."""
    for changes in ({"calibration_seed": 1}, {"beta": 0.5}):
        rows = _lines(run / "cells.jsonl")
        write_jsonl(run / "cells.jsonl", [r | changes if r["eta"] == 0 else r for r in rows])
        summary = _summary(run)
        assert summary["controls"]["control"] == {ETA: None}
        assert summary["students"][ETA][SID]["collapse"]["verdict"] == "undecided"
        write_jsonl(run / "cells.jsonl", rows)


def test_floor_is_the_student_before_where_it_is_better(tmp_path: Path) -> None:
    """S_0 above the majority share is b, and DI is undefined where the teacher is under 2 points above it."""
    run = make_fake_run(tmp_path / "x", seeds=2)
    for path in (run / "students" / "none").rglob("predictions.jsonl"):
        write_jsonl(path, [r | {"correct": 1} for r in _lines(path)])
    summary = _summary(run)
    assert summary["controls"]["floor"] == {"value": 1.0, "source": "S_0"}
    student = summary["students"][ETA][SID]
    assert student["di"]["value"] is None and "under the 2 points" in student["di"]["reason"]
    assert student["retained"]["corrected"] is None and "under 2 points above b" in student["retained"]["reason"]
    assert student["collapse"]["verdict"] == "undecided" and "2 against 2 seeds" in student["collapse"]["reason"]


@pytest.mark.parametrize(("start", "defined"), [(92, True), (93, True), (94, False)])
def test_di_needs_two_points(tmp_path: Path, start: int, defined: bool) -> None:
    """A teacher at 95 of 100: S_0 at 93 is 2 points below it and enough, at 94 not."""
    run = make_fake_run(tmp_path / "x", seeds=1, items=100)
    for path, right in ((run / "teachers" / ETA, 95), (run / "students" / "none" / "lab-base" / "0", start)):
        rows = _lines(path / "predictions.jsonl")
        write_jsonl(path / "predictions.jsonl", [r | {"correct": int(int(r["id"].split("-")[1]) < right)} for r in rows])
    di = _summary(run)["students"][ETA][SID]["di"]
    assert (di["value"] is not None) == defined and (di["reason"] is None) == defined


def test_unverified_predictions_leave_the_denominator(tmp_path: Path) -> None:
    """A null is counted, in no accuracy, and in no pair of the utility verdict."""
    run = make_fake_run(tmp_path / "x", seeds=2)
    path = run / "teachers" / ETA / "predictions.jsonl"
    before = [r["correct"] for r in _lines(path) if r["decoding"] == "greedy"]
    _edit(path, correct=None)
    teacher = _summary(run)["teachers"][ETA]
    assert teacher["unverified"] == 1 and teacher["accuracy"]["n"] == 39
    assert teacher["accuracy"]["value"] == sum(before[1:]) / 39
    assert teacher["utility"]["items"] == 39 and teacher["utility"]["unverified"] == 1


def test_traces_without_a_measure_have_a_reason(tmp_path: Path) -> None:
    """A task that cannot tell steps gives null with a reason, not 0."""
    run = make_fake_run(tmp_path / "x", seeds=1)
    path = run / "teachers" / "orig" / "predictions.jsonl"
    write_jsonl(path, [r | {"explicit": None, "valid": None} for r in _lines(path)])
    traces = _summary(run)["teachers"]["orig"]["traces"]
    assert traces["explicit"]["value"] is None and traces["explicit"]["reason"]
    assert traces["tokens"]["value"] is not None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        *(({"id": "other"}, "test items"), ({"gold": "9"}, "golds")),
        *(({"id": "chain-1"}, "line 2: item 'chain-1' has a second greedy"), ({"decoding": "t1"}, "has a second t1")),
        ({"correct": 2}, r"predictions\.jsonl, line 1: key 'correct'"),
        ({"tokens": "many"}, r"predictions\.jsonl, line 1: key 'tokens'"),
        ({"split": "train"}, "test items"),
    ],
)
def test_bad_predictions_are_refused(tmp_path: Path, changes: Json, message: str) -> None:
    """Another item set, another gold answer, a doubled item or a wrong value names the file, and the line if there is one."""
    run = make_fake_run(tmp_path / "x", seeds=1)
    path = run / "students" / ETA / SID / "0" / "predictions.jsonl"
    _edit(path, **changes)
    with pytest.raises(UserError, match=message) as caught:
        _summary(run)
    assert str(path) in str(caught.value)


def test_missing_and_broken_files_are_refused(tmp_path: Path) -> None:
    """A file that is missing, cut off or without any verified line is named; so is a config without a task."""
    run = make_fake_run(tmp_path / "x", seeds=1)
    path = run / "students" / ETA / SID / "0" / "predictions.jsonl"
    rows = _lines(path)
    path.write_text(path.read_text(encoding="utf-8")[:-20], encoding="utf-8")
    with pytest.raises(UserError, match=r"predictions\.jsonl, line 80"):
        _summary(run)
    write_jsonl(path, [r | {"correct": None} for r in rows])
    with pytest.raises(UserError, match="no verified greedy prediction"):
        _summary(run)
    path.unlink()
    with pytest.raises(UserError, match=r"predictions\.jsonl: cannot be read"):
        _summary(run)
    write_jsonl(path, rows)
    (run / "config.yaml").write_text("name: x\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"config\.yaml.*task"):
        _summary(run)


def test_bad_cells_are_refused(tmp_path: Path) -> None:
    """A cell given twice, without seed, of an unknown teacher, a run without orig or without S_0."""
    run = make_fake_run(tmp_path / "x", seeds=1)
    path = run / "cells.jsonl"
    rows = _lines(path)
    student = next(r for r in rows if r["sid"] == SID)
    for wrong, message in (
        ([*rows, student], "line 8: the same tid"),
        ([*rows, student | {"seed": None}], "line 8: key 'seed'"),
        ([*rows, {"tid": "orig"}], r"line 8: key 'eta'"),
        ([r for r in rows if r["tid"] != "none"], "0 kinds of student"),
        ([r for r in rows if r["tid"] != "orig"], "no line for the teacher 'orig'"),
        ([r for r in rows if r["sid"] or r["tid"] != ETA], "no teacher line; valid: orig, "),
    ):
        write_jsonl(path, wrong)
        with pytest.raises(UserError, match=message):
            _summary(run)


def test_other_tasks_and_controls(whole: Path) -> None:
    """A task that no teacher was calibrated on: accuracy and chance by its own lines, what was lost paired to the original; a
    teacher without eta is no control and its students get no verdict."""
    summary = _summary(whole)
    rows = _lines(whole / "teachers" / ETA / "others" / "largest" / "predictions.jsonl")
    right = [r["correct"] for r in rows if r["decoding"] == "greedy"]
    lost = summary["teachers"][ETA]["others"]["largest"]
    assert (lost["accuracy"]["value"], lost["accuracy"]["n"]) == (sum(right) / 60, 60) and lost["majority"] == 0.3
    assert lost["kept"]["verdict"] == "does not hold" and lost["kept"]["items"] == 60
    assert summary["teachers"]["orig"]["others"]["largest"]["kept"] is None
    assert set(summary["teachers"][NO_REASONING]["others"]) == {"reverse", "largest"}
    assert NO_REASONING not in summary["controls"]["control"]
    assert summary["students"][NO_REASONING][SID]["collapse"] is None
    assert summary["students"][ETA][SID]["better"]["greedy_original"]["sid"] == GREEDY_SID
    path = whole / "teachers" / ETA / "others" / "largest" / "predictions.jsonl"
    _edit(path, gold="other")
    with pytest.raises(UserError, match="other test items or golds"):
        _summary(whole)


def test_table_of_the_price(whole: Path) -> None:
    """A row a teacher, within 120 columns: texts, KL and every other task with its chance; many tasks go on below."""
    summary = _summary(whole)
    summary["teachers"][ETA]["calibration"] = {"kl": {"full_vocabulary": {"value": 0.0213, "low": 0.02, "high": 0.03}}}
    teacher = summary["teachers"][ETA]

    def block() -> list[str]:
        return summary_table(summary).split("what the owner pays")[1].split("teacher  ")[1:-1][0].splitlines()

    head, *rows = block()
    assert "largest (chance 30.0)" in head and len(rows) == 5  # four teachers and an empty line
    row = next(line for line in rows if line.startswith(ETA)).split()
    figures = [f"{teacher['traces']['tokens']['value']:.1f}", f"{teacher['traces']['explicit']['value']:.2f}"]
    assert row[1:3] == figures and row[4] == "0.021"
    assert f"{100 * teacher['others']['largest']['accuracy']['value']:.1f} [" in " ".join(row)
    assert f"{ETA}, largest kept: does not hold: the upper limit" in summary_table(summary)
    for each in summary["teachers"].values():
        each["others"] |= {f"task-{i}": each["others"]["largest"] for i in range(9)}
    shown = summary_table(summary).split("what the owner pays")[1].split("student cell")[0]
    assert all(len(line) <= 120 for line in shown.splitlines()) and "task-8" in shown and shown.count("\norig ") == 3


def test_table(run: Path) -> None:
    """Chance stands in every row that has an accuracy; every verdict stands there with its reason."""
    summary = _summary(run)
    text = summary_table(summary)
    before, after = text.split("what the owner pays")
    assert [line.split()[0] for line in after.split("\n\n")[0].splitlines()[2:]] == list(summary["teachers"])
    text = before + after[after.index("\n\n") :]
    rows = [line for line in text.splitlines() if line.startswith(("orig ", "eta", "gold ", "none ")) and ": " not in line]
    assert len(rows) == 3 + sum(len(by_sid) for by_sid in summary["students"].values())
    assert all("  30.0  " in row for row in rows)
    verdicts = [line for line in text.splitlines() if ": " in line][1:]
    assert len(verdicts) == 2 + 2 * 3 + 2 and any("collapse: holds: the upper limit" in line for line in verdicts)
    assert "by every copier tried: " in text
    assert "eta -0.5, beta 0.02: undecided: 1 calibrated teacher, and a statement about an η needs at least 5" in text
    assert "always the most frequent answer" in text


def test_hostile_text_survives(tmp_path: Path) -> None:
    """Markup, control characters and a lone surrogate in a gold answer pass through as data."""
    run = make_fake_run(tmp_path / "x", hostile=True)
    summary = _summary(run)
    assert summary["controls"]["majority"]["answer"] == HOSTILE
    assert summary["teachers"]["orig"]["unverified"] == 2
    write_json(run / "measures" / "summary.json", summary)
    assert summary_table(summary).isprintable() is False and "\x1b" not in summary_table(summary)


def test_independent_recomputation_agrees(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script with formulas of its own finds the same figures and verdicts, on runs of several shapes."""
    assert _check(run, _summary(run), monkeypatch) == 0
    for name, seeds, hostile in (("hostile", 5, True), ("few", 3, False), ("one", 1, False)):
        other = make_fake_run(tmp_path / name, seeds=seeds, hostile=hostile)
        add_controls(other, seeds=seeds, hostile=hostile)
        add_others(other)
        assert _check(other, _summary(other), monkeypatch) == 0


@pytest.mark.parametrize(
    "path",
    [
        *(("controls", "floor", "value"), ("teachers", "orig", "accuracy", "value"), ("teachers", ETA, "accuracy_t1", "value")),
        *(("teachers", ETA, "utility", "low"), ("teachers", ETA, "utility", "verdict")),
        *(("students", ETA, SID, "accuracy", "high"), ("students", ETA, SID, "per_seed", 3)),
        *(("teachers", ETA, "others", "largest", "kept", key) for key in ("high", "verdict")),
        ("teachers", ETA, "others", "reverse", "accuracy", "value"),
        ("students", ETA, SID, "collapse", "high"),
        ("students", ETA, SID, "collapse", "verdict"),
        ("students", ETA, "lab-fkl-t1-chain", "better", "verdict"),
        ("rules", "utility_margin"),
    ],
)
def test_independent_recomputation_finds_a_flipped_figure(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], path: tuple[str | int, ...]
) -> None:
    """One figure off by 1e-6, or one verdict turned round, is one line and exit status 1."""
    add_others(run)
    summary = _summary(run)
    *parents, last = path
    place: Any = summary
    for key in parents:
        place = place[key]
    place[last] = "other" if isinstance(place[last], str) else place[last] + 1e-6
    assert _check(run, summary, monkeypatch) == 1
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_statements_about_an_eta(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With six calibration seeds the summary speaks of the η, and the script with formulas of its own agrees."""
    add_calibrations(run, 5)
    summary = _summary(run)
    found = summary["etas"]["eta -0.5, beta 0.02"]
    assert len(found["teachers"]) == 6
    values = [summary["teachers"][tid]["utility"]["value"] for tid in found["teachers"]]
    assert found["utility"]["value"] == pytest.approx(sum(values) / 6)
    judged = found["students"][SID]
    assert judged["collapse"]["verdict"] == "holds" and judged["better"]["verdict"] == "does not hold"
    assert judged["collapse"]["headroom"]["n"] == 6
    assert "over calibrated teachers" in summary_table(summary)
    assert _check(run, summary, monkeypatch) == 0
    judged["collapse"]["high"] += 1e-6
    assert _check(run, summary, monkeypatch) == 1


def test_independent_recomputation_is_a_command(tmp_path: Path) -> None:
    """It runs as a script of its own, without the package."""
    run = make_fake_run(tmp_path / "x", seeds=2, items=10)
    write_json(run / "measures" / "summary.json", _summary(run))
    done = subprocess.run([sys.executable, str(CHECKER), str(run)], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "distillknob" not in CHECKER.read_text(encoding="utf-8")
