"""The rules of the verdicts, as a study file gives them and the manifest fixes them (method §5)."""

from dataclasses import dataclass

from distillknob.rewards.settings import said


@dataclass(frozen=True)
class VerdictRules:
    """Rules and margins, fixed in the manifest before a run (method §5); fractions, `collapse_fraction` is the ½ of the
    collapse rule."""

    utility_margin: float = said(0.02, "accuracy that a calibrated teacher may lose, a fraction above 0")
    collapse_fraction: float = said(0.5, "collapse: students keep less than this share of the control's gain, 0 to 1")
    minimum_headroom: float = said(0.10, "gain of the control's students that a collapse verdict needs, 0 to 1")
    confidence: float = said(0.95, "level of the two-sided intervals, 0.5 to below 1")

    def __post_init__(self) -> None:
        if not 0 < self.utility_margin <= 1:
            raise ValueError("utility_margin: must be a fraction above 0")
        for name in ("collapse_fraction", "minimum_headroom"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name}: must be a fraction from 0 to 1")
        if not 0.5 <= self.confidence < 1:
            raise ValueError("confidence: must be from 0.5 to below 1")
