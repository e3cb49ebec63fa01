"""The proxy check on twelve proxies (proxies.yaml): what it predicts, and what forty steps of calibration then did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import yaml

from benchmarks.show.results import ROOT, Figure
from benchmarks.show.runs import config_file, lab, predicted, run_own
from distillknob.eval.statistics import Interval, mean_interval
from distillknob.rewards.jsonl import read_json, read_jsonl
from distillknob.rewards.seeds import derive_seed
from distillknob.scripts.study.config import Study
from distillknob.scripts.study.engine import Stage
from distillknob.scripts.study.loading import load_config
from distillknob.trainer.calibrate import CalibrateConfig
from distillknob.trainer.lab import LabProxy, Made

LIST = ROOT / "benchmarks" / "show" / "proxies.yaml"
STEPS, ROOT_SEED = 40, 1
WORDS = {1: "right", -1: "inverts", 0: "none"}


@dataclass(frozen=True)
class Odd:
    """A proxy that no study would make: untrained, or deaf to some characters."""

    kind: Literal["untrained", "deaf"]
    width: int
    missing: str
    seed: int


def make_odd(config: Odd, inputs: Mapping[str, Path], output: Path, work: Path) -> None:
    """Stage: a proxy with random weights."""
    from distillknob.rewards.tasks.chain import ALPHABET
    from distillknob.trainer.lab import character_tokenizer, tiny_llama
    from distillknob.trainer.supervised import save_model

    tokenizer = character_tokenizer("".join(c for c in ALPHABET if c not in config.missing))
    save_model(tiny_llama(tokenizer, width=config.width, layers=2, seed=config.seed), tokenizer, output)


def proxies() -> dict[str, Figure]:
    """All twelve, and how often the check was right; then the two proxies of side B under its own reward."""
    listed: list[dict[str, Any]] = yaml.safe_load(LIST.read_text(encoding="utf-8"))
    shared, teachers = lab(ROOT_SEED)
    run = run_own([stage for proxy in listed for stage in _stages(proxy, shared, teachers["A"])], "proxies")
    figures: dict[str, Figure] = {}
    right = 0
    for proxy in listed:
        said, truth = _correlation(run, proxy), _truth(run, proxy)
        right += _sign(said) == _sign(truth)
        head = f"proxy {proxy['name']} (expected: {proxy['expected']})"
        figures[f"{head}: correlation; says {WORDS[_sign(said)]}"] = _figure(said)
        figures[f"{head}: steps written, +0.5 less -0.5; is {WORDS[_sign(truth)]}"] = _figure(truth)
    figures["proxies of 12 on which the check is right"] = Figure(float(right), asked="≥ 10", holds=right >= 10)
    return figures | _side_b(shared, teachers["B"])


def _proxy_stage(proxy: dict[str, Any], shared: Path, target: str) -> Stage:
    lab_module = "distillknob.trainer.lab"
    if proxy["kind"] in ("untrained", "deaf"):
        odd = Odd(proxy["kind"], proxy.get("width", 48), proxy.get("missing", ""), proxy["seed"])
        return Stage(target, target, "benchmarks.show.proxies:make_odd", odd)
    if proxy["kind"] == "sibling":
        settings = load_config(Study, config_file("A")).lab.teacher
        base = {"base": shared / "lab" / "base"}
        return Stage(target, target, f"{lab_module}:make_teacher", Made(settings, proxy["seed"]), files=base)
    changes = {key: proxy[key] for key in ("width", "written") if key in proxy}
    return Stage(target, target, f"{lab_module}:make_proxy", Made(replace(LabProxy(), **changes), proxy["seed"]))


def _stages(proxy: dict[str, Any], shared: Path, teacher: Path) -> list[Stage]:
    """The proxy, a calibration each way, the first with the check, and what both teachers then write."""
    study, name = load_config(Study, config_file("A")), proxy["name"].replace(" ", "-")
    made = [] if proxy["kind"] == "teacher" else [_proxy_stage(proxy, shared, f"{name}/proxy")]
    inputs = {"proxy": made[0].name} if made else {}
    files = {"teacher": teacher} | ({} if made else {"proxy": teacher})
    stages = list(made)
    for eta in (0.5, -0.5):
        settings = replace(
            study.calibration, calibration="log_ratio", steps=STEPS, kl_ceiling=None, direction=None,
            check_proxy="warn" if eta > 0 else "off",
        )  # fmt: skip
        config = CalibrateConfig(study.task, settings, eta, derive_seed(ROOT_SEED, "proxies"))
        target = f"{name}/eta{eta:+g}"
        stages.append(Stage(target, target, "distillknob.trainer.calibrate:calibrate", config, inputs, files))
        stages.append(predicted(target, study, ROOT_SEED))
    return stages


def _correlation(run: Path, proxy: dict[str, Any]) -> Interval:
    found = read_json(run / proxy["name"].replace(" ", "-") / "eta+0.5" / "calibration.json")["proxy_check"]["correlation"]
    return Interval(found["value"], found["low"], found["high"], found["n"])


def _truth(run: Path, proxy: dict[str, Any]) -> Interval:
    """Steps written at temperature 1, η = +0.5 less −0.5, over the same prompts."""
    name = proxy["name"].replace(" ", "-")
    up, down = (_explicit(run / name / f"eta{eta}" / "predictions.jsonl") for eta in ("+0.5", "-0.5"))
    return mean_interval([a - b for a, b in zip(up, down, strict=True)])


def _explicit(path: Path) -> list[float]:
    return [row["explicit"] for row in read_jsonl(path) if row["decoding"] == "t1"]


def _sign(interval: Interval) -> int:
    if interval.low is None or interval.high is None:
        return 0
    return 1 if interval.low > 0 else -1 if interval.high < 0 else 0


def _figure(interval: Interval) -> Figure:
    return Figure(interval.value, interval.low, interval.high)


def _side_b(shared: Path, teacher: Path) -> dict[str, Figure]:
    """Side B's reward (proxy_only) with A's proxy and with one of B's own 35 % style: the check, and what the teacher writes."""
    study = load_config(Study, config_file("B"))
    own = Stage("35/proxy", "35/proxy", "distillknob.trainer.lab:make_proxy", Made(replace(LabProxy(), written=0.35), 108))
    stages, figures = [own], dict[str, Figure]()
    for name, inputs, files in (("80", {}, {"proxy": shared / "lab" / "proxy"}), ("35", {"proxy": "35/proxy"}, {})):
        settings = replace(study.calibration, calibration="proxy_only", check_proxy="warn")
        config = CalibrateConfig(study.task, settings, 0.5, derive_seed(ROOT_SEED, "calibration", "0"))
        target = f"{name}/eta+0.5"
        sources = {"inputs": inputs, "files": {"teacher": teacher, **files}}
        stages += [
            Stage(target, target, "distillknob.trainer.calibrate:calibrate", config, **sources),
            predicted(target, study, ROOT_SEED),
        ]
    run = run_own(stages, "proxies-B")
    for name in ("80", "35"):
        check = read_json(run / name / "eta+0.5" / "calibration.json")["proxy_check"]
        found = check["correlation"]
        words = f"side B, proxy of the {name} % style, proxy_only"
        figures[f"{words}: correlation"] = Figure(found["value"], found["low"], found["high"])
        figures[f"{words}: check passes"] = Figure(float(check["passes"]))
        figures[f"{words}: steps written after {study.calibration.steps} steps"] = _figure(
            mean_interval(_explicit(run / name / "eta+0.5" / "predictions.jsonl"))
        )
    return figures
