"""What a reward may ask of a GRPO trainer: the policy's log-probabilities of the ids that it sampled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from distillknob.rewards.forward import completion_logps
from distillknob.rewards.tasks.base import Prompt
from distillknob.trainer.recorder import SampledLogps

if TYPE_CHECKING:
    from trl import GRPOTrainer


class GRPOPolicy:
    """Adapter of a (stock or our) GRPOTrainer for `CalibrationReward.attach`: what generation itself has said of the sampled ids
    where our trainer recorded it (`sampled`), else one policy pass a generation batch.

    The pass goes through the trainer's wrapped model, as the trainer's own passes do (right under LoRA, DDP and ZeRO). TRL has no
    public way to it: the two private methods used here are why the range of trl in pyproject.toml is narrow.
    """

    def __init__(self, trainer: GRPOTrainer) -> None:
        self.trainer = trainer
        self.sampled = SampledLogps()
        self.eos_token_ids: Sequence[int] = trainer.eos_token_ids

    def sampled_logps(self, prompts: Sequence[Prompt], completion_ids: Sequence[Sequence[int]]) -> list[list[float]]:
        """Nats at temperature 1, one list a completion, one value a sampled id; without gradient."""
        recorded = self.sampled.for_ids(completion_ids)
        if recorded is not None:
            return recorded
        trainer = self.trainer
        prompt_ids = [list(ids) for ids in trainer._tokenize_prompts(list(prompts))[0]]
        if trainer.temperature != 1.0:  # the trainer's own pass divides logits by its temperature: score at 1 instead
            logps = completion_logps(trainer.model, prompt_ids, [list(ids) for ids in completion_ids])
            return [values.tolist() for values in logps]
        rows = [torch.tensor([*head, *tail]) for head, tail in zip(prompt_ids, completion_ids, strict=True)]
        pad = int(trainer.processing_class.pad_token_id)
        # Padded on the right, unlike the trainer's own batches: it passes no positions, and a model with learned ones needs them.
        ids_B_T = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=pad).to(trainer.accelerator.device)
        lengths_B_1 = torch.tensor([[len(row)] for row in rows], device=ids_B_T.device)
        mask_B_T = (torch.arange(ids_B_T.shape[1], device=ids_B_T.device) < lengths_B_1).long()
        with torch.no_grad():
            logps_B_T, _, _ = trainer._get_per_token_logps_and_entropies(
                trainer.model, ids_B_T, mask_B_T, ids_B_T.shape[1] - 1, batch_size=trainer.args.per_device_train_batch_size
            )
        ends = [(len(head) - 1, len(head) - 1 + len(tail)) for head, tail in zip(prompt_ids, completion_ids, strict=True)]
        return [row[first:last].tolist() for row, (first, last) in zip(logps_B_T.float().cpu(), ends, strict=True)]
