"""The anchor of a calibration: the teacher as it was handed in, kept frozen, and proof that it is that one (method §2)."""

from __future__ import annotations

import copy
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from distillknob.rewards.errors import UserError
from distillknob.rewards.jsonl import read_json, write_json

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_SAMPLED = 4096
TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-6, torch.bfloat16: 1e-2, torch.float16: 1e-3}


def frozen_copy(model: PreTrainedModel) -> PreTrainedModel:
    """A frozen copy of the teacher in memory; its path is never read again, so it can't be another model."""
    anchor: PreTrainedModel = copy.deepcopy(model)
    return anchor.eval().requires_grad_(False)


def fingerprint(model: torch.nn.Module) -> str:
    """A hash of the frozen parameters: name, shape and up to 4,096 evenly spaced values of each (16 hex digits)."""
    digest = hashlib.sha256()
    for name, parameter in model.named_parameters():
        if parameter.requires_grad or parameter.numel() == 0:
            continue
        flat = parameter.detach().flatten()
        sample = flat[:: max(1, flat.numel() // _SAMPLED)].float().cpu().numpy()
        digest.update(f"{name} {tuple(parameter.shape)}".encode() + sample.tobytes())
    return digest.hexdigest()[:16]


def same_run_as_before(now: dict[str, Any], folder: Path, resumed: bool) -> None:
    """Writes what a run must keep (anchor, proxy, dial) into its folder as resume.json, or refuses to resume where it differs."""
    record = folder / "resume.json"
    if resumed and record.is_file():
        before = read_json(record)
        changed = [name for name in now if before.get(name) != now[name]]
        if "anchor" in changed:
            raise UserError(
                f"{folder}: the checkpoint was trained against another anchor; resume with the original teacher as the model, "
                "not with a checkpoint or another model"
            )
        if changed:
            was = ", ".join(f"{name} was {before.get(name)}, is {now[name]}" for name in changed)
            raise UserError(f"{folder}: can't resume with another setting: {was}")
    folder.mkdir(parents=True, exist_ok=True)
    write_json(record, now)


def check_first_kl(value: float, dtype: torch.dtype) -> None:
    """At step 0 policy and anchor are one model: a KL above rounding (by dtype) means that they are not."""
    limit = TOLERANCE.get(dtype, 5e-2)
    if not value <= limit:
        raise UserError(
            f"KL to the anchor is {value:.3g} nats a token before the first update, above {limit:g} (rounding in {dtype}): "
            "the anchor is not the model that is being tuned"
        )
