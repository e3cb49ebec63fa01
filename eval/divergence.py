"""Full-vocabulary divergence between two models of one tokenizer, on texts of the first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from distillknob.eval.statistics import Interval, mean_interval

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def full_vocabulary_kl(
    model: PreTrainedModel,
    anchor: PreTrainedModel,
    prompts: Sequence[list[int]],
    completions: Sequence[list[int]],
    batch_size: int = 32,
) -> Interval:
    """KL(model ‖ anchor) in nats a token over the whole vocabulary at temperature 1, with prefixes that the model itself wrote.

    The mean over texts of each text's mean over its tokens, with a t interval over texts (method §2: reported beside the sampled
    estimate that is optimised).
    """
    means: list[float] = []
    for start in range(0, len(prompts), batch_size):
        heads, tails = prompts[start : start + batch_size], completions[start : start + batch_size]
        rows = [torch.tensor([*h, *t], device=model.device) for h, t in zip(heads, tails, strict=True)]
        ids_B_T = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        lengths_B = torch.tensor([len(row) for row in rows], device=model.device)
        mask_B_T = (torch.arange(ids_B_T.shape[1], device=model.device) < lengths_B[:, None]).long()
        with torch.no_grad():
            p_B_T_V = torch.log_softmax(model(input_ids=ids_B_T, attention_mask=mask_B_T).logits.float(), -1)
            q_B_T_V = torch.log_softmax(anchor(input_ids=ids_B_T, attention_mask=mask_B_T).logits.float(), -1)
        kl_B_T = torch.nn.functional.kl_div(q_B_T_V, p_B_T_V, log_target=True, reduction="none").sum(-1)
        for row, (head, tail) in enumerate(zip(heads, tails, strict=True)):
            if tail:
                means.append(float(kl_B_T[row, len(head) - 1 : len(head) + len(tail) - 1].mean()))
    return mean_interval(means)
