"""`make show-null`: how often the verdicts err where nothing is there, and how often they see what was planted.

PART=pool trains 48 students of one η = 0 teacher and judges splits of them; PART=teachers trains five students of each of eight
η = 0 teachers. Everything else is read from their saved predictions. Studies lie in $(RUNS)/show-null and are continued.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from itertools import permutations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.show.results import ROOT, Figure, run_parts
from distillknob.eval.cells import Run, load_run, majority_of, read_predictions, right_of
from distillknob.eval.power import DIFFERENCE, contrast_power, needed_items
from distillknob.eval.rules import VerdictRules
from distillknob.eval.statistics import between_deviation, mean_interval, wilson_interval
from distillknob.eval.verdicts import AGAINST, HOLDS, Outcome, better_verdict, collapse_verdict, utility_verdict

RUNS = Path(os.environ.get("RUNS", "runs")).resolve() / "show-null"
RULES = VerdictRules()
CONTROL, SID = "eta+0-c0", "lab-seqkd-t1-chain"
POOL, TEACHERS, SEEDS, TRIALS, PLANTED_TRIALS = 48, 8, 5, 2000, 500
BOUND = 0.035  # of each kind of error, at a nominal .025
Right = NDArray[np.int8]  # (students or teachers, items), 1 for a right answer


def study(name: str, *flags: str) -> Run:
    """Side A of the dial with η = 0 alone, root seed 1; what another study of ours has made is taken over."""
    run = RUNS / name
    recipes = [{"recipe": "seqkd", "temperature": 1.0, "samples": 2000, "steps": 800, "teachers": "calibrated"}]
    words = [str(Path(sys.executable).parent / "distillknob"), "run", str(ROOT / "configs" / "undistillable.yaml")]
    words += ["--output", str(run), "--etas", "[0]", "--others", "[]", "--recipes", json.dumps(recipes), *flags]
    for other in (RUNS / "pool", RUNS / "teachers"):
        if other != run and (other / ".stages").is_dir():
            words += ["--reuse", str(other)]
    subprocess.run(words, cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
    return load_run(run)


def right(run: Run, tid: str) -> Right:
    """Greedy outcomes of the students of a teacher, a row a student, a column a test item."""
    cells = run.students[tid][SID].cells
    return np.array([_greedy(cell.predictions_path(run.folder)) for cell in cells], dtype=np.int8)


def _greedy(path: Path) -> list[int]:
    return right_of(read_predictions(path).greedy.values())


def splits(count: int, size: int, trials: int, rng: np.random.Generator) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Random pairs of disjoint groups of `size` students each."""
    drawn = [rng.permutation(count)[: 2 * size] for _ in range(trials)]
    return [(one[:size], one[size:]) for one in drawn]


def rates(
    name: str, outcomes: list[Outcome], members: list[set[int]] | None = None, count: int = POOL, asked: bool = True
) -> dict[str, Figure]:
    """Shares of *holds* and *does not hold*, with the jackknife interval of the pool: each of its `count` members left out with all
    trials that it is in. Without `members`, trials that are independent given the pool: Wilson."""
    figures = {}
    for outcome in (HOLDS, AGAINST):
        hits = np.array([one == outcome for one in outcomes], dtype=float)
        value = float(hits.mean())
        if members is None:
            found = wilson_interval(int(hits.sum()), len(hits))
            low, high = found.low, found.high
        else:
            without = np.array([hits[[member not in chosen for chosen in members]].mean() for member in range(count)])
            error = float(np.sqrt((count - 1) / count * ((without - without.mean()) ** 2).sum()))
            low, high = max(0.0, value - 1.96 * error), min(1.0, value + 1.96 * error)
        words = f"≤ {BOUND}" if asked else None
        figures[f"{name}: {outcome}"] = Figure(value, low, high, words, value <= BOUND if asked else None)
    return figures


def _judged(
    name: str, judge: Callable[[NDArray[np.int64], NDArray[np.int64]], Outcome], rng: np.random.Generator
) -> dict[str, Figure]:
    drawn = splits(POOL, SEEDS, TRIALS, rng)
    return rates(name, [judge(one, two) for one, two in drawn], [{*one, *two} for one, two in drawn])


def mixed(control: Right, floor: Right, kept: float, rng: np.random.Generator) -> Right:
    """Students that keep each of the control's answers with probability `kept`, and else answer as the floor does."""
    return np.where(rng.random(control.shape) < kept, control, floor).astype(np.int8)


def lowered(control: Right, loss: float, rng: np.random.Generator) -> Right:
    """Students of which right answers were made wrong, each as likely, until the pool's mean is lower by `loss`."""
    keep = 1 - loss / float(control.mean())
    return (control * (rng.random(control.shape) < keep)).astype(np.int8)


def pool() -> dict[str, Figure]:
    """(a) better, (c) collapse, and power, on 48 students of one teacher."""
    run, rng = study("pool", "--student_seeds", str(POOL)), np.random.default_rng(1)
    control = right(run, CONTROL)
    accuracy = control.mean(axis=1)
    spread = mean_interval(list(accuracy))
    figures = {
        "pool: students": Figure(float(len(control))),
        "pool: accuracy": Figure(spread.value, spread.low, spread.high),
        "pool: standard deviation between students": Figure(float(accuracy.std(ddof=1))),
        "pool: floor b": Figure(run.floor),
    }

    def better(one: NDArray[np.int64], two: NDArray[np.int64]) -> Outcome:
        return better_verdict(list(accuracy[one]), list(accuracy[two]), list(accuracy[two]), RULES).verdict  # one comparison

    figures |= _judged("(a) better, one comparison, no difference", better, rng)
    floor = floor_answers(run, len(control))
    half = mixed(control, floor, 0.5, rng).mean(axis=1)
    base = float(2 * half.mean() - accuracy.mean())  # the b at which the pool's L is 0, whatever the coins gave

    def collapse(one: NDArray[np.int64], two: NDArray[np.int64]) -> Outcome:
        return collapse_verdict(list(half[one]), list(accuracy[two]), base, RULES).verdict

    figures |= _judged("(c) collapse, L = 0", collapse, rng)
    return figures | power(control, floor, run.floor, rng)


def floor_answers(run: Run, count: int) -> Right:
    """Outcomes of the floor on the test items: of the most frequent answer, or of the students before distillation if better."""
    answer, share = majority_of(run.golds)
    if share >= run.floor:
        return np.tile(np.array([gold == answer for gold in run.golds], dtype=np.int8), (count, 1))
    bases = [cell.predictions_path(run.folder) for cell in run.base.cells]
    return np.array([_greedy(bases[i % len(bases)]) for i in range(count)], dtype=np.int8)


def power(control: Right, floor: Right, base: float, rng: np.random.Generator) -> dict[str, Figure]:
    """How often verdicts hold where an effect was planted in saved predictions, and what the power rule says of it."""
    figures: dict[str, Figure] = {}
    accuracy = control.mean(axis=1)
    planted = {f"collapse to {words} of the gain": mixed(control, floor, kept, rng) for words, kept in (("½", 0.5), ("¼", 0.25))}
    lower = {f"gain of {gain} points": lowered(control, gain / 100, rng) for gain in (5, 10, 20)}
    for size in (3, 5, 8):
        for words, tuned in planted.items():
            mine, f = tuned.mean(axis=1), RULES.collapse_fraction
            outcomes = [
                collapse_verdict(list(mine[one]), list(accuracy[two]), base, RULES).verdict
                for one, two in splits(POOL, size, PLANTED_TRIALS, rng)
            ]
            effect = float(mine.mean() - f * accuracy.mean() - (1 - f) * base)
            said = contrast_power(min(effect, 0.0), (float(mine.std(ddof=1)), float(accuracy.std(ddof=1))), (1.0, -f), size)
            figures |= _held(f"power, {words}, {size} seeds", outcomes, said)
        for words, weak in lower.items():
            its = weak.mean(axis=1)
            outcomes = [
                better_verdict(list(accuracy[one]), list(its[two]), list(its[two]), RULES).verdict
                for one, two in splits(POOL, size, PLANTED_TRIALS, rng)
            ]
            spreads = (float(accuracy.std(ddof=1)), float(its.std(ddof=1)))
            figures |= _held(
                f"power, {words}, {size} seeds",
                outcomes,
                contrast_power(float(accuracy.mean() - its.mean()), spreads, DIFFERENCE, size),
            )
    return figures


def _held(name: str, outcomes: Iterable[Outcome], said: float | None) -> dict[str, Figure]:
    judged = [one == HOLDS for one in outcomes]
    found = wilson_interval(sum(judged), len(judged))
    return {f"{name}: holds": Figure(found.value, found.low, found.high), f"{name}: limits alone, by the power rule": Figure(said)}


def teachers() -> dict[str, Figure]:
    """(b) utility at the margin, and (d) what differs between teachers that were all calibrated with η = 0."""
    run = study("teachers", "--calibration_seeds", str(TEACHERS), "--student_seeds", str(SEEDS))
    rng = np.random.default_rng(2)
    tids = [tid for tid, cell in run.teachers.items() if cell.eta == 0]
    original = np.array(right_of(run.teacher_predictions["orig"].greedy.values()))
    mine = np.array([right_of(run.teacher_predictions[tid].greedy.values()) for tid in tids]).ravel()
    figures = utility(mine, np.tile(original, len(tids)), rng)
    cells = {tid: list(right(run, tid).mean(axis=1)) for tid in tids}
    between = between_deviation(list(cells.values()))
    within = float(np.sqrt(np.mean([np.var(cell, ddof=1) for cell in cells.values()])))
    figures["(d) standard deviation between η = 0 teachers"] = Figure(between.value, between.low, between.high)
    figures["(d) standard deviation between students of one teacher"] = Figure(within)
    pairs = list(permutations(range(len(tids)), 2))
    values = list(cells.values())
    outcomes = [better_verdict(values[one], values[two], values[two], RULES).verdict for one, two in pairs]
    members = [{one, two} for one, two in pairs]
    return figures | rates("(d) better between two η = 0 teachers", outcomes, members, len(tids), asked=False)


def utility(mine: NDArray[np.int64], original: NDArray[np.int64], rng: np.random.Generator) -> dict[str, Figure]:
    """Trials on items drawn from a pool in which right answers were made wrong until the loss is exactly the margin."""
    mine, lost = mine.copy(), round(RULES.utility_margin * len(original)) - int(original.sum() - mine.sum())
    both = np.flatnonzero((mine == 1) & (original == 1))
    mine[rng.choice(both, lost, replace=False)] = 0
    share = float((mine != original).mean())
    figures = {
        "(b) pool: items": Figure(float(len(mine))),
        "(b) pool: loss": Figure(float((original - mine).mean())),
        "(b) pool: discordant items": Figure(share),
    }
    for words, count in (("512 items", 512), ("the items of the power rule", needed_items(share, RULES.utility_margin))):
        outcomes = []
        for _ in range(TRIALS):
            drawn = rng.integers(0, len(mine), count)
            outcomes.append(utility_verdict(mine[drawn].tolist(), original[drawn].tolist(), RULES).verdict)
        figures |= {f"(b) {words}: n": Figure(float(count))} | rates(f"(b) utility at the margin, {words}", outcomes)
    return figures


PARTS = {"pool": pool, "teachers": teachers}
# Files that no part can reach: tests, other show-commands, other tasks.
UNREACHED = (
    "tests/",
    *(f"benchmarks/show/{name}" for name in ("chain", "dial", "proxies", "runs", "variants")),
    "rewards/tasks/choice.py",
    "rewards/tasks/instruct.py",
)


if __name__ == "__main__":
    chosen = sys.argv[1] if len(sys.argv) > 1 else None
    sys.exit(run_parts("null", PARTS, chosen, unreached=dict.fromkeys(PARTS, UNREACHED)))
