"""Stages without models for the tests of the engine; each notes every run of itself in config.journal."""

import json
import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from distillknob.rewards.errors import UserError
from distillknob.scripts.study import workers
from distillknob.scripts.study.engine import Stage, run_stages
from distillknob.scripts.study.storage import RunLock


@dataclass(frozen=True)
class ToyConfig:
    """`journal`: file that gets one line a run; `value`: what goes into the output; `seconds`: how long it takes."""

    journal: str
    value: int = 0
    seconds: float = 0.0
    error: str = ""


def _note(config: ToyConfig, output: Path) -> None:
    with Path(config.journal).open("a") as file:
        file.write(f"{output.name} {os.getpid()}\n")


def add(config: ToyConfig, inputs: dict[str, Path], output: Path, work: Path) -> None:
    """A file with the sum of its value and of its inputs, in ten steps with a checkpoint after each."""
    _note(config, output)
    checkpoint = work / "steps"
    done = int(checkpoint.read_text()) if checkpoint.exists() else 0
    with output.open("w") as file:
        file.write("half-written")
        file.flush()
        for step in range(done, 10):
            time.sleep(config.seconds / 10)
            fresh = work / "fresh"
            fresh.write_text(str(step + 1))
            fresh.replace(checkpoint)
    total = config.value + sum(json.loads(p.read_text())["sum"] for p in inputs.values() if p.is_file())
    output.write_text(json.dumps({"sum": total, "threads": os.environ["OMP_NUM_THREADS"]}))


def folder(config: ToyConfig, inputs: dict[str, Path], output: Path, work: Path) -> None:
    """A folder with two files."""
    _note(config, output)
    (output / "sub").mkdir(parents=True)
    (output / "model").write_text(str(config.value))
    (output / "sub" / "more").write_text("x" * config.value)


def judge(config: ToyConfig, inputs: dict[str, Path], output: Path, work: Path) -> None:
    """A file from a folder of another stage."""
    _note(config, output)
    output.write_text((inputs["model"] / "model").read_text())


def fail(config: ToyConfig, inputs: dict[str, Path], output: Path, work: Path) -> None:
    """Fails in the way that config.error names."""
    _note(config, output)
    print("said before the end")
    if config.error == "once" and (work / "mark").exists():
        output.write_text("second time")
        return
    (work / "mark").write_text("seen")
    if config.error == "user":
        raise UserError("data.jsonl, line 3: no answer")
    if config.error == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if config.error in ("bug", "once"):
        raise RuntimeError("a bug")


def _main(run: Path, journal: str) -> None:
    """The run that the kill test kills: a chain beside a folder with a file put into it."""
    workers.PRELOAD = ()
    slow = ToyConfig(journal, 1, seconds=0.3)
    chain = [
        Stage(f"chain/{n}", f"chain/{n}.json", "toy_stages:add", slow, {"before": f"chain/{n - 1}"} if n else {}) for n in range(5)
    ]
    model = Stage("model", "model", "toy_stages:folder", slow, {"seed": "chain/1"})
    judged = Stage("judged", "model/judged.txt", "toy_stages:judge", slow, {"model": "model"})
    with RunLock(run):
        run_stages([*chain, model, judged], run, jobs=2, force_code_version="1")


if __name__ == "__main__":
    _main(Path(sys.argv[1]), sys.argv[2])
