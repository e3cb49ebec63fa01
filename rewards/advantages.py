"""Group normalisation and the combined advantage (method §2): each reward is normalised in its group, then they are added."""

from __future__ import annotations

import torch

EPSILON = 1e-4
_ROUNDING = 4 * torch.finfo(torch.float32).eps


def group_zscores(rewards_P_G: torch.Tensor, epsilon: float = EPSILON) -> torch.Tensor:
    """z-scores within each group (row), shape (P, G), float64: (r − mean)/(std + epsilon) with the unbiased std.

    NaN marks a member that is left out: its z is 0 and it enters neither mean nor std. A group with fewer than two valid members,
    or whose spread is no more than the rounding of float32, gets zeros.
    """
    rewards = rewards_P_G.double()
    valid = ~rewards.isnan()
    count_P_1 = valid.sum(1, keepdim=True)
    filled = torch.where(valid, rewards, 0.0)
    mean_P_1 = filled.sum(1, keepdim=True) / count_P_1.clamp(min=1)
    deviation = torch.where(valid, rewards - mean_P_1, 0.0)
    std_P_1 = (deviation.square().sum(1, keepdim=True) / (count_P_1 - 1).clamp(min=1)).sqrt()
    spread = (count_P_1 >= 2) & (std_P_1 > _ROUNDING * filled.abs().amax(1, keepdim=True))
    return torch.where(spread & valid, deviation / torch.where(spread, std_P_1 + epsilon, 1.0), 0.0)


def gated(calibration_P_G: torch.Tensor, task_P_G: torch.Tensor, gate_at: float | None) -> torch.Tensor:
    """The calibration reward with NaN for members whose task reward is below `gate_at` or left out; None: as it is."""
    if gate_at is None:
        return calibration_P_G
    return torch.where(task_P_G >= gate_at, calibration_P_G.double(), torch.nan)


def combined_advantages(
    task_P_G_K: torch.Tensor,
    weights_K: torch.Tensor,
    calibration_P_G: torch.Tensor | None,
    eta: float,
    *,
    gate_at: float | None = None,
    epsilon: float = EPSILON,
) -> torch.Tensor:
    """A = Σ_k w_k · z(r_k) + η · z(r_cal), shape (P, G), float64; no whitening over the batch.

    `task_P_G_K`: the task rewards, NaN where left out. `calibration_P_G`: the calibration reward or None. `gate_at`: only members
    whose first task reward is at least this take part in the calibration term, and its mean and spread are taken among them
    (`gate: correct_only`, ours); None for no gate.
    """
    total = torch.zeros(task_P_G_K.shape[:2], dtype=torch.float64, device=task_P_G_K.device)
    for k, weight in enumerate(weights_K.tolist()):
        total = total + weight * group_zscores(task_P_G_K[:, :, k], epsilon)
    if calibration_P_G is None:
        return total
    calibration_P_G = gated(calibration_P_G, task_P_G_K[:, :, 0], gate_at)
    return total + eta * group_zscores(calibration_P_G, epsilon)
