"""A study file: what is calibrated, distilled and measured, with which seeds and which verdict rules."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from distillknob.eval.rules import VerdictRules
from distillknob.rewards.models import Dtype
from distillknob.rewards.settings import said
from distillknob.rewards.tasks import LAB_TASKS, TaskConfig, lab_task
from distillknob.rewards.tasks.side import SIDE_TASKS
from distillknob.trainer.calibrate import MAXIMUM_ETA, Calibration
from distillknob.trainer.distil import Recipe
from distillknob.trainer.lab import POSITIONS, Lab

Control = Literal["greedy", "half", "best_of", "length_matched", "answer_only", "no_reasoning"]


@dataclass(frozen=True)
class Measure:
    """Test items a model, each answered greedily and at temperature 1, and the rows of a generation batch."""

    items: int = said(2048, "test items that every model answers, 2 or more")
    batch_size: int = said(512, "rows of a generation batch")

    def __post_init__(self) -> None:
        if self.items < 2:
            raise ValueError("items: must be at least 2")
        if self.batch_size < 1:
            raise ValueError("batch_size: must be at least 1")


@dataclass(frozen=True)
class Study:
    """One study. `teacher`, `proxy` and `student` are model folders, or `lab` for the lab's own, made from scratch.

    `etas` must hold 0, the control. Every `seqkd` and `gkd` recipe is run on each calibrated teacher and, by its `teachers`, on the
    original, `sft` and `answer_only` once. `controls` adds cells of students, trained as the first `seqkd` recipe says but on other
    texts: the original's at T = 0 (`greedy`, which the verdict *better teacher* needs), at T = 0.5 (`half`), the likeliest of eight
    (`best_of`), of eight the right one nearest in length to the calibrated teacher's (`length_matched`), bare answers
    (`answer_only`), and samples of the original after it was fine-tuned on bare answers (`no_reasoning`, a teacher of its own).
    `others`: tasks that teachers are not calibrated on, and answer too: what the owner pays.
    """

    name: str = field(metadata={"help": "name of the study, and of its folder under runs/"})
    seed: int = said(1, "root seed; every other seed is derived from it by name")
    jobs: int = said(2, "stages at once, one thread each, 1 to 1000; take 1 on a GPU")
    teacher: str = said("lab", "model to calibrate: a folder, a hub name, or lab (made from scratch)")
    proxy: str = said("lab", "frozen scorer of texts: a folder, a hub name, or lab; never the student")
    student: str = said("lab", "model to distil into: a folder, a hub name, or lab")
    reward: str | None = said(
        None, "reward model that scores in the task's place: a folder, a hub name or lab (null: lab where the lab does instruct)"
    )
    dtype: Dtype = field(default="float32", metadata={"help": "number type of the weights; auto: as the model folder says"})
    etas: tuple[float, ...] = said((0.0, -0.5), "dials: above 0 easier to copy, below 0 harder; must hold 0, the control")
    calibration_seeds: int = said(1, "calibrated teachers an eta, 1 to 1000; 5 or more to speak of an eta")
    student_seeds: int = said(5, "students a cell, 1 to 1000; verdicts on students need 5 or more")
    controls: tuple[Control, ...] | None = said(None, "cells to compare with (null: greedy where an eta is above 0)")
    task: TaskConfig = field(default_factory=TaskConfig)
    others: tuple[TaskConfig, ...] | None = said(
        None, "further tasks that every teacher answers, each a section as task (null: the lab teacher's two side tasks)"
    )
    lab: Lab = field(default_factory=Lab)
    calibration: Calibration = field(default_factory=Calibration)
    recipes: tuple[Recipe, ...] = field(
        default=(Recipe(),), metadata={"help": "how students are made, each a section as in distill.yaml's recipe"}
    )
    measure: Measure = field(default_factory=Measure)
    verdicts: VerdictRules = field(default_factory=VerdictRules)

    def __post_init__(self) -> None:
        other_names = [other.label for other in self.others or ()]
        for key, names in (("name", [self.name]), ("student", [self.student_name]), ("others", other_names)):
            for name in names:
                if not _is_folder_name(name):
                    raise ValueError(
                        f"{key}: {name!r} would be a folder's name: valid are up to 100 bytes, without /, control characters "
                        "and a full stop in front"
                    )
        for name in ("jobs", "calibration_seeds", "student_seeds"):
            if not 1 <= getattr(self, name) <= 1000:
                raise ValueError(f"{name}: must be from 1 to 1000")
        if 0.0 not in self.etas:
            raise ValueError("etas: must hold 0: the control teacher, without which nothing can be said of the others")
        if any(abs(eta) > MAXIMUM_ETA for eta in self.etas):
            raise ValueError(f"etas: must be from {-MAXIMUM_ETA:g} to {MAXIMUM_ETA:g}; rewards are compared at the scale of 1")
        if len({f"{eta:+g}" for eta in self.etas}) < len(self.etas):
            raise ValueError("etas: must differ, in their first six digits")
        sign = {"distillable": 1, "undistillable": -1, None: 0}[self.calibration.direction]
        wrong = [eta for eta in self.etas if sign * eta < 0]
        if wrong:
            raise ValueError(f"etas: {wrong[0]:g} contradicts calibration.direction: {self.calibration.direction}")
        if len(set(self.wanted_controls)) < len(self.wanted_controls):
            raise ValueError("controls: must differ")
        if self.controls and not any(recipe.recipe == "seqkd" for recipe in self.recipes):
            raise ValueError("controls: are trained as the first seqkd recipe says, and recipes has none")
        if "length_matched" in self.wanted_controls and not any(self.etas):
            raise ValueError("controls: length_matched needs a calibrated teacher's lengths: an eta other than 0")
        if any(recipe.select == "length" for recipe in self.recipes):
            raise ValueError(
                "recipes: select: length is a control of a study (controls: [length_matched]), not a recipe of its own"
            )
        seqkd = next((recipe for recipe in self.recipes if recipe.recipe == "seqkd"), None)
        for recipe in self.recipes:
            if recipe.start == "seqkd" and (seqkd is None or (seqkd.teachers, recipe.teachers) == ("calibrated", "all")):
                raise ValueError("recipes: start: seqkd needs a seqkd recipe on the same teachers")
        if len({*other_names, self.task.label}) <= len(other_names):
            raise ValueError(
                "others: must differ from each other and from task, in their names (of jsonl tasks: their test files')"
            )
        labels = [recipe.label for recipe in self.recipes]
        if not labels or len(set(labels)) < len(labels):
            raise ValueError("recipes: at least one, and no two with the same recipe, sampling, jsd_beta and use of LoRA")
        if self.reward == "lab" and (self.teacher, self.task.name) != ("lab", "instruct"):
            raise ValueError("reward: the lab's reward model goes with task instruct and teacher lab; valid: a folder, or null")
        if "lab" in (self.teacher, self.proxy, self.student) and self.task.name not in LAB_TASKS:
            raise ValueError(
                f"task: the lab's models know {', '.join(LAB_TASKS)}, not {self.task.name}; name teacher, proxy and student folders"
            )
        for key, config in (("task", self.task), *(("others", other) for other in self.other_tasks)):
            answers = (self.teacher, self.student) if key == "task" else (self.teacher,)
            if "lab" in answers and config.longest >= POSITIONS:
                raise ValueError(
                    f"{key}: max_new_tokens {config.longest} of {config.label} does not fit into the {POSITIONS} positions of the "
                    "lab's models: lower it"
                )
        if self.calibration.dtype != self.dtype and self.calibration.dtype != "float32":
            raise ValueError("calibration.dtype: leave it out and set dtype of the study")

    @property
    def student_name(self) -> str:
        """What the student is called in SIDs: `lab`, or its folder's name."""
        return "lab" if self.student == "lab" else Path(self.student).resolve().name

    @property
    def external(self) -> dict[str, str]:
        """Roles whose model is not the lab's, with its folder or hub name."""
        roles = {"teacher": self.teacher, "proxy": self.proxy, "student": self.student, "reward": self.reward_model}
        return {role: path for role, path in roles.items() if path not in ("lab", None)}

    @property
    def reward_model(self) -> str | None:
        """What scores completions in calibration: a path, `lab`, or None, the task's own verifier."""
        if self.reward is None and (self.teacher, self.task.name) == ("lab", "instruct"):
            return "lab"
        return self.reward

    @property
    def wanted_controls(self) -> tuple[Control, ...]:
        """The controls that are run."""
        if self.controls is not None:
            return self.controls
        return ("greedy",) if any(eta > 0 for eta in self.etas) else ()

    @property
    def other_tasks(self) -> tuple[TaskConfig, ...]:
        """The tasks beside the calibrated one that teachers answer."""
        if self.others is not None:
            return self.others
        if self.teacher != "lab" or self.task.name not in LAB_TASKS:
            return ()
        return tuple(TaskConfig(name, symbols=lab_task(self.task.name).symbols) for name in SIDE_TASKS)


def _is_folder_name(name: str) -> bool:
    """Whether a name can be a folder's in a run, whatever stands before and after it."""
    return bool(name) and "/" not in name and name[0] != "." and name.isprintable() and len(name.encode()) <= 100
