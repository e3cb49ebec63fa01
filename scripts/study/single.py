"""One stage by itself, in this process: how `distillknob calibrate` and `distill` run theirs."""

from __future__ import annotations

import hashlib
import json
import shutil
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from distillknob.rewards.errors import UserError
from distillknob.scripts.study.engine import StageFailed
from distillknob.scripts.study.storage import RunLock, check_output, code_version, hash_tree

Function = Callable[[Any, Mapping[str, Path], Path, Path], None]


def run_single(
    function: Function, config: Any, inputs: Mapping[str, Path], files: Mapping[str, Path], output: Path, config_text: str
) -> None:
    """Runs a stage into `output`, which appears whole or not at all; refused where it is there already.

    Checkpoints lie in `.NAME.work` beside it; an interrupted run with the same config, inputs, data `files` and code continues
    from them, another one starts afresh.
    """
    check_output(output, inputs)
    if output.exists():
        raise UserError(f"--output: {output} is there already; name a new folder, or remove it to run again")
    work = output.parent / f".{output.name}.work"
    work.mkdir(parents=True, exist_ok=True)
    with RunLock(work):
        kept, contents = work / "fingerprint", _fingerprint(config_text, {**inputs, **files})
        if not kept.is_file() or kept.read_text(encoding="utf-8") != contents:
            for old in work.iterdir():
                if old.is_dir():
                    shutil.rmtree(old)
            kept.write_text(contents, encoding="utf-8")
        result = work / "result"
        shutil.rmtree(result, ignore_errors=True)
        result.mkdir()
        try:
            function(config, inputs, result, work / "checkpoints")
        except UserError:
            raise
        except Exception as error:
            log = work / "error.log"
            log.write_text(traceback.format_exc(), encoding="utf-8")
            raise StageFailed(f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[-1]}\nlog: {log}") from error
        (result / "config.yaml").write_text(config_text, encoding="utf-8")
        result.replace(output)
    shutil.rmtree(work)


def _fingerprint(config_text: str, contents: Mapping[str, Path]) -> str:
    known = {"config": config_text, "code": code_version(), **{role: hash_tree(path) for role, path in contents.items()}}
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()
