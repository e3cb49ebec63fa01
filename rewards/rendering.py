"""From a prompt and a completion to the ids of one model: its own chat template, its own tokenizer (method §2).

Rules. A plain string prompt is encoded as the tokenizer does by default (with BOS where it adds one; an end token that it appends
to a lone prompt is taken off). A list of messages is rendered with the model's own template, then encoded without adding special
tokens, so that BOS is there once. Where a template refuses a system turn, its text goes into the first user turn. A model without
a template (a base model) reads the contents of the messages, one a line. Prompt and completion are encoded apart and joined.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from distillknob.rewards.errors import UserError

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

Prompt = str | list[dict[str, Any]]


def render_prompt(tokenizer: PreTrainedTokenizerBase, messages: list[dict[str, Any]]) -> str:
    """The text of a conversation with the generation header of `tokenizer`'s template; see the module's rules."""
    if not tokenizer.chat_template:
        return "\n".join(str(message["content"]) for message in messages) + "\n"
    for form in (messages, fold_system(messages)):
        try:
            return str(tokenizer.apply_chat_template(form, tokenize=False, add_generation_prompt=True))
        except Exception as error:  # a template is a program of its own and may raise anything
            refused = error
    raise UserError(f"chat template of {tokenizer.name_or_path}: {type(refused).__name__}: {refused}")


def fold_system(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same conversation with a leading system turn put in front of the first user turn, two line breaks between."""
    if len(messages) < 2 or messages[0]["role"] != "system" or messages[1]["role"] != "user":
        return messages
    user = {**messages[1], "content": f"{messages[0]['content']}\n\n{messages[1]['content']}"}
    return [user, *messages[2:]]


def encode_prompt(tokenizer: PreTrainedTokenizerBase, prompt: Prompt) -> list[int]:
    """The ids of a prompt for one model, never empty: where there is no token at all, BOS or the end token stands for it."""
    if isinstance(prompt, str):
        return _as_prompt(tokenizer, tokenizer(prompt)["input_ids"])
    return _never_empty(tokenizer, tokenizer(render_prompt(tokenizer, prompt), add_special_tokens=False)["input_ids"])


def encode_prompts(tokenizer: PreTrainedTokenizerBase, prompts: Sequence[Prompt]) -> list[list[int]]:
    """`encode_prompt` of each; plain strings go through the tokenizer in one call."""
    texts = [prompt for prompt in prompts if isinstance(prompt, str)]
    if not texts or len(texts) < len(prompts):
        return [encode_prompt(tokenizer, prompt) for prompt in prompts]
    return [_as_prompt(tokenizer, ids) for ids in tokenizer(texts)["input_ids"]]


def _as_prompt(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> list[int]:
    """What the tokenizer makes of a text by itself, as a prompt: without an end token after it."""
    ends = len(ids) > 1 and ids[-1] == tokenizer.eos_token_id
    return _never_empty(tokenizer, ids[:-1] if ends else ids)


def _never_empty(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> list[int]:
    if ids:
        return list(ids)
    start = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
    if start is None:
        raise UserError(f"tokenizer {tokenizer.name_or_path}: an empty prompt needs a BOS or an end token, and it has neither")
    return [int(start)]


def encode_completion(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """The ids of a completion's text, without any special token."""
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def encode_completions(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[list[int]]:
    """`encode_completion` of each, in one call."""
    return list(tokenizer(list(texts), add_special_tokens=False)["input_ids"]) if texts else []


def check_lengths(tokenizer: PreTrainedTokenizerBase, prompts: Sequence[Prompt], max_new_tokens: int, positions: int) -> None:
    """UserError where a prompt and the longest completion don't fit into the model's positions together."""
    for number, prompt in enumerate(prompts):
        length = len(encode_prompt(tokenizer, prompt))
        if length + max_new_tokens > positions:
            raise UserError(
                f"prompt {number} ({str(prompt)[:60]!r} …) has {length} tokens; with {max_new_tokens} new ones it does not fit "
                f"into the model's {positions} positions: leave it out, or lower max_new_tokens"
            )


def positions_of(model: PreTrainedModel) -> int:
    """How many tokens a model can hold, a huge number where its config sets no limit."""
    return positions_in(model.config)


def positions_in(config: PretrainedConfig) -> int:
    """`positions_of` a model of this config."""
    return int(getattr(config.get_text_config(), "max_position_embeddings", None) or 2**31)
