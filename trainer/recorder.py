"""Log-probabilities taken from generation, where they are those of a pass of their own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


class SampledLogps:
    """What a model's forward passes within `generate` say of the ids that were then sampled, at temperature 1.

    The logits are the model's own, before the temperature and every logits processor. What doesn't look like sampling token by
    token with kept keys and values (continuous batching, several passes a token) isn't recorded.
    """

    def __init__(self) -> None:
        self._logits_B_V: torch.Tensor | None = None
        self._ids: list[torch.Tensor] = []
        self._logps: list[torch.Tensor] = []
        self.broken = False

    @contextmanager
    def of(self, model: nn.Module) -> Iterator[None]:
        """While it lasts, generation by `model` is recorded; what was recorded before is forgotten."""
        self._logits_B_V, self._ids, self._logps, self.broken = None, [], [], False
        hook = model.register_forward_hook(self._see, with_kwargs=True)
        try:
            yield
        finally:
            hook.remove()

    def _see(self, model: nn.Module, args: Any, given: dict[str, Any], output: Any) -> None:
        ids_B_T = given.get("input_ids")
        if self.broken or ids_B_T is None or ids_B_T.dim() != 2:
            self.broken = True
            return
        if self._logits_B_V is not None:
            if ids_B_T.shape != (len(self._logits_B_V), 1):
                self.broken = True
                return
            self._add(ids_B_T[:, 0])
        self._logits_B_V = output.logits[:, -1].float()

    def _add(self, ids_B: torch.Tensor) -> None:
        logits_B_V = self._logits_B_V
        assert logits_B_V is not None
        logps_B = logits_B_V.gather(-1, ids_B[:, None])[:, 0] - logits_B_V.logsumexp(-1)
        self._ids.append(ids_B)
        self._logps.append(logps_B)

    def for_ids(self, completion_ids: Sequence[Sequence[int]]) -> list[list[float]] | None:
        """Nats, one list a completion; None where these completions, in this order, are not the ones that were recorded."""
        longest = max(map(len, completion_ids))
        if self._logits_B_V is not None and not self.broken and len(self._logits_B_V) == len(completion_ids):
            if longest == len(self._ids) + 1:  # the last id of the longest went through no further pass
                last = [ids[-1] if len(ids) == longest else 0 for ids in completion_ids]
                self._add(torch.tensor(last, device=self._logits_B_V.device))
            self._logits_B_V = None
        if self.broken or not 0 < longest <= len(self._ids) or len(self._ids[0]) != len(completion_ids):
            return None
        ids_B_T, logps_B_T = torch.stack(self._ids, 1).tolist(), torch.stack(self._logps, 1).tolist()
        if any(seen[: len(ids)] != list(ids) for seen, ids in zip(ids_B_T, completion_ids, strict=True)):
            return None
        return [logps[: len(ids)] for logps, ids in zip(logps_B_T, completion_ids, strict=True)]
