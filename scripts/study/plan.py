"""From a study file to its stages and cells (docs/formats.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from distillknob.eval.predict import PredictConfig
from distillknob.rewards.seeds import derive_seed
from distillknob.scripts.study.config import Study
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


ORIGINAL = Teacher("orig")


class StudyPlan:
    """The stages of a study in the order in which they should start, and its cells; `models`: the folders of the roles that are
    not the lab's."""

    def __init__(self, study: Study, models: Mapping[str, Path]) -> None:
        self.study = study
        self.models = models
        self.stages: list[Stage] = []
        self.cells: list[dict[str, Any]] = []
        calibrated = [Teacher(f"eta{eta:+g}-c{c}", eta, c) for c in range(study.calibration_seeds) for eta in study.etas]
        self._make("teacher", "teachers/orig", study.teacher, study.lab.teacher)
        self._make("proxy", "lab/proxy", study.proxy, study.lab.proxy)
        for seed in range(study.student_seeds if study.student == "lab" else 1):
            self._make("student", self._base(seed), study.student, study.lab.student, seed)
        for teacher in calibrated:
            self._calibrate(teacher)
        for teacher in (ORIGINAL, *calibrated):
            self._teacher_cell(teacher)
        for seed in range(study.student_seeds if study.student == "lab" else 1):
            self._predict(self._base(seed), self._external("student", self._base(seed)))
            self._cell("none", None, f"{self._student_name}-base", None, "base", seed)
        for recipe in study.recipes:
            if not recipe.has_teacher:
                self._students("gold", None, recipe)
                continue
            for teacher in (ORIGINAL, *calibrated) if recipe.teachers == "all" else calibrated:
                self._students(teacher.tid, teacher, recipe)
        seqkd = [recipe for recipe in study.recipes if recipe.recipe == "seqkd"]
        greedy = any(recipe.temperature == 0 and recipe.teachers == "all" for recipe in seqkd)
        if study.wants_greedy_original and seqkd and not greedy:
            self._students("orig", ORIGINAL, replace(seqkd[0], temperature=0.0))

    @property
    def _student_name(self) -> str:
        return "lab" if self.study.student == "lab" else Path(self.study.student).resolve().name

    def _base(self, seed: int) -> str:
        return f"students/none/{self._student_name}-base/{seed}"

    def _make(self, role: str, target: str, path: str, settings: Any, seed: int = 0) -> None:
        if path == "lab":
            made = Made(settings, derive_seed(self.study.seed, role, seed))
            self.stages.append(Stage(target, target, f"distillknob.trainer.lab:make_{role}", made))

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
            self._external("teacher", "teachers/orig"), self._external("proxy", "lab/proxy"), self._data("train", "validation")
        )
        self.stages.append(Stage(target, target, "distillknob.trainer.calibrate:calibrate", config, **sources))

    def _teacher_cell(self, teacher: Teacher) -> None:
        self._predict(f"teachers/{teacher.tid}", self._teacher_source(teacher))
        self._cell(teacher.tid, teacher, None, None, None, None)

    def _students(self, tid: str, teacher: Teacher | None, recipe: Recipe) -> None:
        study = self.study
        recipe = replace(recipe, teachers="all")  # where else it is run changes no student
        sid = f"{self._student_name}-{recipe.label}-{study.task.name}"
        for seed in range(study.student_seeds):
            base = seed if study.student == "lab" else 0
            target = f"students/{tid}/{sid}/{seed}"
            config = DistilConfig(study.task, recipe, derive_seed(study.seed, "distil", seed), study.dtype)
            sources = self._sources(
                self._external("student", self._base(base)),
                {} if teacher is None else self._teacher_source(teacher),
                self._data("train"),
            )
            self.stages.append(Stage(target, target, "distillknob.trainer.distil:distil", config, **sources))
            self._predict(target, {"inputs": {"student": target}})
            self._cell(tid, teacher, sid, recipe, recipe.recipe, seed)

    def _predict(self, target: str, source: dict[str, dict[str, Any]]) -> None:
        study = self.study
        config = PredictConfig(
            study.task, study.measure.items, derive_seed(study.seed, "predict"), study.measure.batch_size, study.dtype
        )
        renamed = {kind: {"model": next(iter(named.values()))} for kind, named in source.items() if named}
        renamed = self._sources(renamed, self._data("test"))
        path = f"{target}/predictions.jsonl"
        self.stages.append(Stage(path, path, "distillknob.eval.predict:predict", config, **renamed))

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
                "student": None if sid is None else self._student_name,
                "recipe": name,
                "sampling": _sampling(recipe),
                "task": self.study.task.name,
                "seed": seed,
            }
        )


def _sampling(recipe: Recipe | None) -> dict[str, Any] | None:
    if recipe is None or recipe.recipe != "seqkd":
        return None
    return {"temperature": recipe.temperature, "keep_right": recipe.keep_right}
