"""`distillknob check-proxy CONFIG`: would the dial turn the right way with this proxy? Nothing is trained."""

from __future__ import annotations

import argparse
from pathlib import Path

from distillknob.scripts.calibrate import CalibrateFile
from distillknob.scripts.study.loading import add_override_flags, load_config, overrides_from


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags; it reads the file of `distillknob calibrate`."""
    parser.add_argument("config", nargs="?", type=Path, metavar="CONFIG", help="the file of `distillknob calibrate`")
    add_override_flags(parser.add_argument_group("keys of the file"), CalibrateFile)


def main(arguments: argparse.Namespace) -> int:
    """Prints accuracies by explicitness and the result; the exit status is 0 where the proxy passes, else 1."""
    from distillknob.rewards.models import find_model
    from distillknob.trainer.calibrate import CalibrateConfig
    from distillknob.trainer.proxy import proxy_of

    given = load_config(CalibrateFile, arguments.config, overrides_from(arguments))
    inputs = {"teacher": find_model(given.teacher, "teacher"), "proxy": find_model(given.proxy, "proxy")}
    check = proxy_of(CalibrateConfig(given.task, given.calibration, given.eta, given.seed), inputs)
    print(check.table())
    return 0 if check.passes else 1
