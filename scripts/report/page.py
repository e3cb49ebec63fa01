"""The report page of a run: one self-contained HTML file, words first, then the dial, tables, traces, how to reproduce."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import tempfile
import unicodedata
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from distillknob.rewards.errors import UserError
from distillknob.rewards.jsonl import read_jsonl
from distillknob.scripts.report.figures import Look, dial, signed

Json = dict[str, Any]

CUT = 400  # characters of a model text shown before the fold
ITEMS = 12  # test items whose traces are shown: the first half by order, the rest where the teachers' answers differ
RECIPES = {"seqkd": "SeqKD", "sft": "gold traces", "answer_only": "gold answers only", "base": "S_0, before distillation"}
MARKS = {"holds": "yes", "does not hold": "no", "undecided": "open"}
# Unicode categories of characters that a reader cannot see, or that reorder the text around them.
HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
NBSP = "\u00a0"


def visible(text: str) -> Markup:
    """HTML of a hostile text: markup escaped; control, bidi, zero-width and unassigned characters shown by their code point.

    Newline and tab stay. The attribute is unquoted so that the result is harmless inside a quoted attribute, too. Source: ours.
    """
    parts: list[Markup | str] = []
    for piece in re.split(r"([^\x20-\x7e\n\t])", text):
        if len(piece) == 1 and piece not in "\n\t" and unicodedata.category(piece) in HIDDEN:
            parts.append(Markup(f"<span class=ctl>U+{ord(piece):04X}</span>"))
        else:
            parts.append(escape(piece))
    return Markup("").join(parts)


def _show(value: object) -> object:
    """Applied to whatever the template prints: a dash for nothing, `visible` for every text that is not HTML of ours."""
    if value is None or value == "":
        return "—"
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def pct(value: float | None) -> str:
    """A fraction as percent with one decimal, a dash where it is undefined."""
    return "—" if value is None else f"{100 * value:.1f}{NBSP}%".replace("-", "−")


def number(value: float | None, digits: int = 2) -> str:
    """A number with fixed decimals, a dash where it is undefined."""
    return "—" if value is None else f"{value:.{digits}f}".replace("-", "−")


def interval(cell: Mapping[str, Any] | None, digits: int | None = None) -> str:
    """`value (low–high)` of an interval object, in percent (one decimal), or as numbers where `digits` is given."""
    if not cell or cell.get("value") is None:
        return "—"
    scale, places = (100.0, 1) if digits is None else (1.0, digits)
    unit = f"{NBSP}%" if digits is None else ""
    value, low, high = (None if cell.get(k) is None else scale * float(cell[k]) for k in ("value", "low", "high"))
    text = f"{number(value, places)}{unit}"
    return text if low is None or high is None else f"{text} ({number(low, places)}–{number(high, places)})"


def stack(cell: Mapping[str, Any] | None, digits: int | None = None) -> Markup:
    """`interval` for a table: the brackets on a line of their own."""
    value, _, limits = interval(cell, digits).partition(" (")
    return escape(value) + (Markup('<span class="small">({}</span>').format(limits) if limits else Markup(""))


def points(cell: Mapping[str, Any] | None) -> str:
    """A difference of accuracies in points, with its 95 % interval where there is one."""
    if not cell or cell.get("value") is None:
        return "—"
    ends = [None if cell.get(k) is None else f"{100 * float(cell[k]):+.1f}".replace("-", "−") for k in ("value", "low", "high")]
    value, low, high = ends
    return f"{value} points" + (f" (95{NBSP}% interval {low} to {high})" if low is not None and high is not None else "")


def p_value(value: float | None) -> str:
    """A p value with three decimals, a dash where it is undefined."""
    if value is None:
        return "—"
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def fold(text: str | None) -> Json:
    """A model text cut after CUT characters: {"head", "rest", "more": characters behind the fold}."""
    text = text or ""
    return {"head": text[:CUT], "rest": text[CUT:], "more": max(0, len(text) - CUT)}


def teacher_names(teachers: Mapping[str, Json]) -> dict[str, str]:
    """TID → words, the original first, then by η and calibration seed; the seed is named where an η has more than one."""

    def order(tid: str) -> tuple[bool, float, int]:
        eta = teachers[tid].get("eta")
        return eta is not None, eta or 0.0, teachers[tid].get("calibration_seed") or 0

    etas = [t.get("eta") for t in teachers.values()]
    names = {}
    for tid in sorted(teachers, key=order):
        eta, seed = teachers[tid].get("eta"), teachers[tid].get("calibration_seed")
        if eta is None:
            names[tid] = "original"
            continue
        which = f", calibration seed {seed}" if etas.count(eta) > 1 else ""
        names[tid] = f"η = {signed(eta)}" + (" (control)" if eta == 0 else "") + which
    return names


def student_names(summary: Json, cells: Iterable[Json]) -> dict[str, str]:
    """SID → words (recipe, how the teacher was sampled); the student or the SID is added where words are not unique."""
    students = {str(c["sid"]): str(c.get("student")) for c in cells if c.get("sid")}
    names: dict[str, str] = {}
    for kinds in (summary.get("students") or {}).values():
        for sid, cell in (kinds or {}).items():
            recipe, sampling = str((cell or {}).get("recipe") or sid), (cell or {}).get("sampling") or {}
            how = "" if sampling.get("temperature") is None else f", teacher sampled at T = {sampling['temperature']:g}"
            names[sid] = RECIPES.get(recipe, recipe) + how
    for more in (students, {}):
        words = list(names.values())
        names = {sid: f"{n}, {more.get(sid, sid)}" if words.count(n) > 1 else n for sid, n in names.items()}
    return names


def student_rows(summary: Json, tids: Mapping[str, str], sids: Mapping[str, str]) -> list[Json]:
    """One row a cell of the students table, in the teachers' order, then students without a teacher."""
    students: Json = summary.get("students") or {}
    extra = {"gold": "gold data", "none": "no teacher (S_0)"}
    order = [*(t for t in tids if t in students), *(t for t in students if t not in tids)]
    return [
        {"tid": tid, "sid": sid, "teacher": tids.get(tid) or extra.get(tid, tid), "student": sids[sid], "cell": cell or {}}
        for tid in order
        for sid, cell in (students[tid] or {}).items()
    ]


def _by_id(path: Path) -> dict[str, Json]:
    """First temperature-1 prediction of each item, in file order; empty where the file is missing."""
    found: dict[str, Json] = {}
    for row in read_jsonl(path) if path.is_file() else ():
        if row.get("decoding") == "t1":
            found.setdefault(str(row["id"]), row)
    return found


def _shown(row: Json | None, name: str) -> Json | None:
    """What the page shows of one prediction."""
    if row is None:
        return None
    return {"name": name, "correct": row.get("correct"), "answer": row.get("answer"), **fold(row.get("text"))}


def traces(run: Path, summary: Json, tids: Mapping[str, str], sids: Mapping[str, str]) -> Json:
    """Traces side by side: {"seed", "items": [{"id", "gold", "cells": [{"teacher", "students"}]}]} for up to ITEMS test items.

    The first half are the first items of the file; the rest are the first on which the teachers' answers differ (ours).
    """
    teachers = {tid: _by_id(run / "teachers" / tid / "predictions.jsonl") for tid in tids}
    students: Json = summary.get("students") or {}
    seeds = sorted({s for tid in tids for c in (students.get(tid) or {}).values() for s in (c or {}).get("seeds") or []})
    taught = {
        (tid, sid): _by_id(run / "students" / tid / sid / str(seeds[0]) / "predictions.jsonl")
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
        items.append({"id": item, "gold": fold(None if gold is None else str(gold)), "cells": cells})
    return {"seed": seeds[0] if seeds else None, "items": items}


def alt_text(summary: Json, tids: Mapping[str, str], rows: Iterable[Json]) -> str:
    """The dial in words, for readers who do not see it."""

    def right(cell: Json) -> str:
        return pct((cell.get("accuracy") or {}).get("value"))

    said = [f"teacher {name} {right(summary['teachers'][tid])}" for tid, name in tids.items()]
    said += [f"students of {r['teacher']} ({r['student']}) {right(r['cell'])}" for r in rows if r["tid"] in tids]
    return f"Accuracy against η, with 95{NBSP}% intervals: " + "; ".join(said) + "."


def _pictures(summary: Json, sids: Mapping[str, str]) -> tuple[dict[str, str], dict[str, bytes]]:
    """Data URIs of the four drawings that the page holds (wide, narrow; light, dark), and the files beside the page."""
    looks = {"light": Look(), "dark": Look(dark=True), "small_light": Look(4.3, 4.9), "small_dark": Look(4.3, 4.9, True)}
    drawn = {name: dial(summary, sids, look, "svg") for name, look in looks.items()}
    uris = {name: "data:image/svg+xml;base64," + base64.b64encode(svg).decode() for name, svg in drawn.items()}
    return uris, {"dial.svg": drawn["light"], "dial.png": dial(summary, sids, looks["light"], "png")}


def _environment() -> Environment:
    """Jinja with escaping on, and `_show` between every expression and the page."""
    env = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_show,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    env.filters.update(pct=pct, number=number, interval=interval, stack=stack, points=points, p=p_value, fold=fold, signed=signed)
    return env


def render(run: Path) -> dict[str, bytes]:
    """The files of the report by name (index.html, dial.svg, dial.png). Raises UserError where the run was not measured yet."""
    source = run / "measures" / "summary.json"
    if not source.is_file():
        raise UserError(f"{source}: not found; the report needs a measured run (first: distillknob run CONFIG)")
    summary: Json = json.loads(source.read_text(encoding="utf-8"))
    manifest: Json = json.loads((run / "manifest.json").read_text(encoding="utf-8"))
    config = (run / "config.yaml").read_text(encoding="utf-8")
    tids = teacher_names(summary["teachers"])
    sids = student_names(summary, read_jsonl(run / "cells.jsonl"))
    rows = student_rows(summary, tids, sids)
    uris, files = _pictures(summary, sids)
    env = _environment()
    text = env.get_template("template.html")
    style = re.search(r"<style>(.*?)</style>", (Path(__file__).parent / "template.html").read_text(encoding="utf-8"), re.DOTALL)
    assert style is not None
    html = text.render(
        name=summary.get("name") or run.name,
        run=run.name,
        summary=summary,
        manifest=manifest,
        config=config,
        marks=MARKS,
        rules=summary.get("rules") or {},
        settings=yaml.safe_load(config) or {},
        tids=tids,
        sids=sids,
        rows=rows,
        uris=uris,
        alt=alt_text(summary, tids, rows),
        traces=traces(run, summary, tids, sids),
        style_hash=base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode(),
    )
    return {"index.html": html.encode(), **files}


def write_report(run: Path) -> Path:
    """Writes RUN/report/ (index.html, dial.svg, dial.png) from the run's measures and predictions; returns the page's path.

    The folder appears whole: it is written beside the old one and put in its place by rename. Equal inputs give equal bytes.
    Raises UserError where measures/summary.json is missing. Source: ours (method §5 for what the figures mean).
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
