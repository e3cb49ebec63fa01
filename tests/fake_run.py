"""A tiny made-up run folder for the tests of everything that only reads one: no model, outcomes drawn by a generator seeded by
name."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import yaml

HOSTILE = "</script><script>alert(1)</script>\u202e\x1b[31m <img src=x onerror=alert(2)> {{7*7}} \ud83d"
SID = "lab-seqkd-t1-chain"
GREEDY_SID = "lab-seqkd-t0-chain"
RULES = {"utility_margin": 0.02, "collapse_fraction": 0.5, "minimum_headroom": 0.10, "confidence": 0.95}
TEACHERS = {"orig": (None, 0.95), "eta+0-c0": (0.0, 0.96), "eta-0.5-c0": (-0.5, 0.95)}  # TID: eta, greedy accuracy
NO_REASONING = "no-reasoning"
OTHERS = {"reverse": 0.97, "largest": 0.9}  # further task: greedy accuracy of the original on it
STUDENTS = {"orig": 0.78, "eta+0-c0": 0.85, "eta-0.5-c0": 0.30}  # TID: greedy accuracy of its students


def write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    """JSON lines by the standard library alone, so that the writer under test isn't the one that makes the fixture."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def predictions(name: str, accuracy: float, items: int, hostile: bool = False) -> list[dict[str, Any]]:
    """Both decodings of `items` chain-like items; right with probability `accuracy`, drawn by `name`; 30 % of gold answers are
    one."""
    rng, rows = random.Random(name), []
    for decoding in ("greedy", "t1"):
        for i in range(items):
            gold = "0" if i % 10 < 3 else str(1 + i % 4)
            right, explicit = rng.random() < accuracy, rng.randint(2, 4)
            answer = gold if right else str((int(gold) + 1) % 5)
            text, answer = (
                (f"a+1={HOSTILE}#{answer}", HOSTILE if not right else answer) if hostile else (f"a+1=3b*2=c-1=0#{answer}", answer)
            )
            rows.append(
                {
                    "id": f"chain-{i}",
                    "split": "test",
                    "sample": 0,
                    "text": text,
                    "answer": answer,
                    "gold": HOSTILE if hostile and gold == "0" else gold,
                    "correct": None if hostile and i == 1 else int(right),
                    "finished": True,
                    "tokens": 12 + explicit,
                    "bytes": 20 + explicit,
                    "decoding": decoding,
                    "explicit": float(explicit),
                    "valid": int(right and rng.random() < 0.95),
                }
            )
    return rows


def add_student(
    run: Path,
    tid: str,
    sid: str,
    accuracy: float,
    *,
    seeds: int = 5,
    items: int = 40,
    recipe: str = "seqkd",
    temperature: float | None = 1.0,
    candidates: int = 1,
    select: str = "first",
    hostile: bool = False,
) -> None:
    """Adds a student cell of `seeds` seeds to a fake run: lines in cells.jsonl, predictions and training samples."""
    first, _, calibration = tid.rpartition("-c")
    eta = TEACHERS[f"{first}-c0"][0] if f"{first}-c0" in TEACHERS else None
    chosen = {"temperature": temperature, "keep_right": False, "candidates": candidates, "select": select}
    sampling = None if temperature is None else chosen
    with (run / "cells.jsonl").open("a", encoding="utf-8") as file:
        for seed in range(seeds):
            cell = {
                "tid": tid,
                "eta": eta,
                "beta": 0.02 if eta is not None else None,
                "calibration_seed": int(calibration) if eta is not None else None,
                "sid": sid,
                "student": "lab",
                "recipe": recipe,
                "sampling": sampling,
                "task": "chain",
                "seed": seed,
            }
            file.write(json.dumps(cell) + "\n")
            folder = run / "students" / tid / sid / str(seed)
            write_lines(folder / "predictions.jsonl", predictions(f"{tid}/{sid}/{seed}", accuracy, items, hostile))
            text = HOSTILE if hostile else "a+1=3b*2=1c-1=0#0"
            write_lines(
                folder / "samples.jsonl",
                [{"id": "chain-900", "prompt": "2a+1b*2c-1d+0?", "text": text}] if recipe == "seqkd" else [],
            )


def add_controls(run: Path, *, seeds: int = 5, items: int = 40, hostile: bool = False) -> None:
    """Adds every control of a study: students of the original's other samples, of bare answers, and a further teacher with its."""
    line = {"tid": NO_REASONING, "task": "chain"}
    empty = ("eta", "beta", "calibration_seed", "sid", "student", "recipe", "sampling", "seed")
    with (run / "cells.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(line | dict.fromkeys(empty)) + "\n")
    write_lines(run / "teachers" / NO_REASONING / "predictions.jsonl", predictions(NO_REASONING, 0.5, items, hostile))
    more: dict[str, Any] = {"seeds": seeds, "items": items, "hostile": hostile}
    add_student(run, "orig", GREEDY_SID, 0.8, temperature=0.0, **more)
    add_student(run, "orig", "lab-seqkd-t0.5-chain", 0.79, temperature=0.5, **more)
    add_student(run, "orig", "lab-seqkd-t1-likeliest8-chain", 0.76, candidates=8, select="likeliest", **more)
    add_student(run, "orig", "lab-seqkd-t1-length8-chain", 0.5, candidates=8, select="length", **more)
    add_student(run, "gold", "lab-answer_only-chain", 0.3, recipe="answer_only", temperature=None, **more)
    add_student(run, NO_REASONING, SID, 0.31, **more)


def add_calibrations(run: Path, count: int, items: int = 40) -> None:
    """Adds `count` further calibration seeds of both dials, each with students of its own."""
    lines = [json.loads(line) for line in (run / "cells.jsonl").read_text(encoding="utf-8").splitlines()]
    for number in range(1, count + 1):
        for tid, (eta, accuracy) in TEACHERS.items():
            if eta is not None:
                mine = tid.replace("-c0", f"-c{number}")
                cell = next(line for line in lines if line["tid"] == tid and line["sid"] is None)
                with (run / "cells.jsonl").open("a", encoding="utf-8") as file:
                    file.write(json.dumps(cell | {"tid": mine, "calibration_seed": number}) + "\n")
                write_lines(run / "teachers" / mine / "predictions.jsonl", predictions(mine, accuracy, items))
                add_student(run, mine, SID, STUDENTS[tid], items=items)


def add_others(run: Path, items: int = 60) -> None:
    """Lets every teacher of a fake run answer two further tasks; on `largest` a calibrated one loses 50 points."""
    cells = [json.loads(line) for line in (run / "cells.jsonl").read_text(encoding="utf-8").splitlines()]
    for cell in cells:
        cell["others"] = [] if cell["sid"] else list(OTHERS)
        for other in cell["others"]:
            loss = 0.5 if cell["eta"] and other == "largest" else 0.0
            rows = predictions(f"{cell['tid']}/{other}", OTHERS[other] - loss, items)
            write_lines(run / "teachers" / cell["tid"] / "others" / other / "predictions.jsonl", rows)
    write_lines(run / "cells.jsonl", cells)


def make_fake_run(
    folder: Path, *, seeds: int = 5, items: int = 40, hostile: bool = False, calibration: dict[str, Any] | None = None
) -> Path:
    """Writes a run folder (config, manifest, cells, predictions of 3 teachers, their students and S_0) and returns it.

    `calibration`: what calibration.json holds besides eta, {"steps": 100} by default. `hostile`: texts, answers and the most
    frequent gold answer hold markup, control characters and a lone surrogate, and one item can't be verified. The greedy cell
    of the original teacher is not written: add it by add_student(run, "orig", GREEDY_SID, .8, temperature=0.0), or all controls
    by add_controls(run)."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "name": folder.name,
        "seed": 1,
        "jobs": 1,
        "task": {"name": "chain"},
        "teacher": {"kind": "lab"},
        "proxy": {"kind": "lab"},
        "student": {"kind": "lab"},
        "calibration": {"etas": [0.0, -0.5], "seeds": 1},
        "recipes": ["seqkd"],
        "student_seeds": seeds,
        "measure": {"items": items},
        "verdicts": RULES,
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    manifest = {
        "schema": 1,
        "name": folder.name,
        "created": "2026-01-01T00:00:00+00:00",
        "versions": {"python": "3.11.0", "torch": "2.6.0"},
        "hardware": {"cpu": "fake", "cores": 2},
        "seeds": {"root": 1},
        "verdict_rules": RULES,
        "code": {"commit": "0" * 40, "dirty": False, "hash": "0" * 64},
        "config_hash": "0" * 64,
        "models": {},
        "tokenizers": {},
        "data": {},
    }
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1), encoding="utf-8")
    cells = []
    for tid, (eta, accuracy) in TEACHERS.items():
        cells.append(
            {
                "tid": tid,
                "eta": eta,
                "beta": None if eta is None else 0.02,
                "calibration_seed": None if eta is None else 0,
                "sid": None,
                "student": None,
                "recipe": None,
                "sampling": None,
                "task": "chain",
                "seed": None,
            }
        )
        write_lines(folder / "teachers" / tid / "predictions.jsonl", predictions(tid, accuracy, items, hostile))
        if eta is not None:
            record = {"eta": eta, **(calibration or {"steps": 100})}
            (folder / "teachers" / tid / "calibration.json").write_text(json.dumps(record), encoding="utf-8")
    write_lines(folder / "cells.jsonl", cells)
    prompt = [{"role": "user", "content": HOSTILE}] if hostile else "2a+1b*2c-1d+0?"
    write_lines(folder / "items.jsonl", [{"id": f"chain-{i}", "prompt": prompt, "gold": "0"} for i in range(items)])
    for tid, accuracy in STUDENTS.items():
        add_student(folder, tid, SID, accuracy, seeds=seeds, items=items, hostile=hostile)
    add_student(folder, "none", "lab-base", 0.22, seeds=seeds, items=items, recipe="base", temperature=None, hostile=hostile)
    return folder
