"""One stage by itself, in this process: how `distillknob calibrate` and `distill` run theirs."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from distillknob.rewards.errors import UserError
from distillknob.scripts.study.storage import RunLock

Function = Callable[[Any, Mapping[str, Path], Path, Path], None]


def run_single(function: Function, config: Any, inputs: Mapping[str, Path], output: Path, config_text: str) -> None:
    """Runs a stage into `output`, which appears whole or not at all; refused where it is there already.

    Checkpoints lie in `.NAME.work` beside it; an interrupted run with the same config continues from them, another config starts
    afresh.
    """
    if output.exists():
        raise UserError(f"--output: {output} is there already; name a new folder, or remove it to run again")
    work = output.parent / f".{output.name}.work"
    work.mkdir(parents=True, exist_ok=True)
    with RunLock(work):
        kept = work / "config.yaml"
        if not kept.is_file() or kept.read_text(encoding="utf-8") != config_text:
            for old in work.iterdir():
                if old.is_dir():
                    shutil.rmtree(old)
            kept.write_text(config_text, encoding="utf-8")
        result = work / "result"
        shutil.rmtree(result, ignore_errors=True)
        result.mkdir()
        function(config, inputs, result, work / "checkpoints")
        (result / "config.yaml").write_text(config_text, encoding="utf-8")
        result.replace(output)
    shutil.rmtree(work)
