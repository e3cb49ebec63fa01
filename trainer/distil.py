"""The distillation stage: a student learns from texts, the teacher's or gold ones (method §3; `seqkd`, `sft`, `answer_only`), or
from the teacher's distributions on its own texts (`gkd`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from distillknob.rewards.models import Dtype
from distillknob.rewards.settings import said
from distillknob.rewards.tasks import TaskConfig
from distillknob.trainer.lora import Lora

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from distillknob.eval.generation import Generated
    from distillknob.rewards.tasks.base import Prompt, Row, Task

RecipeName = Literal["seqkd", "gkd", "sft", "answer_only"]


@dataclass(frozen=True)
class Recipe:
    """How a student is made.

    `seqkd`: trained on the teacher's samples at `temperature` (0: greedy); `keep_right` leaves out samples that the verifier
    rejects. Of `candidates` samples a prompt one is taken: the `likeliest` under the teacher, or by `length` the right one nearest
    in bytes to the text of a reference teacher (a study's control). `gkd`: on the teacher's distributions on what the student
    samples at temperature 1; one tokenizer; in a study from the student that `start` names. `sft`: on gold solutions.
    `answer_only`: on bare answers. `samples` prompts, `steps` updates of `batch_size`.
    """

    recipe: RecipeName = field(
        default="seqkd",
        metadata={
            "help": "seqkd: the teacher's samples; gkd: the student's own samples under the teacher's distributions; "
            "sft: gold solutions; answer_only: bare answers"
        },
    )
    temperature: float = said(1.0, "of the teacher's samples, 0 (greedy) or above; seqkd only")
    keep_right: bool = said(False, "leave out samples that the verifier rejects; seqkd only")
    candidates: int = said(1, "samples a prompt, of which select takes one; seqkd only")
    select: Literal["first", "likeliest", "length"] = said(
        "first", "which of the candidates: the likeliest under the teacher, or the nearest in length to a reference; seqkd only"
    )
    jsd_beta: float = said(
        1.0,
        "divergence, 0 to 1; 1: reverse KL; 0: forward KL; between: generalised JSD, where values near an end mainly shrink the "
        "loss; gkd only",
    )
    teachers: Literal["all", "calibrated"] = field(
        default="all",
        metadata={
            "help": "on which teachers of a study it is run: all, or only the calibrated ones and the control; seqkd and gkd"
        },
    )
    start: Literal["base", "seqkd"] = field(
        default="base",
        metadata={
            "help": "in a study, the student that gkd begins with: before distillation, or the first seqkd recipe's of the same "
            "teacher and seed; gkd only"
        },
    )
    samples: int = said(1000, "training texts (gkd: prompts), one a prompt; beyond the training rows, prompts repeat")
    steps: int = said(500, "updates of the student")
    batch_size: int = said(32, "texts an update")
    learning_rate: float = said(2e-3, "step size, held for 60 % of the steps, then falling to 1 %; above 0")
    adam_beta2: float = said(0.999, "AdamW's second decay, 0 to below 1; new skills may come in fewer updates with 0.95")
    lora: Lora | None = None

    def __post_init__(self) -> None:
        for name in ("samples", "steps", "batch_size", "candidates"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: must be at least 1")
        if self.temperature < 0:
            raise ValueError("temperature: must be 0 (greedy) or above")
        if self.learning_rate <= 0:
            raise ValueError("learning_rate: must be above 0")
        if not 0 <= self.adam_beta2 < 1:
            raise ValueError("adam_beta2: must be from 0 to below 1")
        if not 0 <= self.jsd_beta <= 1:
            raise ValueError("jsd_beta: must be from 0 (forward KL) to 1 (reverse KL)")
        if self.recipe != "gkd" and self.jsd_beta != 1.0:
            raise ValueError(f"jsd_beta: {self.recipe} compares no distributions; leave it out")
        if self.recipe != "seqkd" and (self.keep_right or self.temperature != 1.0 or self.candidates > 1):
            raise ValueError(
                f"recipe: {self.recipe} takes no samples of a teacher: temperature, keep_right, candidates and select don't apply"
            )
        if self.recipe != "gkd" and self.start != "base":
            raise ValueError(f"start: {self.recipe} begins with the student before distillation; valid: base")
        if not self.has_teacher and self.teachers != "all":
            raise ValueError(f"recipe: {self.recipe} takes nothing from a teacher: teachers doesn't apply")
        if (self.candidates > 1) != (self.select != "first"):
            raise ValueError("select: likeliest and length choose from two or more candidates, first takes the only one")

    @property
    def has_teacher(self) -> bool:
        """Whether a student of it learns from a teacher, else from gold."""
        return self.recipe in ("seqkd", "gkd")

    @property
    def on_answers(self) -> Recipe:
        """As long and as fast, on bare answers."""
        plain: dict[str, Any] = {"temperature": 1.0, "keep_right": False, "candidates": 1, "select": "first", "teachers": "all"}
        return replace(self, recipe="answer_only", **plain)

    @property
    def label(self) -> str:
        """The recipe with its sampling or divergence, as it stands in a SID."""
        how = ""
        if self.recipe == "seqkd":
            choice = "" if self.select == "first" else f"-{self.select}{self.candidates}"
            how = f"-t{self.temperature:g}{'-right' if self.keep_right else ''}{choice}"
        elif self.recipe == "gkd":
            how = f"{'' if self.jsd_beta == 1 else f'-b{self.jsd_beta:g}'}{'-warm' if self.start == 'seqkd' else ''}"
        return f"{self.recipe}{how}{'-lora' if self.lora is not None else ''}"


@dataclass(frozen=True)
class DistilConfig:
    """One student to train: prompts, sampling and order come from `seed`, the same in every cell."""

    task: TaskConfig
    recipe: Recipe
    seed: int
    dtype: Dtype = "float32"


def distil(config: DistilConfig, inputs: Mapping[str, Path], output: Path, work: Path) -> None:
    """Stage: inputs `student` and, for seqkd and gkd, `teacher` (folders); output a model folder with metrics.jsonl and, but for
    gkd, samples.jsonl."""
    from distillknob.rewards.jsonl import write_jsonl
    from distillknob.rewards.models import load_tokenizer
    from distillknob.trainer.supervised import save_model

    tokenizer = load_tokenizer(inputs["student"])
    if config.recipe.recipe == "gkd":
        model, log = _learn_on_policy(config, inputs, tokenizer, work)
        save_model(model, tokenizer, output)
    else:
        samples = texts_to_learn(config, inputs)
        model, log = _learn_texts(config, inputs, tokenizer, samples, work)
        save_model(model, tokenizer, output)
        write_jsonl(output / "samples.jsonl", samples)
    write_jsonl(output / "metrics.jsonl", log)


Trained = tuple["PreTrainedModel", list[dict[str, Any]]]


def _learn_texts(
    config: DistilConfig,
    inputs: Mapping[str, Path],
    tokenizer: PreTrainedTokenizerBase,
    samples: Sequence[dict[str, Any]],
    work: Path,
) -> Trained:
    from distillknob.rewards.errors import UserError
    from distillknob.rewards.models import load_model
    from distillknob.trainer.supervised import train_on_pairs

    kept = [s for s in samples if s["kept"]]
    if not kept:
        raise UserError(f"recipe {config.recipe.label}: none of {len(samples)} samples is left to train on")
    student, pairs = load_model(inputs["student"], config.dtype), [(s["prompt"], s["text"]) for s in kept]
    return train_on_pairs(student, tokenizer, pairs, **_how(config, work))


def _learn_on_policy(config: DistilConfig, inputs: Mapping[str, Path], tokenizer: PreTrainedTokenizerBase, work: Path) -> Trained:
    from distillknob.rewards.models import check_same_tokenizer, load_model
    from distillknob.trainer.on_policy import train_on_policy

    prompts = [row["prompt"] for row in _rows(config)]
    check_same_tokenizer(inputs["student"], inputs["teacher"], prompts[0], config.recipe.label)
    return train_on_policy(
        load_model(inputs["student"], config.dtype),
        tokenizer,
        load_model(inputs["teacher"], config.dtype),
        prompts,
        max_new_tokens=config.task.longest,
        beta=config.recipe.jsd_beta,
        **_how(config, work),
    )


def _rows(config: DistilConfig) -> Sequence[dict[str, Any]]:
    """The training rows, the same in every cell of a seed."""
    from distillknob.rewards.seeds import derive_seed
    from distillknob.rewards.tasks import load_task

    return load_task(config.task).rows("train", config.recipe.samples, derive_seed(config.seed, "prompts"))


def _how(config: DistilConfig, work: Path) -> dict[str, Any]:
    """What every loop takes."""
    from distillknob.rewards.seeds import derive_seed
    from distillknob.trainer.supervised import Supervised

    recipe = config.recipe
    return {
        "settings": Supervised(recipe.steps, recipe.batch_size, recipe.learning_rate, adam_beta2=recipe.adam_beta2),
        "seed": derive_seed(config.seed, "order"),
        "work": work,
        "peft_config": None if recipe.lora is None else recipe.lora.peft_config(),
    }


def texts_to_learn(config: DistilConfig, inputs: Mapping[str, Path]) -> list[dict[str, Any]]:
    """The training texts, one a prompt: id, prompt, text, finished, correct, and whether it is kept. A cut-off sample isn't."""
    from distillknob.rewards.tasks import load_task

    task, recipe = load_task(config.task), config.recipe
    rows = _rows(config)
    if recipe.recipe != "seqkd":
        text_of = task.gold_text if recipe.recipe == "sft" else task.answer_text
        texts = [(text_of(row), True) for row in rows]
    else:
        texts = [(one.text, one.finished) for one in _selected(config, inputs, task, rows)]
    samples = []
    for row, (text, finished) in zip(rows, texts, strict=True):
        correct = task.grade(text, row).correct
        kept = finished and bool(text) and (bool(correct) or not (recipe.keep_right or recipe.select == "length"))
        samples.append(
            {"id": row["id"], "prompt": row["prompt"], "text": text, "finished": finished, "correct": correct, "kept": kept}
        )
    return samples


def _selected(config: DistilConfig, inputs: Mapping[str, Path], task: Task, rows: Sequence[Row]) -> list[Generated]:
    """One sample of the teacher a row, chosen as the recipe says."""
    from distillknob.eval.generation import generate
    from distillknob.eval.proxy_check import SampledBy
    from distillknob.rewards.models import load_model, load_tokenizer
    from distillknob.rewards.seeds import derive_seed

    recipe, count = config.recipe, config.recipe.candidates

    def sampled(role: str, prompts: Sequence[Prompt]) -> list[Generated]:
        return generate(
            load_model(inputs[role], config.dtype),
            load_tokenizer(inputs[role]),
            prompts,
            temperature=recipe.temperature,
            max_new_tokens=config.task.longest,
            seed=derive_seed(config.seed, "samples"),
        )

    prompts = [row["prompt"] for row in rows for _ in range(count)]
    written = sampled("teacher", prompts)
    if recipe.select == "first":
        return written
    if recipe.select == "likeliest":
        scorer = SampledBy(load_model(inputs["teacher"], config.dtype), load_tokenizer(inputs["teacher"]))
        logps = scorer.sampled_logps(prompts, [one.ids for one in written])
        worth = [(one.finished, sum(values)) for one, values in zip(written, logps, strict=True)]
    else:
        lengths = [len(one.text.encode()) for one in sampled("reference", [row["prompt"] for row in rows]) for _ in range(count)]
        right = [task.grade(one.text, rows[i // count]).correct == 1 for i, one in enumerate(written)]
        worth = [
            (one.finished and ok, -abs(len(one.text.encode()) - n)) for one, ok, n in zip(written, right, lengths, strict=True)
        ]
    return [written[max(range(i, i + count), key=lambda j: worth[j])] for i in range(0, len(written), count)]
