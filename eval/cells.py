"""Reading a run folder for measurement: its cells, its predictions, and the check that all of them answer the same test items
(house, layout)."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from distillknob.rewards.errors import UserError
from distillknob.rewards.jsonl import read_numbered_jsonl

ORIGINAL, BASE = "orig", "none"  # TIDs of the teacher before calibration and of students before distillation
NO_REASONING = "no-reasoning"  # TID of the original fine-tuned on bare answers, a control
WITHOUT_TEACHER = ("gold", BASE)
Decoding = Literal["greedy", "t1"]


class _Line(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")


class Cell(_Line):
    """A line of cells.jsonl: a teacher (sid null) or one seed of a student cell; eta is null where the teacher is not a
    calibrated one."""

    tid: str
    eta: float | None
    beta: float | None
    calibration_seed: int | None
    sid: str | None
    student: str | None
    recipe: str | None
    sampling: dict[str, Any] | None
    task: str | None
    seed: int | None
    others: list[str] = []

    def others_path(self, run: Path, other: str) -> Path:
        """Where the run folder `run` holds a teacher's predictions on a task that it was not calibrated on."""
        return run / "teachers" / self.tid / "others" / other / "predictions.jsonl"

    def predictions_path(self, run: Path) -> Path:
        """Where the run folder `run` holds this cell's predictions."""
        folder = run / "teachers" / self.tid if self.sid is None else run / "students" / self.tid / self.sid / str(self.seed)
        return folder / "predictions.jsonl"


class Prediction(_Line):
    """A line of predictions.jsonl; correct is null where the answer can't be verified, explicit and valid where the task can't
    tell."""

    id: str | int
    split: str
    answer: str | None
    gold: str
    correct: Literal[0, 1] | None
    tokens: int
    bytes: int
    decoding: Decoding
    explicit: float | None
    valid: Literal[0, 1] | None


@dataclass(frozen=True)
class Predictions:
    """The test predictions of one model by item id, for both decodings, and the file they came from."""

    path: Path
    greedy: dict[str | int, Prediction]
    t1: dict[str | int, Prediction]

    def unverified(self) -> int:
        """Predictions of both decodings that have no verdict on their answer: they are in no denominator."""
        return sum(p.correct is None for p in [*self.greedy.values(), *self.t1.values()])


_Model = TypeVar("_Model", bound=_Line)


def _read(path: Path, model: type[_Model]) -> list[tuple[int, _Model]]:
    rows = []
    for number, row in read_numbered_jsonl(path):
        try:
            rows.append((number, model.model_validate(row)))
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join(str(part) for part in first["loc"])
            raise UserError(f"{path}, line {number}: key {key!r}: {first['msg']}") from error
    return rows


def read_cells(run: Path) -> list[Cell]:
    """The cells of a run. Raises UserError, naming file and line, for a bad line, a student cell without seed, or a cell given
    twice."""
    path = run / "cells.jsonl"
    seen: dict[tuple[str, str | None, int | None], int] = {}
    cells = []
    for number, cell in _read(path, Cell):
        key = (cell.tid, cell.sid, cell.seed)
        if key in seen:
            raise UserError(
                f"{path}, line {number}: the same tid, sid and seed as line {seen[key]}; every cell must be listed once"
            )
        if (cell.sid is None) != (cell.seed is None):
            raise UserError(f"{path}, line {number}: key 'seed': a student cell needs a seed, a teacher has null")
        seen[key] = number
        cells.append(cell)
    return cells


def read_predictions(path: Path) -> Predictions:
    """The test predictions of one model. Raises UserError, naming file and line, for a missing file, a bad line, an item given
    twice for one decoding, and a file without a verified prediction in each decoding."""
    found: dict[str, dict[str | int, Prediction]] = {"greedy": {}, "t1": {}}
    for number, prediction in _read(path, Prediction):
        if prediction.split != "test":
            continue
        if prediction.id in found[prediction.decoding]:
            raise UserError(
                f"{path}, line {number}: item {prediction.id!r} has a second {prediction.decoding} prediction; one is valid"
            )
        found[prediction.decoding][prediction.id] = prediction
    for decoding, items in found.items():
        if all(p.correct is None for p in items.values()):
            raise UserError(
                f"{path}: no verified {decoding} prediction of the test split; at least one line with correct 0 or 1 is needed"
            )
    return Predictions(path, found["greedy"], found["t1"])


def check_same_items(models: Iterable[Predictions]) -> dict[str | int, str]:
    """The gold answer of every item id. Raises UserError where two files, or two decodings, differ in their items or gold
    answers."""
    golds: dict[str | int, str] | None = None
    first = Path()
    for model in models:
        for decoding, items in (("greedy", model.greedy), ("t1", model.t1)):
            mine = {key: p.gold for key, p in items.items()}
            if golds is None:
                golds, first = mine, model.path
            if mine != golds:
                odd = min((repr(key) for key in mine.keys() | golds.keys() if mine.get(key) != golds.get(key)), default="")
                raise UserError(
                    f"{model.path}: the {decoding} predictions have other test items or golds than {first} (such as {odd})\n"
                    "All teachers and students must answer the same items: measure them again with one setting of measure.items"
                )
    return golds or {}


def right_of(items: Iterable[Prediction]) -> list[int]:
    """The 0/1 outcomes of the verified predictions, in order."""
    return [p.correct for p in items if p.correct is not None]


@dataclass(frozen=True)
class StudentCell:
    """All seeds of one student cell, ordered by seed, with one accuracy a seed."""

    cells: list[Cell]
    greedy: list[float]
    t1: list[float]
    unverified: int


@dataclass(frozen=True)
class Run:
    """What was read of a run folder: predictions by TID, student cells by TID and SID, the number of items, the gold
    answers of those that can be verified, and b."""

    folder: Path
    teachers: dict[str, Cell]
    teacher_predictions: dict[str, Predictions]
    students: dict[str, dict[str, StudentCell]]
    items: int
    golds: list[str]
    base: StudentCell
    floor: float


def share(values: Sequence[int]) -> float:
    """Mean of 0/1 outcomes; needs at least one."""
    return sum(values) / len(values)


def majority_of(golds: Sequence[str]) -> tuple[str, float]:
    """The most frequent gold answer (of several, the first in code point order) and its share of the test items."""
    answer, count = min(Counter(golds).items(), key=lambda item: (-item[1], item[0]))
    return answer, count / len(golds)


def _student(pairs: list[tuple[Cell, Predictions]]) -> StudentCell:
    return StudentCell(
        cells=[cell for cell, _ in pairs],
        greedy=[share(right_of(p.greedy.values())) for _, p in pairs],
        t1=[share(right_of(p.t1.values())) for _, p in pairs],
        unverified=sum(p.unverified() for _, p in pairs),
    )


def load_run(folder: Path) -> Run:
    """Reads cells.jsonl and every cell's predictions, and checks that all answer the same items. Raises UserError as the
    readers do, and for a run without the original teacher, a student of an unlisted teacher, or other than one kind of student
    before distillation."""
    cells = read_cells(folder)
    teachers = {cell.tid: cell for cell in cells if cell.sid is None}
    if ORIGINAL not in teachers:
        raise UserError(f"{folder / 'cells.jsonl'}: no line for the teacher 'orig' (sid null); every number is compared with it")
    loaded = {tid: read_predictions(cell.predictions_path(folder)) for tid, cell in teachers.items()}
    grouped: dict[str, dict[str, list[tuple[Cell, Predictions]]]] = {}
    for cell in sorted((c for c in cells if c.sid is not None), key=lambda c: c.seed or 0):
        if cell.tid not in teachers and cell.tid not in WITHOUT_TEACHER:
            valid = ", ".join([*teachers, *WITHOUT_TEACHER])
            raise UserError(f"{folder / 'cells.jsonl'}: tid {cell.tid!r} of a student has no teacher line; valid: {valid}")
        pair = (cell, read_predictions(cell.predictions_path(folder)))
        grouped.setdefault(cell.tid, {}).setdefault(str(cell.sid), []).append(pair)
    students_read = [p for by_sid in grouped.values() for pairs in by_sid.values() for _, p in pairs]
    items = check_same_items([*loaded.values(), *students_read])
    golds = [gold for key, gold in items.items() if loaded[ORIGINAL].greedy[key].correct is not None]  # those in denominators
    students = {tid: {sid: _student(pairs) for sid, pairs in by_sid.items()} for tid, by_sid in grouped.items()}
    bases = list(students.get(BASE, {}).values())
    if len(bases) != 1:
        raise UserError(
            f"{folder / 'cells.jsonl'}: {len(bases)} kinds of student before distillation (tid 'none'); b needs exactly one"
        )
    floor = max(sum(bases[0].greedy) / len(bases[0].greedy), majority_of(golds)[1])
    return Run(folder, teachers, loaded, students, len(items), golds, bases[0], floor)


def control_of(cell: Cell, teachers: dict[str, Cell]) -> str | None:
    """TID of T_ctl: the η = 0 teacher of the same calibration seed and beta; None where there is none."""
    same = (cell.calibration_seed, cell.beta)
    return next((tid for tid, other in teachers.items() if other.eta == 0 and (other.calibration_seed, other.beta) == same), None)


def greedy_original_of(cell: Cell, run: Run) -> tuple[str, StudentCell] | None:
    """The cell of the same student, recipe and task on T_orig sampled at T = 0; None where the run has none."""
    for sid, other in run.students.get(ORIGINAL, {}).items():
        its = other.cells[0]
        same = (its.student, its.recipe, its.task) == (cell.student, cell.recipe, cell.task)
        if same and cell.sampling is not None and its.sampling == {**cell.sampling, "temperature": 0.0}:
            return sid, other
    return None
