"""What the benchmarks share: interleaved rounds, ratios with intervals, and peak tensor memory."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping

import torch

from distillknob.eval.statistics import Interval, mean_interval


def interleaved(ways: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each way in each round; a round runs all ways, the order turned by one each time; one more first, to warm up."""
    names = list(ways)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds + 1):
        for place in range(len(names)):
            name = names[(turn + place) % len(names)]
            started = time.perf_counter()
            ways[name]()
            if turn:
                seconds[name].append(time.perf_counter() - started)
    return seconds


def ratio(upper: list[float], lower: list[float]) -> Interval:
    """Geometric mean of upper / lower over the rounds, with a 95 % t interval."""
    logs = mean_interval([math.log(u / d) for u, d in zip(upper, lower, strict=True)])
    value, low, high = (None if limit is None else math.exp(limit) for limit in (logs.value, logs.low, logs.high))
    return Interval(value, low, high, logs.n)


def peak_memory(run: Callable[[], object]) -> int:
    """The most bytes of CPU tensors, temporaries of operators included, that were alive at once above those before the run."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        run()
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    alive = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        alive += event.nbytes()
        peak = max(peak, alive)
    return peak
