"""The calibration reward: how much likelier a small proxy finds the teacher's text than the teacher does (method §2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args

from distillknob.rewards.errors import UserError
from distillknob.rewards.scoring import EndToken, Masked, Score, TextScorer
from distillknob.rewards.tasks.base import Prompt, completion_text

Kind = Literal["log_ratio", "proxy_only"]
Unit = Literal["bytes", "none", "own_tokens"]


class PolicyLogps(Protocol):
    """What the reward needs of a trainer: the policy's log-probabilities (nats, temperature 1) of the ids that it sampled."""

    eos_token_ids: Sequence[int]

    def sampled_logps(self, prompts: Sequence[Prompt], completion_ids: Sequence[Sequence[int]]) -> list[list[float]]:
        """One list a completion, one value a sampled token, the end token included; without gradient."""
        ...


@dataclass(frozen=True)
class CalibrationTerms:
    """The reward and its parts for one completion; all None where it is left out, with the reason in `left_out`."""

    reward: float | None
    teacher: float | None = None
    proxy: float | None = None
    clipped: float = 0.0
    left_out: str | None = None


class CalibrationReward:
    """A TRL reward function: `log_ratio` (l_P − l_T)/N, or `proxy_only` l_P/N, None for what can't be scored.

    Args:
        proxy: scorer of the frozen proxy.
        kind: `log_ratio` needs the policy: call `attach(trainer)` (our trainer does so itself; a stock GRPOTrainer needs
            `attach(GRPOPolicy(trainer))`).
        per: N: UTF-8 `bytes` of the text, `none` (N = 1), or `own_tokens` (each side by its own number of tokens).
        floor: nats a byte; each proxy token's log-probability is cut below at floor × the bytes that it covers (an end token
            counts as one byte), None for no floor (ours: a floor of −2 kept the proxy's aversion to gibberish from being the
            reward; see docs/method.md).
    """

    def __init__(self, proxy: TextScorer, *, kind: Kind = "log_ratio", per: Unit = "bytes", floor: float | None = None) -> None:
        if floor is not None and floor >= 0:
            raise UserError(f"floor: must be below 0 nats a byte, not {floor}")
        self.proxy, self.kind, self.per, self.floor = proxy, kind, per, floor
        self.policy: PolicyLogps | None = None
        self.__name__ = "calibration"

    @property
    def end_token(self) -> EndToken:
        """Whether end tokens are scored; one rule for both sides."""
        return self.proxy.end_token

    def attach(self, policy: PolicyLogps) -> None:
        """Names the trainer whose policy made the completions."""
        self.policy = policy

    def __call__(
        self,
        prompts: Sequence[Prompt],
        completions: Sequence[Any],
        completion_ids: Sequence[Sequence[int]],
        log_metric: Callable[[str, float], None] | None = None,
        **columns: Any,
    ) -> list[float | None]:
        """The reward of each completion, None where it is left out; logs shares of what was left out and clipped."""
        terms = self.terms(prompts, completions, completion_ids)
        if log_metric is not None:
            for reason in get_args(Masked):
                log_metric(f"calibration/left_out/{reason}", sum(t.left_out == reason for t in terms) / len(terms))
            scored = [t for t in terms if t.reward is not None]
            if scored:
                log_metric("calibration/clipped", sum(t.clipped for t in scored) / len(scored))
        return [t.reward for t in terms]

    def terms(
        self, prompts: Sequence[Prompt], completions: Sequence[Any], completion_ids: Sequence[Sequence[int]]
    ) -> list[CalibrationTerms]:
        """The reward of each completion with its parts; see `CalibrationTerms`."""
        if self.policy is None:
            raise UserError("CalibrationReward: call attach(policy) first, so that it knows which tokens end a completion")
        texts = [completion_text(c) for c in completions]
        ends = set(self.policy.eos_token_ids)
        ended = [bool(ids) and ids[-1] in ends for ids in completion_ids]
        scores = self.proxy.score(prompts, texts, ended)
        if self.kind == "proxy_only":
            return [self._combine(text, score, None) for text, score in zip(texts, scores, strict=True)]
        own = self.policy.sampled_logps(prompts, completion_ids)
        if self.end_token == "none":
            own = [values[:-1] if end else values for values, end in zip(own, ended, strict=True)]
        return [self._combine(*row) for row in zip(texts, scores, own, strict=True)]

    def _combine(self, text: str, score: Score, own: list[float] | None) -> CalibrationTerms:
        if score.masked is not None:
            return CalibrationTerms(None, left_out=score.masked)
        values = score.token_logps
        if self.floor is not None:
            lowest = [self.floor * max(1, end - start) for start, end in score.spans]
            values = tuple(max(v, low) for v, low in zip(values, lowest, strict=True))
        clipped = sum(a != b for a, b in zip(values, score.token_logps, strict=True)) / len(values)
        proxy = float(sum(values))
        teacher = None if own is None else float(sum(own))
        units = len(text.encode()) if self.per == "bytes" else 1
        if self.per == "own_tokens":
            reward = proxy / len(values) - (teacher / len(own) if own and teacher is not None else 0.0)
        else:
            reward = (proxy - (teacher or 0.0)) / units
        return CalibrationTerms(reward, teacher, proxy, clipped)
