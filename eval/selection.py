"""A number that was selected, best of several, owes a part of itself to luck: it is measured again on fresh seeds, and both are
shown (method §5)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from distillknob.eval.statistics import Interval, mean_interval


@dataclass(frozen=True)
class Selected:
    """The candidate that was chosen out of `candidates`: its mean on the seeds that chose it, too good by luck, and on `seeds`,
    which nobody has looked at. Only `fresh` may go into a verdict."""

    name: str
    candidates: int
    selected: Interval
    fresh: Interval
    seeds: tuple[int, ...]

    def as_dict(self) -> dict[str, Any]:
        """As an object for a result file."""
        return asdict(self)


def fresh_seeds(used: Iterable[int], count: int) -> tuple[int, ...]:
    """`count` seeds after all that were used; a seed below 0 or none used begins at 0."""
    first = max((seed + 1 for seed in used), default=0)
    return tuple(range(max(0, first), max(0, first) + count))


def select(
    candidates: Mapping[str, Mapping[int, float]],
    measure: Callable[[str, tuple[int, ...]], Sequence[float]],
    best: Literal["highest", "lowest"] = "highest",
    count: int | None = None,
    confidence: float = 0.95,
) -> Selected:
    """Chooses the candidate with the best mean and has it measured again on seeds that no candidate has used.

    `candidates`: name -> seed -> value; `measure(name, seeds)` gives one new value a seed; `count`: how many (default: as many as
    the chosen one had). Of equal means the first is taken. Raises ValueError without a candidate, for one without a value, and
    where `measure` gives another number of values."""
    if not candidates or not all(candidates.values()):
        raise ValueError("select needs candidates, each with at least one value")
    sign = 1.0 if best == "highest" else -1.0
    name = max(candidates, key=lambda key: sign * float(np.mean(list(candidates[key].values()))))
    chosen = candidates[name]
    seeds = fresh_seeds((seed for values in candidates.values() for seed in values), count or len(chosen))
    values = list(measure(name, seeds))
    if len(values) != len(seeds):
        raise ValueError(f"measure gave {len(values)} values for {len(seeds)} seeds")
    first, again = (mean_interval(list(one), confidence) for one in (chosen.values(), values))
    return Selected(name, len(candidates), first, again, seeds)
