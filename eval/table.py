"""The summary of a run as plain text for a terminal (ours)."""

from typing import Any

Json = dict[str, Any]


def _percent(interval: Json) -> str:
    if interval["value"] is None:
        return "–"
    text = f"{100 * interval['value']:.1f}"
    return text if interval["low"] is None else f"{text} [{100 * interval['low']:.1f}, {100 * interval['high']:.1f}]"


def _columns(rows: list[list[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _folded(rows: list[list[str]], width: int = 120) -> list[str]:
    """As `_columns`; columns that would pass `width` follow below, behind the first column again."""
    fit = len(rows[0])
    while fit > 2 and max(map(len, _columns([row[:fit] for row in rows]))) > width:
        fit -= 1
    rest = [[row[0], *row[fit:]] for row in rows]
    return _columns([row[:fit] for row in rows]) + (["", *_folded(rest, width)] if len(rest[0]) > 1 else [])


def _price(summary: Json) -> list[list[str]]:
    """What the owner pays, a row a teacher: the look of its texts, KL to the original, accuracy on the other tasks."""
    teachers: Json = summary["teachers"]
    most, others = summary["task"]["explicit_max"], dict.fromkeys(name for row in teachers.values() for name in row["others"])
    chance = {name: row["others"][name]["majority"] for row in teachers.values() for name in row["others"]}
    head = ["teacher", "tokens", f"steps of {most:g}" if most else "steps", "true", "KL"]
    rows = [[*head, *(f"{name} (chance {100 * chance[name]:.1f})" for name in others)]]
    for tid, row in teachers.items():
        traces, kl = row["traces"], ((row["calibration"] or {}).get("kl") or {}).get("full_vocabulary") or {}
        numbers = ((traces["tokens"], 1, 1), (traces["explicit"], 1, 2), (traces["step_validity"], 100, 1), (kl, 1, 3))
        shown = ["–" if one.get("value") is None else f"{scale * one['value']:.{digits}f}" for one, scale, digits in numbers]
        rows.append(
            [tid, *shown, *(_percent(row["others"][name]["accuracy"]) if name in row["others"] else "–" for name in others)]
        )
    return rows


def _of_an_eta(eta: str, found: Json) -> list[str]:
    """Verdicts on an η as lines; one line where there are too few calibrated teachers for any."""
    students = [(f"{sid}, {key}", one[key]) for sid, one in found["students"].items() for key in ("collapse", "better")]
    judged = [("utility kept", found["utility"]), *students]
    if len({one["reason"] for _, one in judged}) == 1:
        return [f"{eta}: {found['utility']['verdict']}: {found['utility']['reason']}"]
    return [f"{eta}, {what}: {one['verdict']}: {one['reason']}" for what, one in judged]


def summary_table(summary: Json) -> str:
    """The summary as plain text for a terminal, in percent, chance beside every accuracy (b; of another task its most frequent
    answer), each verdict with its reason below (ours)."""
    floor, task = summary["controls"]["floor"], summary["task"]
    chance = f"{100 * floor['value']:.1f}"
    source = "the student before distillation" if floor["source"] == "S_0" else "always the most frequent answer"
    teachers = [["teacher", "eta", "accuracy", "at T = 1", "chance", "utility kept"]]
    students = [["teacher", "student cell", "seeds", "accuracy", "at T = 1", "chance", "retained", "collapse", "better teacher"]]
    reasons = []
    for tid, row in summary["teachers"].items():
        eta = "–" if row["eta"] is None else f"{row['eta']:+g}"
        utility = row["utility"]
        teachers.append(
            [tid, eta, _percent(row["accuracy"]), _percent(row["accuracy_t1"]), chance, utility["verdict"] if utility else "–"]
        )
        if utility:
            reasons.append(f"{tid}, utility kept: {utility['verdict']}: {utility['reason']}")
        for other, its in row["others"].items():
            if its["kept"]:
                reasons.append(f"{tid}, {other} kept: {its['kept']['verdict']}: {its['kept']['reason']}")
        if row["undistillable"] and len(row["undistillable"]["copiers"]) > 1:
            reasons.append(f"{tid}, by every copier tried: {row['undistillable']['verdict']}: {row['undistillable']['reason']}")
    for tid, by_sid in summary["students"].items():
        for sid, row in by_sid.items():
            shown = [tid, sid, str(len(row["seeds"])), _percent(row["accuracy"]), _percent(row["accuracy_t1"]), chance]
            shown.append(_percent(row["retained"]) if row["retained"] else "–")
            for key, label in (("collapse", "collapse"), ("better", "better teacher")):
                shown.append(row[key]["verdict"] if row[key] else "–")
                if row[key]:
                    reasons.append(f"{tid}, {sid}, {label}: {row[key]['verdict']}: {row[key]['reason']}")
            students.append(shown)
    for eta, found in summary["etas"].items():
        reasons += _of_an_eta(eta, found)
    head = f"{summary['name']}: task {task['name']}, {task['items']} test items"
    head += f"; in percent, 95 % limits in brackets; chance is b = {chance} ({source})"
    note = (
        "what the owner pays: tokens and written steps a text, texts whose steps are all true, KL to the original in nats a token"
    )
    price = [note, *_folded(_price(summary))]
    return "\n".join([head, "", *_columns(teachers), "", *price, "", *_columns(students), "", *reasons])
