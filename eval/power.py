"""What a number of items or seeds can show, before anything is run (method §5): power, smallest effect seen, how many are needed.

Over seeds: the noncentral t with Welch-Satterthwaite degrees of freedom at the true spreads, which are standard deviations between
seeds of one cell. Over items: the normal approximation. Accuracies and effects are fractions; `confidence` is two-sided, as in
`statistics.py`."""

from __future__ import annotations

import math
from collections.abc import Sequence

from scipy import optimize, stats

POWER = 0.8
MOST_SEEDS = 1000
DIFFERENCE = (1.0, -1.0)  # coefficients of *better*; those of *collapse* are 1 and −f


def contrast_power(
    effect: float, spreads: Sequence[float], coefficients: Sequence[float], seeds: int, confidence: float = 0.95
) -> float | None:
    """Chance that the Welch limit of Σ c_i · mean_i on the side of 0 excludes 0 where its true value is `effect`.

    `spreads`: the cells' standard deviations, one a coefficient; `seeds` in each cell. None under two seeds."""
    if seeds < 2:
        return None
    terms = [(c * s) ** 2 / seeds for c, s in zip(coefficients, spreads, strict=True)]
    total = sum(terms)
    if total == 0:
        return float(effect != 0)
    df = total**2 / sum(term**2 / (seeds - 1) for term in terms)
    threshold = stats.t.ppf(0.5 + confidence / 2, df)
    return float(stats.nct.sf(threshold, df, abs(effect) / math.sqrt(total)))


def detectable_effect(
    spreads: Sequence[float], coefficients: Sequence[float], seeds: int, confidence: float = 0.95
) -> float | None:
    """The smallest true |Σ c_i · mean_i| that is seen with a chance of 80 %; None under two seeds."""
    if seeds < 2:
        return None
    spread = math.sqrt(sum((c * s) ** 2 for c, s in zip(coefficients, spreads, strict=True)))
    if spread == 0:
        return 0.0

    def missing(effect: float) -> float:
        return (contrast_power(effect, spreads, coefficients, seeds, confidence) or 0.0) - POWER

    most = spread
    while missing(most) < 0:
        most *= 2
    return float(optimize.brentq(missing, 0.0, most))


def needed_seeds(effect: float, spreads: Sequence[float], coefficients: Sequence[float], confidence: float = 0.95) -> int | None:
    """Seeds in each cell with which a true `effect` is seen with a chance of 80 %; None above 1,000, and for no effect."""
    for seeds in range(2, MOST_SEEDS + 1):
        if (contrast_power(effect, spreads, coefficients, seeds, confidence) or 0.0) >= POWER:
            return seeds
    return None


def needed_items(discordant_share: float, margin: float, confidence: float = 0.95) -> int:
    """Items for 80 % power to show a paired loss under `margin` when the true difference is 0: n with n·margin − ½ =
    (1.96 + .8416)·√(n·share), about 19,600 times the share of discordant items at 2 points (method §5); rounded up.

    Never under n with (n·margin − ½)² = 1.96²·n·margin·(1 − margin), 236 at 2 points: with fewer not even items that all agree show
    it (the corrected score limit of `paired_difference` is then the margin)."""
    z = float(stats.norm.ppf(0.5 + confidence / 2))
    spread = (z + float(stats.norm.ppf(POWER))) * math.sqrt(discordant_share)
    differing = ((spread + math.sqrt(spread**2 + 2 * margin)) / (2 * margin)) ** 2
    agreeing = 1 + z * z * (1 - margin)
    return max(math.ceil(differing), math.ceil((agreeing + math.sqrt(agreeing**2 - 1)) / (2 * margin)))


def detectable_margin(discordant_share: float, items: int, confidence: float = 0.95) -> float:
    """The smallest margin that a teacher without loss is shown to keep, with a chance of 80 %: `needed_items` read backwards."""
    z = float(stats.norm.ppf(0.5 + confidence / 2))
    differing = ((z + float(stats.norm.ppf(POWER))) * math.sqrt(discordant_share * items) + 0.5) / items
    half, whole = (1 + z * z) / 2, 1 + z * z / items
    return max(differing, (half + math.sqrt(half**2 - whole / 4)) / (whole * items))
