"""`make show-dial`: the dial both ways over five root seeds, against its controls, on three kinds of task, and when it lies.

PART=chain-1|chain-2|chain-3|controls|choice|instruct|variants|proxies runs one of them. Studies lie in $(RUNS)/show-dial and are
continued. Root seeds of a part run side by side, one stage at a time each, so that both cores are busy while a base is made.
"""

from __future__ import annotations

import json
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from benchmarks.show.dial_page import write_page
from benchmarks.show.proxies import proxies
from benchmarks.show.results import ROOT, Figure, run_parts
from benchmarks.show.runs import folder, study, summary_figures
from benchmarks.show.variants import variants
from distillknob.eval.statistics import mean_interval

ROOTS = {"chain-1": (1, 2), "chain-2": (3, 4), "chain-3": (5,)}
OTHER_ROOTS = (1, 2)
JOBS = 2  # stages at once
CONTROLS = ("greedy", "half", "best_of", "length_matched", "answer_only", "no_reasoning")
SEQKD, GKD = "lab-seqkd-t1-chain", "lab-gkd-warm-chain"
TUNED = {"A": "eta-0.5-c0", "B": "eta+0.5-c0"}


def chain(roots: tuple[int, ...]) -> dict[str, Figure]:
    """Both sides for some root seeds: everything is made afresh. Side A is copied by SeqKD and by GKD, side B by SeqKD."""
    return _both_sides("chain", roots)


def _both_sides(task: str, roots: tuple[int, ...]) -> dict[str, Figure]:
    """Both sides on a task, as many root seeds side by side as a study has jobs."""
    jobs = JOBS // min(JOBS, len(roots))

    def one(root: int) -> dict[str, Figure]:
        figures: dict[str, Figure] = {}
        for side in TUNED:
            name = f"{task} {side}, root seed {root}"
            summary = study(side, root, task, gkd=task == "chain" and side == "A", flags=("--jobs", str(jobs)))
            figures[f"{name}: teacher or proxy refused"] = Figure(float(summary is None))
            figures |= {} if summary is None else summary_figures(name, summary)
        return figures

    with ThreadPoolExecutor(JOBS // jobs) as pool:
        return {name: figure for figures in pool.map(one, roots) for name, figure in figures.items()}


def controls() -> dict[str, Figure]:
    """The other controls, for the first root seed: they are added to its two studies."""
    figures: dict[str, Figure] = {}
    for side in TUNED:
        summary = study(side, 1, gkd=side == "A", flags=("--controls", json.dumps(CONTROLS)))
        if summary is not None:
            figures |= summary_figures(f"controls {side}", summary)
            shutil.copy(folder(side, 1) / "report" / "dial.png", ROOT / "docs" / f"dial-{side}.png")
    return figures


def other(task: str) -> dict[str, Figure]:
    """Both sides on another task, two root seeds; nothing is asked of them."""
    return _both_sides(task, OTHER_ROOTS)


def totals(figures: dict[str, Figure]) -> dict[str, Figure]:
    """Over the five root seeds: how often each verdict holds, and what the dial did, with root seeds as the top level."""
    roots = [root for part in ROOTS.values() for root in part]
    found: dict[str, Figure] = {}
    asked = {
        "A, utility kept": ("A", f"teacher {TUNED['A']}: utility kept holds"),
        "A, collapse, SeqKD": ("A", f"students {TUNED['A']} {SEQKD}: collapse holds"),
        "A, collapse, GKD": ("A", f"students {TUNED['A']} {GKD}: collapse holds"),
        "B, utility kept": ("B", f"teacher {TUNED['B']}: utility kept holds"),
        "B, better than control and greedy original": ("B", f"students {TUNED['B']} {SEQKD}: better holds"),
    }
    for words, (side, key) in asked.items():
        count = sum(_value(figures, f"chain {side}, root seed {root}: {key}") or 0.0 for root in roots)
        found[f"over five root seeds: {words}: holds in"] = Figure(count, asked="≥ 4", holds=count >= 4)
    for side, sid, words in (("A", SEQKD, "SeqKD"), ("A", GKD, "GKD"), ("B", SEQKD, "SeqKD")):
        gaps = []
        for root in roots:
            head = f"chain {side}, root seed {root}: students"
            tuned, control = (_value(figures, f"{head} {tid} {sid}: accuracy, greedy") for tid in (TUNED[side], "eta+0-c0"))
            if tuned is not None and control is not None:
                gaps.append(tuned - control)
        gap = mean_interval(gaps)
        clear = gap.low is not None and gap.high is not None and (gap.high < 0 if side == "A" else gap.low > 0)
        name = f"over root seeds: {side}, {words}: students of the tuned teacher less the control's"
        found[name] = Figure(gap.value, gap.low, gap.high, "no effect excluded", clear)
    return found


def _value(figures: dict[str, Figure], name: str) -> float | None:
    return figures[name].value if name in figures else None


PARTS = {
    **{name: partial(chain, roots) for name, roots in ROOTS.items()},
    "controls": controls,
    "choice": partial(other, "choice"),
    "instruct": partial(other, "instruct"),
    "variants": variants,
    "proxies": proxies,
}

TASK_FILES = {
    "chain": ("rewards/tasks/chain.py",),
    "choice": ("rewards/tasks/choice.py",),
    "instruct": ("rewards/tasks/instruct.py", "rewards/reward_model.py", "trainer/lab_reward.py", "trainer/verifier.py"),
}


def unreached(part: str) -> tuple[str, ...]:
    """The starts of the paths of files that a part can't reach: tests, other commands, and the other tasks' own files."""
    own = part if part in TASK_FILES else "chain"
    others = [path for task, files in TASK_FILES.items() if task != own for path in files]
    return ("tests/", "benchmarks/show/chain.py", "benchmarks/show/dial_page.py", *others)


if __name__ == "__main__":
    status = run_parts("dial", PARTS, sys.argv[1] if len(sys.argv) > 1 else None, totals, {part: unreached(part) for part in PARTS})
    if status != 2:  # 2: nothing was run
        write_page()
    sys.exit(status)
