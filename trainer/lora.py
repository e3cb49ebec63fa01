"""LoRA settings of a config file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from distillknob.rewards.settings import said


@dataclass(frozen=True)
class Lora:
    """Rank, scale and target modules (`all-linear` leaves the head alone); the adapter is merged when the model is saved."""

    r: int = said(16, "rank of the adapter, 1 or more; any lora key turns LoRA on")
    alpha: int = said(32, "scale of the adapter: its output counts alpha / r times")
    dropout: float = said(0.0, "dropout on the adapter's input, 0 to below 1")
    targets: str | tuple[str, ...] = said("all-linear", "layers to adapt, by name; all-linear: all but the head")

    def __post_init__(self) -> None:
        if self.r < 1:
            raise ValueError("r: must be at least 1")
        if not 0 <= self.dropout < 1:
            raise ValueError("dropout: must be from 0 to below 1")

    def peft_config(self) -> Any:
        """The adapter configuration for peft."""
        from peft import LoraConfig

        targets = self.targets if isinstance(self.targets, str) else list(self.targets)
        return LoraConfig(r=self.r, lora_alpha=self.alpha, lora_dropout=self.dropout, target_modules=targets, task_type="CAUSAL_LM")
