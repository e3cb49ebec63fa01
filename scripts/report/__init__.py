"""The page that a study ends in, and `distillknob report RUN`, the command that writes it."""

from __future__ import annotations

import argparse
from pathlib import Path

from distillknob.rewards.errors import UserError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's one argument."""
    parser.add_argument("run", metavar="RUN", type=Path, help="a run folder")


def main(arguments: argparse.Namespace) -> None:
    """Writes the page and prints where it is."""
    from distillknob.scripts.measure import check_run
    from distillknob.scripts.report.page import write_report

    check_run(arguments.run)
    if not (arguments.run / "measures" / "summary.json").is_file():
        raise UserError(f"{arguments.run}: not measured yet; run `distillknob measure {arguments.run}` first")
    print(write_report(arguments.run))
