"""Figures and sentences as the report page prints them: every text that is not ours passes through `visible`."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any

from markupsafe import Markup, escape

Json = dict[str, Any]

CUT = 400  # characters of a text shown before the fold
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


def show(value: object) -> object:
    """Applied to whatever the template prints: a dash for nothing, `visible` for every text that is not HTML of ours."""
    if value is None or value == "":
        return "—"
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def tidy(text: str) -> str:
    """A sentence of ours from another room as the page prints numbers: a true minus sign, and no sign in front of a zero."""
    signed_zero = re.sub(r"(?<![\w.])[-+−](0(?:\.0+)?)(?![\w.]*\d)", r"\1", text)
    return re.sub(r"(?<![\w.)])-(?=\d)", "−", signed_zero)


def signed(eta: float) -> str:
    """η as it is printed: a real minus sign, a plus sign in front of positive values, plain 0."""
    return f"{eta:+g}".replace("-", "−") if eta else "0"


def number(value: float | None, digits: int = 2) -> str:
    """A number with fixed decimals, a dash where it is undefined."""
    return "—" if value is None else tidy(f"{value:.{digits}f}")


def pct(value: float | None) -> str:
    """A fraction as percent with one decimal, a dash where it is undefined."""
    return "—" if value is None else f"{number(100 * value, 1)}{NBSP}%"


def interval(cell: Mapping[str, Any] | None, digits: int | None = None) -> str:
    """`value (low–high)` of an interval object, in percent (one decimal), or as numbers where `digits` is given."""
    if not cell or cell.get("value") is None:
        return "—"
    scale, places = (100.0, 1) if digits is None else (1.0, digits)
    unit = f"{NBSP}%" if digits is None else ""
    value, low, high = (None if cell.get(k) is None else scale * float(cell[k]) for k in ("value", "low", "high"))
    text = f"{number(value, places)}{unit}"
    if low is None or high is None:
        return text
    dash = " to " if low < 0 else "–"
    return f"{text} ({number(low, places)}{dash}{number(high, places)})"


def stack(cell: Mapping[str, Any] | None, digits: int | None = None) -> Markup:
    """`interval` for a table: the brackets on a line of their own."""
    value, _, limits = interval(cell, digits).partition(" (")
    return escape(value) + (Markup('<span class="small">({}</span>').format(limits) if limits else Markup(""))


def points(cell: Mapping[str, Any] | None) -> str:
    """A difference of accuracies in points, with its 95 % interval where there is one."""
    if not cell or cell.get("value") is None:
        return "—"
    ends = [None if cell.get(k) is None else tidy(f"{100 * float(cell[k]):+.1f}") for k in ("value", "low", "high")]
    value, low, high = ends
    return f"{value} points" + (f" (95{NBSP}% interval {low} to {high})" if low is not None and high is not None else "")


def p_value(value: float | None) -> str:
    """A p value with three decimals, a dash where it is undefined."""
    if value is None:
        return "—"
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def fold(text: str | None) -> Json:
    """A text cut after CUT characters: {"head", "rest", "more": characters behind the fold}."""
    text = text or ""
    return {"head": text[:CUT], "rest": text[CUT:], "more": max(0, len(text) - CUT)}


def off_aim(eta: float | None, verdict: str) -> str | None:
    """What to say where a verdict ("collapse" | "better") is not what the dial asks for at this η, else None."""
    if eta and verdict == ("better" if eta < 0 else "collapse"):
        return f"not what η {'<' if eta < 0 else '>'} 0 aims at"
    return None


def overlap(first: Mapping[str, Any] | None, second: Mapping[str, Any] | None) -> bool:
    """Whether two interval objects share a point; False where a limit is undefined."""
    ends = [float(e) for cell in (first, second) for k in ("low", "high") if (e := (cell or {}).get(k)) is not None]
    return len(ends) == 4 and ends[0] <= ends[3] and ends[2] <= ends[1]


def always_chance(per_seed: Iterable[float | None] | None, majority: float | None) -> bool:
    """Whether two or more seeds all have the accuracy of the most common answer, as students do that never say anything else."""
    values = list(per_seed or ())
    return majority is not None and len(values) > 1 and all(v is not None and abs(v - majority) < 1e-9 for v in values)


def guard_sentence(guard: Mapping[str, Any]) -> str:
    """One entry of calibration.json's `guards` in words: a breach that stopped or rolled back, or a ceiling passed at the end."""
    value, limit, restored = guard.get("value"), number(guard.get("limit"), 3), guard.get("restored")
    if guard.get("action") == "told at the end":
        return (
            f"No guard tripped, but the finished weights are past {guard['guard']}: their KL over the full vocabulary is "
            f"{number(value, 3)}, the limit {limit}."
        )
    seen = "its value was not a number" if value is None else f"value {number(value, 3)}"
    if guard.get("action") == "stop":
        then = "the calibration was stopped there; the weights are those it had then"
    elif restored == "start":
        then = "the weights are those from before the first step, the original's"
    else:
        then = f"the weights are those of {restored}" if restored else "it was to be rolled back, but no checkpoint is named"
    return f"The guard {guard['guard']} tripped at step {guard.get('step')} ({seen}, limit {limit}): {then}."


def _share(value: float) -> str:
    """A share in percent that does not print something as nothing."""
    return f"< 0.1{NBSP}%" if 0 < value < 0.0005 else pct(value)


def shares_sentence(shares: Mapping[str, float | None], eta: float) -> str:
    """calibration.json's `shares` in words, "" where nothing was recorded; reasons with a share of 0 are not listed."""
    said, signal, clipped = [], shares.get("groups_with_signal"), shares.get("clipped")
    if signal is not None:
        acts = "could act" if eta else "has weight 0; else it could have acted"
        said.append(f"The calibration reward {acts} in {_share(signal)} of the groups.")
    left = {k.removeprefix("left_out/"): v for k, v in shares.items() if k.startswith("left_out/") and v is not None}
    if left:
        named = ", ".join(f"{reason} {_share(v)}" for reason, v in left.items() if v > 0)
        said.append(f"Texts left out of it: {named or 'none'}.")
    if clipped is not None:
        said.append(f"Tokens clipped at its floor: {_share(clipped)}.")
    return " ".join(said)
