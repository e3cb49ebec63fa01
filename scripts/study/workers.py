"""Worker processes: one thread each, one stage at a time, gone as soon as the parent is."""

import faulthandler
import importlib
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from distillknob.rewards.errors import UserError
from distillknob.scripts.study.storage import clear, publish

PRELOAD: tuple[str, ...] = ("torch",)  # imported once a worker; stages that need none of it (tests) set it to ()
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


@dataclass(frozen=True)
class Job:
    """One stage, ready to run: all that a worker needs. `work` keeps checkpoints between attempts."""

    stage: str
    target: str
    function: str
    config: Any
    inputs: Mapping[str, Path]
    fingerprint: str
    run: Path
    work: Path
    log: Path


@dataclass(frozen=True)
class Outcome:
    """How a stage ended: seconds, and an error in one line (None: it finished) that is the user's mistake or not."""

    seconds: float
    error: str | None = None
    user: bool = False


def start_pool(run: Path, workers: int) -> ProcessPoolExecutor:
    """A pool of spawned workers. Sets their environment in this process too, since they take it over from here."""
    os.environ.update(_ONE_THREAD)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is fetched in the middle of a study unless the user says so
    log = run / ".work" / "logs" / "workers.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker, initargs=(PRELOAD, log))


def _start_worker(preload: tuple[str, ...], log: Path) -> None:
    """Runs once in each worker: ends with the parent, leaves Ctrl-C to it, imports what stages need."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _write_to(log)
    faulthandler.enable()
    for name in preload:
        importlib.import_module(name)
    if "torch" in preload:
        sys.modules["torch"].set_num_threads(1)


def _end_with_parent() -> None:
    """Waits until the parent is gone, even by SIGKILL, and ends this process at once."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _write_to(log: Path) -> None:
    """Sends stdout and stderr of this process, C libraries included, to the end of a file."""
    sys.stdout.flush()
    sys.stderr.flush()
    with log.open("a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)


def execute(job: Job) -> Outcome:
    """Runs a stage in a worker and publishes its output; errors come back in the outcome, their traceback goes to the log."""
    _write_to(job.log)
    started, clock = datetime.now(UTC), time.monotonic()
    print(f"--- {job.stage}, {started:%Y-%m-%d %H:%M:%S} UTC", flush=True)
    try:
        module, _, name = job.function.partition(":")
        function = getattr(importlib.import_module(module), name)
        job.work.mkdir(parents=True, exist_ok=True)
        temporary = job.run / ".work" / "tmp"
        temporary.mkdir(parents=True, exist_ok=True)
        holder = Path(tempfile.mkdtemp(dir=temporary))
        output = holder / Path(job.target).name
        function(job.config, dict(job.inputs), output, job.work)
        if not output.exists():
            raise FileNotFoundError(f"{job.function} wrote nothing to its output")
        seconds = round(time.monotonic() - clock, 3)
        times = {"seconds": seconds, "started": started.isoformat(), "finished": datetime.now(UTC).isoformat()}
        publish(job.run, job.stage, job.target, output, {"fingerprint": job.fingerprint, **times})
        clear(job.work.parent)
        clear(holder)
    except UserError as error:
        return Outcome(time.monotonic() - clock, str(error), user=True)
    except BaseException as error:  # SystemExit too: a stage must not end its worker
        traceback.print_exc()
        return Outcome(time.monotonic() - clock, traceback.format_exception_only(error)[-1].strip())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return Outcome(seconds)
