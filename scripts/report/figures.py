"""The picture of the dial: accuracy of teachers and students against η; the same summary gives the same bytes."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

Json = Mapping[str, Any]

# The jitter rule: seed j sits at the fraction (j · golden ratio) mod 1.
GOLDEN = 0.6180339887
SERIES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00")  # Okabe and Ito: told apart with any colour vision
SERIES_DARK = ("#56B4E9", "#FF9A4D", "#2FD3A4", "#E79CC8", "#F0C04A")  # the same hues, lighter, for a dark page
MARKERS = ("s", "o", "^", "D", "v")  # shape as well as colour


@dataclass(frozen=True)
class Look:
    """How one drawing looks: width and height in inches, and whether it stands on a dark page."""

    width: float = 8.4
    height: float = 4.6
    dark: bool = False

    @property
    def ink(self) -> str:
        """Colour of text and axes."""
        return "#e8e6e1" if self.dark else "#1d1f23"

    @property
    def faint(self) -> str:
        """Colour of the grid and of the lines of chance and S_0."""
        return "#8b8f97" if self.dark else "#6b7078"

    @property
    def colours(self) -> tuple[str, ...]:
        """Colours of the series, the teachers' first."""
        return SERIES_DARK if self.dark else SERIES


def signed(eta: float) -> str:
    """η as it is printed: a real minus sign, a plus sign in front of positive values, plain 0."""
    return f"{eta:+g}".replace("-", "−") if eta else "0"


def positions(summary: Json) -> tuple[dict[str, float], float]:
    """Where each teacher stands on the x axis (η; the original apart at the left), and the unit of offsets.

    Calibration seeds of one η stand side by side. The unit is the least distance between two neighbours, so that offsets never
    reach the next tick. Source: ours.
    """
    teachers: Json = summary.get("teachers") or {}
    etas = sorted({float(t["eta"]) for t in teachers.values() if t.get("eta") is not None})
    gaps = [b - a for a, b in pairwise(etas)]
    unit = min(gaps, default=1.0)
    span = etas[-1] - etas[0] if len(etas) > 1 else unit
    start = (etas[0] if etas else 0.0) - max(unit, 0.3 * span)
    where: dict[str, float] = {}
    for tid, teacher in teachers.items():
        if teacher.get("eta") is None:
            where[tid] = start
            continue
        same = sorted(k for k, t in teachers.items() if t.get("eta") == teacher["eta"])
        where[tid] = float(teacher["eta"]) + unit * min(0.12, 0.4 / len(same)) * (same.index(tid) - (len(same) - 1) / 2)
    return where, unit


def _spread(levels: list[tuple[float, str]], least: float) -> list[float]:
    """Heights of labels that keep the order of their lines and stand at least `least` apart (percent)."""
    heights: list[float] = []
    for level, _ in levels:
        heights.append(max(level, heights[-1] + least) if heights else level)
    shift = sum(h - level for h, (level, _) in zip(heights, levels, strict=True)) / max(len(levels), 1)
    return [h - shift for h in heights]


def _percent(interval: Json | None) -> tuple[float, float, float] | None:
    """(value, down, up) in percent; the error bar's lengths are NaN (not drawn) without an interval; None without a value."""
    if not interval or interval.get("value") is None:
        return None
    value = 100 * float(interval["value"])
    low, high = interval.get("low"), interval.get("high")
    if low is None or high is None:
        return value, float("nan"), float("nan")
    return value, max(0.0, value - 100 * float(low)), max(0.0, 100 * float(high) - value)


def _series(axes: Any, number: int, look: Look, name: str, points: list[tuple[float, tuple[float, float, float]]]) -> None:
    """One series: points with error bars, joined by a thin line along η; the original (first) is not joined."""
    colour, marker = look.colours[number % len(look.colours)], MARKERS[number % len(MARKERS)]
    x = [p[0] for p in points]
    value, down, up = ([p[1][i] for p in points] for i in range(3))
    axes.errorbar(
        x,
        value,
        yerr=[down, up],
        fmt=marker,
        color=colour,
        ecolor=colour,
        elinewidth=1.6,
        capsize=3.5,
        markersize=7,
        markeredgecolor="#15171b" if look.dark else "white",
        markeredgewidth=0.8,
        zorder=4,
    )
    axes.plot([], [], marker, color=colour, markersize=7, label=name)  # the legend shows the marker alone


def _lines(axes: Any, summary: Json, look: Look) -> None:
    """Chance and S_0 as dashed lines with their labels at the right edge."""
    controls: Json = summary.get("controls") or {}
    base = _percent((controls.get("S_0") or {}).get("accuracy"))
    chance = (summary.get("task") or {}).get("majority")
    levels = [(100 * float(chance), f"chance {100 * chance:.1f} %")] if chance is not None else []
    if base:
        levels.append((base[0], f"S_0 {base[0]:.1f} %"))
    levels.sort()
    least = 5.5 * 4.6 / look.height
    for (level, text), height in zip(levels, _spread(levels, least), strict=True):
        dashes = (1, 2) if text.startswith("chance") else (5, 3)
        axes.axhline(level, color=look.faint, linewidth=1.2, linestyle=(0, dashes), zorder=1)
        axes.annotate(
            text,
            (1, level),
            xycoords=("axes fraction", "data"),
            xytext=(1.015, height),
            textcoords=("axes fraction", "data"),
            va="center",
            color=look.ink,
            fontsize=9.5,
            annotation_clip=False,
        )


def _axes(axes: Any, summary: Json, look: Look, where: Mapping[str, float], unit: float) -> None:
    """Ticks, labels, grid and the line that sets the original apart from the dial."""
    teachers: Json = summary.get("teachers") or {}
    ticks = {float(t["eta"]): signed(float(t["eta"])) for t in teachers.values() if t.get("eta") is not None}
    start = [where[k] for k, t in teachers.items() if t.get("eta") is None]
    axes.set_xticks([*start, *sorted(ticks)], [*["original"] * len(start), *(ticks[k] for k in sorted(ticks))])
    spots = [*start, *ticks] or [0.0]
    if look.width < 6 and len(spots) > 5:
        axes.tick_params(axis="x", rotation=60)
    axes.set_xlim(min(spots) - 0.55 * unit, max(spots) + 0.55 * unit)
    if start and ticks:
        axes.axvline((start[0] + min(ticks)) / 2, color=look.faint, linewidth=0.8, alpha=0.6)
    axes.set_ylim(-2, 102)
    axes.set_yticks(range(0, 101, 20))
    axes.set_xlabel(
        "η of the calibration (negative: harder to distil, positive: easier)" if look.width > 6 else "η of the calibration"
    )
    axes.set_ylabel("accuracy on the test items, %")
    axes.grid(axis="y", color=look.faint, alpha=0.25, linewidth=0.8)
    axes.tick_params(length=0, colors=look.ink)
    axes.set_axisbelow(True)
    for name, spine in axes.spines.items():
        spine.set_visible(name == "bottom")
        spine.set_color(look.faint)


def _draw(summary: Json, names: Mapping[str, str], look: Look) -> Figure:
    """The figure: series 0 are the teachers, then one series a student kind (SID), with small dots for the seeds."""
    where, unit = positions(summary)
    students: Json = summary.get("students") or {}
    sids = sorted({sid for tid, cells in students.items() if tid in where for sid in cells or {}})
    figure = Figure(figsize=(look.width, look.height), layout="constrained", facecolor="none")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot(facecolor="none")
    _lines(axes, summary, look)
    shift = 0.26 * unit / max(len(sids), 1)
    taught = [(where[t], p) for t, cell in summary["teachers"].items() if (p := _percent(cell.get("accuracy"))) and t in where]
    if taught:
        _series(axes, 0, look, "teacher", [(x - 0.1 * unit, p) for x, p in taught])
    for number, sid in enumerate(sids, start=1):
        colour = look.colours[number % len(look.colours)]
        points = []
        for tid, x in where.items():
            cell = (students.get(tid) or {}).get(sid) or {}
            centre = x + (number - 1) * shift
            if p := _percent(cell.get("accuracy")):
                points.append((centre, p))
            seeds = [(j, 100 * float(v)) for j, v in enumerate(cell.get("per_seed") or []) if v is not None]
            axes.scatter(
                [centre + unit * (0.04 + 0.05 * (j * GOLDEN % 1)) for j, _ in seeds],
                [v for _, v in seeds],
                s=15,
                color=colour,
                alpha=0.6,
                linewidths=0,
                zorder=3,
            )
        if points:
            _series(axes, number, look, textwrap.shorten(names.get(sid, sid), 60), points)
    _axes(axes, summary, look, where, unit)
    columns = 1 if look.width < 6 else min(3, len(sids) + 1)
    if taught or sids:
        figure.legend(loc="outside upper left", ncols=columns, frameon=False, labelcolor=look.ink, fontsize=9.5, handletextpad=0.4)
    return figure


def dial(summary: Json, names: Mapping[str, str], look: Look, form: str) -> bytes:
    """The dial as SVG (text stays text) or PNG bytes; no date and no random id in them, so equal input gives equal bytes.

    Args: summary = measures/summary.json; names = SID → words for the legend; form = "svg" | "png".
    Source: ours; intervals are the summary's (Wilson over items for teachers, t over seeds for students).
    """
    rules = {
        "svg.fonttype": "none",
        "svg.hashsalt": "distillknob",
        "font.family": "DejaVu Sans",
        "font.size": 10.5,
        "text.parse_math": False,
        "text.color": look.ink,
        "axes.labelcolor": look.ink,
        "xtick.color": look.ink,
        "ytick.color": look.ink,
    }
    paper = "none" if form == "svg" else "white"
    with matplotlib.rc_context(rules):
        out = io.BytesIO()
        metadata = {"Date": None, "Creator": "distillknob"} if form == "svg" else {"Software": "distillknob"}
        _draw(summary, names, look).savefig(out, format=form, dpi=160, metadata=metadata, facecolor=paper)
        return out.getvalue()
