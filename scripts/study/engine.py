"""The engine of a study: stages in the order of their inputs, each run once, in parallel, and continued where it was cut off.

A stage is a plain function `f(config, inputs, output, work)`: it reads the paths in `inputs`, writes a file or a folder to
`output`, and may keep checkpoints in `work`, which survives a cut and goes when the stage is finished. Its fingerprint is over
its name, function, config, the contents of its inputs and the code; finished with the same fingerprint = not run again.
"""

import dataclasses
import graphlib
import hashlib
import json
import multiprocessing
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool, ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from tqdm import tqdm

from distillknob.rewards.errors import UserError
from distillknob.scripts.study.storage import adopt, clear, code_version, hash_items, hash_tree, is_finished, read_marker
from distillknob.scripts.study.workers import Job, Outcome, execute, start_pool


@dataclass(frozen=True)
class Stage:
    """One step of a study.

    `target`: path of its output relative to the run folder, a file or a folder; it may lie in the folder of a stage it depends
    on. `function`: "package.module:name", importable in a worker. `config`: a frozen dataclass that json can hold.
    `inputs`: role -> name of another stage. `files`: role -> external file or folder, known by its content.
    """

    name: str
    target: str
    function: str
    config: Any
    inputs: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, Path] = field(default_factory=dict)


@dataclass(frozen=True)
class StageResult:
    """What came of a stage: kept from before (with the seconds it took then) or run now."""

    name: str
    status: Literal["kept", "ran"]
    seconds: float


class StageFailed(Exception):
    """A stage ended with an error that is not the user's: its name, the last line of the error, and the log with the rest."""


def _graph(stages: Sequence[Stage]) -> graphlib.TopologicalSorter[str]:
    """The prepared order of stages; ValueError for names, targets or inputs that do not fit, and for a cycle."""
    by_name = {stage.name: stage for stage in stages}
    if len(by_name) < len(stages) or len({_flat(name) for name in by_name} | {"tmp", "logs"}) < len(stages) + 2:
        raise ValueError("stage names must differ (with / and -- taken as the same) and not be tmp or logs")
    if len({stage.target for stage in stages}) < len(stages):
        raise ValueError("stages must have different targets")
    for stage in stages:
        unknown = set(stage.inputs.values()) - by_name.keys()
        if unknown:
            raise ValueError(f"stage {stage.name}: unknown input {', '.join(sorted(unknown))}")
        if set(stage.inputs) & set(stage.files):
            raise ValueError(f"stage {stage.name}: a role is in both inputs and files")
    edges = {stage.name: list(stage.inputs.values()) for stage in stages}
    above: dict[str, set[str]] = {}
    for name in graphlib.TopologicalSorter(edges).static_order():
        above[name] = {name}.union(*(above[other] for other in edges[name]))
    by_target = {PurePosixPath(stage.target): stage.name for stage in stages}
    for target, name in by_target.items():
        for parent in target.parents:  # a folder is replaced as a whole: what lies in it must come after
            if parent in by_target and by_target[parent] not in above[name]:
                raise ValueError(f"stage {name}: its target lies in that of {by_target[parent]}, which it does not depend on")
    sorter = graphlib.TopologicalSorter(edges)
    sorter.prepare()
    return sorter


def _flat(name: str) -> str:
    return name.replace("/", "--")


class _Fingerprints:
    """Fingerprints of stages whose inputs are finished; hashes each external file once."""

    def __init__(self, run: Path, version: str | None, reuse: Sequence[Path] = ()) -> None:
        self.run, self.version, self.reuse = run, version or code_version(), reuse
        self.external: dict[Path, str] = {}
        self.elsewhere: dict[str, tuple[Path, Mapping[str, Any]]] = {}  # finished in a run to reuse: that run and the marker

    def _file(self, stage: str, role: str, path: Path) -> str:
        if path not in self.external:
            if not path.exists():
                raise UserError(f"{path}: not found; stage {stage} needs it as its {role}")
            self.external[path] = hash_tree(path)
        return self.external[path]

    def _output(self, stage: str) -> str:
        """Content of a finished stage: of the files it wrote itself, not of what others put beside them."""
        marker = self.elsewhere[stage][1] if stage in self.elsewhere else read_marker(self.run, stage)
        assert marker is not None
        return hash_items((name, output["sha256"]) for name, output in marker["outputs"].items())

    def of(self, stage: Stage) -> str:
        """sha256 in hex over name, function, config, contents of inputs and files, and the code."""
        known = {
            "name": stage.name,
            "function": stage.function,
            "config": None if stage.config is None else dataclasses.asdict(stage.config),
            "inputs": {role: self._output(name) for role, name in stage.inputs.items()},
            "files": {role: self._file(stage.name, role, path) for role, path in stage.files.items()},
            "code": self.version,
        }
        return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()

    def kept(self, stage: Stage, fingerprint: str) -> StageResult | None:
        """The result of a stage that is finished already, here or in a run to reuse, else None."""
        self.elsewhere.pop(stage.name, None)  # from the plan: the other run may have changed since
        for run in (self.run, *self.reuse):
            marker = read_marker(run, stage.name)
            if marker is not None and is_finished(run, marker, stage.target, fingerprint):
                if run != self.run:
                    self.elsewhere[stage.name] = run, marker
                return StageResult(stage.name, "kept", float(marker["seconds"]))
        return None

    def take_over(self, stage: str) -> bool:
        """Copies the output of a stage that was found in a run to reuse; False where it is gone by now."""
        return stage not in self.elsewhere or adopt(self.elsewhere[stage][0], self.run, stage, self.elsewhere.pop(stage)[1])


def _plan(stages: Sequence[Stage], known: _Fingerprints) -> list[tuple[Stage, Literal["done", "run"]]]:
    sorter, by_name = _graph(stages), {stage.name: stage for stage in stages}
    done: set[str] = set()
    while sorter.is_active():
        for name in sorter.get_ready():
            stage = by_name[name]
            if done.issuperset(stage.inputs.values()) and known.kept(stage, known.of(stage)):
                done.add(name)
            sorter.done(name)
    return [(stage, "done" if stage.name in done else "run") for stage in stages]


def plan(
    stages: Sequence[Stage], run: Path, *, reuse: Sequence[Path] = (), force_code_version: str | None = None
) -> list[tuple[Stage, Literal["done", "run"]]]:
    """What `run_stages` would do, in list order. "run" may turn out as kept where an input is run and comes out the same."""
    return _plan(stages, _Fingerprints(run, force_code_version, reuse))


class _Progress:
    """A bar over stages with the names of those running; where stderr is no terminal, one line a finished stage."""

    def __init__(self, total: int) -> None:
        self.total, self.count = total, 0
        self.bar = tqdm(total=total, unit="stage", disable=not sys.stderr.isatty(), dynamic_ncols=True)

    def running(self, names: Sequence[str]) -> None:
        """Shows the names of the stages now running."""
        self.bar.set_postfix_str(", ".join(names))

    def finished(self, name: str, result: StageResult) -> None:
        """Counts a stage."""
        self.count += 1
        self.bar.update()
        if self.bar.disable:
            words = "kept" if result.status == "kept" else f"{result.seconds:.1f} s"
            print(f"[{self.count}/{self.total}] {name} {words}", file=sys.stderr, flush=True)


class _Schedule:
    """What is still to be done of one study: its stages by their inputs, those that could start now, and what came of the rest."""

    def __init__(self, stages: Sequence[Stage], known: _Fingerprints, prefix: str) -> None:
        self.stages, self.known, self.run, self.prefix = stages, known, known.run, prefix
        self.sorter = _graph(stages)
        self.position = {stage.name: number for number, stage in enumerate(stages)}
        self.targets = {stage.name: stage.target for stage in stages}
        self.waiting: dict[int, str] = {}  # position -> fingerprint of what could start now
        self.results: dict[str, StageResult] = {}

    def finish(self, result: StageResult) -> None:
        """Notes a result: what needed it may be ready now."""
        self.results[result.name] = result
        self.sorter.done(result.name)

    def advance(self, made: set[str]) -> list[StageResult]:
        """Sorts what is ready into finished and waiting; returns what needn't be run. `made`: fingerprints finished meanwhile."""
        results = [result for number in sorted(self.waiting) if self.waiting[number] in made and (result := self._keep(number))]
        while self.sorter.is_active() and (ready := self.sorter.get_ready()):
            for number in sorted(self.position[name] for name in ready):
                self.waiting[number] = self.known.of(self.stages[number])
                results += [result] if (result := self._keep(number)) else []
        return results

    def _keep(self, number: int) -> StageResult | None:
        kept = self.known.kept(self.stages[number], self.waiting[number])
        if kept is None or not self.known.take_over(kept.name):
            return None
        clear(self.run / ".work" / _flat(kept.name))
        del self.waiting[number]
        self.finish(kept)
        return kept

    def next(self, others: set[str]) -> tuple[Stage, str] | None:
        """The first that could start and isn't among `others`, which another study is to make; it waits no longer."""
        number = next((number for number in sorted(self.waiting) if self.waiting[number] not in others), None)
        return None if number is None else (self.stages[number], self.waiting.pop(number))


class _Runner:
    """One call of `run_studies`: the pool, started when first needed, and what runs in it."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.pool: ProcessPoolExecutor | None = None
        self.others = set(multiprocessing.active_children())
        self.running: dict[Future[Outcome], tuple[_Schedule, Stage, str]] = {}
        self.failure: Exception | None = None

    def submit(self, study: _Schedule, stage: Stage, fingerprint: str) -> None:
        """Hands a stage to a worker."""
        run = study.run
        self.pool = self.pool or start_pool(run, self.workers)
        inputs = {role: run / study.targets[name] for role, name in stage.inputs.items()} | dict(stage.files)
        work, log = run / ".work" / _flat(stage.name) / fingerprint, _log(run, stage)
        log.parent.mkdir(parents=True, exist_ok=True)
        job = Job(stage.name, stage.target, stage.function, stage.config, inputs, fingerprint, run, work, log)
        self.running[self.pool.submit(execute, job)] = study, stage, fingerprint

    @property
    def names(self) -> list[str]:
        """The names of the stages now running."""
        return [f"{study.prefix}{stage.name}" for study, stage, _ in self.running.values()]

    def collect(self) -> list[tuple[_Schedule, StageResult, str]]:
        """Waits for at least one running stage: its study, result and fingerprint; the first failure is kept in `failure`."""
        results = []
        for future in wait(self.running, return_when=FIRST_COMPLETED).done:
            outcome = future.result()
            study, stage, fingerprint = self.running.pop(future)
            if outcome.error is None:
                results.append((study, StageResult(stage.name, "ran", outcome.seconds), fingerprint))
            elif self.failure is None:
                kind, rest = (UserError, "") if outcome.user else (StageFailed, f"\nlog: {_log(study.run, stage)}")
                self.failure = kind(f"stage {study.prefix}{stage.name}: {outcome.error}{rest}")
        return results

    def stop(self, at_once: bool) -> None:
        """Ends the workers; `at_once`: in the middle of a stage, which continues from its checkpoints next time."""
        for process in set(multiprocessing.active_children()) - self.others if at_once else ():
            process.kill()
        if self.pool is not None:
            self.pool.shutdown(cancel_futures=True)


def _log(run: Path, stage: Stage) -> Path:
    """Where the output of a stage's function goes."""
    return run / ".work" / "logs" / f"{_flat(stage.name)}.log"


def run_stages(
    stages: Sequence[Stage], run: Path, *, jobs: int, reuse: Sequence[Path] = (), force_code_version: str | None = None
) -> dict[str, StageResult]:
    """`run_studies` for one study."""
    return run_studies([(stages, run)], jobs=jobs, reuse=reuse, force_code_version=force_code_version)[0]


def run_studies(
    studies: Sequence[tuple[Sequence[Stage], Path]], *, jobs: int, reuse: Sequence[Path] = (), force_code_version: str | None = None
) -> list[dict[str, StageResult]]:
    """Runs what is not finished, up to `jobs` stages at once, in list order as inputs finish; the caller holds the RunLocks.

    `studies`: stages and run folder of each. What several of them need with the same fingerprint is made in the first and copied
    to the others; as long as the first has a stage to start, the others wait. `reuse`: other run folders; a stage that is finished
    there with the same fingerprint is copied instead of run.

    Raises ValueError for stages that do not fit together (unknown input, cycle, a name or target twice); UserError (the user's
    mistake, with the stage's name) or StageFailed, after the stages beside the failed one have finished. Workers import
    `workers.PRELOAD` (torch); none is started if nothing is to be run.
    """
    runs = [run.resolve() for _, run in studies]
    version = force_code_version or code_version()
    schedules, to_run = [], 0
    for number, (stages, _) in enumerate(studies):
        known = _Fingerprints(runs[number], version, [*runs[:number], *runs[number + 1 :], *reuse])
        to_run += sum(status == "run" for _, status in _plan(stages, known))
        schedules.append(_Schedule(stages, known, f"{runs[number].name}: " if len(runs) > 1 else ""))
        clear(runs[number] / ".work" / "tmp")
    runner, progress = _Runner(max(1, min(jobs, to_run))), _Progress(sum(len(study.stages) for study in schedules))
    made: set[str] = set()
    try:
        while any(study.sorter.is_active() for study in schedules):
            for study in schedules:
                for result in study.advance(made):
                    progress.finished(f"{study.prefix}{result.name}", result)
            others = {fingerprint for _, _, fingerprint in runner.running.values()}
            for study in schedules:
                while len(runner.running) < jobs and runner.failure is None and (chosen := study.next(others)):
                    runner.submit(study, *chosen)
                    others.add(chosen[1])
                others |= set(study.waiting.values())
            if not runner.running:
                break
            progress.running(runner.names)
            for study, result, fingerprint in runner.collect():
                study.finish(result)
                progress.finished(f"{study.prefix}{result.name}", result)
                made.add(fingerprint)
    except BrokenProcessPool:
        message = f"a worker was ended from outside (killed? out of memory?) while these ran: {', '.join(runner.names)}"
        raise StageFailed(f"{message}\nlogs: {', '.join(f'{run}/.work/logs' for run in runs)}") from None
    except BaseException:
        runner.stop(at_once=True)
        raise
    finally:
        progress.bar.close()
        runner.stop(at_once=False)
    if runner.failure is not None:
        raise runner.failure
    return [study.results for study in schedules]
