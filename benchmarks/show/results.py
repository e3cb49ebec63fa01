"""Result files of the show-commands: parts that are run once, merged into docs/results/NAME.json, and a table of the figures."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from distillknob.rewards.errors import UserError
from distillknob.rewards.jsonl import read_json, write_json

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Figure:
    """A measured value with its limits (None for counts); `asked` and `holds` are None where nothing is asked of it."""

    value: float | None
    low: float | None = None
    high: float | None = None
    asked: str | None = None
    holds: bool | None = None


Part = Callable[[], dict[str, Figure]]
Totals = Callable[[dict[str, Figure]], dict[str, Figure]]


def git(*words: str) -> str:
    """The output of a git command in the checkout."""
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def run_parts(
    name: str,
    parts: Mapping[str, Part],
    chosen: str | None,
    totals: Totals | None = None,
    unreached: Mapping[str, tuple[str, ...]] | None = None,
) -> int:
    """Runs the chosen part, or all whose code has changed since, writes the result file and prints it; the exit status.

    `totals`: figures from those of all parts, once all are there. `unreached`: for a part, the starts of the paths of files that it
    can't reach, whose changes leave its figures as they are. 0 for a part where its own figures hold, for the whole only
    where all parts are there and hold.
    """
    if chosen is not None and chosen not in parts:
        print(f"PART={chosen}: no such part; valid: {', '.join(parts)}")
        return 2
    path = ROOT / "docs" / "results" / f"{name}.json"
    try:
        stored = _stored(path) if path.is_file() else {}
    except (UserError, AttributeError, KeyError, TypeError, ValueError) as error:
        print(f"{path}: damaged ({error}); take it back from git, or remove it to run every part again")
        return 2
    for part in [chosen] if chosen else parts:
        fingerprint = hashlib.sha256(f"{part} {_files_version((unreached or {}).get(part, ()))}".encode()).hexdigest()
        if stored.get(part, {}).get("fingerprint") == fingerprint:
            print(f"{part}: kept, nothing that it depends on has changed")
            continue
        started = time.monotonic()
        figures = parts[part]()
        stored[part] = {
            "fingerprint": fingerprint,
            "seconds": round(time.monotonic() - started, 1),
            "commit": _commit(),
            "figures": {key: asdict(figure) for key, figure in figures.items()},
        }
        _write(path, name, parts, stored, totals)
    result = _write(path, name, parts, stored, totals)
    print(_table(result))
    held = stored[chosen]["figures"].values() if chosen else result["figures"].values()
    fine = all(figure["holds"] is not False for figure in held)
    return 0 if fine and (chosen or result["holds"]) else 1


def _stored(path: Path) -> dict[str, Any]:
    """The parts of a result file; an error where it isn't one."""
    stored: dict[str, Any] = dict(read_json(path)["parts"])
    for part in stored.values():
        if not {"fingerprint", "seconds", "commit"} <= part.keys():
            raise KeyError("a part lacks fingerprint, seconds or commit")
        for figure in part["figures"].values():
            Figure(**figure)
    return stored


def _write(path: Path, name: str, parts: Mapping[str, Part], stored: dict[str, Any], totals: Totals | None) -> dict[str, Any]:
    figures = {key: figure for part in parts if part in stored for key, figure in stored[part]["figures"].items()}
    if totals is not None and set(parts) <= set(stored):
        found = totals({key: Figure(**figure) for key, figure in figures.items()})
        figures = {key: asdict(figure) for key, figure in found.items()} | figures
    commits = {stored[part]["commit"] for part in parts if part in stored}
    result = {
        "holds": set(parts) <= set(stored) and all(figure["holds"] is not False for figure in figures.values()),
        "figures": figures,
        "made_by": f"make show-{name}",
        "hardware": f"{os.cpu_count()} x {_cpu()}, {platform.system()}, Python {platform.python_version()}",
        "seconds": round(sum(stored[part]["seconds"] for part in parts if part in stored), 1),
        "commit": commits.pop() if len(commits) == 1 else "several: see parts",
        "parts": stored,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, result)
    return result


def _table(result: dict[str, Any]) -> str:
    lines = [f"{'figure':58} {'value':>9} {'low':>9} {'high':>9}  asked"]
    for key, figure in result["figures"].items():
        numbers = " ".join(f"{'—' if figure[k] is None else format(figure[k], '.4g'):>9}" for k in ("value", "low", "high"))
        mark = {True: "holds", False: "DOES NOT HOLD", None: ""}[figure["holds"]]
        lines.append(f"{key:58} {numbers}  {figure['asked'] or ''} {mark}")
    return "\n".join([*lines, f"{result['made_by']}: {'holds' if result['holds'] else 'does not hold'}, {result['seconds']:.0f} s"])


def _commit() -> str:
    dirty = git("status", "--porcelain", "--", ".", ":!docs")
    return git("rev-parse", "HEAD") + ("-dirty" if dirty else "")


FILES = ("rewards", "eval", "trainer", "scripts", "configs", "tests", "benchmarks", "constraints.txt", "pyproject.toml", "Makefile")


def _files_version(unreached: tuple[str, ...]) -> str:
    """Hash of everything that a part may depend on: packages, commands, configs, tests, pins."""
    digest = hashlib.sha256()
    for name in git("ls-files", *FILES).split("\n"):
        if not name.startswith(unreached):
            digest.update(name.encode() + (ROOT / name).read_bytes())
    return digest.hexdigest()


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").is_file() else []:
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown processor"
