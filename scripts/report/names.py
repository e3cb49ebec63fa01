"""What the page calls teachers, students and controls."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from distillknob.eval.cells import NO_REASONING, ORIGINAL
from distillknob.scripts.report.words import signed

Json = dict[str, Any]

UNCALIBRATED = {ORIGINAL: "original", NO_REASONING: "original fine-tuned on bare answers"}
WITHOUT_TEACHER = {"gold": "gold data", "none": "no teacher (S_0)"}
RECIPES = {"seqkd": "SeqKD", "sft": "gold traces", "answer_only": "gold answers only", "base": "S_0, before distillation"}


def teacher_names(teachers: Mapping[str, Json]) -> dict[str, str]:
    """TID → words: the original, then by η and calibration seed, then what else is not calibrated; the seed is named where an η
    has more than one."""

    def order(tid: str) -> tuple[int, float, int]:
        eta = teachers[tid].get("eta")
        return 0 if tid == ORIGINAL else 1 if eta is not None else 2, eta or 0, teachers[tid].get("calibration_seed") or 0

    etas = [t.get("eta") for t in teachers.values()]
    names = {}
    for tid in sorted(teachers, key=order):
        eta, seed = teachers[tid].get("eta"), teachers[tid].get("calibration_seed")
        if eta is None:
            names[tid] = UNCALIBRATED.get(tid, tid)
            continue
        which = f", calibration seed {seed}" if etas.count(eta) > 1 else ""
        names[tid] = f"η = {signed(eta)}" + (" (control)" if eta == 0 else "") + which
    return names


def _recipe_words(sid: str, cell: Mapping[str, Any]) -> str:
    """The recipe with what its texts or its divergence are."""
    recipe, sampling = str(cell.get("recipe") or sid), cell.get("sampling") or {}
    if recipe == "gkd":
        found = re.search(r"-gkd(?:-b([\d.]+(?:e-\d+)?))?(-warm)?", sid)
        beta, warm = found.groups() if found else (None, None)
        divergence = "reverse KL" if beta is None else "forward KL" if float(beta) == 0 else f"JSD {beta}"
        return f"on-policy ({divergence})" + (" from the SeqKD student" if warm else "")
    words = [RECIPES.get(recipe, recipe)]
    if sampling.get("temperature") is not None:
        words.append(f"teacher sampled at T = {sampling['temperature']:g}")
    if sampling.get("keep_right"):
        words.append("right samples only")
    if sampling.get("select") == "likeliest":
        words.append(f"likeliest of {sampling.get('candidates')}")
    if sampling.get("select") == "length":
        words.append(f"right one of {sampling.get('candidates')} nearest in length to the calibrated teacher's")
    return ", ".join(words)


def student_names(students: Mapping[str, Json], cells: Iterable[Json]) -> dict[str, str]:
    """SID → words (recipe, how the teacher was sampled); the student or the SID is added where words are not unique."""
    kinds = {str(c["sid"]): str(c.get("student")) for c in cells if c.get("sid")}
    names = {sid: _recipe_words(sid, cell or {}) for by_sid in students.values() for sid, cell in (by_sid or {}).items()}
    for more in (kinds, {}):
        words = list(names.values())
        names = {sid: f"{n}, {more.get(sid, sid)}" if words.count(n) > 1 else n for sid, n in names.items()}
    return names


@dataclass(frozen=True)
class Control:
    """A student cell that has no place on the dial: `name` is short, `asks` is what its students tell."""

    tid: str
    sid: str
    name: str
    asks: str
    cell: Json


def on_dial(summary: Mapping[str, Any]) -> set[str]:
    """The SIDs that calibrated teachers have: the dial's series of students."""
    calibrated = {tid for tid, teacher in summary["teachers"].items() if teacher.get("eta") is not None}
    return {sid for tid in calibrated for sid in summary["students"].get(tid) or {}}


def controls(summary: Mapping[str, Any]) -> list[Control]:
    """The students without η beside those of the original that the dial shows; S_0 is none of them."""
    series, teachers = on_dial(summary), summary["teachers"]
    return [
        Control(tid, sid, *_control_words(tid, sid, cell or {}), cell or {})
        for tid, by_sid in summary["students"].items()
        if tid != "none" and (teachers.get(tid) or {}).get("eta") is None
        for sid, cell in (by_sid or {}).items()
        if tid != ORIGINAL or sid not in series
    ]


def _control_words(tid: str, sid: str, cell: Json) -> tuple[str, str]:
    sampling, lora = cell.get("sampling") or {}, ", LoRA" if "-lora-" in sid else ""
    temperature, count = sampling.get("temperature"), sampling.get("candidates")
    if tid == NO_REASONING:
        words = "teacher on bare answers", "what an owner gets who lets the teacher write no steps at all"
    elif cell.get("recipe") == "answer_only":
        words = "bare answers", "what a copier gets from right answers without any working"
    elif cell.get("recipe") == "sft":
        words = "gold traces", "what worked solutions teach in place of a teacher's texts"
    elif sampling.get("select") == "likeliest":
        words = (
            f"likeliest of {count}",
            f"the original's likeliest of {count} texts a prompt: does picking teach as well as the dial?",
        )
    elif sampling.get("select") == "length":
        words = (
            "matched in length",
            (f"of {count} texts of the original the right one nearest in length to the calibrated teacher's: is it length alone?"),
        )
    elif temperature == 0:
        words = "greedy original", "the original's texts without sampling: a teacher that is better has to beat these, too"
    elif temperature is not None:
        words = f"original at T = {temperature:g}", f"the original's texts at T = {temperature:g}"
    else:
        words = sid, "students of the original by a recipe that the calibrated teachers don't have"
    return words[0] + lora, words[1]
