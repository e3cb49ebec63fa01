"""The engine: what is run, what is kept, what a failure leaves behind, and that a killed run continues."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS))  # spawned workers take sys.path over from here

from toy_stages import ToyConfig  # noqa: E402

from distillknob.rewards.errors import UserError  # noqa: E402
from distillknob.scripts.study import engine, manifest, storage, workers  # noqa: E402
from distillknob.scripts.study.engine import Stage, StageFailed, plan, run_stages, run_studies  # noqa: E402


@pytest.fixture(autouse=True)
def no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "PRELOAD", ())


class Study:
    """Toy stages in a folder, and the count of runs of each since the last call."""

    def __init__(self, tmp_path: Path) -> None:
        self.run, self.journal = tmp_path / "run", tmp_path / "journal"
        self.config = ToyConfig(str(self.journal))

    def stage(self, name: str, function: str = "add", inputs: tuple[str, ...] = (), **changes: Any) -> Stage:
        config = replace(self.config, **changes)
        return Stage(name, name, f"toy_stages:{function}", config, {other: other for other in inputs})

    def go(self, *stages: Stage, jobs: int = 1, version: str = "1") -> dict[str, int]:
        self.journal.write_text("")
        self.results = run_stages(stages, self.run, jobs=jobs, force_code_version=version)
        return dict(Counter(line.split()[0] for line in self.journal.read_text().splitlines()))


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return Study(tmp_path)


def test_a_changed_key_reruns_exactly_what_depends_on_it(study: Study) -> None:
    def stages(a: int = 1, b: int = 2) -> list[Stage]:
        first = [study.stage("a", value=a), study.stage("b", value=b)]
        return [study.stage("d", inputs=("c", "b")), study.stage("c", inputs=("a",)), *first, study.stage("e", inputs=("b",))]

    everything = dict.fromkeys("abcde", 1)
    assert [status for _, status in plan(stages(), study.run, force_code_version="1")] == ["run"] * 5
    assert study.go(*stages(), jobs=2) == everything
    assert json.loads((study.run / "d").read_text()) == {"sum": 3, "threads": "1"}
    assert study.go(*stages()) == {} and {r.status for r in study.results.values()} == {"kept"}
    assert [(s.name, status) for s, status in plan(stages(a=5), study.run, force_code_version="1")] == [
        ("d", "run"), ("c", "run"), ("a", "run"), ("b", "done"), ("e", "done")
    ]  # fmt: skip
    assert study.go(*stages(a=5)) == {"a": 1, "c": 1, "d": 1}
    assert study.results["b"].status == "kept" and study.results["a"].status == "ran"
    assert study.go(*stages(a=5, b=7), jobs=2) == {"b": 1, "d": 1, "e": 1}
    (study.run / "c").unlink()
    assert study.go(*stages(a=5, b=7)) == {"c": 1}  # c comes out the same: d is kept
    assert study.go(*stages(a=5, b=7), version="2") == everything


def test_what_another_run_has_finished_is_copied(study: Study, tmp_path: Path) -> None:
    def stages(**changes: Any) -> list[Stage]:
        return [study.stage("a"), study.stage("b", inputs=("a",), **changes)]

    def go(*reuse: Path, **changes: Any) -> list[str]:
        study.journal.write_text("")
        run_stages(stages(**changes), study.run, jobs=1, reuse=reuse, force_code_version="1")
        return [line.split()[0] for line in study.journal.read_text().splitlines()]

    first, study.run = study.run, tmp_path / "second"
    run_stages(stages(), first, jobs=1, force_code_version="1")
    statuses = [status for _, status in plan(stages(value=9), study.run, reuse=[first], force_code_version="1")]
    assert statuses == ["done", "run"] and not study.run.exists()  # a plan copies nothing
    assert go(first, value=9) == ["b"]
    assert (study.run / "a").read_bytes() == (first / "a").read_bytes()
    assert storage.read_marker(study.run, "a") == storage.read_marker(first, "a")
    assert go() == ["b"] and go(first, value=9) == ["b"]  # a is this run's own now; b differs from the first run's only in value
    (first / "a").write_text("changed")
    study.run = tmp_path / "third"
    assert go(first) == ["a"]  # an output that is not as noted is not taken; b is found, since a comes out the same


@pytest.mark.parametrize("jobs", [1, 3])
def test_studies_that_run_together_make_once_what_they_share(study: Study, tmp_path: Path, jobs: int) -> None:
    def stages(value: int) -> list[Stage]:
        shared = [study.stage("a", seconds=0.3), study.stage("b", inputs=("a",))]
        return [*shared, study.stage("c", inputs=("b",), value=value), study.stage("d", inputs=("c",), value=value)]

    runs = [tmp_path / "first", tmp_path / "second", tmp_path / "third"]
    together = [(stages(value), run) for value, run in zip((1, 2, 1), runs, strict=True)]
    results = run_studies(together, jobs=jobs, force_code_version="1")
    lines = [line.split()[0] for line in study.journal.read_text().splitlines()]
    assert Counter(lines) == {"a": 1, "b": 1, "c": 2, "d": 2}
    assert [[result[name].status for name in "abcd"] for result in results] == [
        ["ran"] * 4,
        ["kept"] * 2 + ["ran"] * 2,
        ["kept"] * 4,
    ]
    for number, run in enumerate(runs):  # each is as if it had run alone
        alone = tmp_path / f"alone{number}"
        run_stages(together[number][0], alone, jobs=1, force_code_version="1")
        assert [(run / name).read_bytes() for name in "abcd"] == [(alone / name).read_bytes() for name in "abcd"]
    study.journal.write_text("")
    run_studies(together, jobs=jobs, force_code_version="1")
    assert study.journal.read_text() == ""
    if jobs == 1:
        assert lines == list("abcdcd")  # the first study goes first


def test_a_stage_that_fails_in_one_study_stops_both_and_names_its_study(study: Study, tmp_path: Path) -> None:
    bad, good = [study.stage("a"), study.stage("x", "fail", inputs=("a",))], [study.stage("a"), study.stage("b", inputs=("a",))]
    with pytest.raises(StageFailed, match=r"stage one: x: .*\n.*one/.work/logs/x.log"):
        run_studies([(bad, tmp_path / "one"), (good, tmp_path / "two")], jobs=1, force_code_version="1")
    study.journal.write_text("")
    run_studies([(good, tmp_path / "two")], jobs=1, force_code_version="1")
    assert "a " not in study.journal.read_text()  # what was shared is kept


@pytest.mark.parametrize("name", ["a/../../../loot", "a/../loot", "/tmp/loot", "b", ""])
def test_a_marker_of_another_run_that_names_files_outside_its_target_is_not_used(study: Study, tmp_path: Path, name: str) -> None:
    (tmp_path / "other").mkdir()
    first, study.run = tmp_path / "other" / "first", tmp_path / "second"
    run_stages([study.stage("a", "folder")], first, jobs=1, force_code_version="1")
    marker = storage.read_marker(first, "a")
    assert marker is not None
    for loot in (first / "loot", tmp_path / "loot", first / "b"):
        loot.write_text("x")
    marker["outputs"][name] = {"sha256": storage.hash_file(first / "loot"), "bytes": 1}
    storage.marker_path(first, "a").write_text(json.dumps(marker))
    run_stages([study.stage("a", "folder")], study.run, jobs=1, reuse=[first], force_code_version="1")
    assert sorted(p.name for p in study.run.rglob("*") if p.is_file() and ".work" not in p.parts) == ["a.json", "model", "more"]
    assert study.journal.read_text().count("a ") == 2  # made again, here


DAMAGE: list[Any] = [[], "x", {}, {"outputs": []}, {"outputs": {"a": 1}}, {"outputs": {"a": {"bytes": 1}}}, {"outputs": {}}]
DAMAGE += [
    {"outputs": {"a": {"sha256": 3, "bytes": "x"}}},
    {"seconds": "long"},
    {"seconds": None},
    {"fingerprint": 5},
    {"target": []},
]


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_marker_is_none(study: Study, tmp_path: Path, damage: Any) -> None:
    study.go(study.stage("a"))
    path = storage.marker_path(study.run, "a")
    whole = json.loads(path.read_text())
    path.write_text(json.dumps(whole | damage if isinstance(damage, dict) and damage else damage))
    first, study.run = study.run, tmp_path / "second"
    study.journal.write_text("")
    for run in (study.run, first):
        run_stages([study.stage("a")], run, jobs=1, reuse=[first], force_code_version="1")
    assert study.journal.read_text().count("a ") == 2 and storage.read_marker(first, "a")


@pytest.mark.parametrize("change", ["write", "remove"])
def test_what_changes_in_another_run_after_the_plan_is_run_here(
    study: Study, tmp_path: Path, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stages = [study.stage("a"), study.stage("b", inputs=("a",))]
    first, study.run = study.run, tmp_path / "second"
    run_stages(stages, first, jobs=1, force_code_version="1")
    study.journal.write_text("")
    whole, copy = (first / "a").read_bytes(), storage.adopt

    def changed(source: Path, run: Path, stage: str, marker: Any) -> bool:
        if stage == "a":
            (first / "a").write_bytes(b"z" * len(whole)) if change == "write" else (first / "a").unlink()
        return copy(source, run, stage, marker)

    monkeypatch.setattr(engine, "adopt", changed)
    run_stages(stages, study.run, jobs=1, reuse=[first], force_code_version="1")
    assert (study.run / "a").read_bytes() == whole and study.journal.read_text().count("a ") == 1
    assert not any((study.run / ".work" / "tmp").iterdir())


def test_nothing_to_run_starts_no_worker(study: Study, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    study.go(study.stage("a"))
    assert capsys.readouterr().err.startswith("[1/1] a ")
    monkeypatch.setattr(engine, "start_pool", None)
    assert study.go(study.stage("a")) == {}
    assert capsys.readouterr().err == "[1/1] a kept\n"


def test_external_files_count_by_content(study: Study, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "x").write_text("1")
    stage = replace(study.stage("a"), files={"data": data})
    assert study.go(stage) == {"a": 1}
    (data / "x").touch()
    assert study.go(stage) == {}
    (data / "x").write_text("2")
    assert study.go(stage) == {"a": 1}
    with pytest.raises(UserError, match="gone: not found; stage a needs it as its data"):
        study.go(replace(stage, files={"data": tmp_path / "gone"}))


def test_a_file_in_the_folder_of_another_stage(study: Study) -> None:
    def stages(value: int) -> list[Stage]:
        judged = Stage("judged", "model/judged.txt", "toy_stages:judge", study.config, {"model": "model"})
        return [judged, study.stage("model", "folder", value=value), study.stage("student", inputs=("model",))]

    assert study.go(*stages(3)) == {"model": 1, "judged.txt": 1, "student": 1}
    assert study.go(*stages(3)) == {}
    assert study.go(*stages(4)) == {"model": 1, "judged.txt": 1, "student": 1}
    assert (study.run / "model" / "judged.txt").read_text() == "4"
    assert sorted(storage.read_marker(study.run, "model")["outputs"]) == ["model/model", "model/sub/more"]  # type: ignore[index]
    assert [p.name for p in (study.run / ".work").iterdir() if any(p.iterdir())] == ["logs"]
    (study.run / "model" / "sub" / "more").write_text("longer than before")
    assert study.go(*stages(4)) == {"model": 1, "judged.txt": 1}
    with pytest.raises(ValueError, match="its target lies in that of model"):
        study.go(replace(stages(4)[0], inputs={}), stages(4)[1])


def test_stages_that_do_not_fit(study: Study) -> None:
    a, b = study.stage("a", inputs=("b",)), study.stage("b", inputs=("a",))
    wrong = [([a, b], "cycle"), ([a], "unknown input b"), ([study.stage("a")] * 2, "names must differ")]
    wrong += [([study.stage("x/y"), study.stage("x--y")], "names must differ"), ([study.stage("tmp")], "not be tmp")]
    wrong += [([study.stage("c"), replace(study.stage("d"), target="c")], "different targets")]
    for stages, message in wrong:
        with pytest.raises(ValueError, match=message):
            study.go(*stages)


def test_failures(study: Study) -> None:
    slow = study.stage("slow", seconds=0.5)
    with pytest.raises(UserError, match=r"^stage bad/a: data\.jsonl, line 3: no answer$"):
        study.go(study.stage("bad/a", "fail", error="user"), slow, study.stage("later", inputs=("bad/a",)), jobs=2)
    assert storage.read_marker(study.run, "slow")  # ran beside the failed one, and finished
    with pytest.raises(StageFailed, match=r"^stage bad/b: RuntimeError: a bug\nlog: .*/logs/bad--b\.log$"):
        study.go(study.stage("bad/b", "fail", error="bug"), study.stage("not begun"))
    log = (study.run / ".work" / "logs" / "bad--b.log").read_text()
    assert "said before the end" in log and "Traceback" in log
    assert not (study.run / "not begun").exists() and not (study.run / "bad").exists()
    with pytest.raises(StageFailed, match=r"a worker was ended from outside .* while these ran: bad/c"):
        study.go(study.stage("bad/c", "fail", error="kill"))
    with pytest.raises(StageFailed, match="FileNotFoundError: toy_stages:fail wrote nothing"):
        study.go(study.stage("bad/d", "fail"))
    with pytest.raises(StageFailed, match=r"AttributeError: .*nothing"):
        study.go(study.stage("bad/e", "nothing"))


def test_checkpoints_survive_a_failure_and_go_at_the_end(study: Study) -> None:
    stage = study.stage("a/b", "fail", error="once")
    with pytest.raises(StageFailed, match="a bug"):
        study.go(stage)
    assert len(list((study.run / ".work" / "a--b").glob("*/mark"))) == 1
    assert study.go(stage) == {"b": 1}
    assert (study.run / "a" / "b").read_text() == "second time"
    assert not (study.run / ".work" / "a--b").exists()


def test_one_owner(tmp_path: Path) -> None:
    other = "import sys, pathlib\nfrom distillknob.scripts.study.storage import RunLock\n"
    other += "with RunLock(pathlib.Path(sys.argv[1])):\n    print('mine', flush=True)\n    sys.stdin.read()\n"
    process = subprocess.Popen([sys.executable, "-c", other, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout and process.stdout.readline() == b"mine\n"
    with pytest.raises(UserError, match=f"{tmp_path}: in use by process {process.pid}"), storage.RunLock(tmp_path):
        pass
    process.kill()
    process.communicate()
    with storage.RunLock(tmp_path):
        assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"


def test_manifest_keeps_the_rules(study: Study, tmp_path: Path) -> None:
    model = tmp_path / "m"
    model.mkdir()
    (model / "tokenizer.json").write_text("{}")

    def write(margin: float) -> dict[str, Any]:
        rules = {"utility_margin": margin}
        given: dict[str, Any] = {"config_text": "x: 1\n", "root_seed": 1, "models": {"teacher": model}, "data": {"d": "0"}}
        manifest.write_manifest(study.run, name="n", verdict_rules=rules, **given)
        written: dict[str, Any] = json.loads((study.run / "manifest.json").read_text())
        return written

    first = write(0.02)
    assert first["schema"] == 1 and first["seeds"] == {"root": 1} and first["versions"]["torch"]
    assert first["models"].keys() == first["tokenizers"].keys() == {str(model)}
    assert (study.run / "code.diff").exists()
    assert write(0.03)["created"] == first["created"]
    study.go(Stage("s", "students/orig/s", "toy_stages:add", study.config))
    assert write(0.03)["verdict_rules"] == {"utility_margin": 0.03}
    with pytest.raises(UserError, match="verdict rules changed: use a new --output"):
        write(0.02)
    manifest.check_rules(study.run, {"utility_margin": 0.03}, "")
    with pytest.raises(UserError, match="verdict rules changed: --reuse"):
        manifest.check_rules(study.run, {"utility_margin": 0.02}, "--reuse: take another")


def _alive(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes() != b""  # empty: ended, only not yet collected
    except (FileNotFoundError, ProcessLookupError):
        return False


def _outputs(run: Path) -> dict[str, str]:
    visible = [p for p in run.rglob("*") if p.is_file() and not p.relative_to(run).parts[0].startswith(".")]
    return {p.relative_to(run).as_posix(): p.read_text() for p in visible if p.name != "lock"}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_killed_run_continues(tmp_path: Path, seed: int) -> None:
    def start(name: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(TESTS / "toy_stages.py"), tmp_path / name, tmp_path / f"{name}.journal"]
        return subprocess.Popen(command, stderr=subprocess.DEVNULL)

    assert start("whole").wait() == 0
    whole, run, journal = _outputs(tmp_path / "whole"), tmp_path / "cut", tmp_path / "cut.journal"
    chance = random.Random(seed)
    for _ in range(12):
        finished = set(storage.read_markers(run))
        journal.write_text("")
        process = start("cut")
        time.sleep(chance.uniform(0.4, 1.6))
        process.send_signal(signal.SIGKILL)
        ended = process.wait()
        time.sleep(0.3)
        lines = [line.split() for line in journal.read_text().splitlines()]
        assert not [pid for _, pid in lines if _alive(pid)], "workers outlive their parent"
        names = {"chain/" + n.removesuffix(".json") if n.endswith(".json") else n.removesuffix(".txt") for n, _ in lines}
        assert not names & finished, "a finished stage ran again"
        assert len(names) == len(lines)
        assert _outputs(run).items() <= whole.items(), "half-written output"
        if ended == 0:
            break
    assert start("cut").wait() == 0
    assert _outputs(run) == whole
