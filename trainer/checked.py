"""A reward function whose output is checked: a wrong one is named, never turned into a silent zero gradient (method §2)."""

from __future__ import annotations

import inspect
import logging
import math
import numbers
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import torch

from distillknob.rewards.errors import UserError

OnBadReward = Literal["error", "leave_out"]
logger = logging.getLogger(__name__)


class CheckedReward:
    """Wraps a reward function `f(prompts, completions, **columns)`. None and NaN mean left out; ±inf, a non-number or a wrong
    number of rewards raise an error that names the function, or are left out and counted (`bad` per call logged)."""

    def __init__(self, function: Callable[..., Sequence[float | None]], on_bad: OnBadReward) -> None:
        self.function, self.on_bad = function, on_bad
        self.__name__ = getattr(function, "__name__", type(function).__name__)

    def __call__(self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float | None]:
        """The checked rewards, one a completion."""
        return self.check(
            self.function(prompts=prompts, completions=completions, **columns), len(prompts), columns.get("log_metric")
        )

    def check(self, rewards: Any, wanted: int, log_metric: Callable[[str, float], None] | None) -> list[float | None]:
        """What a function returned, as `wanted` finite numbers or None; arrays and tensors are taken as lists."""
        if isinstance(rewards, (np.ndarray, torch.Tensor)):
            rewards = rewards.tolist()
        if not isinstance(rewards, Sequence) or isinstance(rewards, str) or len(rewards) != wanted:
            got = len(rewards) if isinstance(rewards, Sequence) else f"a {type(rewards).__name__}"
            self._bad(f"returned {got} instead of a list of {wanted} rewards, one a completion")
            rewards = [None] * wanted
        checked = [self._one(reward) for reward in rewards]
        if log_metric is not None:
            log_metric(f"rewards/{self.__name__}/left_out", sum(r is None for r in checked) / max(1, len(checked)))
        return checked

    def _one(self, reward: Any) -> float | None:
        if reward is None:
            return None
        value = _as_float(reward)
        if math.isinf(value):
            self._bad(f"returned {str(reward)[:80]!r}; valid: a finite number, or None to leave a completion out")
            return None
        return None if math.isnan(value) else value

    def _bad(self, what: str) -> None:
        if self.on_bad == "error":
            raise UserError(f"reward function {self.__name__} {what} (on_bad_reward: leave_out would leave it out and count it)")
        logger.warning("reward function %s %s: left out", self.__name__, what)


def checked(function: Any, on_bad: OnBadReward) -> Any:
    """The function wrapped, a coroutine function in a coroutine; reward models, and names of them, pass and are checked after."""
    if not callable(function) or isinstance(function, torch.nn.Module):
        return function
    wrapper = CheckedReward(function, on_bad)
    if not inspect.iscoroutinefunction(function):
        return wrapper

    async def awaited(prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float | None]:
        rewards = await function(prompts=prompts, completions=completions, **columns)
        return wrapper.check(rewards, len(prompts), columns.get("log_metric"))

    awaited.__name__ = wrapper.__name__
    return awaited


def _as_float(reward: Any) -> float:
    """The reward as a float; infinite where it is not a number or too large for one."""
    if not isinstance(reward, numbers.Real):
        return math.inf
    try:
        return float(reward)
    except OverflowError:
        return math.inf
