"""The proxy check as a step of a calibration: with the models, the reward and the task of its config (method §2)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from distillknob.eval.proxy_check import ProxyCheck
    from distillknob.trainer.calibrate import CalibrateConfig

PROMPTS, SAMPLES = 256, 8


def proxy_of(config: CalibrateConfig, inputs: Mapping[str, Path]) -> ProxyCheck:
    """Checks the proxy on validation prompts, for the reward that the config uses; inputs `teacher` and `proxy` (folders)."""
    from distillknob.eval.proxy_check import check_proxy
    from distillknob.rewards.calibration import CalibrationReward
    from distillknob.rewards.models import load_model, load_tokenizer
    from distillknob.rewards.scoring import TextScorer
    from distillknob.rewards.seeds import derive_seed
    from distillknob.rewards.tasks import load_task

    s, task = config.settings, load_task(config.task)
    scorer = TextScorer(load_model(inputs["proxy"], s.dtype), load_tokenizer(inputs["proxy"]), end_token=s.end_token)
    return check_proxy(
        load_model(inputs["teacher"], s.dtype),
        load_tokenizer(inputs["teacher"]),
        CalibrationReward(scorer, kind=s.kind(config.eta), per=s.calibration_per, floor=s.floor),
        task,
        task.rows("validation", PROMPTS, 0),
        samples=SAMPLES,
        max_new_tokens=config.task.longest,
        seed=derive_seed(config.seed, "proxy check"),
    )
