"""Is this the right proxy? The check before any calibration step (method §2).

The dial turns the right way only where the proxy finds explicit text likelier than text that leaves steps out, by the reward in
use, and knows how to do the task when the steps are shown. An untrained proxy inverts the dial; one of another style follows style.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from distillknob.eval.generation import Generated, generate
from distillknob.eval.statistics import Interval, mean_interval, wilson_interval
from distillknob.rewards.calibration import CalibrationReward
from distillknob.rewards.forward import completion_logps
from distillknob.rewards.rendering import encode_prompt
from distillknob.rewards.seeds import derive_seed

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from distillknob.rewards.tasks.base import Grade, Prompt, Row, Task


@dataclass(frozen=True)
class ProxyCheck:
    """What the check found.

    `correlation`: mean within-prompt correlation of the calibration reward with explicitness among right answers, with a t
    interval over prompts. `proxy_right`: how often the proxy's own explicit traces are right. `levels`: for each level of
    explicitness, (teacher's traces, right ones, proxy's traces, right ones). `reason`: why it passes or not, in words.
    """

    correlation: Interval
    proxy_right: Interval
    levels: dict[str, tuple[int, int, int, int]]
    passes: bool
    reason: str

    def as_dict(self) -> dict[str, Any]:
        """For calibration.json."""
        return {
            "passes": self.passes,
            "reason": self.reason,
            "correlation": self.correlation.as_dict(),
            "proxy_right_on_explicit": self.proxy_right.as_dict(),
            "levels": {level: dict(zip(_COLUMNS, counts, strict=True)) for level, counts in self.levels.items()},
        }

    def table(self) -> str:
        """For the terminal: accuracy of both models by explicitness, then the verdict."""
        lines = ["explicitness   teacher right        proxy right"]
        for level, (n, right, m, also) in self.levels.items():
            lines.append(f"{level:>12}   {_share(right, n):>18}   {_share(also, m):>18}")
        return "\n".join([*lines, f"proxy check: {'passes' if self.passes else 'does not pass'}: {self.reason}"])


_COLUMNS = ("teacher_traces", "teacher_right", "proxy_traces", "proxy_right")
_CHUNK = 256


class SampledBy:
    """The policy that `CalibrationReward` asks for the log-probabilities of its own samples, outside a trainer."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.eos_token_ids: Sequence[int] = [int(tokenizer.eos_token_id)]

    def sampled_logps(self, prompts: Sequence[Prompt], completion_ids: Sequence[Sequence[int]]) -> list[list[float]]:
        """Nats at temperature 1, one list a completion, one value a sampled id."""
        values: list[list[float]] = []
        for start in range(0, len(prompts), _CHUNK):
            heads = [encode_prompt(self.tokenizer, prompt) for prompt in prompts[start : start + _CHUNK]]
            tails = [list(ids) for ids in completion_ids[start : start + _CHUNK]]
            values += [logps.tolist() for logps in completion_logps(self.model, heads, tails)]
        return values


def check_proxy(
    teacher: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    reward: CalibrationReward,
    task: Task,
    rows: Sequence[Row],
    *,
    samples: int,
    max_new_tokens: int,
    seed: int,
) -> ProxyCheck:
    """Checks the proxy of `reward`, for that reward with its kind and floor, on `samples` teacher texts for each row."""
    prompts = [row["prompt"] for row in rows for _ in range(samples)]
    repeated = [row for row in rows for _ in range(samples)]
    written = generate(
        teacher, tokenizer, prompts, temperature=1.0, max_new_tokens=max_new_tokens, seed=derive_seed(seed, "teacher")
    )
    proxy = reward.proxy
    own = generate(
        proxy.model, proxy.tokenizer, prompts, temperature=1.0, max_new_tokens=max_new_tokens, seed=derive_seed(seed, "proxy")
    )
    reward.attach(SampledBy(teacher, tokenizer))
    terms = reward.terms(prompts, [one.text for one in written], [one.ids for one in written])
    grades = [task.grade(one.text, row) for one, row in zip(written, repeated, strict=True)]
    own_grades = [task.grade(one.text, row) for one, row in zip(own, repeated, strict=True)]
    explicit = [_explicitness(grade, one) for grade, one in zip(grades, written, strict=True)]
    own_explicit = [_explicitness(grade, one) for grade, one in zip(own_grades, own, strict=True)]
    correlations = within_group_correlations(
        [None if t.reward is None or not g.correct else t.reward for t, g in zip(terms, grades, strict=True)], explicit, samples
    )
    border = task.explicit_max if task.explicit_max is not None else float(np.median(own_explicit))
    right = [int(bool(g.correct)) for g, level in zip(own_grades, own_explicit, strict=True) if level >= border]
    levels = _levels(grades, explicit, own_grades, own_explicit)
    return judged(mean_interval(correlations), wilson_interval(sum(right), len(right)), levels)


def judged(correlation: Interval, proxy_right: Interval, levels: dict[str, tuple[int, int, int, int]]) -> ProxyCheck:
    """The rule: the correlation's interval lies above 0, and the proxy is right on most of its explicit traces."""
    if correlation.low is None or correlation.high is None:
        problem = "too few prompts had right answers that differ in explicitness to measure anything"
    elif correlation.high < 0:
        problem = "it finds explicit text less likely: with this reward the dial would turn the wrong way"
    elif correlation.low <= 0:
        problem = "its reward does not tell explicit text from other text: the dial would move nothing, or something else"
    elif proxy_right.value is None or proxy_right.value <= 0.5:
        problem = "it is wrong on most of its own explicit traces: it does not know the task"
    else:
        problem = None
    limits = f"[{_limit(correlation.low)}, {_limit(correlation.high)}]"
    found = f"correlation of reward and explicitness {_limit(correlation.value)} {limits}"
    known = "no explicit trace" if proxy_right.value is None else f"right on {100 * proxy_right.value:.0f} % of its explicit traces"
    reason = f"{found}, {known}" + (f"; {problem}" if problem else "")
    return ProxyCheck(correlation, proxy_right, levels, problem is None, reason)


def within_group_correlations(rewards: Sequence[float | None], explicit: Sequence[float], group: int) -> list[float]:
    """Pearson's r of reward and explicitness in each group of `group` neighbours, None rewards left out; groups with fewer than
    three members, or without spread in either, give nothing."""
    found = []
    for start in range(0, len(rewards), group):
        pairs = [
            (r, e) for r, e in zip(rewards[start : start + group], explicit[start : start + group], strict=True) if r is not None
        ]
        if len(pairs) < 3:
            continue
        x, y = np.array(pairs, dtype=np.float64).T
        if x.std() > 1e-9 and y.std() > 1e-9:
            found.append(float(np.corrcoef(x, y)[0, 1]))
    return found


def _explicitness(grade: Grade, one: Generated) -> float:
    return grade.explicit if grade.explicit is not None else float(one.tokens)


def _levels(
    grades: Sequence[Grade], explicit: Sequence[float], own_grades: Sequence[Grade], own_explicit: Sequence[float]
) -> dict[str, tuple[int, int, int, int]]:
    edges = sorted(set(explicit) | set(own_explicit))
    if len(edges) > 8:  # a length, not a count of steps: quarters
        edges = sorted(set(np.quantile([*explicit, *own_explicit], [0.0, 0.25, 0.5, 0.75]).tolist()))
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for column, (some, levels) in enumerate(((grades, explicit), (own_grades, own_explicit))):
        for grade, level in zip(some, levels, strict=True):
            edge = max(e for e in edges if e <= level)
            name = f"{edge:g}" if len(edges) <= 8 and edge == level else f"≥ {edge:g}"
            counts[name][2 * column] += 1
            counts[name][2 * column + 1] += int(bool(grade.correct))
    ordered = sorted(counts.items(), key=lambda item: float(item[0].removeprefix("≥ ")))
    return {name: (c[0], c[1], c[2], c[3]) for name, c in ordered}


def _share(right: int, n: int) -> str:
    return f"{100 * right / n:.0f} % of {n}" if n else "—"


def _limit(value: float | None) -> str:
    return "?" if value is None else f"{value:+.2f}"
