"""The majority guess counts what is in the denominators: golds of items that can't be verified are left out."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from fake_run import make_fake_run, predictions, write_lines

from distillknob.eval.distillability import summarise
from distillknob.eval.rules import VerdictRules
from distillknob.rewards.jsonl import read_jsonl, write_json

CHECKER = Path(__file__).parents[1] / "independent_verdicts.py"


def test_majority_counts_verifiable_golds_only_and_the_independent_script_agrees(tmp_path: Path) -> None:
    run = make_fake_run(tmp_path / "x", seeds=2)
    for path in run.rglob("predictions.jsonl"):  # the most frequent answer, 0, can't be verified
        write_lines(path, [row | {"correct": None if row["gold"] == "0" else row["correct"]} for row in read_jsonl(path)])
    rows = [r for r in read_jsonl(run / "teachers" / "orig" / "predictions.jsonl") if r["decoding"] == "greedy"]
    (answer, count), *_ = Counter(r["gold"] for r in rows if r["gold"] != "0").most_common()

    summary = summarise(run, VerdictRules(), {})

    assert summary["controls"]["majority"]["accuracy"] == count / 28 != 12 / 40
    assert summary["controls"]["majority"]["answer"] in {g for g, n in Counter(r["gold"] for r in rows).items() if n == count}
    assert answer != "0" and summary["task"]["majority"] == count / 28 and summary["task"]["items"] == 40
    write_json(run / "measures" / "summary.json", summary)
    done = subprocess.run([sys.executable, str(CHECKER), str(run)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    summary["controls"]["floor"]["value"] = 0.3 if summary["controls"]["floor"]["value"] != 0.3 else 0.31
    write_json(run / "measures" / "summary.json", summary)
    assert subprocess.run([sys.executable, str(CHECKER), str(run)], capture_output=True, check=False).returncode == 1


def test_a_teacher_that_only_guesses_has_little_to_keep(tmp_path: Path) -> None:
    def reason(accuracy: float) -> Any:
        run = make_fake_run(tmp_path / str(accuracy), seeds=1)
        write_lines(run / "teachers" / "orig" / "predictions.jsonl", predictions("orig", accuracy, 40))
        return summarise(run, VerdictRules(), {})["teachers"]["eta+0-c0"]["utility"]["reason"]

    assert "little to keep" in reason(0.3) and "little to keep" not in reason(0.95)
