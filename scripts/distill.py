"""`distillknob distill CONFIG`: one student from one teacher, or from gold."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from pathlib import Path

from distillknob.rewards.models import Dtype
from distillknob.rewards.settings import said
from distillknob.rewards.tasks import TaskConfig
from distillknob.scripts.study.loading import add_override_flags, load_config, overrides_from
from distillknob.trainer.distil import DistilConfig, Recipe


@dataclass(frozen=True)
class DistillFile:
    """The file of `distillknob distill`: model folders of student and teacher, the task and the recipe."""

    student: str = field(metadata={"help": "model to train: a folder or a hub name"})
    teacher: str | None = said(None, "model to copy: a folder or a hub name; recipes seqkd and gkd only")
    reference: str | None = said(None, "model whose texts set the length: a folder or a hub name; recipe.select length only")
    seed: int = said(1, "seed of prompts, sampling and order, 0 or above")
    dtype: Dtype = field(default="float32", metadata={"help": "number type of the weights; auto: as the model folder says"})
    task: TaskConfig = field(default_factory=TaskConfig)
    recipe: Recipe = field(default_factory=Recipe)

    def __post_init__(self) -> None:
        if self.recipe.has_teacher and self.teacher is None:
            raise ValueError(f"teacher: {self.recipe.recipe} needs one; sft and answer_only don't")
        if not self.recipe.has_teacher and self.teacher is not None:
            raise ValueError(f"teacher: recipe {self.recipe.recipe} takes none: leave it out")
        if (self.recipe.select == "length") != (self.reference is not None):
            raise ValueError("reference: goes with recipe.select: length, and only with it")
        if self.recipe.start != "base":
            raise ValueError("recipe.start: is for a study; here the student to begin with is `student`")
        if self.seed < 0:
            raise ValueError("seed: must be 0 or above")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags; every key of the file is one too."""
    parser.add_argument("config", nargs="?", type=Path, metavar="CONFIG", help="a YAML file; flags override its keys")
    parser.add_argument("--output", type=Path, required=True, help="folder of the student; must not exist")
    add_override_flags(parser.add_argument_group("keys of the file"), DistillFile)


def main(arguments: argparse.Namespace) -> None:
    """Trains the student."""
    from distillknob.rewards.models import check_same_tokenizer, find_model
    from distillknob.rewards.tasks import load_task
    from distillknob.scripts.study.loading import to_yaml
    from distillknob.scripts.study.single import run_single
    from distillknob.trainer.distil import distil

    given = load_config(DistillFile, arguments.config, overrides_from(arguments))
    roles = {"student": given.student, "teacher": given.teacher, "reference": given.reference}
    inputs = {role: find_model(path, role) for role, path in roles.items() if path is not None}
    task = load_task(given.task)
    if given.recipe.recipe == "gkd":
        check_same_tokenizer(inputs["student"], inputs["teacher"], task.rows("train", 1, 0)[0]["prompt"], given.recipe.label)
    run_single(
        distil,
        DistilConfig(given.task, given.recipe, given.seed, given.dtype),
        inputs,
        given.task.files,
        arguments.output,
        to_yaml(given),
    )
    print(f"student: {arguments.output}")
