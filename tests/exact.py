"""Exact levels of the paired limits: sums over everything that can come out, no simulation."""

from scipy import stats

from distillknob.eval.statistics import paired_difference


def levels(items: int, gained: float, lost: float, margin: float) -> tuple[float, float]:
    """Chances that the lower limit lies above −margin and that the upper lies below it, where each of `items` items is gained or
    lost with these chances."""
    counts, above, below = range(items + 1), 0.0, 0.0
    for g in counts:
        weight = float(stats.binom.pmf(g, items, gained))
        if weight < 1e-9:
            continue
        rest = stats.binom.pmf(counts, items - g, lost / (1 - gained))
        for k in (k for k in range(items - g + 1) if rest[k] > 1e-9):
            got = paired_difference([1] * g + [0] * k + [1] * (items - g - k), [0] * g + [1] * (items - g))
            above += weight * float(rest[k]) * (got.low > -margin)
            below += weight * float(rest[k]) * (got.high < -margin)
    return above, below
