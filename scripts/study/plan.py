"""From a study file to its stages and cells (docs/formats.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from distillknob.eval.predict import PredictConfig
from distillknob.rewards.seeds import derive_seed
from distillknob.rewards.tasks import LAB_TASKS, TaskConfig
from distillknob.scripts.study.config import Control, Study
from distillknob.scripts.study.engine import Stage
from distillknob.trainer.calibrate import CalibrateConfig
from distillknob.trainer.distil import DistilConfig, Recipe
from distillknob.trainer.lab import Made


@dataclass(frozen=True)
class Teacher:
    """One set of teacher weights: its TID and what made it (None: the original)."""

    tid: str
    eta: float | None = None
    calibration_seed: int | None = None


ORIGINAL, NO_REASONING = Teacher("orig"), Teacher("no-reasoning")
CANDIDATES = 8  # texts a prompt that the controls best_of and length_matched choose from


class StudyPlan:
    """The stages of a study in the order in which they should start, and its cells; `models`: the folders of the roles that are
    not the lab's."""

    def __init__(self, study: Study, models: Mapping[str, Path]) -> None:
        self.study = study
        self.models = models
        self.stages: list[Stage] = []
        self.cells: list[dict[str, Any]] = []
        calibrated = [Teacher(f"eta{eta:+g}-c{c}", eta, c) for c in range(study.calibration_seeds) for eta in study.etas]
        self._make("base", "lab/base", study.teacher, study.lab.base)
        self._make("proxy", "lab/proxy", study.proxy, study.lab.proxy)
        self._make("reward", "lab/reward", study.reward_model, study.lab.reward, {"base": "lab/base"}, module="lab_reward")
        self._make("teacher", "teachers/orig", study.teacher, study.lab.teacher, {"base": "lab/base"})
        bases = range(study.student_seeds if study.student == "lab" else 1)
        for seed in bases:
            self._make("student", self._base(seed), study.student, study.lab.student, seed=seed)
        for teacher in calibrated:
            self._calibrate(teacher)
        for teacher in (ORIGINAL, *calibrated):
            self._teacher_cell(teacher)
        for seed in bases:
            self._predict(self._base(seed), self._external("student", self._base(seed)))
            self._cell("none", None, f"{self.study.student_name}-base", None, "base", seed)
        for recipe in study.recipes:
            if not recipe.has_teacher:
                self._students("gold", None, recipe)
                continue
            for teacher in (ORIGINAL, *calibrated) if recipe.teachers == "all" else calibrated:
                self._students(teacher.tid, teacher, recipe)
        tuned = [teacher for teacher in calibrated if teacher.eta]
        for control in study.wanted_controls:
            self._control(control, tuned[0] if tuned else None)

    def _control(self, control: Control, tuned: Teacher | None) -> None:
        """Students of one control, trained as those of the first seqkd recipe; nothing that is there already is made again."""
        recipe = next((recipe for recipe in self.study.recipes if recipe.recipe == "seqkd"), None)
        if recipe is None:
            return
        if control == "no_reasoning":
            self._fine_tune(NO_REASONING, recipe.on_answers)
            self._teacher_cell(NO_REASONING)
            self._students(NO_REASONING.tid, NO_REASONING, recipe)
        elif control == "answer_only":
            if not any(other.label == recipe.on_answers.label for other in self.study.recipes):
                self._students("gold", None, recipe.on_answers)
        elif control == "length_matched":
            self._students("orig", ORIGINAL, replace(recipe, candidates=CANDIDATES, select="length"), reference=tuned)
        else:
            changes: dict[Control, dict[str, Any]] = {
                "greedy": {"temperature": 0.0},
                "half": {"temperature": 0.5},
                "best_of": {"candidates": CANDIDATES, "select": "likeliest"},
            }
            changed = replace(recipe, **changes[control])
            if not any(other.label == changed.label and other.teachers == "all" for other in self.study.recipes):
                self._students("orig", ORIGINAL, changed)

    def _fine_tune(self, teacher: Teacher, recipe: Recipe) -> None:
        """A teacher that is made from the original by supervised training, the way students are."""
        study, target = self.study, f"teachers/{teacher.tid}"
        config = DistilConfig(study.task, recipe, derive_seed(study.seed, teacher.tid), study.dtype)
        original = self._teacher_source(ORIGINAL)
        renamed = {kind: {"student": next(iter(named.values()))} for kind, named in original.items()}
        sources = self._sources(renamed, self._data("train"))
        self.stages.append(Stage(target, target, "distillknob.trainer.distil:distil", config, **sources))

    def _base(self, seed: int) -> str:
        return f"students/none/{self.study.student_name}-base/{seed}"

    def _make(
        self,
        role: str,
        target: str,
        path: str | None,
        settings: Any,
        inputs: Mapping[str, str] = MappingProxyType({}),
        seed: int = 0,
        module: str = "lab",
    ) -> None:
        """The stage that makes a model of the lab; none where the role's model is another one."""
        task = self.study.task.name
        if path == "lab" and task in LAB_TASKS:
            made = Made(settings, derive_seed(self.study.seed, role, seed), task)
            self.stages.append(Stage(target, target, f"distillknob.trainer.{module}:make_{role}", made, inputs))

    def _external(self, role: str, stage: str) -> dict[str, dict[str, Any]]:
        """The `inputs` or `files` of a stage that reads the model of a role."""
        return {"files": {role: self.models[role]}} if role in self.models else {"inputs": {role: stage}}

    def _data(self, *splits: str) -> dict[str, dict[str, Any]]:
        """The data files that a stage reads: it runs again where their contents change."""
        return {"files": {split: path for split, path in self.study.task.files.items() if split in splits}}

    def _sources(self, *parts: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        merged: dict[str, dict[str, Any]] = {"inputs": {}, "files": {}}
        for part in parts:
            for kind, named in part.items():
                merged[kind] |= named
        return merged

    def _teacher_source(self, teacher: Teacher) -> dict[str, dict[str, Any]]:
        if teacher is ORIGINAL:
            return self._external("teacher", "teachers/orig")
        return {"inputs": {"teacher": f"teachers/{teacher.tid}"}}

    def _calibrate(self, teacher: Teacher) -> None:
        study, target = self.study, f"teachers/{teacher.tid}"
        assert teacher.eta is not None
        config = CalibrateConfig(
            study.task,
            replace(study.calibration, dtype=study.dtype),
            teacher.eta,
            derive_seed(study.seed, "calibration", str(teacher.calibration_seed)),
        )
        sources = self._sources(
            self._external("teacher", "teachers/orig"),
            self._external("proxy", "lab/proxy"),
            {} if study.reward_model is None else self._external("reward", "lab/reward"),
            self._data("train", "validation"),
        )
        self.stages.append(Stage(target, target, "distillknob.trainer.calibrate:calibrate", config, **sources))

    def _teacher_cell(self, teacher: Teacher) -> None:
        source = self._teacher_source(teacher)
        self._predict(f"teachers/{teacher.tid}", source)
        for other in self.study.other_tasks:
            self._predict(f"teachers/{teacher.tid}/others/{other.label}", source, other)
        self._cell(teacher.tid, teacher, None, None, None, None)

    def _students(self, tid: str, teacher: Teacher | None, recipe: Recipe, reference: Teacher | None = None) -> None:
        study = self.study
        recipe = replace(recipe, teachers="all")  # where else it is run changes no student
        sid = f"{self.study.student_name}-{recipe.label}-{study.task.name}"
        for seed in range(study.student_seeds):
            base = seed if study.student == "lab" else 0
            target = f"students/{tid}/{sid}/{seed}"
            begun = self._external("student", self._base(base))
            if recipe.start == "seqkd":
                first = next(other for other in study.recipes if other.recipe == "seqkd")
                begun = {"inputs": {"student": f"students/{tid}/{self.study.student_name}-{first.label}-{study.task.name}/{seed}"}}
            config = DistilConfig(study.task, recipe, derive_seed(study.seed, "distil", seed), study.dtype)
            sources = self._sources(
                begun,
                {} if teacher is None else self._teacher_source(teacher),
                {} if reference is None else {"inputs": {"reference": f"teachers/{reference.tid}"}},
                self._data("train"),
            )
            self.stages.append(Stage(target, target, "distillknob.trainer.distil:distil", config, **sources))
            self._predict(target, {"inputs": {"student": target}})
            self._cell(tid, teacher, sid, recipe, recipe.recipe, seed)

    def _predict(self, target: str, source: dict[str, dict[str, Any]], other: TaskConfig | None = None) -> None:
        study = self.study
        config = PredictConfig(
            other or study.task, study.measure.items, derive_seed(study.seed, "predict"), study.measure.batch_size, study.dtype
        )
        renamed = {kind: {"model": next(iter(named.values()))} for kind, named in source.items() if named}
        tests = self._data("test") if other is None else {"files": {k: v for k, v in other.files.items() if k == "test"}}
        path = f"{target}/predictions.jsonl"
        self.stages.append(Stage(path, path, "distillknob.eval.predict:predict", config, **self._sources(renamed, tests)))

    def _cell(
        self, tid: str, teacher: Teacher | None, sid: str | None, recipe: Recipe | None, name: str | None, seed: int | None
    ) -> None:
        calibrated = teacher is not None and teacher.eta is not None
        self.cells.append(
            {
                "tid": tid,
                "eta": teacher.eta if teacher is not None else None,
                "beta": self.study.calibration.beta if calibrated else None,
                "calibration_seed": teacher.calibration_seed if teacher is not None else None,
                "sid": sid,
                "student": None if sid is None else self.study.student_name,
                "recipe": name,
                "sampling": _sampling(recipe),
                "task": self.study.task.name,
                "seed": seed,
                "others": [other.label for other in self.study.other_tasks] if sid is None else [],
            }
        )


def _sampling(recipe: Recipe | None) -> dict[str, Any] | None:
    if recipe is None or recipe.recipe != "seqkd":
        return None
    names = ("temperature", "keep_right", "candidates", "select")
    return {name: getattr(recipe, name) for name in names}
