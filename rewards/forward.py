"""Log-probabilities of given ids under a causal language model, without a tensor of |V| × length.

The model's body and its head run apart. The body makes hidden states for a pass of rows of like length; the head, as the model's
own `forward` applies it (scaling and soft caps included), then turns a few hundred scored positions at a time into logits. A prompt
that several completions share is encoded once, and its keys and values are repeated for them. Whether a model can be run so is
tried out on a few ids when the object is made; one that can't, or that is wrapped (DDP, DeepSpeed, PEFT), makes its logits whole.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast

Row = tuple[int, list[int], list[int]]  # place in the input, prompt ids, completion ids
HEAD_LOGITS = 2**24  # logits made at once: 64 MiB in float32
SHARED_PROMPT = 8  # tokens from which on a shared prompt is encoded once


class CompletionLogps:
    """Log-probabilities of completion ids after prompt ids, without gradient.

    Args:
        model: a causal LM, in evaluation mode.
        batch_size: rows a pass at most. The result doesn't depend on it beyond rounding (1e-5 nats a token in float32).
    """

    def __init__(self, model: torch.nn.Module, batch_size: int) -> None:
        self.model = model
        self.batch_size = batch_size
        self._output: type[Any] = BaseModelOutputWithPast  # of the body; read off when it is tried out
        self.apart = False
        self.shares = False
        if isinstance(model, PreTrainedModel):
            self.apart = self._probe()
            self.shares = self.apart and self._probe_sharing()

    def __call__(self, prompts: Sequence[list[int]], completions: Sequence[list[int]]) -> list[torch.Tensor]:
        """One float64 tensor on the CPU a row, of the completion's length; a prompt has at least one id."""
        results: list[torch.Tensor] = [torch.zeros(0, dtype=torch.float64)] * len(prompts)
        rows: list[Row] = [(i, p, c) for i, (p, c) in enumerate(zip(prompts, completions, strict=True)) if c]
        with torch.no_grad():
            for shared, batch in self._passes(rows):
                for row, values in zip(batch, self._pass(shared, batch), strict=True):
                    results[row[0]] = values
        return results

    def _passes(self, rows: list[Row]) -> Iterator[tuple[bool, list[Row]]]:
        """Rows in passes: those that share a prompt first, then the others, like lengths together; all sorted, longest first."""
        single = rows
        if self.shares:
            groups: dict[tuple[int, ...], list[Row]] = {}
            for row in rows:
                groups.setdefault(tuple(row[1]), []).append(row)
            single = []
            for prompt, group in groups.items():
                if len(group) < 2 or len(prompt) < SHARED_PROMPT:
                    single += group
                else:
                    yield from ((True, batch) for batch in self._batches(group))
        yield from ((False, batch) for batch in self._batches(single))

    def _batches(self, rows: list[Row]) -> Iterator[list[Row]]:
        rows = sorted(rows, key=lambda row: -len(row[1]) - len(row[2]))
        yield from (rows[start : start + self.batch_size] for start in range(0, len(rows), self.batch_size))

    def _pass(self, shared: bool, rows: list[Row]) -> list[torch.Tensor]:
        if not self.apart:
            return completion_logps(self.model, [row[1] for row in rows], [row[2] for row in rows])
        if shared:
            hidden_N_H, targets_N = self._hidden_after_shared(rows)
        else:
            hidden_N_H, targets_N = self._hidden(rows)
        return list(self._head_logps(hidden_N_H, targets_N).double().cpu().split([len(row[2]) for row in rows]))

    def _hidden(self, rows: list[Row]) -> tuple[torch.Tensor, torch.Tensor]:
        """Hidden states (N, H) that predict the N scored ids of all rows, one row after another, and those ids."""
        given = padded([[*row[1], *row[2]][:-1] for row in rows], self._device)
        hidden_B_T_H = self._body(**given, use_cache=False).last_hidden_state
        pieces = [h[len(p) - 1 : len(p) + len(c) - 1] for h, (_, p, c) in zip(hidden_B_T_H, rows, strict=True)]
        return torch.cat(pieces), self._ids([token for row in rows for token in row[2]])

    def _hidden_after_shared(self, rows: list[Row]) -> tuple[torch.Tensor, torch.Tensor]:
        """`_hidden` of rows with one prompt, whose keys and values are made once."""
        prompt = rows[0][1]
        first = self._body(input_ids=self._ids([prompt]), use_cache=True)
        last_1_H, cache = first.last_hidden_state[0, -1:], first.past_key_values
        tails = [row[2][:-1] for row in rows]
        pieces = [last_1_H] * len(rows)
        if any(tails):
            cache.batch_repeat_interleave(len(rows))
            given = padded(tails, self._device, after=len(prompt))
            hidden_B_T_H = self._body(**given, **{self._cache_name: cache}, use_cache=True).last_hidden_state
            pieces = [torch.cat([last_1_H, h[: len(tail)]]) for h, tail in zip(hidden_B_T_H, tails, strict=True)]
        return torch.cat(pieces), self._ids([token for row in rows for token in row[2]])

    def _head_logps(self, hidden_N_H: torch.Tensor, targets_N: torch.Tensor) -> torch.Tensor:
        step = max(1, HEAD_LOGITS // int(self.model.config.get_text_config().vocab_size))
        found = []
        for start in range(0, len(targets_N), step):
            logits_N_V = self._head(hidden_N_H[start : start + step])
            found.append(_logps(logits_N_V, targets_N[start : start + step]))
        return torch.cat(found)

    def _head(self, hidden_N_H: torch.Tensor) -> torch.Tensor:
        """The logits that the model's own forward makes of these hidden states."""
        with _stands_in(self._body, self._output(last_hidden_state=hidden_N_H[None])):
            logits_1_N_V = self.model(input_ids=self._ids([[0] * len(hidden_N_H)]), use_cache=False).logits
        return logits_1_N_V[0]

    @property
    def _body(self) -> Any:
        return getattr(self.model, self.model.base_model_prefix)

    @property
    def _cache_name(self) -> str:
        """What the body calls kept keys and values: it changed within a major release of transformers."""
        return "cache" if "cache" in inspect.signature(self._body.forward).parameters else "past_key_values"

    @property
    def _device(self) -> torch.device:
        return next(self.model.parameters()).device

    def _ids(self, ids: list[int] | list[list[int]]) -> torch.Tensor:
        return torch.tensor(ids, device=self._device)

    def _probe(self) -> bool:
        """Whether body and head run apart give the logits of the whole model."""
        if self.model.base_model_prefix not in dict(self.model.named_children()):
            return False
        given = padded([[1, 0, 1], [0, 1]], self._device)
        try:
            with torch.no_grad():
                wanted_B_T_V = self.model(**given, use_cache=False).logits
                output = self._body(**given, use_cache=False)
                self._output, hidden_B_T_H = type(output), output.last_hidden_state
                found_N_V = self._head(hidden_B_T_H.flatten(0, 1))
        except Exception:  # a model's forward is a program of its own: whatever it raises, it is run whole
            return False
        wanted_N_V = wanted_B_T_V.flatten(0, 1)
        real_N = given["attention_mask"].flatten().bool()
        return wanted_N_V.shape == found_N_V.shape and _alike(wanted_N_V[real_N], found_N_V[real_N])

    def _probe_sharing(self) -> bool:
        """Whether completions after a prompt's kept keys and values get the numbers that they get after the prompt itself."""
        rows = [(0, [1, 0, 1, 1], [0, 1, 1]), (1, [1, 0, 1, 1], [1])]
        try:
            with torch.no_grad():
                wanted, found = (torch.cat(self._pass(shared, rows)) for shared in (False, True))
        except Exception:  # as above
            return False
        return _alike(wanted, found)


def completion_logps(model: torch.nn.Module, prompts: Sequence[list[int]], completions: Sequence[list[int]]) -> list[torch.Tensor]:
    """Log-probabilities (float64, one tensor of the completion's length a row) of completion ids after prompt ids.

    One right-padded pass with explicit positions through `model` itself, wrapped or not; logits at position t score the token
    at t + 1.
    """
    given = padded([[*p, *c] for p, c in zip(prompts, completions, strict=True)], next(model.parameters()).device)
    with torch.no_grad():
        logits_B_T_V = model(**given, use_cache=False).logits
    results = []
    for logits_T_V, prompt, completion in zip(logits_B_T_V, prompts, completions, strict=True):
        scored_T_V = logits_T_V[len(prompt) - 1 : len(prompt) + len(completion) - 1]
        results.append(_logps(scored_T_V, torch.tensor(completion, device=scored_T_V.device)).double().cpu())
    return results


def padded(rows: Sequence[list[int]], device: torch.device, after: int = 0) -> dict[str, torch.Tensor]:
    """A forward pass's arguments for right-padded rows, with mask and explicit positions, `after` so many tokens that are kept."""
    ids_B_T = torch.nn.utils.rnn.pad_sequence([torch.tensor(row, dtype=torch.long) for row in rows], batch_first=True)
    lengths_B_1 = torch.tensor([[after + len(row)] for row in rows])
    places_T = torch.arange(after + ids_B_T.shape[1])
    given = {
        "input_ids": ids_B_T,
        "attention_mask": (places_T < lengths_B_1).long(),
        "position_ids": places_T[after:].expand_as(ids_B_T),
    }
    return {name: values.to(device) for name, values in given.items()}


def _logps(logits_N_V: torch.Tensor, ids_N: torch.Tensor) -> torch.Tensor:
    """Log-softmax in float32 at the given ids, whatever the logits' dtype."""
    logits_N_V = logits_N_V.float()
    return logits_N_V.gather(-1, ids_N[:, None]).squeeze(-1) - logits_N_V.logsumexp(-1)


def _alike(wanted: torch.Tensor, found: torch.Tensor) -> bool:
    loose = wanted.dtype in (torch.float16, torch.bfloat16)
    return bool(torch.allclose(wanted, found, rtol=3e-2 if loose else 1e-4, atol=3e-2 if loose else 1e-4))


@contextmanager
def _stands_in(body: Any, output: Any) -> Iterator[None]:
    """While it lasts, `body` gives `output` whatever it is asked."""
    own = vars(body).get("forward")  # a hook of another library may have put one there
    body.forward = lambda *_, **__: output
    try:
        yield
    finally:
        if own is None:
            del body.forward
        else:
            body.forward = own
