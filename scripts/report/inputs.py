"""What the report reads, checked before it is used: a file of another structure is named, with the key and what is expected."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from distillknob.rewards.errors import UserError
from distillknob.rewards.jsonl import read_json, read_numbered_jsonl

Json = dict[str, Any]


class _Part(BaseModel):
    """Keys that the page doesn't read pass through; figures may be null or absent, but never of another type."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)


class _Interval(_Part):
    value: float | None = None
    low: float | None = None
    high: float | None = None


class _Judged(_Interval):
    verdict: Literal["holds", "does not hold", "undecided"] | None = None
    reason: str | None = None
    margin: float | None = None
    items: int | None = None
    discordant: int | None = None
    permutation_p: float | None = None
    greedy_original: _Interval | None = None


class _Retained(_Interval):
    corrected: float | None = None


class _Index(_Part):
    value: float | None = None
    reason: str | None = None


class _Sampling(_Part):
    temperature: float | None = None
    keep_right: bool | None = None
    candidates: int | None = None
    select: Literal["first", "likeliest", "length"] | None = None


class _Student(_Part):
    recipe: str | None = None
    sampling: _Sampling | None = None
    seeds: list[int] = []
    accuracy: _Interval | None = None
    accuracy_t1: _Interval | None = None
    per_seed: list[float | None] = []
    retained: _Retained | None = None
    di: _Index | None = None
    collapse: _Judged | None = None
    better: _Judged | None = None


class _Traces(_Part):
    explicit: _Interval | None = None
    tokens: _Interval | None = None
    step_validity: _Interval | None = None
    step_validity_right: _Interval | None = None


class _Guard(_Part):
    guard: str
    step: int | None
    value: float | None
    limit: float | None
    action: Literal["stop", "rollback", "told at the end"]
    restored: str | None = None


class _KL(_Part):
    full_vocabulary: _Interval | None = None


class _Settings(_Part):
    calibration: Literal["log_ratio", "proxy_only"] | None = None


class _Calibration(_Part):
    version: Literal[1] = Field(alias="schema")
    steps: int | None = None
    settings: _Settings | None = None
    guards: list[_Guard]
    kl: _KL | None = None
    shares: dict[str, float | None] = {}
    learnt_nothing: bool = False
    proxy_check: dict[str, Any] | None = None


class _Other(_Part):
    accuracy: _Interval | None = None
    majority: float | None = None
    kept: _Judged | None = None


class _Teacher(_Part):
    eta: float | None
    calibration_seed: int | None = None
    accuracy: _Interval | None = None
    accuracy_t1: _Interval | None = None
    utility: _Judged | None = None
    traces: _Traces | None = None
    others: dict[str, _Other] = {}
    calibration: _Calibration | None = None


class _Task(_Part):
    name: str
    items: int | None
    majority: float | None
    explicit_max: float | None = None


class _Base(_Part):
    accuracy: _Interval | None = None
    per_seed: list[float | None] = []


class _Majority(_Part):
    answer: str | None = None


class _Controls(_Part):
    S_0: _Base | None = None
    majority: _Majority | None = None
    floor: _Interval | None = None
    control: dict[str, str | None] = {}


class _Summary(_Part):
    version: Literal[1] = Field(alias="schema")
    name: str
    task: _Task
    teachers: dict[str, _Teacher]
    students: dict[str, dict[str, _Student | None]]
    controls: _Controls
    rules: dict[str, float | None] = {}
    seconds: dict[str, float | None] = {}


class _Code(_Part):
    commit: str | None = None
    dirty: bool | None = None
    hash: str | None = None


class _Manifest(_Part):
    created: str | None = None
    code: _Code | None = None
    versions: Json | None = None
    hardware: Json | None = None
    seeds: Json | None = None
    models: Json | None = None


Model = TypeVar("Model", bound=_Part)


def _checked(model: type[Model], path: Path) -> Json:
    """The JSON file as the model has it, absent keys filled in. Raises UserError naming the file and the first wrong key."""
    try:
        return model.model_validate(read_json(path)).model_dump(by_alias=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        keys = [str(k) for k in first["loc"]]
        if keys[:1] == ["teachers"] and keys[2:3] == ["calibration"]:  # the summary holds that file's content
            path, keys = path.parent.parent / "teachers" / keys[1] / "calibration.json", keys[3:]
        where = f"key {'.'.join(keys)!r}" if keys else "the document"
        raise UserError(f"{path}: {where}: {first['msg']}; the report reads the files of `distillknob run`, schema 1") from error


def read_summary(run: Path) -> Json:
    """measures/summary.json; keys that the page reads are there, null where the file has none. Raises UserError as `_checked`."""
    path = run / "measures" / "summary.json"
    if not path.is_file():
        raise UserError(f"{path}: not found; the report needs a measured run (first: distillknob run CONFIG)")
    return _checked(_Summary, path)


def read_manifest(run: Path) -> Json:
    """manifest.json, as read_summary."""
    return _checked(_Manifest, run / "manifest.json")


def read_config(run: Path) -> tuple[str, Json]:
    """config.yaml as a text and as what it says. Raises UserError where it can't be read or is no mapping."""
    path = run / "config.yaml"
    try:
        text = path.read_text(encoding="utf-8")
        settings = yaml.safe_load(text)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UserError(f"{path}: cannot be read as YAML ({error})") from error
    if not isinstance(settings, dict):
        raise UserError(f"{path}: holds no keys; the resolved config of a run is expected")
    return text, settings


def read_samples(path: Path) -> dict[str, Json]:
    """First temperature-1 prediction of each item, in file order; empty where the file is missing. UserError for a wrong line."""
    found: dict[str, Json] = {}
    for line, row in read_numbered_jsonl(path) if path.is_file() else ():
        if "id" not in row or not isinstance(row.get("text"), str | None):
            raise UserError(f"{path}, line {line}: a prediction needs the key id, and its text must be a string")
        if row.get("decoding") == "t1":
            found.setdefault(str(row["id"]), row)
    return found


def _said(content: object) -> str:
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)


def read_prompts(run: Path) -> dict[str, str]:
    """Item id → prompt from items.jsonl (messages as `role: content`); empty for a run without it. UserError for a wrong line."""
    path, found = run / "items.jsonl", {}
    for line, row in read_numbered_jsonl(path) if path.is_file() else ():
        prompt = row.get("prompt")
        if isinstance(prompt, list) and all(isinstance(m, dict) and {"role", "content"} <= m.keys() for m in prompt):
            prompt = "\n".join(f"{_said(m['role'])}: {_said(m['content'])}" for m in prompt)
        if "id" not in row or not isinstance(prompt, str):
            raise UserError(
                f"{path}, line {line}: an item needs the keys id and prompt (a text, or messages with role and content)"
            )
        found[str(row["id"])] = prompt
    return found
