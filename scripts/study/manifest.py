"""The manifest of a run: what was run, with what, on what, and by which rules it is judged; written before the first stage."""

import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from distillknob.rewards.errors import UserError
from distillknob.rewards.jsonl import read_json, write_json
from distillknob.scripts.study.storage import code_version, hash_file, hash_items, hash_tree, read_markers

_PACKAGES = ("torch", "transformers", "trl", "peft", "datasets", "accelerate", "evaluate", "distillknob")
_TOKENIZER = ("tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab*", "merges.txt", "*.model", "chat_template*")


def write_manifest(
    run: Path,
    *,
    name: str,
    config_text: str,
    root_seed: int,
    verdict_rules: dict[str, Any],
    models: Mapping[str, Path],
    data: Mapping[str, str],
) -> None:
    """Writes manifest.json (schema 1) and code.diff; the caller holds the RunLock and has run no stage yet.

    `models`: role -> model folder, hashed here with its tokenizer files; `data`: name -> hash. UserError where the verdict
    rules differ from those in the manifest and a stage under students/ is finished: rules come first (method §5).
    """
    path = run / "manifest.json"
    old = read_json(path) if path.exists() else {}
    if not isinstance(old, dict):
        raise UserError(f"{path}: damaged; use a new --output")
    if path.exists():
        check_rules(run, verdict_rules, "use a new --output")
    commit, diff = _checkout()
    manifest = {
        "schema": 1,
        "name": name,
        "created": old.get("created", datetime.now(UTC).isoformat(timespec="seconds")),
        "versions": {"python": platform.python_version(), **{package: _version(package) for package in _PACKAGES}},
        "hardware": {"platform": platform.platform(), "cpus": os.cpu_count(), "cpu": _cpu_model()},
        "seeds": {"root": root_seed},
        "verdict_rules": verdict_rules,
        "code": {"commit": commit, "dirty": None if commit is None else bool(diff), "hash": code_version()},
        "config_hash": hashlib.sha256(config_text.encode()).hexdigest(),
        "models": {str(folder): hash_tree(folder) for folder in models.values()},
        "tokenizers": {str(folder): _tokenizer_hash(folder) for folder in models.values()},
        "data": dict(data),
    }
    run.mkdir(parents=True, exist_ok=True)
    temporary = run / ".code.diff.tmp"
    temporary.write_bytes(diff)
    temporary.replace(run / "code.diff")
    write_json(path, manifest)


def check_rules(run: Path, verdict_rules: dict[str, Any], advice: str) -> None:
    """UserError, with the advice, where a run has trained students under other verdict rules: results are known before them."""
    path = run / "manifest.json"
    manifest = read_json(path)
    if isinstance(manifest, dict) and manifest.get("verdict_rules") == json.loads(json.dumps(verdict_rules)):
        return
    if any(marker["target"].startswith("students/") for marker in read_markers(run).values()):
        raise UserError(f"{path}: verdict rules changed: {advice} (rules are fixed before the first student is trained)")


def _version(package: str) -> str | None:
    """Version of an installed package, without importing it; None where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu_model() -> str:
    """The processor's name; Linux knows it best."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor())


def _tokenizer_hash(folder: Path) -> str:
    """sha256 over the tokenizer's files in a model folder."""
    paths = {path for pattern in _TOKENIZER for path in folder.glob(pattern) if path.is_file()}
    return hash_items((path.name, hash_file(path)) for path in paths)


def _checkout() -> tuple[str | None, bytes]:
    """(commit, diff against it) of the git checkout that tracks this file; (None, b"") for an installed package."""
    here = Path(__file__).resolve()
    try:
        _git("ls-files", "--error-unmatch", here.name)
        root = _git("rev-parse", "--show-toplevel").decode().strip()
        return _git("rev-parse", "HEAD").decode().strip(), _git("-C", root, "diff", "HEAD")
    except (OSError, subprocess.CalledProcessError):  # no git, no checkout, no commit yet
        return None, b""


def _git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=Path(__file__).resolve().parent, capture_output=True, check=True).stdout
