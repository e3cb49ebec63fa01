"""The picture of the dial: accuracy of teachers and students against η; the same summary gives the same bytes."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from distillknob.eval.cells import ORIGINAL
from distillknob.scripts.report.names import controls, on_dial
from distillknob.scripts.report.words import NBSP, signed

Json = Mapping[str, Any]

# The jitter rule: seed j sits at the fraction (j · golden ratio) mod 1.
GOLDEN = 0.6180339887
SERIES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00")  # Okabe and Ito: told apart with any colour vision
SERIES_DARK = ("#56B4E9", "#FF9A4D", "#2FD3A4", "#E79CC8", "#F0C04A")  # the same hues, lighter, for a dark page
MARKERS = ("s", "o", "^", "D", "v")  # shape as well as colour
CONTROLS = 8  # lines of controls at most; the others stand in the page's table alone


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


def positions(summary: Json) -> tuple[dict[str, float], float]:
    """Where each teacher stands on the x axis (η; the original apart at the left), and the unit of offsets. Other teachers
    without η stand nowhere.

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
            if tid == ORIGINAL:
                where[tid] = start
            continue
        same = sorted(k for k, t in teachers.items() if t.get("eta") == teacher["eta"])
        where[tid] = float(teacher["eta"]) + unit * min(0.12, 0.4 / len(same)) * (same.index(tid) - (len(same) - 1) / 2)
    return where, unit


def _spread(levels: Sequence[float], sizes: Sequence[float]) -> list[float]:
    """Heights of labels (percent), of these sizes, for lines at these ascending levels: in order, none over another, within the
    axis where they fit, as near to their lines as that allows (least squares: pool adjacent violators)."""
    stacked = [sum(sizes[:i]) + (size - sizes[0]) / 2 for i, size in enumerate(sizes)]  # centres in a stack without gaps
    pools: list[list[float]] = []
    for level, centre in zip(levels, stacked, strict=True):
        pools.append([level - centre])
        while len(pools) > 1 and sum(pools[-2]) / len(pools[-2]) > sum(pools[-1]) / len(pools[-1]):
            last = pools.pop()
            pools[-1] += last
    lowest = [sum(pool) / len(pool) for pool in pools for _ in pool]
    return [max(0.0, min(low, 100 - stacked[-1])) + centre for low, centre in zip(lowest, stacked, strict=True)]


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


def _levels(summary: Json) -> list[tuple[float, str, tuple[int, ...]]]:
    """Height, label and dashes of the lines: chance, S_0, and the students that have no place on the dial."""
    base = _percent(((summary.get("controls") or {}).get("S_0") or {}).get("accuracy"))
    chance = (summary.get("task") or {}).get("majority")
    levels: list[tuple[float, str, tuple[int, ...]]] = []
    if chance is not None:
        levels.append((100 * float(chance), f"chance {100 * chance:.1f}{NBSP}%", (1, 2)))
    if base:
        levels.append((base[0], f"S_0 {base[0]:.1f}{NBSP}%", (5, 3)))
    for control in controls(summary)[:CONTROLS]:
        if p := _percent(control.cell.get("accuracy")):
            levels.append((p[0], f"{textwrap.shorten(control.name, 40)}: {p[0]:.0f}{NBSP}%", (8, 2, 1, 2)))
    return sorted(levels)


def _lines(axes: Any, summary: Json, look: Look) -> None:
    """Lines across the dial with their labels beside the right edge, each led to its line."""
    levels, small = _levels(summary), look.width < 6
    if not levels:
        return
    texts = [textwrap.fill(text, 16) if small else text for _, text, _ in levels]
    sizes = [(5.2 if small else 5.5) * 4.6 / look.height * (1 + text.count("\n")) for text in texts]
    heights = _spread([level for level, _, _ in levels], sizes)
    for (level, _, dashes), text, height in zip(levels, texts, heights, strict=True):
        axes.axhline(level, color=look.faint, linewidth=1.0, linestyle=(0, dashes), zorder=1)
        axes.annotate(
            text,
            (1, level),
            xycoords=("axes fraction", "data"),
            xytext=(1.03, height),
            textcoords=("axes fraction", "data"),
            va="center",
            color=look.ink,
            fontsize=8.5 if small else 9.5,
            linespacing=1.0,
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": look.faint, "linewidth": 0.7, "shrinkA": 0, "shrinkB": 0, "relpos": (0, 0.5)},
        )


def _axes(axes: Any, summary: Json, look: Look, where: Mapping[str, float], unit: float) -> None:
    """Ticks, labels, grid and the line that sets the original apart from the dial."""
    teachers: Json = summary.get("teachers") or {}
    ticks = {float(t["eta"]): signed(float(t["eta"])) for t in teachers.values() if t.get("eta") is not None}
    start = [where[ORIGINAL]] if ORIGINAL in where else []
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
    """The figure: series 0 are the teachers, then one series a student kind (SID) of calibrated teachers, with small dots for the
    seeds."""
    where, unit = positions(summary)
    students: Json = summary.get("students") or {}
    sids = sorted(on_dial(summary))
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
