"""Arguments of `CalibrationTrainer`: TRL's GRPOConfig and the few keys of the calibration (method §2)."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from trl import GRPOConfig

from distillknob.rewards.calibration import Kind, Unit
from distillknob.rewards.errors import UserError
from distillknob.rewards.scoring import EndToken
from distillknob.trainer.checked import OnBadReward
from distillknob.trainer.groups import check_groups
from distillknob.trainer.guards import Action, Limits


@dataclass
class CalibrationConfig(GRPOConfig):  # type: ignore[misc]
    """GRPOConfig with the dial. Defaults that differ from TRL's: `beta` .05 (the undistillable side needs the anchor),
    `disable_dropout` True (policy and anchor must agree at step 0). Where they differ from the paper's they are ours."""

    eta: float = field(default=0.0, metadata={"help": "The dial: > 0 distillable, < 0 undistillable, 0 plain RFT."})
    direction: Literal["distillable", "undistillable"] | None = field(
        default=None, metadata={"help": "Optional statement of the aim; a contradicting sign of eta is refused."}
    )
    calibration: Kind = field(default="log_ratio", metadata={"help": "log_ratio: (l_P - l_T)/N; proxy_only: l_P/N."})
    calibration_per: Unit = field(default="bytes", metadata={"help": "N: UTF-8 bytes, none (1), or own_tokens."})
    floor: float | None = field(default=None, metadata={"help": "Floor of the proxy's log-probability, nats a byte (< 0)."})
    gate: Literal["none", "correct_only"] = field(
        default="none", metadata={"help": "correct_only: z-score the calibration reward among the right rollouts only."}
    )
    gate_at: float = field(default=1.0, metadata={"help": "Task reward from which a rollout counts as right for the gate."})
    end_token: EndToken = field(default="both", metadata={"help": "Score the end token on both sides or on none."})
    proxy_batch_size: int = field(default=64, metadata={"help": "Rows of a forward pass of the proxy."})
    on_bad_reward: OnBadReward = field(default="error", metadata={"help": "±inf, non-numbers, wrong lengths: error or leave_out."})
    kl_ceiling: float | None = field(default=None, metadata={"help": "Guard: KL to the anchor, nats a token."})
    entropy_floor: float | None = field(default=None, metadata={"help": "Guard: entropy of the policy, nats a token."})
    truncation_ceiling: float | None = field(default=None, metadata={"help": "Guard: share of completions cut off."})
    utility_floor: float | None = field(default=None, metadata={"help": "Guard: mean task reward on eval_dataset."})
    guard_action: Action = field(
        default="stop", metadata={"help": "stop, or rollback to the newest checkpoint that was seen to be within the limits."}
    )
    beta: float = field(default=0.05, metadata={"help": "Weight of the KL to the anchor."})
    disable_dropout: bool = field(default=True, metadata={"help": "Dropout off in policy and anchor."})

    def __post_init__(self) -> None:
        self._check_values()
        sign = {"distillable": 1, "undistillable": -1, None: 0}[self.direction]
        if sign and sign * self.eta <= 0:
            raise UserError(f"eta: {self.eta:g} contradicts direction: {self.direction} (eta must be {'>' if sign > 0 else '<'} 0)")
        if self.generation_batch_size is None:
            check_groups(
                processes=int(os.environ.get("WORLD_SIZE", "1")),
                per_device_batch=self.per_device_train_batch_size,
                accumulation=self.steps_per_generation or self.gradient_accumulation_steps,
                group=self.num_generations,
            )
        if self.sync_ref_model:
            raise UserError("sync_ref_model: true would move the anchor away from the original teacher; leave it off")
        super().__post_init__()
        window = self.steps_per_generation * self.num_iterations
        per_update = self.gradient_accumulation_steps
        if self.save_strategy == "steps" and self.save_steps < 1:
            raise UserError(f"save_steps: must be a whole number of steps, not the share {self.save_steps:g}")
        if self.save_strategy == "steps" and (self.save_steps * per_update) % window:
            every = next(n for n in range(1, window + 1) if (n * per_update) % window == 0)
            raise UserError(
                f"save_steps: {self.save_steps:g} would save inside a generation window, from where a run can't be resumed "
                f"exactly; use a multiple of {every}"
            )
        if self.utility_floor is not None and self.eval_strategy == "no":
            raise UserError("utility_floor: needs eval_strategy: steps and a held-out eval_dataset")
        if self.guard_action == "rollback" and self.save_total_limit is not None:
            raise UserError("guard_action: rollback needs every checkpoint until it is judged: leave save_total_limit out")
        if self.guard_action == "rollback" and self.save_strategy == "no":
            raise UserError("guard_action: rollback needs checkpoints: set save_strategy: steps and save_steps")

    def _check_values(self) -> None:
        """Choices and numbers: a dataclass takes any value for a Literal, and a wrong one would quietly mean another."""
        choices: dict[str, Any] = {
            "direction": Literal["distillable", "undistillable"],
            "calibration": Kind,
            "calibration_per": Unit,
            "gate": Literal["none", "correct_only"],
            "end_token": EndToken,
            "on_bad_reward": OnBadReward,
            "guard_action": Action,
        }
        for name, choice in choices.items():
            value = getattr(self, name)
            if value not in get_args(choice) and not (name == "direction" and value is None):
                raise UserError(f"{name}: must be one of {', '.join(map(repr, get_args(choice)))}, not {value!r}")
        optional = ("floor", "kl_ceiling", "entropy_floor", "truncation_ceiling", "utility_floor")
        for name in ("eta", "beta", "gate_at", *optional):
            value = getattr(self, name)
            finite = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
            if not finite and not (name in optional and value is None):
                raise UserError(f"{name}: must be a finite number, not {value!r}")
        if self.beta < 0:
            raise UserError(f"beta: must be 0 or above, not {self.beta:g}")
        if self.beta == 0 and self.kl_ceiling is not None:
            raise UserError("kl_ceiling: with beta 0 no KL is measured: leave kl_ceiling out")
        if self.proxy_batch_size < 1:
            raise UserError(f"proxy_batch_size: must be at least 1, not {self.proxy_batch_size}")

    @property
    def limits(self) -> Limits:
        """The guards' limits."""
        return Limits(self.kl_ceiling, self.entropy_floor, self.truncation_ceiling, self.utility_floor, self.guard_action)
