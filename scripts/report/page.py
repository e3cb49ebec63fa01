"""The report page of a run: one self-contained HTML file, words first, then the dial, tables, traces, how to reproduce."""

from __future__ import annotations

import base64
import hashlib
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from distillknob.rewards.jsonl import read_jsonl
from distillknob.scripts.report import words
from distillknob.scripts.report.figures import CONTROLS, Look, dial, positions
from distillknob.scripts.report.inputs import read_config, read_manifest, read_prompts, read_samples, read_summary
from distillknob.scripts.report.names import WITHOUT_TEACHER, Control, controls, on_dial, student_names, teacher_names
from distillknob.scripts.report.words import NBSP, fold, pct

Json = dict[str, Any]

ITEMS = 12  # test items whose traces are shown: the first half by order, the rest where the teachers' answers differ


def student_rows(summary: Json, tids: Mapping[str, str], sids: Mapping[str, str]) -> list[Json]:
    """One row a cell of the students table, in the teachers' order, then students without a teacher."""
    students: Json = summary.get("students") or {}
    order = [*(t for t in tids if t in students), *(t for t in students if t not in tids)]
    return [
        {
            "tid": tid,
            "sid": sid,
            "eta": summary["teachers"].get(tid, {}).get("eta"),
            "teacher": tids.get(tid) or WITHOUT_TEACHER.get(tid, tid),
            "student": sids[sid],
            "cell": students[tid][sid] or {},
        }
        for tid in order
        for sid in sids
        if sid in students[tid]
    ]


def _shown(row: Json | None, name: str) -> Json | None:
    """What the page shows of one prediction."""
    if row is None:
        return None
    return {"name": name, "correct": row.get("correct"), "answer": row.get("answer"), **fold(row.get("text"))}


def traces(run: Path, summary: Json, tids: Mapping[str, str], sids: Mapping[str, str]) -> Json:
    """Traces side by side of up to ITEMS test items.

    Returns {"seed", "items": [{"id", "prompt" (None where the run kept none), "gold", "cells": [{"teacher", "students"}]}]}.
    The first half are the first items of the file; the rest are the first on which the teachers' answers differ (ours).
    """
    teachers = {tid: read_samples(run / "teachers" / tid / "predictions.jsonl") for tid in tids}
    prompts = read_prompts(run)
    students: Json = summary.get("students") or {}
    seeds = sorted({s for tid in tids for c in (students.get(tid) or {}).values() for s in (c or {}).get("seeds") or []})
    taught = {
        (tid, sid): read_samples(run / "students" / tid / sid / str(seeds[0]) / "predictions.jsonl")
        for tid in tids
        for sid in (students.get(tid) or {})
        if seeds
    }
    ids = list(dict.fromkeys(i for rows in teachers.values() for i in rows))
    differ = [i for i in ids if len({str(rows[i].get("answer")) for rows in teachers.values() if i in rows}) > 1]
    chosen = list(dict.fromkeys([*ids[: ITEMS // 2], *differ[:ITEMS], *ids]))[:ITEMS]
    items = []
    for item in chosen:
        gold = next((rows[item].get("gold") for rows in teachers.values() if item in rows), None)
        cells = []
        for tid in tids:
            copies = [_shown(rows.get(item), sids[sid]) for (t, sid), rows in taught.items() if t == tid]
            cells.append({"teacher": _shown(teachers[tid].get(item), tids[tid]), "students": [c for c in copies if c]})
        prompt = fold(prompts[item]) if item in prompts else None
        items.append({"id": item, "prompt": prompt, "gold": fold(None if gold is None else str(gold)), "cells": cells})
    return {"seed": seeds[0] if seeds else None, "items": items}


def alt_text(summary: Json, tids: Mapping[str, str], rows: Iterable[Json], lines: Iterable[Control]) -> str:
    """The dial in words, for readers who do not see it."""
    (where, _), series = positions(summary), on_dial(summary)

    def right(cell: Json) -> str:
        return pct((cell.get("accuracy") or {}).get("value"))

    said = [f"teacher {name} {right(summary['teachers'][tid])}" for tid, name in tids.items() if tid in where]
    on = [r for r in rows if r["tid"] in where and r["sid"] in series]
    said += [f"students of {r['teacher']} ({r['student']}) {right(r['cell'])}" for r in on]
    said += [f"line of the control {line.name} {right(line.cell)}" for line in lines]
    return f"Accuracy against η, with 95{NBSP}% intervals: " + "; ".join(said) + "."


def _pictures(summary: Json, sids: Mapping[str, str]) -> tuple[dict[str, str], dict[str, bytes]]:
    """Data URIs of the four drawings that the page holds (wide, narrow; light, dark), and the files beside the page."""
    looks = {"light": Look(), "dark": Look(dark=True), "small_light": Look(4.3, 4.9), "small_dark": Look(4.3, 4.9, True)}
    drawn = {name: dial(summary, sids, look, "svg") for name, look in looks.items()}
    uris = {name: "data:image/svg+xml;base64," + base64.b64encode(svg).decode() for name, svg in drawn.items()}
    return uris, {"dial.svg": drawn["light"], "dial.png": dial(summary, sids, looks["light"], "png")}


def beside(summary: Json, tids: Mapping[str, str], sids: Mapping[str, str]) -> list[Json]:
    """The rows of the students table that controls are compared with: of calibrated teachers, by the study's first SeqKD recipe,
    as which controls are trained."""
    tuned = [tid for tid in tids if summary["teachers"][tid]["eta"] is not None]
    cells = [(sid, cell) for tid in tuned for sid, cell in (summary["students"].get(tid) or {}).items()]
    first = next((sid for sid, cell in cells if cell and cell.get("recipe") == "seqkd"), None)
    return [r for r in student_rows(summary, tids, sids) if r["tid"] in tuned and r["sid"] == first]


def other_tasks(summary: Json) -> dict[str, float | None]:
    """The tasks that no teacher was calibrated on, each with its chance."""
    return {name: o.get("majority") for t in summary["teachers"].values() for name, o in t["others"].items()}


def measured(summary: Json, measure: str) -> bool:
    """Whether any teacher's traces have a value of this measure: a task without it has no column and no sentence for it."""
    return any(((t.get("traces") or {}).get(measure) or {}).get("value") is not None for t in summary["teachers"].values())


def _environment() -> Environment:
    """Jinja with escaping on, and `show` between every expression and the page."""
    env = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=words.show,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    env.filters.update(pct=pct, number=words.number, interval=words.interval, stack=words.stack, points=words.points)
    env.filters.update(p=words.p_value, tidy=words.tidy, guard=words.guard_sentence, shares=words.shares_sentence)
    env.globals.update(off_aim=words.off_aim, overlap=words.overlap, always_chance=words.always_chance, marks=words.MARKS)
    return env


def render(run: Path) -> dict[str, bytes]:
    """The files of the report by name (index.html, dial.svg, dial.png).

    Raises UserError where the run was not measured yet, and for a file of another structure.
    """
    summary, manifest = read_summary(run), read_manifest(run)
    config, settings = read_config(run)
    tids = teacher_names(summary["teachers"])
    sids = student_names(summary["students"], read_jsonl(run / "cells.jsonl"))
    rows, lines = student_rows(summary, tids, sids), controls(summary)
    uris, files = _pictures(summary, sids)
    style = (Path(__file__).parent / "style.css").read_text(encoding="utf-8")
    html = (
        _environment()
        .get_template("template.html")
        .render(
            name=summary["name"] or run.name,
            run=run.name,
            summary=summary,
            manifest=manifest,
            config=config,
            rules=summary["rules"],
            settings=settings,
            tids=tids,
            sids=sids,
            rows=rows,
            uris=uris,
            lines=lines,
            beside=beside(summary, tids, sids),
            series=on_dial(summary),
            others=other_tasks(summary),
            reward=settings.get("reward") or ("made in the lab" if (run / "lab" / "reward").is_dir() else None),
            alt=alt_text(summary, tids, rows, lines[:CONTROLS]),
            traces=traces(run, summary, tids, sids),
            explicit=measured(summary, "explicit"),
            validity=measured(summary, "step_validity"),
            style=Markup(style),
            style_hash=base64.b64encode(hashlib.sha256(style.encode()).digest()).decode(),
        )
    )
    return {"index.html": html.encode(), **files}


def write_report(run: Path) -> Path:
    """Writes RUN/report/ (index.html, dial.svg, dial.png) from the run's measures and predictions; returns the page's path.

    The folder appears whole: it is written beside the old one and put in its place by rename. Equal inputs give equal bytes.
    Raises UserError as `render`. Source: ours (method §5 for what the figures mean).
    """
    files = render(run)
    fresh = Path(tempfile.mkdtemp(prefix=".report-", dir=run))
    new, old, target = fresh / "new", fresh / "old", run / "report"
    try:
        new.mkdir()
        for name, content in files.items():
            (new / name).write_bytes(content)
        if target.exists():
            target.rename(old)
        new.rename(target)
    finally:
        if old.exists() and not target.exists():
            old.rename(target)  # the second rename failed: the old report is better than none
        shutil.rmtree(fresh, ignore_errors=True)
    return target / "index.html"
