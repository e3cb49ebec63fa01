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
    greedy = students(Recipe(temperature=0.0, teachers="calibrated"), greedy=True)
    assert set(greedy) == {f"{tid}/lab-seqkd-t0-chain/0" for tid in ("orig", "eta+0-c0", "eta-0.5-c0")}


def test_adding_a_seed_or_an_eta_changes_no_other_stage() -> None:
    from dataclasses import replace

    study = load_config(Study, ROOT / "configs" / "undistillable.yaml")
    study = replace(study, calibration=replace(study.calibration, direction=None))
    before = {stage.name: stage for stage in StudyPlan(study, {}).stages}
    more = replace(study, etas=(0.5, 0.0, -0.5), student_seeds=6, calibration_seeds=2, controls=())
    after = {stage.name: stage for stage in StudyPlan(more, {}).stages}
    assert all(after[name] == stage for name, stage in before.items())
    assert len(after) > len(before)
