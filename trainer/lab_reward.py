"""The lab's reward model: a classifier that tells right responses of the instruction task from faulty ones (method §7, ours).

It starts from the layers of the lab teacher's base with fresh ones above them, as reward models start from the model that they are
to judge, and learns from right responses of every style and as many with one fault (`trainer/verifier.py` says how). It can err:
accuracy is judged by rule.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from distillknob.rewards.errors import UserError
from distillknob.rewards.jsonl import write_jsonl
from distillknob.rewards.models import load_model, load_tokenizer
from distillknob.rewards.rendering import encode_prompt
from distillknob.rewards.reward_model import ModelReward, reward_ids
from distillknob.rewards.seeds import derive_seed
from distillknob.rewards.tasks.base import Split
from distillknob.rewards.tasks.instruct import Fault, InstructTask, faulty, parse
from distillknob.trainer.checkpoints import last_checkpoint
from distillknob.trainer.lab import LabReward, Made
from distillknob.trainer.progress import show_progress
from distillknob.trainer.supervised import Supervised, save_model, timeless, trainer_arguments

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_TASK = InstructTask()
_BATCH = 32
_NOISE = 0.6


@dataclass(frozen=True)
class Judged:
    """A response to an instruction; `fault` is None where it is right."""

    prompt: str
    text: str
    fault: Fault | None


def make_reward(config: Made[LabReward], inputs: Mapping[str, Path], output: Path, work: Path) -> None:
    """Stage: trains the reward model from the body of `inputs["base"]`; a UserError where it doesn't tell enough texts."""
    settings, tokenizer = config.settings, load_tokenizer(inputs["base"])
    texts = judged("train", settings.steps * _BATCH // 2, derive_seed(config.seed, "texts"))
    model, log = _train(load_model(inputs["base"]), tokenizer, texts, settings, config.seed, work)
    held_out = judged("validation", settings.validation_items, derive_seed(config.seed, "validation"))
    found = told(ModelReward(model, tokenizer), held_out)
    if found["all"] < settings.required:
        raise UserError(
            f"lab reward model: {found['all']:.3f} of the validation texts told rightly after {settings.steps} steps, "
            f"below the {settings.required} that a study needs; take another seed or more lab.reward.steps"
        )
    save_model(model, tokenizer, output)
    write_jsonl(output / "metrics.jsonl", [*log, {"validation_told": found}])


def judged(split: Split, instructions: int, seed: int) -> list[Judged]:
    """A right and a faulty response to each of so many instructions, every fault alike often but for those right by chance."""
    rng, texts = random.Random(seed), []
    for row in _TASK.rows(split, instructions, seed):
        texts.append(Judged(row["prompt"], _TASK.worked(row, rng.random(), rng), None))
        while True:
            fault = rng.choice(get_args(Fault))
            text = faulty(parse(row["prompt"]), fault, rng.random(), rng)
            grade = _TASK.grade(text, row)
            if not (grade.correct and grade.valid):
                break
        texts.append(Judged(row["prompt"], text, fault))
    return texts


def told(reward: ModelReward, texts: list[Judged]) -> dict[str, float]:
    """Share of texts that are told rightly (P(good) above ½ where right, else below): of `all`, of the `right`, of each fault."""
    good = [(p or 0.0) > 0.5 for p in reward.probabilities([t.prompt for t in texts], [t.text for t in texts])]
    rightly = [said_good == (t.fault is None) for said_good, t in zip(good, texts, strict=True)]
    groups = {"all": rightly}
    for one, t in zip(rightly, texts, strict=True):
        groups.setdefault(t.fault or "right", []).append(one)
    return {name: sum(group) / len(group) for name, group in groups.items()}


def _train(
    base: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: list[Judged], settings: LabReward, seed: int, work: Path
) -> tuple[PreTrainedModel, list[dict[str, Any]]]:
    from datasets import Dataset
    from transformers import (
        AutoModelForSequenceClassification,
        DataCollatorForTokenClassification,
        Trainer,
        TrainingArguments,
        set_seed,
    )

    from distillknob.trainer.verifier import Lesson

    set_seed(derive_seed(seed, "init"))
    config = copy.deepcopy(base.config)
    config.num_hidden_layers += settings.layers
    config.num_labels = 1
    model = AutoModelForSequenceClassification.from_config(config)
    model.base_model.load_state_dict(base.base_model.state_dict(), strict=False)  # the fresh layers have no counterpart
    batch = Supervised(settings.steps, _BATCH, settings.learning_rate)
    args = TrainingArguments(
        **trainer_arguments(batch, derive_seed(seed, "order"), work),
        warmup_steps=min(50, settings.steps // 10),
        remove_unused_columns=False,
    )
    trainer = Trainer(
        model=Lesson(model, base),
        args=args,
        train_dataset=Dataset.from_list(_rows(tokenizer, texts, derive_seed(seed, "noise"))),
        data_collator=DataCollatorForTokenClassification(tokenizer),
    )
    show_progress(trainer, ("loss",))
    trainer.train(resume_from_checkpoint=last_checkpoint(work))
    return model, timeless(trainer.state.log_history)


def _rows(tokenizer: PreTrainedTokenizerBase, texts: list[Judged], seed: int) -> list[dict[str, Any]]:
    """What `Lesson` reads. In every second text a share of the tokens, from 0 to `_NOISE`, is replaced by others of the same text:
    the more tokens are wrong, the sooner it learns to tell them."""
    rng, rows = random.Random(seed), []
    for text in texts:
        ids = reward_ids(tokenizer, text.prompt, text.text)
        start = len(encode_prompt(tokenizer, text.prompt))
        tail, share = ids[start:-1], _NOISE * max(0.0, rng.uniform(-1, 1))
        noisy = [rng.choice(tail) if rng.random() < share else token for token in tail]
        labels = [-100] * start + [1] * len(tail) + [-100]
        good = int(text.fault is None and noisy == tail)
        rows.append({"input_ids": [*ids[:start], *noisy, ids[-1]], "labels": labels, "good": good})
    return rows
