"""Supervised training on prompt–completion pairs: the one loop behind the lab's models and the sequence-level students."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distillknob.rewards.rendering import encode_completions, encode_prompts

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Pair = tuple[Any, str]


@dataclass(frozen=True)
class Supervised:
    """How long and how fast to train. The rate is held to 60 % of the steps, then falls linearly to 1 % of itself."""

    steps: int
    batch_size: int = 32
    learning_rate: float = 2e-3
    decay: bool = True
    adam_beta2: float = 0.999
    save_every: int = 500


def train_on_pairs(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    pairs: Sequence[Pair],
    settings: Supervised,
    *,
    seed: int,
    work: Path,
    peft_config: Any = None,
    callbacks: Sequence[Any] = (),
) -> tuple[PreTrainedModel, list[dict[str, Any]]]:
    """Trains with TRL's SFTTrainer on completions only (the end token included) and returns the model and its log.

    `pairs`: (prompt, completion text); each side is encoded on its own and the ids are joined, as in scoring, so that no token
    crosses the border. The model is changed in place. A checkpoint in `work` of an interrupted run is continued.
    """
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    from distillknob.trainer.checkpoints import last_checkpoint
    from distillknob.trainer.progress import show_progress
    from distillknob.trainer.tiles import fitted_tiles

    logging.getLogger("trl").setLevel(logging.ERROR)
    heads = encode_prompts(tokenizer, [prompt for prompt, _ in pairs])
    tails = [[*ids, tokenizer.eos_token_id] for ids in encode_completions(tokenizer, [completion for _, completion in pairs])]
    ids = [head + tail for head, tail in zip(heads, tails, strict=True)]
    labels = [[-100] * len(head) + tail for head, tail in zip(heads, tails, strict=True)]
    args = SFTConfig(**trainer_arguments(settings, seed, work), max_length=None, dataset_kwargs={"skip_prepare_dataset": True})
    trainer = SFTTrainer(
        model=model,
        args=args,
        train_dataset=Dataset.from_dict({"input_ids": ids, "labels": labels}),
        processing_class=tokenizer,
        peft_config=peft_config,
        callbacks=list(callbacks),
    )
    show_progress(trainer, ("loss",))
    with fitted_tiles(model):
        trainer.train(resume_from_checkpoint=last_checkpoint(work))
    return trainer.model, timeless(trainer.state.log_history)


def trainer_arguments(settings: Supervised, seed: int, work: Path) -> dict[str, Any]:
    """What all supervised and on-policy training shares: schedule, batch, checkpoints in `work`, a log without other tools."""
    decay_steps = settings.steps - int(0.6 * settings.steps)
    schedule: dict[str, Any] = (
        {
            "lr_scheduler_type": "warmup_stable_decay",
            "lr_scheduler_kwargs": {"num_decay_steps": decay_steps, "min_lr_ratio": 0.01, "decay_type": "linear"},
        }
        if settings.decay
        else {"lr_scheduler_type": "constant"}
    )
    return {
        "output_dir": str(work),
        "max_steps": settings.steps,
        "per_device_train_batch_size": settings.batch_size,
        "learning_rate": settings.learning_rate,
        "adam_beta2": settings.adam_beta2,
        **schedule,
        **cpu_arguments(),
        "save_steps": settings.save_every,
        "save_total_limit": 1,
        "logging_steps": 50,
        "report_to": [],
        "disable_tqdm": True,  # our own bar shows less
        "seed": seed,
        "dataloader_pin_memory": False,
    }


_TIMES = {"train_runtime", "train_samples_per_second", "train_steps_per_second", "step_time", "total_flos"}


def timeless(history: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A trainer's log without what differs from run to run, so that equal runs write equal files."""
    return [{key: value for key, value in entry.items() if key not in _TIMES} for entry in history]


def cpu_arguments() -> dict[str, Any]:
    """Trainer arguments for this machine: full precision without gradient checkpointing on a CPU, TRL's defaults on a GPU."""
    import torch

    return {} if torch.cuda.is_available() else {"use_cpu": True, "bf16": False, "gradient_checkpointing": False}


def save_model(model: Any, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """A plain model folder: safetensors weights with any adapter merged in, and the tokenizer; no pickled file."""
    from peft import PeftModel

    if isinstance(model, PeftModel):
        model = model.merge_and_unload()
    model.save_pretrained(str(folder))
    tokenizer.save_pretrained(str(folder))
