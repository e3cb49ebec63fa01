"""`make show-chain`: `make demo` timed and its verdicts recomputed by an independent script; kill and rerun; the checks.

PART=demo|rerun|checks runs one of the three.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.show.results import ROOT, Figure, run_parts
from benchmarks.show.runs import COMMAND, summary_figures


def demo() -> dict[str, Figure]:
    """`make demo` in a new folder, from nothing: both sides of the dial, and what came out."""
    with tempfile.TemporaryDirectory() as folder:
        started = time.monotonic()
        status = subprocess.run(["make", "demo", f"RUNS={folder}"], cwd=ROOT).returncode
        seconds = time.monotonic() - started
        figures = {"make demo: exit status": Figure(status, asked="0", holds=status == 0)}
        if status:
            return figures
        figures["demo seconds after installation"] = Figure(round(seconds, 1), asked="≤ 600", holds=seconds <= 600)
        for name in ("undistillable", "distillable"):
            run = Path(folder) / name
            again = subprocess.run([sys.executable, "tests/independent_verdicts.py", str(run)], cwd=ROOT).returncode
            words = f"{name}: verdicts and figures that an independent script gets otherwise"
            figures[words] = Figure(float(again), asked="0", holds=again == 0)
            figures |= summary_figures(name, json.loads((run / "measures" / "summary.json").read_text(encoding="utf-8")))
    return figures


def rerun() -> dict[str, Figure]:
    """The tiny study, killed three times at random moments and continued; then run again, and with changed keys."""
    rng = random.Random(time.time_ns())
    with tempfile.TemporaryDirectory() as folder:
        whole, cut = Path(folder) / "whole", Path(folder) / "cut"
        run_tiny(whole)
        redone = 0
        for _ in range(3):
            finished = markers(cut)
            process = subprocess.Popen([*COMMAND, "tiny", "--output", str(cut)], cwd=ROOT, start_new_session=True)
            time.sleep(rng.uniform(6, 20))
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            now = markers(cut)
            redone += sum(now.get(name) != stamp for name, stamp in finished.items())
        finished = markers(cut)
        run_tiny(cut)
        now = markers(cut)
        redone += sum(now.get(name) != stamp for name, stamp in finished.items())
        same = same_results(whole, cut)
        figures = {
            "finished stages done again after 3 kills": Figure(redone, asked="0", holds=redone == 0),
            "prediction files that differ from an unbroken run": Figure(same, asked="0", holds=same == 0),
        }
        expected = {
            "--measure.items=32": lambda name: name.endswith("predictions.jsonl"),
            "--calibration.beta=0.1": lambda name: re.match("teachers/eta|students/eta", name) is not None,
            "--student_seeds=3": lambda name: name.split("/")[-1 if "pred" not in name else -2] == "2",
        }
        for flag, depends in expected.items():
            before = markers(cut)
            run_tiny(cut, flag)
            after = markers(cut)
            changed = {name for name, stamp in after.items() if before.get(name) != stamp}
            wrong = changed ^ {name for name in after if depends(name)}
            figures[f"stages run wrongly or not run after {flag}"] = Figure(len(wrong), asked="0", holds=not wrong)
            run_tiny(cut)
    return figures


def run_tiny(run: Path, *flags: str) -> None:
    """One unbroken run of the tiny study."""
    subprocess.run([*COMMAND, "tiny", "--output", str(run), *flags], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def markers(run: Path) -> dict[str, str]:
    """Finished stages with the moment when they finished."""
    found = {}
    for path in (run / ".stages").rglob("*.json"):
        marker = json.loads(path.read_text(encoding="utf-8"))
        found[str(path.relative_to(run / ".stages"))[: -len(".json")]] = marker["finished"]
    return found


def same_results(one: Path, other: Path) -> int:
    """How many prediction files of `one` are not there, byte for byte, in `other`."""
    files = [path.relative_to(one) for path in one.rglob("predictions.jsonl")]
    return sum(not (other / path).is_file() or (one / path).read_bytes() != (other / path).read_bytes() for path in files)


def checks() -> dict[str, Figure]:
    """Lint and tests as a user runs them, with their time budgets."""
    figures = {}
    for command, budget in (("lint", 240), ("test", 720), ("test-slow", 900)):
        started = time.monotonic()
        done = subprocess.run(["make", command], cwd=ROOT, capture_output=True, text=True)
        seconds = time.monotonic() - started
        print("\n".join(done.stdout.splitlines()[-15:]), flush=True)
        figures[f"make {command}: exit status"] = Figure(done.returncode, asked="0", holds=done.returncode == 0)
        figures[f"make {command}: seconds"] = Figure(round(seconds, 1), asked=f"≤ {budget}", holds=seconds <= budget)
        passed = re.search(r"(\d+) passed", done.stdout)
        if passed:
            figures[f"make {command}: tests passed"] = Figure(int(passed.group(1)))
    return figures


if __name__ == "__main__":
    sys.exit(run_parts("chain", {"demo": demo, "rerun": rerun, "checks": checks}, sys.argv[1] if len(sys.argv) > 1 else None))
