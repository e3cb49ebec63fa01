"""Configs: what is read, and that every mistake names its file, line and key."""

import argparse
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from distillknob.rewards.errors import UserError
from distillknob.scripts.study.loading import add_override_flags, load_config, overrides_from, to_yaml


@dataclass(frozen=True)
class Calibration:
    eta: float = field(default=1.0, metadata={"help": "the dial, 100 % up"})
    beta: Annotated[float, Field(ge=0)] = 0.1
    etas: tuple[float, ...] = ()
    batch: Annotated[int, Field(ge=1)] = 8
    group: Annotated[int, Field(ge=2)] = 4
    mode: Literal["mean", "sum"] = "mean"
    dry: bool = False

    def __post_init__(self) -> None:
        if self.batch % self.group:
            raise ValueError(f"group: {self.group} does not divide batch {self.batch}; valid: 2, 4, 8")


@dataclass(frozen=True)
class Study:
    name: str
    teacher: str | None = None
    calibration: Calibration = field(default_factory=Calibration)
    proxy: Calibration | None = None
    recipes: tuple[Calibration, ...] = ()
    seeds: dict[str, int] = field(default_factory=dict)


def write(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "x.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def errors(path: Path | None, overrides: dict[str, Any] | None = None, key: str | None = None) -> list[str]:
    with pytest.raises(UserError) as caught:
        load_config(Study, path, overrides or {}, key)
    return str(caught.value).replace(str(path), "x.yaml").splitlines()


def test_types_of_a_good_file(tmp_path: Path) -> None:
    text = "\ufeffname: '7'\ncalibration: {eta: 1e-3, beta: 3, etas: [-1, 2.5e+1, .5]}\nproxy:\nseeds: {a: 5}\n"
    study = load_config(Study, write(tmp_path, text))
    assert study == Study("7", calibration=Calibration(eta=0.001, beta=3.0, etas=(-1.0, 25.0, 0.5)), seeds={"a": 5})
    assert isinstance(study.calibration.beta, float)


def test_resolved_config_reads_back(tmp_path: Path) -> None:
    study = Study("1e-3", teacher="no", recipes=(Calibration(eta=1e-7), Calibration(dry=True)), seeds={"λ": 1})
    text = to_yaml(study)
    assert text.startswith("name: '1e-3'\n") and "λ" in text
    assert load_config(Study, write(tmp_path, text)) == study


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("name: a\n\ncalibration:\n  etaa: 1\n", "x.yaml:4: calibration.etaa: unknown key; valid keys: eta, beta, etas, batch, "
         "group, mode, dry (did you mean eta?)"),
        ("name: a\ncalibration:\n  beta: abc\n", "x.yaml:3: calibration.beta: must be a number ≥ 0, not 'abc'"),
        ("name: a\ncalibration:\n  beta: -1\n", "x.yaml:3: calibration.beta: must be a number ≥ 0, not -1"),
        ("name: a\ncalibration:\n  beta: '1'\n", "x.yaml:3: calibration.beta: must be a number ≥ 0, not '1'"),
        ("name: a\ncalibration: {beta: .nan}\n", "x.yaml:2: calibration.beta: must be a number ≥ 0, not nan"),
        ("name: a\ncalibration: {eta: 1e999}\n", "x.yaml:2: calibration.eta: must be a number, not inf"),
        ("name: a\ncalibration: {eta: true}\n", "x.yaml:2: calibration.eta: must be a number, not true"),
        ("name: a\ncalibration: {batch: true}\n", "x.yaml:2: calibration.batch: must be a whole number ≥ 1, not true"),
        ("name: a\ncalibration: {batch: 1.5}\n", "x.yaml:2: calibration.batch: must be a whole number ≥ 1, not 1.5"),
        ("name: a\ncalibration: {batch: 010}\n", "x.yaml:2: calibration.batch: must be a whole number ≥ 1, not '010'"),
        ("name: a\ncalibration: {dry: no}\n", "x.yaml:2: calibration.dry: must be true or false, not 'no'"),
        ("name: a\ncalibration: {mode: max}\n", "x.yaml:2: calibration.mode: must be one of 'mean', 'sum', not 'max'"),
        ("name: 3\n", "x.yaml:1: name: must be a string, not 3"),
        ("teacher: a\n", "x.yaml: name: is missing; must be a string"),
        ("name: a\nrecipes:\n- eta: 1\n- q: 1\n", "x.yaml:4: recipes.1.q: unknown key; valid keys: eta, beta, etas, batch, "
         "group, mode, dry"),
        ("name: a\nproxy:\n  etas: [1, x]\n", "x.yaml:3: proxy.etas.1: must be a number, not 'x'"),
        ("name: a\nseeds: {a: b}\n", "x.yaml:2: seeds.a: must be a whole number, not 'b'"),
        ("name: a\ncalibration:\n  group: 3\n", "x.yaml:3: calibration.group: 3 does not divide batch 8; valid: 2, 4, 8"),
        ("name: a\ncalibration: {batch: 9}\n", "x.yaml:2: calibration.group: 4 does not divide batch 9; valid: 2, 4, 8"),
        ("name: a\nseeds: {}\nname: b\n", "x.yaml:3: name: given twice; first on line 1"),
        ("name: a\nseeds: {a: 1, a: 2}\n", "x.yaml:2: seeds.a: given twice; first on line 2"),
        ("name: a\nseeds: [\n", "x.yaml:3: not valid YAML: expected the node content, but found '<stream end>'"),
        ("a: &x [*x]\n", "x.yaml:1: not valid YAML: aliases (*name) are not used in configs"),
        ("? [a]\n: 1\n", "x.yaml:1: a key must be a word, not a list or a mapping"),
        ("- 1\n", "x.yaml: must be a YAML mapping of keys to values at the top, not a list"),
        ("# nothing\n", "x.yaml: is empty; must be a YAML mapping of keys to values"),
        (b"name: \xff\n", "x.yaml: not UTF-8 text (byte 6)"),
        ("name: !!python/object/apply:os.system [ls]\n", "x.yaml:1: name: must be a string, not ['ls']"),
    ],
)  # fmt: skip
def test_mistakes_name_their_place(tmp_path: Path, text: str | bytes, expected: str) -> None:
    assert errors(write(tmp_path, text)) == [expected]


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    assert len(errors(write(tmp_path, "nam: a\ncalibration: {eta: x, beta: y}\n"))) == 4


@pytest.mark.parametrize("text", ["[" * 20000, "name: \x00", 'name: "\\ud800"', "a: 1\n---\nb: 1\n", "a: !!int x\n", "\t- :"])
def test_hostile_files_are_refused(tmp_path: Path, text: str) -> None:
    assert errors(write(tmp_path, text))[0].startswith("x.yaml")


def test_missing_file_and_folder(tmp_path: Path) -> None:
    assert errors(tmp_path) == ["x.yaml: cannot be read: Is a directory"]
    assert errors(tmp_path / "none.yaml") == ["x.yaml: cannot be read: No such file or directory"]


def test_one_section_of_a_file(tmp_path: Path) -> None:
    path = write(tmp_path, "other: 1\ncalibration:\n  eta: 2\n  bet: 1\n")
    with pytest.raises(UserError, match=r"x\.yaml:4: calibration\.bet: unknown key; .*did you mean beta"):
        load_config(Calibration, path, key="calibration")
    with pytest.raises(UserError, match="no section 'proxy'; sections: calibration"):
        load_config(Calibration, path, key="proxy")
    path.write_text("calibration:\n  eta: 2\n")
    assert load_config(Calibration, path, {"beta": "1"}, key="calibration") == Calibration(eta=2.0, beta=1.0)


def test_overrides(tmp_path: Path) -> None:
    path = write(tmp_path, "name: a\nteacher: t\nproxy:\ncalibration: {eta: 2}\n")
    given = {"calibration.beta": "3e-4", "calibration.etas": "[1, -.5]", "proxy.eta": "3", "name": "010", "teacher": "null"}
    want = Study("010", None, Calibration(2.0, 3e-4, (1.0, -0.5)), Calibration(3.0))
    assert load_config(Study, path, given) == want
    assert load_config(Study, None, {"name": "a", "calibration": {"eta": 2}}) == Study("a", calibration=Calibration(2.0))


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("calibration.beta", "abc", "--calibration.beta: must be a number ≥ 0, not 'abc'"),
        ("calibration.beta", "[", "--calibration.beta: not valid YAML: expected the node content, but found '<stream end>'"),
        ("calibration.etas", "[1, x]", "--calibration.etas: calibration.etas.1: must be a number, not 'x'"),
        ("calibration.group", "3", "--calibration.group: 3 does not divide batch 8; valid: 2, 4, 8"),
        ("nam", "b", "--nam: unknown key; valid keys: name, teacher, calibration, proxy, recipes, seeds (did you mean name?)"),
        ("name.x", "b", "--name.x: name is 'a' here, not a section with keys"),
    ],
)
def test_mistakes_in_overrides_name_the_flag(tmp_path: Path, key: str, value: str, expected: str) -> None:
    assert errors(write(tmp_path, "name: a\ncalibration: {eta: 2}\n"), {key: value}) == [expected]


def test_flags_of_every_field() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int)
    add_override_flags(parser, Study)
    given = parser.parse_args(["--jobs", "2", "--calibration.eta", "-0.5", "--name", "x"])
    assert overrides_from(given) == {"calibration.eta": "-0.5", "name": "x"}
    shown = " ".join(parser.format_help().split())
    assert "--calibration.eta VALUE the dial, 100 % up: a number; default 1.0" in shown
    assert "--name VALUE a string; required" in shown
    assert "--calibration.mode VALUE one of 'mean', 'sum'; default 'mean'" in shown
