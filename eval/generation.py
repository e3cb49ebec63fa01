"""Texts that a model writes for prompts: greedy, or sampled at a stated temperature with no other filter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from distillknob.rewards.rendering import Prompt, check_lengths, encode_prompt, positions_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True)
class Generated:
    """One completion: its text without end tokens, whether it ended by itself, its number of tokens (end token included), and
    its ids (end token included)."""

    text: str
    finished: bool
    tokens: int
    ids: tuple[int, ...] = ()


@contextmanager
def plain_generation(model: PreTrainedModel) -> Iterator[None]:
    """While it lasts, the checkpoint's own generation defaults (repetition penalty, suppressed tokens, min_p …) don't apply:
    transformers fills every field that a caller leaves unset from them, and the texts would no longer be the model's own."""
    from transformers import GenerationConfig

    kept = model.generation_config
    model.generation_config = GenerationConfig(
        bos_token_id=kept.bos_token_id, eos_token_id=kept.eos_token_id, pad_token_id=kept.pad_token_id
    )
    try:
        yield
    finally:
        model.generation_config = kept


def generate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Prompt],
    *,
    temperature: float,
    max_new_tokens: int,
    seed: int,
    batch_size: int = 256,
) -> list[Generated]:
    """One completion a prompt; `temperature` 0 is greedy, else sampling with top_k 0 and top_p 1 (method §1).

    Greedy texts don't depend on the batch size; sampled ones do, since one random stream (`seed`) serves a batch.
    """
    import torch
    from transformers import GenerationConfig, set_seed

    set_seed(seed)
    model.eval()
    ends = model.generation_config.eos_token_id
    end_ids = [ends] if isinstance(ends, int) else list(ends or [])
    if tokenizer.eos_token_id is not None and tokenizer.eos_token_id not in end_ids:
        end_ids.append(int(tokenizer.eos_token_id))
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else end_ids[0]
    sampling = (
        {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0} if temperature > 0 else {"do_sample": False}
    )
    config = GenerationConfig(max_new_tokens=max_new_tokens, eos_token_id=end_ids, pad_token_id=pad, **sampling)
    check_lengths(tokenizer, prompts, max_new_tokens, positions_of(model))
    encoded = [encode_prompt(tokenizer, prompt) for prompt in prompts]
    results: list[Generated] = []
    for start in range(0, len(encoded), batch_size):
        rows = encoded[start : start + batch_size]
        width = max(map(len, rows))
        ids_B_T = torch.tensor([[pad] * (width - len(row)) + row for row in rows], device=model.device)
        mask_B_T = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows], device=model.device)
        with torch.inference_mode(), plain_generation(model):
            out_B_T = model.generate(input_ids=ids_B_T, attention_mask=mask_B_T, generation_config=config)
        for row in out_B_T[:, width:].tolist():
            end = next((i for i, token in enumerate(row) if token in end_ids), None)
            kept = row if end is None else row[:end]
            text = tokenizer.decode(kept, skip_special_tokens=True, clean_up_tokenization_spaces=False)
            ids = tuple(row if end is None else row[: end + 1])
            results.append(Generated(text, end is not None, len(ids), ids))
    return results
