"""`distillknob calibrate CONFIG`: one teacher, one dial."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from pathlib import Path

from distillknob.rewards.settings import said
from distillknob.rewards.tasks import TaskConfig
from distillknob.scripts.study.loading import add_override_flags, load_config, overrides_from
from distillknob.trainer.calibrate import CalibrateConfig, Calibration


@dataclass(frozen=True)
class CalibrateFile:
    """The file of `distillknob calibrate`: model folders of teacher and proxy, the dial, the task and the settings."""

    teacher: str = field(metadata={"help": "model to calibrate: a folder or a hub name"})
    proxy: str = field(metadata={"help": "frozen scorer of texts: a folder or a hub name"})
    eta: float = field(metadata={"help": "the dial: above 0 easier to copy, below 0 harder, 0 the control"})
    reward: str | None = said(None, "reward model (one output) that scores in the task's place: a folder or a hub name")
    seed: int = said(1, "seed of prompts, sampling and order, 0 or above")
    task: TaskConfig = field(default_factory=TaskConfig)
    calibration: Calibration = field(default_factory=Calibration)

    def __post_init__(self) -> None:
        CalibrateConfig(self.task, self.calibration, self.eta, self.seed)  # its checks


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags; every key of the file is one too."""
    parser.add_argument("config", nargs="?", type=Path, metavar="CONFIG", help="a YAML file; flags override its keys")
    parser.add_argument("--output", type=Path, required=True, help="folder of the calibrated teacher; must not exist")
    add_override_flags(parser.add_argument_group("keys of the file"), CalibrateFile)


def main(arguments: argparse.Namespace) -> None:
    """Calibrates the teacher."""
    from distillknob.rewards.models import find_model
    from distillknob.rewards.reward_model import check_reward_model
    from distillknob.rewards.tasks import load_task
    from distillknob.scripts.study.loading import to_yaml
    from distillknob.scripts.study.single import run_single
    from distillknob.trainer.calibrate import calibrate

    given = load_config(CalibrateFile, arguments.config, overrides_from(arguments))
    roles = {"teacher": given.teacher, "proxy": given.proxy, "reward": given.reward}
    inputs = {role: find_model(path, role) for role, path in roles.items() if path is not None}
    if "reward" in inputs:
        check_reward_model(inputs["reward"], "reward")
    load_task(given.task)
    config = CalibrateConfig(given.task, given.calibration, given.eta, given.seed)
    run_single(calibrate, config, inputs, given.task.files, arguments.output, to_yaml(given))
    print(f"calibrated teacher: {arguments.output}")
