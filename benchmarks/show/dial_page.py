"""docs/dial.md: the figures of docs/results/dial.json as tables for people."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import product
from typing import Any

from benchmarks.show.results import ROOT
from distillknob.eval.rules import VerdictRules

Figures = dict[str, dict[str, Any]]
_STUDENT = "accuracy, greedy"
_INTRO = """# The dial, measured

Written by `make show-dial` from [results/dial.json](results/dial.json), where every figure stands with its limits. Accuracies are
in percent over 1,024 test items, greedy; of students the mean of five seeds; 95 % limits in brackets. Side A: a teacher that shows
80 % of its steps, η = −0.5. Side B: one from the same base that shows 35 %, η = +0.5. *Control* is η = 0: plain RFT with the same
steps and seed. Each root seed makes everything afresh: base, teachers, proxy, calibrations, students. Limits of means over few
seeds are t limits and may pass 0 or 100. *Utility*: accuracy of the tuned teacher less the original's, in points, kept where the
lower limit is above −2. *True*: texts at T = 1 whose written steps are all true. The tuned teacher's own greedy, best-of or
right-only samples were not distilled here: a copier may try them.
"""
STUDENTS = ("its students: original", "control", "tuned")
TUNED = {"A": "eta-0.5-c0", "B": "eta+0.5-c0"}  # side: its calibrated teacher


def write_page() -> None:
    """Writes docs/dial.md from the result file; parts that were not run are named so."""
    path = ROOT / "docs" / "results" / "dial.json"
    if not path.is_file():
        return
    result = json.loads(path.read_text(encoding="utf-8"))
    figures: Figures = result["figures"]
    sections = [
        ("What was asked", _asked(figures)),
        ("What does not hold, root seed by root seed", _failed(figures)),
        ("Chain arithmetic, root seed by root seed", _roots(figures, "chain")),
        ("Multiple choice with a rationale", _roots(figures, "choice")),
        ("Instructions, scored by a reward model", _roots(figures, "instruct")),
        ("Controls, root seed 1", _controls(figures)),
        ("What the owner pays, root seed 1", _price(figures)),
        ("Variants of the calibration reward, root seed 1", _variants(figures)),
        ("The proxy check on twelve proxies", _proxies(figures)),
    ]
    missing = "*Not measured yet.*\n"
    text = [_INTRO, *(f"## {title}\n\n{body or missing}" for title, body in sections)]
    seconds = ", ".join(f"{name} {part['seconds'] / 60:.0f} min" for name, part in result["parts"].items())
    text.append(f"Parts: {seconds}. {result['hardware']}.\n")
    (ROOT / "docs" / "dial.md").write_text("\n".join(text), encoding="utf-8")


def _number(figure: dict[str, Any] | None, scale: float = 100.0, digits: int = 1, sign: str = "") -> str:
    if figure is None or figure["value"] is None:
        return "—"
    value, low, high = (None if figure[k] is None else f"{scale * figure[k]:{sign}.{digits}f}" for k in ("value", "low", "high"))
    return (f"{value}" if low is None or high is None else f"{value} [{low}, {high}]").replace("-", "−")


def _rows(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _asked(figures: Figures) -> str:
    rows = []
    for name, figure in figures.items():
        if figure["asked"]:
            share = name.startswith("over root seeds:")
            value = _number(figure, sign="+") + " points" if share else _number(figure, 1.0, 0)
            rows.append([name, value, figure["asked"], "holds" if figure["holds"] else "**does not hold**"])
    return _rows(["figure", "value", "asked", ""], rows)


def _heads(figures: Figures, pattern: str) -> list[str]:
    """What the names start with, in order, up to a colon, where the whole of it fits the pattern."""
    return list(dict.fromkeys(found.group(1) for name in figures if (found := re.match(f"({pattern}): ", name))))


def _roots(figures: Figures, task: str) -> str:
    tables = []
    for side, tuned in TUNED.items():
        last = ["GKD control", "GKD tuned"] if side == "A" else ["greedy original"]
        judged = "utility · collapse: SeqKD · GKD" if side == "A" else "utility · better"
        head_row = ["root", "teacher, original", "tuned", "utility", "steps written", "true", *STUDENTS, *last, judged]
        rows = []
        for head in _heads(figures, f"{task} {side}, root seed \\d+"):
            if _refused(figures, head):
                rows.append([head.split()[-1], "teacher or proxy refused", *[""] * (len(head_row) - 2)])
                continue
            names = (f"{head}: students {tid} lab-{sid}-{task}: {_STUDENT}" for sid, tid in _cells(side, tuned))
            seen = [(f"{head}: teacher {tid}: steps written", f"{head}: teacher {tid}: step validity") for tid in ("orig", tuned)]
            rows.append(
                [
                    head.split()[-1],
                    *(_number(figures.get(f"{head}: teacher {tid}: accuracy, greedy")) for tid in ("orig", tuned)),
                    _number(figures.get(f"{head}: teacher {tuned}: accuracy less the original's"), sign="+"),
                    " → ".join(_number(_bare(figures.get(steps)), 1, 2) for steps, _ in seen),
                    " → ".join(_number(_bare(figures.get(true))) for _, true in seen),
                    *(_number(figures.get(name)) for name in names),
                    " · ".join(outcome for _, outcome in _verdicts(figures, head, task, side, tuned)),
                ]
            )
        table = _rows(head_row, rows)
        tables.append(f"Side {side}:\n\n{table}\n" if table else "")
    return "".join(tables)


def _refused(figures: Figures, head: str) -> bool:
    return bool(figures.get(f"{head}: teacher or proxy refused", {}).get("value"))


def _verdicts(figures: Figures, head: str, task: str, side: str, tuned: str) -> list[tuple[str, str]]:
    """Name and outcome of the verdicts of one study. The file says which hold; of the others their limits tell what is the matter,
    but of *better* those to the control alone, not to the greedy original: where these don't tell, it is *not shown*."""
    teacher = f"{head}: teacher {tuned}"
    against = _below(figures[f"{teacher}: accuracy less the original's"], -VerdictRules().utility_margin)
    found = [("utility kept", _outcome(figures[f"{teacher}: utility kept holds"], against))]
    for sid, words in (("seqkd-t1", "SeqKD"), ("gkd-warm", "GKD")):
        name = f"{head}: students {tuned} lab-{sid}-{task}"
        if side == "A" and f"{name}: collapse holds" in figures:
            low = figures[f"{name}: collapse, margin"]["low"]
            found.append((f"collapse, {words}", _outcome(figures[f"{name}: collapse holds"], low is not None and low > 0)))
        elif f"{name}: better holds" in figures:
            against = _below(figures[f"{name}: better, margin"], 0.0)
            found.append((f"better, {words}", _outcome(figures[f"{name}: better holds"], against, "not shown")))
    return found


def _outcome(holds: dict[str, Any], against: bool, otherwise: str = "undecided") -> str:
    return "holds" if holds["value"] == 1 else f"**{'does not hold' if against else otherwise}**"


def _below(figure: dict[str, Any], bound: float) -> bool:
    return figure["high"] is not None and figure["high"] < bound


def _failed(figures: Figures) -> str:
    rows = []
    for task, (side, tuned) in product(("chain", "choice", "instruct"), TUNED.items()):
        for head in _heads(figures, f"{task} {side}, root seed \\d+"):
            refused = [("everything", "its teacher or proxy was refused")]
            judged = refused if _refused(figures, head) else _verdicts(figures, head, task, side, tuned)
            rows += [[head, *one] for one in judged if one[1] != "holds"]
    return _rows(["study", "verdict", ""], rows) or "Every verdict holds.\n"


def _cells(side: str, tuned: str) -> list[tuple[str, str]]:
    cells = [("seqkd-t1", "orig"), ("seqkd-t1", "eta+0-c0"), ("seqkd-t1", tuned)]
    return [*cells, *([("gkd-warm", "eta+0-c0"), ("gkd-warm", tuned)] if side == "A" else [("seqkd-t0", "orig")])]


def _bare(figure: dict[str, Any] | None) -> dict[str, Any] | None:
    return None if figure is None else {**figure, "low": None, "high": None}


def _controls(figures: Figures) -> str:
    rows = []
    for side in ("A", "B"):
        for name in figures:
            found = re.fullmatch(f"controls {side}: students (\\S+) (\\S+): {_STUDENT}", name)
            if found:
                sampled = figures.get(name.replace("greedy", "T = 1"))
                rows.append([side, found.group(1), found.group(2), _number(figures[name]), _number(sampled)])
    return _rows(["side", "teacher of its texts", "students", "greedy", "T = 1"], rows)


def _price(figures: Figures) -> str:
    words = {"accuracy, greedy": 100.0, "accuracy, T = 1": 100.0, "reverse, greedy": 100.0, "largest, greedy": 100.0}
    rows = []
    for head in _heads(figures, "controls [AB]"):
        tids = list(dict.fromkeys(name.split(": ")[1] for name in figures if name.startswith(f"{head}: teacher ")))
        for tid in tids:
            cells = [_number(figures.get(f"{head}: {tid}: {word}"), scale) for word, scale in words.items()]
            cells += [_number(_bare(figures.get(f"{head}: {tid}: {word}")), 1, 2) for word in ("steps written", "tokens a text")]
            cells += [_number(_bare(figures.get(f"{head}: {tid}: step validity")))]
            cells += [_number(_bare(figures.get(f"{head}: {tid}: KL to the original, nats a token")), 1, 3)]
            rows.append([head[-1], tid.removeprefix("teacher "), *cells])
    return _rows(["side", "teacher", *words, "steps written", "tokens a text", "step validity", "KL, nats a token"], rows)


def _variants(figures: Figures) -> str:
    rows = []
    for head in _heads(figures, "variant \\S+"):
        cells = [_number(figures.get(f"{head}: {word}")) for word in ("teacher, greedy", "students, greedy")]
        cells += [_number(figures.get(f"{head}: {w}"), 1, 2) for w in ("steps written", "step validity", "KL, nats a token")]
        cells += [_number(figures.get(f"{head}: {w}"), 1, 0) for w in ("updates until it stopped", "proxy check passes")]
        rows.append([head.removeprefix("variant "), *cells])
    head_row = ["variant", "teacher", "its students", "steps written", "step validity", "KL", "updates", "check passes"]
    return _rows(head_row, rows)


def _proxies(figures: Figures) -> str:
    rows = []
    for head in _heads(figures, r"proxy .*\(expected: \w+\)"):
        names = [next(name for name in figures if name.startswith(f"{head}: {word}")) for word in ("correlation", "steps written")]
        said, truth = (name.rpartition(" ")[2] for name in names)
        values = [_number(figures[name], 1, 2, "+") for name in names]
        rows.append([head.removeprefix("proxy "), values[0], said, values[1], truth, "right" if said == truth else "**wrong**"])
    own = {tuple(row[1:]): row for row in rows}  # a row with the figures of another one says nothing of its own
    right = sum(row[-1] == "right" for row in own.values())
    note = f"\nRows with equal figures counted once, it is right on {right} of {len(own)}.\n" if len(own) < len(rows) else ""
    table = _rows(["proxy", "correlation", "it says", "steps written, η = +0.5 less −0.5", "it is", ""], rows)
    side_b = [[name, _number(figure, 1, 2)] for name, figure in figures.items() if name.startswith("side B, proxy of")]
    return table + note + ("\n" + _rows(["side B's reward", "value"], side_b) if side_b else "")
