"""A sequence-classification model as a reward function (method §2): the probability that a completion is good.

The model reads a prompt and a completion as the models that write them do (`rewards/rendering.py`), then its end token, and gives
one logit; the reward is its sigmoid, rounded (ours). Rewards are z-scored in a group: without rounding, the noise between
completions that are all good would be blown up to the size of the dial, so the default is a verdict of 0 or 1 (docs/LOG.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distillknob.rewards.errors import UserError
from distillknob.rewards.rendering import Prompt, encode_completion, encode_prompt, positions_of
from distillknob.rewards.tasks.base import completion_text

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


class ModelReward:
    """A reward model in TRL's signature, `f(prompts, completions, **columns) -> list[float | None]`."""

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, decimals: int | None = 0, batch_size: int = 64
    ) -> None:
        self.model, self.tokenizer, self.decimals, self.batch_size = model.eval(), tokenizer, decimals, batch_size
        self.__name__ = "reward_model"

    def __call__(self, prompts: Sequence[Prompt], completions: Sequence[Any], **columns: Any) -> list[float | None]:
        """One reward in [0, 1] a completion; None for an empty one and for one that does not fit into the model's positions."""
        texts = [completion_text(completion) for completion in completions]
        given = self.probabilities(prompts, texts)
        return given if self.decimals is None else [None if p is None else round(p, self.decimals) for p in given]

    def probabilities(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> list[float | None]:
        """P(good) of each text, not rounded."""
        import torch

        rows = [self._ids(prompt, text) for prompt, text in zip(prompts, texts, strict=True)]
        fit = [i for i, row in enumerate(rows) if row]
        fit.sort(key=lambda i: len(rows[i]))  # little padding
        found: list[float | None] = [None] * len(rows)
        for start in range(0, len(fit), self.batch_size):
            chosen = fit[start : start + self.batch_size]
            width = len(rows[chosen[-1]])
            pad = self.model.config.get_text_config().pad_token_id
            ids_B_T = torch.tensor([rows[i] + [pad] * (width - len(rows[i])) for i in chosen], device=self.model.device)
            mask_B_T = torch.tensor([[1] * len(rows[i]) + [0] * (width - len(rows[i])) for i in chosen], device=self.model.device)
            with torch.no_grad():
                logits_B = self.model(input_ids=ids_B_T, attention_mask=mask_B_T).logits[:, 0].float()
            for i, p in zip(chosen, logits_B.sigmoid().tolist(), strict=True):
                found[i] = p
        return found

    def _ids(self, prompt: Prompt, text: str) -> list[int]:
        """The ids that the model reads; none where there is nothing to score or too much."""
        if not text.strip():
            return []
        ids = reward_ids(self.tokenizer, prompt, text)
        return ids if len(ids) <= positions_of(self.model) else []


def reward_ids(tokenizer: PreTrainedTokenizerBase, prompt: Prompt, text: str) -> list[int]:
    """What a reward model reads of one completion: prompt, text, end token."""
    return [*encode_prompt(tokenizer, prompt), *encode_completion(tokenizer, text), int(tokenizer.eos_token_id)]


def check_reward_model(folder: Path, key: str) -> None:
    """UserError where a model folder's config isn't that of a reward model; no weight is loaded. `key` names the setting."""
    from distillknob.rewards.models import read_config

    outputs = read_config(folder, key).num_labels
    if outputs != 1:
        raise UserError(
            f"{key}: {folder}: not a reward model with one output (num_labels {outputs}); valid: a sequence-classification model "
            "with num_labels 1"
        )


def load_reward_model(path: str, key: str, decimals: int | None = 0) -> ModelReward:
    """The reward model of a folder or hub name, on the GPU where there is one; `key` names the setting that it comes from.

    Only safetensors and no code of the model's own. UserError where it is no sequence-classification model with one output, or
    weights are missing (transformers would fill them at random).
    """
    import torch
    from transformers import AutoModelForSequenceClassification

    from distillknob.rewards.models import find_model, from_safetensors, load_tokenizer

    folder = find_model(path, key)
    check_reward_model(folder, key)
    model = from_safetensors(AutoModelForSequenceClassification, folder, "a reward model", dtype="float32")
    tokenizer = load_tokenizer(folder)
    config = model.config.get_text_config()
    if config.pad_token_id is None:
        config.pad_token_id = tokenizer.pad_token_id
    reward = ModelReward(model.to("cuda" if torch.cuda.is_available() else "cpu"), tokenizer, decimals)
    if not all(p is not None and math.isfinite(p) for p in reward.probabilities([""], ["."])):
        raise UserError(f"{key}: {path}: gives scores that are not finite: its weights are broken")
    return reward
