"""The package as it is declared: every folder is mapped, every config is a study."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from distillknob.scripts.study.config import Study
from distillknob.scripts.study.loading import load_config
from distillknob.scripts.study.plan import StudyPlan

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("rewards", "eval", "trainer", "scripts", "configs")


def test_packages_are_the_folders() -> None:
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    found = {str(p.parent.relative_to(ROOT)) for room in ROOMS for p in (ROOT / room).rglob("*.py")}
    declared = {tool["package-dir"][name] for name in tool["packages"]}
    assert declared == found
    assert {name.removeprefix("distillknob.").replace(".", "/") for name in tool["packages"]} == found
    assert set(tool["package-data"]) == set(tool["packages"])
    assert all((ROOT / folder / "py.typed").is_file() for folder in found)


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda p: p.stem)
def test_every_config_is_a_study_whose_header_is_its_command(path: Path) -> None:
    study = load_config(Study, path)
    assert study.name == path.stem
    assert path.read_text().startswith(f"# distillknob run {path.stem}")
    names = [stage.name for stage in StudyPlan(study, {}).stages]
    assert len(set(names)) == len(names) > 5


def test_a_recipe_runs_on_the_teachers_that_it_names() -> None:
    from dataclasses import replace

    from distillknob.trainer.distil import Recipe

    study = replace(load_config(Study, ROOT / "configs" / "undistillable.yaml"), student_seeds=1)

    def students(*recipes: Recipe, greedy: bool = False) -> dict[str, object]:
        stages = StudyPlan(replace(study, recipes=recipes, controls=("greedy",) if greedy else ()), {}).stages
        return {s.name.removeprefix("students/"): s.config for s in stages if s.function.endswith(":distil")}

    some = students(Recipe("gkd", teachers="calibrated"), Recipe("sft"))
    assert set(some) == {"eta+0-c0/lab-gkd-chain/0", "eta-0.5-c0/lab-gkd-chain/0", "gold/lab-sft-chain/0"}
    every = students(Recipe("gkd"), Recipe("sft"))
    assert set(every) == {*some, "orig/lab-gkd-chain/0"} and all(every[name] == config for name, config in some.items())
    warm = replace(study, recipes=(Recipe(), Recipe("gkd", start="seqkd", teachers="calibrated")))
    stages = {s.name: dict(s.inputs) for s in StudyPlan(warm, {}).stages}
    for tid in ("eta+0-c0", "eta-0.5-c0"):
        begun = {"student": f"students/{tid}/lab-seqkd-t1-chain/0", "teacher": f"teachers/{tid}"}
        assert stages[f"students/{tid}/lab-gkd-warm-chain/0"] == begun
    with pytest.raises(ValueError, match="start: seqkd"):
        replace(study, recipes=(Recipe("gkd", start="seqkd"),))
    greedy = students(Recipe(temperature=0.0, teachers="calibrated"), greedy=True)
    assert set(greedy) == {f"{tid}/lab-seqkd-t0-chain/0" for tid in ("orig", "eta+0-c0", "eta-0.5-c0")}


def test_controls_add_cells_of_students_and_change_no_other_stage() -> None:
    from dataclasses import replace
    from typing import get_args

    from distillknob.scripts.study.config import Control

    study = replace(load_config(Study, ROOT / "configs" / "undistillable.yaml"), student_seeds=1)
    before = {stage.name: stage for stage in StudyPlan(study, {}).stages}
    planned = StudyPlan(replace(study, controls=get_args(Control)), {})
    after = {stage.name: stage for stage in planned.stages}
    assert all(after[name] == stage for name, stage in before.items())
    added = [after[name] for name in after.keys() - before.keys() if not name.endswith(".jsonl")]
    ways = {s.name: (dict(s.inputs).get("teacher"), s.config.recipe.label, s.config.recipe.temperature) for s in added}
    assert ways == {
        "teachers/no-reasoning": (None, "answer_only", 1.0),
        "students/no-reasoning/lab-seqkd-t1-chain/0": ("teachers/no-reasoning", "seqkd-t1", 1.0),
        "students/gold/lab-answer_only-chain/0": (None, "answer_only", 1.0),
        "students/orig/lab-seqkd-t0-chain/0": ("teachers/orig", "seqkd-t0", 0.0),
        "students/orig/lab-seqkd-t0.5-chain/0": ("teachers/orig", "seqkd-t0.5", 0.5),
        "students/orig/lab-seqkd-t1-likeliest8-chain/0": ("teachers/orig", "seqkd-t1-likeliest8", 1.0),
        "students/orig/lab-seqkd-t1-length8-chain/0": ("teachers/orig", "seqkd-t1-length8", 1.0),
    }
    assert after["teachers/no-reasoning"].inputs == {"student": "teachers/orig"}
    assert after["students/orig/lab-seqkd-t1-length8-chain/0"].inputs["reference"] == "teachers/eta-0.5-c0"
    assert {cell["tid"] for cell in planned.cells if cell["sid"] is None} == {"orig", "eta+0-c0", "eta-0.5-c0", "no-reasoning"}
    assert all(cell["others"] == (["reverse", "largest"] if cell["sid"] is None else []) for cell in planned.cells)
    seeds = {s.config.seed for s in planned.stages if s.function.endswith(":distil") and s.name.startswith("students/")}
    assert len(seeds) == 1  # a student seed is the same in every cell


def test_both_sides_of_the_dial_share_what_comes_before_the_style() -> None:
    plans = [
        {stage.name: stage for stage in StudyPlan(load_config(Study, ROOT / "configs" / f"{name}.yaml"), {}).stages}
        for name in ("undistillable", "distillable")
    ]
    same = {name for name, stage in plans[0].items() if plans[1].get(name) == stage}
    assert {"lab/base", "lab/proxy", "students/none/lab-base/0", "students/none/lab-base/4"} <= same
    assert "teachers/orig" not in same and plans[0]["teachers/orig"].inputs == plans[1]["teachers/orig"].inputs == {
        "base": "lab/base"
    }


def test_the_instruction_task_is_scored_by_a_reward_model() -> None:
    from dataclasses import replace

    from distillknob.rewards.tasks import TaskConfig
    from distillknob.rewards.tasks.instruct import SYMBOLS

    study = replace(load_config(Study, ROOT / "configs" / "undistillable.yaml"), task=TaskConfig("instruct"))
    stages = {stage.name: stage for stage in StudyPlan(study, {}).stages}
    assert stages["lab/reward"].inputs == {"base": "lab/base"} and stages["teachers/eta+0-c0"].inputs["reward"] == "lab/reward"
    others = stages["teachers/orig/others/reverse/predictions.jsonl"].config.task
    assert others.symbols == SYMBOLS and stages["teachers/orig"].config.task == "instruct"
    with pytest.raises(ValueError, match="reward: the lab's reward model goes with task instruct"):
        replace(study, task=TaskConfig(), reward="lab")


def test_adding_a_seed_or_an_eta_changes_no_other_stage() -> None:
    from dataclasses import replace

    study = load_config(Study, ROOT / "configs" / "undistillable.yaml")
    study = replace(study, calibration=replace(study.calibration, direction=None))
    before = {stage.name: stage for stage in StudyPlan(study, {}).stages}
    more = replace(study, etas=(0.5, 0.0, -0.5), student_seeds=6, calibration_seeds=2, controls=())
    after = {stage.name: stage for stage in StudyPlan(more, {}).stages}
    assert all(after[name] == stage for name, stage in before.items())
    assert len(after) > len(before)
