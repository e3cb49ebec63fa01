"""`distillknob measure RUN`: summary.json and the report, from cells and predictions alone."""

from __future__ import annotations

import argparse
from pathlib import Path

from distillknob.rewards.errors import UserError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's one argument."""
    parser.add_argument("run", metavar="RUN", type=Path, help="a run folder")


def main(arguments: argparse.Namespace) -> None:
    """Measures a run folder and prints the table."""
    from distillknob.scripts.study.storage import RunLock

    check_run(arguments.run)
    with RunLock(arguments.run):
        print(measure(arguments.run))


def check_run(run: Path) -> None:
    """Refuses a folder that is no run."""
    if not (run / "config.yaml").is_file() or not (run / "cells.jsonl").is_file():
        raise UserError(f"{run}: not a run folder (no config.yaml and cells.jsonl); valid: the --output of `distillknob run`")


def measure(run: Path) -> str:
    """Writes measures/summary.json and the report; returns the table for the terminal."""
    from distillknob.eval.distillability import summarise
    from distillknob.eval.rules import VerdictRules
    from distillknob.eval.table import summary_table
    from distillknob.rewards.jsonl import read_json, write_json
    from distillknob.scripts.report.page import write_report
    from distillknob.scripts.study.storage import read_markers

    try:
        rules = VerdictRules(**read_json(run / "manifest.json")["verdict_rules"])
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"{run / 'manifest.json'}: holds no valid verdict_rules ({error}); they are fixed when a run starts"
        ) from error
    seconds = {name: float(marker["seconds"]) for name, marker in sorted(read_markers(run).items())}
    summary = summarise(run, rules, seconds)
    (run / "measures").mkdir(exist_ok=True)
    write_json(run / "measures" / "summary.json", summary)
    write_report(run)
    return summary_table(summary)
