"""Run folders and single stages: what is run again when something changed, and what damage is noticed."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS))  # spawned workers take sys.path over from here

from toy_stages import ToyConfig  # noqa: E402

from distillknob.rewards.errors import UserError  # noqa: E402
from distillknob.rewards.tasks import TaskConfig  # noqa: E402
from distillknob.scripts.cli import main  # noqa: E402
from distillknob.scripts.study import engine, workers  # noqa: E402
from distillknob.scripts.study.config import Study  # noqa: E402
from distillknob.scripts.study.engine import Stage, run_stages  # noqa: E402
from distillknob.scripts.study.manifest import write_manifest  # noqa: E402
from distillknob.scripts.study.plan import StudyPlan  # noqa: E402
from distillknob.scripts.study.single import run_single  # noqa: E402
from distillknob.scripts.study.storage import marker_path, read_marker, read_markers  # noqa: E402
from distillknob.trainer.distil import Recipe  # noqa: E402

SPLITS = ("train", "validation", "test")


@pytest.fixture(autouse=True)
def no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "PRELOAD", ())


def own_data(folder: Path) -> list[Stage]:
    """The plan of a study of the user's own models and data; the models are folders with a file `model`."""
    for role in ("teacher", "proxy", "student"):
        (folder / role).mkdir()
        (folder / role / "model").write_text(role)
    for split in SPLITS:
        (folder / split).write_text(split)
    paths = {role: folder / role for role in ("teacher", "proxy", "student")}
    task = TaskConfig("jsonl", **{split: str(folder / split) for split in SPLITS})  # type: ignore[arg-type]
    study = Study("x", student_seeds=1, task=task, recipes=(Recipe(), Recipe("sft")), **{r: str(p) for r, p in paths.items()})  # type: ignore[arg-type]
    return StudyPlan(study, paths).stages


def test_each_stage_names_the_data_files_that_it_reads(tmp_path: Path) -> None:
    stages = own_data(tmp_path)
    read = {"predict": {"test"}, "distil": {"train"}, "calibrate": {"train", "validation"}}
    assert {stage.function.partition(":")[2] for stage in stages} == set(read)
    for stage in stages:
        wanted = read[stage.function.partition(":")[2]]
        assert {role for role in stage.files if role in SPLITS} == wanted, stage.name
        assert all(stage.files[split] == tmp_path / split for split in wanted)


def test_changed_contents_of_a_data_file_rerun_the_stages_that_read_it(tmp_path: Path) -> None:
    config = ToyConfig(str(tmp_path / "journal"), 3)
    toys = {"predict": "toy_stages:judge", "distil": "toy_stages:folder", "calibrate": "toy_stages:folder"}
    planned = own_data(tmp_path)
    kinds = {stage.name: stage.function.partition(":")[2] for stage in planned}
    stages = [replace(stage, function=toys[kinds[stage.name]], config=config) for stage in planned]

    def ran() -> set[str]:
        results = run_stages(stages, tmp_path / "run", jobs=1, force_code_version="1")
        return {name for name, result in results.items() if result.status == "ran"}

    assert ran() == set(kinds) and ran() == set()
    for split, readers in (("test", {"predict"}), ("validation", {"calibrate"}), ("train", {"distil", "calibrate"})):
        (tmp_path / split).write_text("other contents")
        wanted = {name for name in kinds if kinds[name] in readers}
        wanted |= {f"{name}/predictions.jsonl" for name in wanted} & set(kinds)  # they went with the folder that they lay in
        assert wanted and ran() == wanted, split
        assert ran() == set()


@pytest.mark.parametrize("damage", ["", "{", "[]", "null", "{}", '{"fingerprint": "x", "outputs": {}}', "\udcff"])
def test_a_damaged_marker_counts_as_not_finished(tmp_path: Path, damage: str) -> None:
    stage = Stage("a/b", "a/b", "toy_stages:add", ToyConfig(str(tmp_path / "journal")))
    run_stages([stage], tmp_path, jobs=1)
    marker_path(tmp_path, "a/b").write_bytes(damage.encode(errors="surrogateescape"))
    assert read_marker(tmp_path, "a/b") is None and read_markers(tmp_path) == {}
    assert run_stages([stage], tmp_path, jobs=1)["a/b"].status == "ran"
    assert run_stages([stage], tmp_path, jobs=1)["a/b"].status == "kept"


def test_an_output_that_was_edited_by_hand_is_made_again_even_at_equal_size(tmp_path: Path) -> None:
    stage = Stage("a", "a", "toy_stages:add", ToyConfig(str(tmp_path / "journal"), 5))
    run_stages([stage], tmp_path, jobs=1)
    good = (tmp_path / "a").read_text()
    (tmp_path / "a").write_text(good.replace("5", "6"))
    assert (tmp_path / "a").stat().st_size == len(good) and (tmp_path / "a").read_text() != good
    assert run_stages([stage], tmp_path, jobs=1)["a"].status == "ran"
    assert (tmp_path / "a").read_text() == good


@pytest.mark.parametrize(("text", "said"), [("{", "cannot be read as JSON"), ("[1]", "damaged"), ("", "cannot be read as JSON")])
def test_a_damaged_manifest_is_refused_and_left_as_it_is(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    given: dict[str, Any] = {"config_text": "x: 1\n", "root_seed": 1, "models": {}, "data": {}}
    with pytest.raises(UserError, match=rf"manifest\.json: {said}"):
        write_manifest(tmp_path, name="n", verdict_rules={"utility_margin": 0.02}, **given)
    assert (tmp_path / "manifest.json").read_text() == text


def test_a_folder_with_a_lock_alone_is_an_interrupted_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "run_studies", lambda *_, **__: [])
    monkeypatch.setattr("distillknob.scripts.measure.measure", lambda run: "measured")
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut" / "lock").write_text("")
    assert main(["run", "tiny", "--output", str(tmp_path / "cut")]) == 0
    assert (tmp_path / "cut" / "config.yaml").is_file() and (tmp_path / "cut" / "manifest.json").is_file()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("")
    assert main(["run", "tiny", "--output", str(tmp_path / "other")]) == 2
    assert [p.name for p in (tmp_path / "other").iterdir()] == ["notes.txt"]
    (tmp_path / "cut" / "manifest.json").write_text("{")
    assert main(["run", "tiny", "--output", str(tmp_path / "cut")]) == 2


@pytest.mark.parametrize("changed", [None, "model", "data", "config"])
def test_a_single_stage_continues_only_where_nothing_changed(tmp_path: Path, changed: str | None) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "weights").write_text("one")
    (tmp_path / "train.jsonl").write_text("one")
    found: list[bool] = []

    def stage(config: Any, inputs: Mapping[str, Path], output: Path, work: Path) -> None:
        found.append((work / "checkpoint-1").is_dir())
        (work / "checkpoint-1").mkdir(parents=True, exist_ok=True)
        (output / "half").write_text("half")
        if len(found) == 1:
            raise KeyboardInterrupt
        (output / "whole").write_text(json.dumps(sorted(inputs)))
        (output / "half").unlink()

    def go(text: str = "seed: 1\n") -> None:
        run_single(stage, None, {"teacher": tmp_path / "m"}, {"train": tmp_path / "train.jsonl"}, tmp_path / "out", text)

    with pytest.raises(KeyboardInterrupt):
        go()
    assert not (tmp_path / "out").exists()
    if changed == "model":
        (tmp_path / "m" / "weights").write_text("two")
    if changed == "data":
        (tmp_path / "train.jsonl").write_text("two")
    go("seed: 2\n" if changed == "config" else "seed: 1\n")
    assert found == [False, changed is None]
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["config.yaml", "whole"]
    assert not (tmp_path / ".out.work").exists()
