"""On-policy distillation (GKD): the student writes, the teacher's next-token distributions on what it wrote are the target.

The smallest subclass of TRL's DistillationTrainer. It departs in three places: prompts are encoded as everywhere in this package;
the student samples as it is, without the checkpoint's own generation defaults and without dropout; positions are counted from the
first token of a prompt, not from the padding before it.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import PeftModel
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from trl import DistillationConfig, DistillationTrainer

from distillknob.eval.generation import plain_generation
from distillknob.rewards.rendering import Prompt, check_lengths, encode_prompt, positions_of
from distillknob.trainer.checkpoints import last_checkpoint
from distillknob.trainer.progress import show_progress
from distillknob.trainer.supervised import Supervised, timeless, trainer_arguments

logger = logging.getLogger(__name__)


def train_on_policy(
    student: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    teacher: PreTrainedModel,
    prompts: Sequence[Prompt],
    settings: Supervised,
    *,
    max_new_tokens: int,
    beta: float,
    seed: int,
    work: Path,
    peft_config: Any = None,
    callbacks: Sequence[Any] = (),
) -> tuple[PreTrainedModel, list[dict[str, Any]]]:
    """Trains on completions that the student samples at temperature 1; returns the model and its log.

    Loss: mean over completion tokens (the end token included) of the generalised JSD of the next-token distributions, nats a
    token. `beta` 1: reverse KL(S ‖ T); 0: forward KL(T ‖ S); between: β KL(T ‖ M) + (1 − β) KL(S ‖ M), M = βT + (1 − β)S. No
    gradient flows through the sampling. The student is changed in place. A checkpoint in `work` is continued.

    Raises:
        UserError: a prompt with the longest completion does not fit into the positions of student or teacher.
    """
    logging.getLogger("trl").setLevel(logging.ERROR)
    check_lengths(tokenizer, prompts, max_new_tokens, min(positions_of(student), positions_of(teacher)))
    encoded = [encode_prompt(tokenizer, prompt) for prompt in prompts]
    _cut_to_shared_rows(student, teacher, encoded)
    trainer = _OnPolicyTrainer(
        model=student,
        teacher_model=teacher,
        args=DistillationConfig(
            **trainer_arguments(settings, seed, work) | {"logging_steps": 10},  # fewer and costlier steps than on texts
            max_completion_length=max_new_tokens,
            beta=beta,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            shuffle_dataset=False,
        ),
        train_dataset=Dataset.from_dict({"prompt": _in_order(encoded, settings.steps * settings.batch_size, seed)}),
        processing_class=tokenizer,
        peft_config=peft_config,
        callbacks=list(callbacks),
    )
    show_progress(trainer, ("loss",))
    trainer.train(resume_from_checkpoint=last_checkpoint(work))
    return trainer.model, timeless(trainer.state.log_history)


class _OnPolicyTrainer(DistillationTrainer):  # type: ignore[misc]
    """DistillationTrainer on prompts that are token ids already."""

    def _tokenize_prompts(self, prompts: list[list[int]]) -> tuple[list[list[int]], None, dict[str, Any]]:
        return prompts, None, {}

    def _generate_single_turn(self, *args: Any, **kwargs: Any) -> Any:
        """TRL's sampling; it samples in training mode, with dropout where there is any, and fills fields that it leaves unset from
        the checkpoint's generation defaults."""
        model = self.accelerator.unwrap_model(self.model)
        model.eval()
        with plain_generation(model.get_base_model() if isinstance(model, PeftModel) else model):
            completions = super()._generate_single_turn(*args, **kwargs)
        model.train()
        return completions

    def _get_last_hidden_state(
        self, unwrapped_model: Any, input_ids: torch.Tensor, attention_mask: torch.Tensor, logits_to_keep: int, **_: Any
    ) -> torch.Tensor:
        """Hidden states before each completion token, (B, K, H). TRL gives no position ids though it pads prompts on the left, so
        models with absolute positions would be trained at others than they sampled at: the padding is moved to the right."""
        length = input_ids.shape[1]
        columns_T = torch.arange(length, device=input_ids.device)
        padding_B_1 = attention_mask.argmax(1, keepdim=True)
        moved_B_T = (columns_T + padding_B_1) % length
        hidden_B_T_H = super()._get_last_hidden_state(
            unwrapped_model, input_ids.gather(1, moved_B_T), attention_mask.gather(1, moved_B_T), length - 1
        )
        kept_B_K = columns_T[length - logits_to_keep - 1 : -1] - padding_B_1
        return torch.take_along_dim(hidden_B_T_H, kept_B_K[..., None], 1)


def _in_order(encoded: list[list[int]], count: int, seed: int) -> list[list[int]]:
    """`count` prompts: all of them in a new random order again and again. Laid out in advance, since TRL's sampler drops an
    incomplete last batch, and begins with its first order where a training is continued."""
    rng, ordered = random.Random(seed), list[list[int]]()
    while len(ordered) < count:
        ordered += rng.sample(encoded, len(encoded))
    return ordered[:count]


def _cut_to_shared_rows(student: PreTrainedModel, teacher: PreTrainedModel, prompts: list[list[int]]) -> None:
    """Cuts the model with more rows than the other (padding of the vocabulary; the tokenizer is the same) to the shared ones, and
    warns with the probability that it gave to the others after up to 32 of the prompts. Softmax over the rest renormalises."""
    rows = {role: model.get_output_embeddings().weight.shape[0] for role, model in (("student", student), ("teacher", teacher))}
    shared = min(rows.values())
    for role, model in (("student", student), ("teacher", teacher)):
        if rows[role] > shared:
            dropped = [_mass_beyond(model, ids, shared) for ids in prompts[:32]]
            model.resize_token_embeddings(shared)
            logger.warning(
                "%s: cut from %d rows to the %d that student and teacher share; probability dropped after the prompts: %.2g",
                role,
                rows[role],
                shared,
                sum(dropped) / len(dropped),
            )


def _mass_beyond(model: PreTrainedModel, ids: list[int], shared: int) -> float:
    """The probability of all next tokens from row `shared` on."""
    with torch.inference_mode():
        logits_V = model(input_ids=torch.tensor([ids], device=model.device)).logits[0, -1].float()
    return float(logits_V.softmax(-1)[shared:].sum())
