"""LoRA settings of a config file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Lora:
    """Rank, scale and target modules (`all-linear` leaves the head alone); the adapter is merged when the model is saved."""

    r: int = 16
    alpha: int = 32
    dropout: float = 0.0
    targets: str | tuple[str, ...] = "all-linear"

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
