"""`distillknob run STUDY ...`: prints the plan, runs what is not finished, measures and writes the report."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path

from distillknob.rewards.errors import UserError
from distillknob.rewards.tasks import TaskConfig
from distillknob.rewards.tasks.base import Task
from distillknob.scripts.study.config import Study
from distillknob.scripts.study.loading import add_override_flags, load_config, overrides_from
from distillknob.scripts.study.plan import StudyPlan

SPREAD = 0.05  # between student seeds, assumed for what is said before a run; `distillknob power` takes a known one
_EPILOG = (
    "Studies that come with the package: undistillable and distillable (the lab, both sides of the dial, some minutes each) and "
    "tiny (the whole chain in about half a minute). "
    "Recipes are given in the file, or all at once as one flag: --recipes='[{recipe: seqkd, steps: 100}]'; lists likewise: "
    "--etas='[0, -0.5]'."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags; every key of the study file is one too."""
    parser.add_argument(
        "studies",
        metavar="STUDY",
        nargs="+",
        help="a study file, or the name of one that comes with the package; several run together and make once what they share",
    )
    parser.add_argument("--output", type=Path, help="run folder, or of several studies the folder of theirs; default: runs/NAME")
    parser.add_argument(
        "--reuse",
        type=Path,
        action="append",
        default=[],
        metavar="RUN",
        help="another run folder; what is finished there with the same config, inputs and code is copied, not made again",
    )
    parser.add_argument("--dry-run", action="store_true", help="print the plan and stop")
    add_override_flags(parser.add_argument_group("keys of the study file"), Study)
    parser.epilog = _EPILOG


def main(arguments: argparse.Namespace) -> None:
    """Runs the studies."""
    from distillknob.scripts.measure import measure
    from distillknob.scripts.study.engine import plan, run_studies
    from distillknob.scripts.study.manifest import check_rules
    from distillknob.scripts.study.storage import RunLock

    overrides = overrides_from(arguments)
    planned = [_plan_study(load_config(Study, study_file(name), overrides), arguments) for name in arguments.studies]
    first = planned[0].study
    for one in planned[1:]:
        for key, ours, theirs in (("jobs", first.jobs, one.study.jobs), ("verdicts", first.verdicts, one.study.verdicts)):
            if ours != theirs:
                raise UserError(f"{key}: differs between {first.name} and {one.study.name}; give it as a flag, or run them apart")
    if len({one.run.resolve() for one in planned}) < len(planned):
        raise UserError(f"name: studies that run together need different names, not {', '.join(one.study.name for one in planned)}")
    if len(planned) > 1 and arguments.output and _is_ours(arguments.output):
        raise UserError(f"--output: {arguments.output} is a run folder; of several studies it is the folder that holds theirs")
    reuse = [folder.resolve() for folder in arguments.reuse]
    for folder in reuse:
        if not (folder / ".stages").is_dir() or folder in {one.run.resolve() for one in planned}:
            raise UserError(f"--reuse: {folder} is not another run folder (of distillknob run) with a finished stage")
        check_rules(folder, asdict(first.verdicts), "--reuse: take a run with the same rules")
    if arguments.dry_run:
        for one in planned:
            for stage, status in plan(one.plan.stages, one.run, reuse=reuse):
                print(f"{status:>5}  {f'{one.study.name}: ' if len(planned) > 1 else ''}{stage.name}")
        return
    with ExitStack() as locks:
        for one in planned:
            locks.enter_context(RunLock(one.run))
            prepare(one.run, one.study, one.plan, one.data)
        for one in planned:
            print(_announcement(one, reuse), flush=True)
        run_studies([(one.plan.stages, one.run) for one in planned], jobs=first.jobs, reuse=reuse)
        for one in planned:
            print(f"{measure(one.run)}\n")
            print(f"result: {one.run / 'measures' / 'summary.json'}\nreport: {one.run / 'report' / 'index.html'}", flush=True)


@dataclass(frozen=True)
class _Planned:
    """A study that can be run: its run folder, its stages and cells, and the hashes of its data files."""

    study: Study
    run: Path
    plan: StudyPlan
    data: dict[str, str]


def _plan_study(study: Study, arguments: argparse.Namespace) -> _Planned:
    from distillknob.scripts.study.storage import check_output

    models, data = find_sources(study)
    if len(arguments.studies) == 1:
        run: Path = arguments.output or Path("runs") / study.name
    else:
        run = (arguments.output or Path("runs")) / study.name
    if run.exists() and not (run.is_dir() and (not any(run.iterdir()) or _is_ours(run))):
        raise UserError(f"--output: {run} is not an empty folder or an earlier run; give the run a folder of its own")
    check_output(run, models)
    return _Planned(study, run, StudyPlan(study, models), data)


def _announcement(one: _Planned, reuse: Sequence[Path]) -> str:
    """What is to be run, and what it can show."""
    from distillknob.scripts.power import Spread, describe
    from distillknob.scripts.study.engine import plan
    from distillknob.scripts.study.storage import read_marker

    planned = plan(one.plan.stages, one.run, reuse=reuse)
    counts = Counter(status for _, status in planned)
    again = sum(status == "run" and read_marker(one.run, stage.name) is not None for stage, status in planned)
    again_words = f" ({again} of them again, since something changed)" if again else ""
    words = f"{one.run}: {counts['run']} stages to run{again_words}, {counts['done']} done"
    return "\n".join([words, *describe(one.study, [Spread("assumed", SPREAD, SPREAD)])])


def _is_ours(run: Path) -> bool:
    """Whether a folder is a run's, even of one that was cut off before it had written its config."""
    return (run / "config.yaml").is_file() or (run / "lock").is_file()


def study_file(name: str) -> Path:
    """The file of that path, or the packaged study of that name."""
    path = Path(name)
    packaged = Path(str(files("distillknob.configs"))) / f"{path.name.removesuffix('.yaml')}.yaml"
    if path.is_file() or not packaged.is_file():
        return path
    return packaged


def find_sources(study: Study) -> tuple[dict[str, Path], dict[str, str]]:
    """The model folders by role and the hashes of the data files; refuses what can't work, before any weight is loaded."""
    from distillknob.rewards.models import check_same_tokenizer, find_model, load_tokenizer
    from distillknob.rewards.rendering import encode_prompt
    from distillknob.rewards.reward_model import check_reward_model
    from distillknob.rewards.tasks import LAB_TASKS, lab_task, load_task
    from distillknob.scripts.study.storage import hash_file
    from distillknob.trainer.calibrate import CalibrateConfig, arguments
    from distillknob.trainer.groups import check_groups

    models = {role: find_model(path, role) for role, path in study.external.items()}
    if "proxy" in models and models["proxy"].resolve() == models.get("student", Path()).resolve():
        raise UserError("proxy: must not be the student: a teacher calibrated against a student is no test of that student")
    if "reward" in models:
        check_reward_model(models["reward"], "reward")
    task = load_task(study.task)
    test = len(task.rows("test", study.measure.items, 0))
    if test < study.measure.items:
        raise UserError(f"measure.items: {study.measure.items}, but the task has {test} test items; valid: up to {test}")
    check_lab_sizes(study)
    settings = study.calibration
    check_groups(
        processes=1,
        per_device_batch=settings.prompts_per_step * settings.num_generations,
        accumulation=1,
        group=settings.num_generations,
        prompts=len(task.rows("train", settings.steps * settings.prompts_per_step, 0)),
    )
    for recipe in study.recipes:
        for row in task.rows("train", recipe.samples, 0):  # where the task has fewer rows, that is said here
            if recipe.recipe == "sft":
                task.gold_text(row)
    prompt = task.rows("test", 1, 0)[0]["prompt"]
    for folder in models.values():  # a template that can't render the prompts is found here
        encode_prompt(load_tokenizer(folder), prompt)
    for recipe in study.recipes:  # the lab's teacher and student have one tokenizer; one of them alone is checked by its stage
        if recipe.recipe == "gkd" and {"teacher", "student"} <= models.keys():
            check_same_tokenizer(models["student"], models["teacher"], prompt, recipe.label)
    for role in sorted(models.keys() & {"teacher", "student"}):
        check_test_items(task, study.task, study.measure.items, models[role], "task")
    alphabet = lab_task(study.task.name).alphabet if study.task.name in LAB_TASKS else ""
    for config in study.other_tasks:
        other = load_task(config, "others")
        check_test_items(other, config, study.measure.items, models.get("teacher"), "others", alphabet)
    if settings.trl:  # TRL takes seconds to import, so its keys are looked at only where there are any
        arguments(CalibrateConfig(study.task, settings, 0.0, 0), Path(".work"))
    data = [path for config in (study.task, *study.other_tasks) for path in config.files.values()]
    return models, {str(path): hash_file(path) for path in data}


def check_lab_sizes(study: Study) -> None:
    """UserError where a model of the lab is to learn or answer more rows than the task has: said here, not by its stage."""
    from distillknob.rewards.tasks import LAB_TASKS, lab_task
    from distillknob.trainer.supervised import Supervised

    if study.task.name not in LAB_TASKS:
        return
    task, lab, batch = lab_task(study.task.name), study.lab, Supervised(1).batch_size
    trained = {
        "base.steps": (study.teacher, (lab.base.steps or task.base_steps) * batch),
        "teacher.style_steps": (study.teacher, lab.teacher.style_steps * batch),
        "proxy.problems": (study.proxy, lab.proxy.problems or task.proxy_problems),
        "student.steps": (study.student, lab.student.steps * batch),
    }
    for key, (model, count) in trained.items():
        if model == "lab" and count > (most := task.train_rows):
            shown = f"{count:,} rows" if key.endswith("problems") else f"{count // batch:,} updates of {batch} rows"
            raise UserError(f"lab.{key}: {shown}, but task {task.name} has {most:,} training rows")
    items = (("teacher", study.teacher, lab.teacher.validation_items), ("reward", study.reward_model, lab.reward.validation_items))
    for role, source, count in items:
        if source == "lab" and count > (most := len(task.rows("validation", count, 0))):
            raise UserError(f"lab.{role}.validation_items: {count}, but the task has {most} validation items; valid: up to {most}")


def check_test_items(task: Task, config: TaskConfig, items: int, folder: Path | None, key: str, alphabet: str = "") -> None:
    """UserError where a model can't read or answer the test items of a task: said here, not by the stage that measures it.

    `folder`: the model's; None: the lab's, which knows the characters of `alphabet`. `key` names the task's section.
    """
    from distillknob.rewards.models import load_tokenizer, read_config
    from distillknob.rewards.rendering import check_lengths, positions_in

    rows, where = task.rows("test", items, 0), f"{key}: {config.label}"
    prompts = [row["prompt"] for row in rows]
    if not any(row["gold"].strip() for row in rows):
        raise UserError(f"{where}: none of its first {len(rows)} test items has an answer, so nothing can be verified")
    if folder is not None:
        try:
            check_lengths(load_tokenizer(folder), prompts, config.longest, positions_in(read_config(folder, key)))
        except UserError as error:
            raise UserError(f"{where}: {error}") from error
    elif unknown := sorted({c for prompt in prompts for c in (prompt if isinstance(prompt, str) else "\n")} - set(alphabet)):
        raise UserError(f"{where}: the lab's teacher doesn't know {''.join(unknown)[:20]!r}; valid: texts of {alphabet}")


def prepare(run: Path, study: Study, planned: StudyPlan, data: dict[str, str]) -> None:
    """Writes what is fixed before the first stage: config, rules in the manifest, cells."""
    from distillknob.rewards.jsonl import write_jsonl
    from distillknob.rewards.tasks import load_task
    from distillknob.scripts.study.loading import to_yaml
    from distillknob.scripts.study.manifest import write_manifest

    text = to_yaml(study)
    write_manifest(
        run,
        name=study.name,
        config_text=text,
        root_seed=study.seed,
        verdict_rules=asdict(study.verdicts),
        models=planned.models,
        data=data,
    )
    temporary = run / ".config.yaml.tmp"
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(run / "config.yaml")
    write_jsonl(run / "cells.jsonl", planned.cells)
    items = load_task(study.task).rows("test", study.measure.items, 0)
    write_jsonl(run / "items.jsonl", ({"id": row["id"], "prompt": row["prompt"], "gold": row["gold"]} for row in items))
