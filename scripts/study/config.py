"""A study file: what is calibrated, distilled and measured, with which seeds and which verdict rules."""

from __future__ import annotations

from dataclasses import dataclass, field

from distillknob.eval.rules import VerdictRules
from distillknob.rewards.models import Dtype
from distillknob.rewards.settings import said
from distillknob.rewards.tasks import TaskConfig
from distillknob.trainer.calibrate import Calibration
from distillknob.trainer.distil import Recipe
from distillknob.trainer.lab import Lab


@dataclass(frozen=True)
class Measure:
    """Test items a model, each answered greedily and at temperature 1, and the rows of a generation batch."""

    items: int = said(2048, "test items that every model answers, 2 or more")
    batch_size: int = said(512, "rows of a generation batch")

    def __post_init__(self) -> None:
        if self.items < 2 or self.batch_size < 1:
            raise ValueError("items: must be at least 2, batch_size at least 1")


@dataclass(frozen=True)
class Study:
    """One study. `teacher`, `proxy` and `student` are model folders, or `lab` for the lab's own, made from scratch.

    `etas` must hold 0, the control. Every `seqkd` and `gkd` recipe is run on each calibrated teacher and, by its
    `teachers`, on the original, `sft` and `answer_only` once. `greedy_original` adds students of the original sampled greedily,
    which the verdict *better teacher* needs; null: only where an eta is above 0.
    """

    name: str = field(metadata={"help": "name of the study, and of its folder under runs/"})
    seed: int = said(1, "root seed; every other seed is derived from it by name")
    jobs: int = said(2, "stages at once, one thread each, 1 to 1000; take 1 on a GPU")
    teacher: str = said("lab", "model to calibrate: a folder, a hub name, or lab (made from scratch)")
    proxy: str = said("lab", "frozen scorer of texts: a folder, a hub name, or lab; never the student")
    student: str = said("lab", "model to distil into: a folder, a hub name, or lab")
    dtype: Dtype = field(default="float32", metadata={"help": "number type of the weights; auto: as the model folder says"})
    etas: tuple[float, ...] = said((0.0, -0.5), "dials: above 0 easier to copy, below 0 harder; must hold 0, the control")
    calibration_seeds: int = said(1, "calibrated teachers an eta, 1 to 1000; 5 or more to speak of an eta")
    student_seeds: int = said(5, "students a cell, 1 to 1000; verdicts on students need 5 or more")
    greedy_original: bool | None = said(None, "students of the original's greedy samples (null: where an eta is above 0)")
    task: TaskConfig = field(default_factory=TaskConfig)
    lab: Lab = field(default_factory=Lab)
    calibration: Calibration = field(default_factory=Calibration)
    recipes: tuple[Recipe, ...] = field(
        default=(Recipe(),), metadata={"help": "how students are made, each a section as in distill.yaml's recipe"}
    )
    measure: Measure = field(default_factory=Measure)
    verdicts: VerdictRules = field(default_factory=VerdictRules)

    def __post_init__(self) -> None:
        if not self.name or "/" in self.name or self.name.startswith(".") or len(self.name) > 100 or not self.name.isprintable():
            raise ValueError("name: must be a folder name of at most 100 characters, without / and not starting with a full stop")
        for name in ("jobs", "calibration_seeds", "student_seeds"):
            if not 1 <= getattr(self, name) <= 1000:
                raise ValueError(f"{name}: must be from 1 to 1000")
        if 0.0 not in self.etas:
            raise ValueError("etas: must hold 0: the control teacher, without which nothing can be said of the others")
        if len({f"{eta:+g}" for eta in self.etas}) < len(self.etas):
            raise ValueError("etas: must differ, in their first six digits")
        sign = {"distillable": 1, "undistillable": -1, None: 0}[self.calibration.direction]
        wrong = [eta for eta in self.etas if sign * eta < 0]
        if wrong:
            raise ValueError(f"etas: {wrong[0]:g} contradicts calibration.direction: {self.calibration.direction}")
        labels = [recipe.label for recipe in self.recipes]
        if not labels or len(set(labels)) < len(labels):
            raise ValueError(
                "recipes: at least one, and no two with the same recipe, temperature, keep_right, jsd_beta and use of LoRA"
            )
        if "lab" in (self.teacher, self.proxy, self.student) and self.task.name != "chain":
            raise ValueError(
                f"task: the lab's models only know chain, not {self.task.name}; name teacher, proxy and student folders"
            )
        if self.calibration.dtype != self.dtype and self.calibration.dtype != "float32":
            raise ValueError("calibration.dtype: leave it out and set dtype of the study")

    @property
    def external(self) -> dict[str, str]:
        """Roles whose model is not the lab's, with its folder or hub name."""
        roles = {"teacher": self.teacher, "proxy": self.proxy, "student": self.student}
        return {role: path for role, path in roles.items() if path != "lab"}

    @property
    def wants_greedy_original(self) -> bool:
        """Whether students of the original's greedy samples are trained too."""
        return any(eta > 0 for eta in self.etas) if self.greedy_original is None else self.greedy_original
