"""`distillknob power STUDY`: what a study can show, and what it can't, before anything is run (method §5)."""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distillknob.rewards.errors import UserError
from distillknob.scripts.run import study_file
from distillknob.scripts.study.config import Study
from distillknob.scripts.study.loading import add_override_flags, load_config, overrides_from

ASSUMED = (0.02, 0.05, 0.10)  # spreads between student seeds, where none is known
GAINS = (0.05, 0.10, 0.20)
LIMITS = {"student_sd": 1.0, "control_sd": 1.0, "teacher_sd": 1.0, "gain": 1.0, "discordant": 1.0}


@dataclass(frozen=True)
class Spread:
    """What the power of a study depends on; fractions, None where not known.

    `students`, `control`: standard deviations between student seeds of a cell; `gain`: what the control's students gain over b;
    `seeds`: seeds that the two were estimated from; `source`: where they come from, in words."""

    source: str
    students: float
    control: float
    gain: float | None = None
    seeds: int | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags; every key of the study file is one too."""
    parser.add_argument("study", metavar="STUDY", help="a study file, or the name of one that comes with the package")
    parser.add_argument("--pilot", type=Path, metavar="RUN", help="a measured run folder to take spreads from")
    for name, text in (
        ("student-sd", "standard deviation between students of the calibrated teacher, a fraction (also --control-sd's default)"),
        ("control-sd", "likewise, of the control's students"),
        ("teacher-sd", "standard deviation between calibrated teachers of one eta, of their students' mean accuracy"),
        ("gain", "what the control's students gain over chance, a fraction"),
        ("discordant", "share of test items on which calibrated and original teacher differ"),
    ):
        parser.add_argument(f"--{name}", type=float, help=f"{text} (stated in place of a pilot's)")
    add_override_flags(parser.add_argument_group("keys of the study file"), Study)


def main(arguments: argparse.Namespace) -> None:
    """Prints what the study can show."""
    study = load_config(Study, study_file(arguments.study), overrides_from(arguments))
    for name, most in LIMITS.items():
        value = getattr(arguments, name)
        if value is not None and not 0 <= value <= most:
            raise UserError(f"--{name.replace('_', '-')}: {value:g}; valid: a fraction from 0 to {most:g}")
    if arguments.control_sd is not None and arguments.student_sd is None:
        raise UserError("--control-sd: needs --student-sd beside it")
    spreads, teachers, discordant = _pilot(arguments.pilot) if arguments.pilot else ([], None, None)
    if arguments.student_sd is not None:
        control = arguments.student_sd if arguments.control_sd is None else arguments.control_sd
        spreads = [Spread("stated", arguments.student_sd, control, arguments.gain)]
    if not spreads:
        spreads = [Spread("assumed", value, value, arguments.gain) for value in ASSUMED]
    teachers = teachers if arguments.teacher_sd is None else arguments.teacher_sd
    discordant = discordant if arguments.discordant is None else arguments.discordant
    print("\n".join(describe(study, spreads, teachers, discordant)))


def describe(study: Study, spreads: Sequence[Spread], teachers: float | None = None, discordant: float | None = None) -> list[str]:
    """The lines that say what the study can show. `teachers`: standard deviation between calibrated teachers; `discordant`: share
    of test items on which the calibrated and the original teacher differ; None where not known."""
    seeds, calibrations, confidence = study.student_seeds, study.calibration_seeds, study.verdicts.confidence
    lines = [
        f"{study.name}: {_count(seeds, 'student seed')} a cell, {_count(calibrations, 'calibration seed')}, "
        f"{study.measure.items:,} test items; seen: with a chance of 80 %, by limits at {100 * confidence:g} % two-sided",
        _utility(study, discordant),
    ]
    for spread in spreads:
        lines += [_heading(spread), *_over_seeds(study, spread)]
    return [*lines, *_over_teachers(study, spreads[-1], teachers)]


def _utility(study: Study, discordant: float | None) -> str:
    from distillknob.eval.power import detectable_margin, needed_items

    margin, items, confidence = study.verdicts.utility_margin, study.measure.items, study.verdicts.confidence
    most = min(1.0, items / needed_items(1.0, margin, confidence))
    words = f"utility kept, margin {_points(margin)}: seen where up to {100 * most:.1f} % of the items are discordant"
    if discordant is None:
        return words
    needed, smallest = needed_items(discordant, margin, confidence), detectable_margin(discordant, items, confidence)
    return f"{words}; at {100 * discordant:.1f} % it takes {needed:,} items, and these see a margin of {_points(smallest)}"


def _heading(spread: Spread) -> str:
    words = f"spread between student seeds {spread.source}: {_points(spread.students)}, of the control's {_points(spread.control)}"
    if spread.seeds is None:
        return words
    from scipy.stats import chi2

    low, high = (math.sqrt((spread.seeds - 1) / chi2.ppf(q, spread.seeds - 1)) for q in (0.975, 0.025))
    return f"{words} (from {spread.seeds} seeds: the true ones are {low:.1f} to {high:.1f} times that)"


def _over_seeds(study: Study, spread: Spread) -> list[str]:
    from distillknob.eval.power import DIFFERENCE, detectable_effect, needed_seeds
    from distillknob.eval.verdicts import MINIMUM_SEEDS

    if study.student_seeds < MINIMUM_SEEDS:
        return [f"  nothing about students: a verdict needs at least {MINIMUM_SEEDS} seeds a cell"]
    rules, both = study.verdicts, (spread.students, spread.control)
    gain = detectable_effect(both, DIFFERENCE, study.student_seeds, rules.confidence) or 0.0
    needed = [needed_seeds(one, both, DIFFERENCE, rules.confidence) for one in GAINS]
    seeds = ", ".join(
        f"{100 * one:g} points take {max(count, MINIMUM_SEEDS) if count else 'over 1,000'}"
        for one, count in zip(GAINS, needed, strict=True)
    )
    lines = [f"  better teacher: a gain of {_points(gain)} or more is seen; {seeds} seeds a cell"]
    fraction = rules.collapse_fraction
    depth = detectable_effect(both, (1.0, -fraction), study.student_seeds, rules.confidence) or 0.0
    words = f"  collapse: seen where students end {_points(depth)} or more below the mark"
    if spread.gain is not None and spread.gain < rules.minimum_headroom:
        words = f"  collapse: nothing, since the control's students gain {_points(spread.gain)}, under the "
        words += f"{_points(rules.minimum_headroom)} that the rule asks for"
    elif spread.gain is not None:
        kept = fraction - depth / spread.gain
        share = f"keep up to {100 * kept:.0f} %" if kept > 0 else "keep nothing, if at all"
        words += f": with a gain of the control's of {_points(spread.gain)}, where they {share} of it (mark: {100 * fraction:g} %)"
    return [*lines, words]


def _over_teachers(study: Study, spread: Spread, teachers: float | None) -> list[str]:
    from distillknob.eval.power import detectable_effect
    from distillknob.eval.verdicts import MINIMUM_SEEDS

    if study.calibration_seeds < MINIMUM_SEEDS:
        return [f"about an eta: nothing, only about single teachers; that needs calibration_seeds of {MINIMUM_SEEDS} or more"]
    if teachers is None:
        return ["about an eta: the spread between calibrated teachers is not known (--teacher-sd, or a pilot with several)"]
    deviation = math.sqrt(2 * teachers**2 + (spread.students**2 + spread.control**2) / study.student_seeds)
    gain = detectable_effect((deviation,), (1.0,), study.calibration_seeds, study.verdicts.confidence) or 0.0
    return [f"about an eta, spread between calibrated teachers {_points(teachers)}: a gain of {_points(gain)} or more is seen"]


def _pilot(run: Path) -> tuple[list[Spread], float | None, float | None]:
    """Spreads of a measured run's calibrated cells and their controls, between its η = 0 teachers, and the share of discordant
    items, the largest that it has."""
    from distillknob.eval.statistics import between_deviation
    from distillknob.rewards.jsonl import read_json

    path = run / "measures" / "summary.json"
    if not path.is_file():
        raise UserError(f"--pilot: {run} has no measures/summary.json; valid: a finished run of `distillknob run`")
    summary: dict[str, Any] = read_json(path)
    try:
        spreads = list(_spreads(summary))
        students, teachers = summary["students"], summary["teachers"]
        kept = [one["utility"] for one in teachers.values() if one["eta"]]
        shares = [one["discordant"] / one["items"] for one in kept if one]
        controls = [students.get(tid, {}) for tid, one in teachers.items() if one["eta"] == 0]
        cells = [
            [its[sid]["per_seed"] for its in controls if sid in its] for sid in dict.fromkeys(k for its in controls for k in its)
        ]
        between = [between_deviation(cell).value for cell in cells if len(cell) > 1 and min(map(len, cell)) > 1]
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path}: not a summary ({error!r}); `distillknob measure {run}` writes it anew") from error
    if not spreads:
        raise UserError(f"--pilot: {run} has no calibrated teacher whose students and control have two seeds or more")
    return spreads, max((one for one in between if one is not None), default=None), max(shares, default=None)


def _spreads(summary: dict[str, Any]) -> list[Spread]:
    found, students = [], summary["students"]
    for tid, control in summary["controls"]["control"].items():
        for sid, cell in students.get(tid, {}).items():
            other = students.get(control, {}).get(sid)
            if other is None or min(len(cell["per_seed"]), len(other["per_seed"])) < 2:
                continue
            seeds = min(len(cell["per_seed"]), len(other["per_seed"]))
            gain = other["accuracy"]["value"] - summary["controls"]["floor"]["value"]
            mine, its = (statistics.stdev(one["per_seed"]) for one in (cell, other))
            found.append(Spread(f"of the pilot, {tid}, {sid}", mine, its, gain, seeds))
    return found


def _points(value: float) -> str:
    return f"{100 * value:.1f} points"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
