"""The log-probability of a text under a model, with that model's own tokenizer and template (method §2).

Everything is in nats, summed in float64 over log-softmax values taken in float32 whatever the weights' dtype. A text that the
tokenizer can't give back (`decode(encode(y)) != y`), an empty one and a cut-off one are not scored: the score says why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from distillknob.rewards.errors import UserError
from distillknob.rewards.forward import CompletionLogps
from distillknob.rewards.rendering import Prompt, encode_prompt, positions_of
from distillknob.rewards.spans import Span, TokenBytes

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

EndToken = Literal["both", "none"]
Masked = Literal["empty", "cut off", "not re-encodable", "special token in the text", "longer than the model's positions"]


@dataclass(frozen=True)
class Score:
    """One scored completion.

    `token_logps`: nats, one a scored token, the end token last where it is scored. `spans`: byte range of each token in the
    UTF-8 text, the end token's empty. `masked`: why there is no score (then the other fields are empty), else None.
    """

    token_logps: tuple[float, ...]
    spans: tuple[Span, ...]
    masked: Masked | None = None

    @property
    def logp(self) -> float:
        """Log-probability of the whole completion, nats."""
        return float(sum(self.token_logps))


class TextScorer:
    """Scores texts under one frozen causal language model.

    Args:
        model: any causal LM; put in evaluation mode, its weights are never changed.
        tokenizer: the model's own tokenizer, with its chat template where it has one.
        batch_size: rows a forward pass; the result doesn't depend on it beyond rounding (1e-5 nats a token in float32).
        end_token: `both` scores the end token of a completion that ended by itself, `none` never does. The side that the score
            is compared with must use the same rule.
    """

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, batch_size: int = 32, end_token: EndToken = "both"
    ) -> None:
        if end_token == "both" and tokenizer.eos_token_id is None:
            raise UserError(f"tokenizer {tokenizer.name_or_path} has no end token: give it one, or set end_token: none")
        empty = [name for name, p in model.named_parameters() if p.numel() == 0]
        if empty:
            raise UserError(
                f"the scoring model's parameters are partitioned (zero-sized here): {', '.join(empty[:3])} …; gather them"
            )
        self.model = model.eval().requires_grad_(False)
        self.tokenizer = tokenizer
        self.token_bytes = TokenBytes(tokenizer)
        self.logps = CompletionLogps(self.model, batch_size)
        self.end_token = end_token
        self.positions = positions_of(model)

    def score(self, prompts: Sequence[Prompt], texts: Sequence[str], ended: Sequence[bool]) -> list[Score]:
        """Scores completion `texts[i]` after `prompts[i]`; `ended[i]` says that it ended by itself and wasn't cut off."""
        results: list[Score | None] = [None] * len(texts)
        rows: list[tuple[int, list[int], list[int], list[Span]]] = []
        for i, (prompt, text, complete) in enumerate(zip(prompts, texts, ended, strict=True)):
            ids, spans, masked = encode_exactly(self.token_bytes, text) if complete else ([], [], "cut off")
            head = [] if masked else encode_prompt(self.tokenizer, prompt)
            if not masked and self.end_token == "both":
                end = spans[-1][1]
                ids, spans = [*ids, int(self.tokenizer.eos_token_id)], [*spans, (end, end)]
            if len(head) + len(ids) > self.positions:
                masked = "longer than the model's positions"
            if masked:
                results[i] = Score((), (), masked)
            else:
                rows.append((i, head, ids, spans))
        logps = self.logps([row[1] for row in rows], [row[2] for row in rows])
        for (i, _, _, spans), values in zip(rows, logps, strict=True):
            if values.isnan().any():
                raise UserError(f"the scoring model {self.model.config.name_or_path} gives NaN: its weights are broken")
            results[i] = Score(tuple(values.tolist()), tuple(spans))
        return [score for score in results if score is not None]


def encode_exactly(token_bytes: TokenBytes, text: str) -> tuple[list[int], list[Span], Masked | None]:
    """Ids and byte spans of a completion, or the reason why this tokenizer can't score it."""
    if not text:
        return [], [], "empty"
    if any("\ud800" <= character <= "\udfff" for character in text):  # half a character: no tokenizer gives it back
        return [], [], "not re-encodable"
    tokenizer = token_bytes.tokenizer
    if not tokenizer.is_fast:
        raise UserError(f"tokenizer {tokenizer.name_or_path} is a slow one and gives no offsets: use its fast version")
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=token_bytes.kind == "offsets")
    ids = list(encoded["input_ids"])
    special = token_bytes.special
    if any(special[i] in text for i in ids if i in special):
        return [], [], "special token in the text"
    if any(i in special for i in ids):
        return [], [], "not re-encodable"  # the token for what the vocabulary lacks
    if tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False) != text:
        return [], [], "not re-encodable"
    spans = token_bytes.spans(text, ids, encoded.get("offset_mapping"))
    return ([], [], "not re-encodable") if spans is None else (ids, spans, None)
