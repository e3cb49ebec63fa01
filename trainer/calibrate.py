"""The calibration stage: a teacher, a proxy and a dial in, a calibrated teacher with its record out."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from distillknob.rewards.models import Dtype
from distillknob.rewards.settings import said
from distillknob.rewards.tasks import TaskConfig
from distillknob.trainer.groups import check_groups
from distillknob.trainer.lora import Lora

if TYPE_CHECKING:
    from distillknob.rewards.calibration import Kind
    from distillknob.rewards.tasks.base import Task
    from distillknob.trainer.calibration import CalibrationTrainer
    from distillknob.trainer.calibration_config import CalibrationConfig

logger = logging.getLogger(__name__)

MAXIMUM_ETA = 100.0
LOSS_TYPES = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo", "cispo", "sapo", "vespo")  # of TRL 1.16; it looks at the first step


@dataclass(frozen=True)
class Calibration:
    """Settings of a calibration run; those that TRL knows have TRL's names. See docs/method.md for what each one does.

    `trl`: further arguments of TRL's GRPOConfig by name. `validation_items`: held-out prompts for the full-vocabulary KL and the
    utility floor.
    """

    steps: int = said(100, "updates of the teacher")
    prompts_per_step: int = said(16, "prompts an update")
    num_generations: int = said(8, "completions a prompt, the group in which rewards are compared; 2 or more")
    gradient_accumulation_steps: int = said(1, "parts that the completions of an update are trained in; must divide their number")
    learning_rate: float = said(3e-4, "step size, constant over the run; above 0")
    beta: float = said(0.05, "weight of the KL to the original teacher, 0 or above; 0: no anchor")
    calibration: Literal["auto", "log_ratio", "proxy_only"] = said(
        "auto",
        "log_ratio: the proxy's log-probability less the teacher's; proxy_only: alone; auto: proxy_only where eta is above 0",
    )
    calibration_per: Literal["bytes", "none", "own_tokens"] = said(
        "bytes", "what it is divided by: UTF-8 bytes, none, or each side's own tokens"
    )
    gate: Literal["none", "correct_only"] = said(
        "correct_only", "correct_only: calibration reward among right completions; none: among all"
    )
    gate_at: float = said(0.9, "task reward, 0 to 1, from which a completion counts as right for the gate")
    reward_decimals: int | None = said(
        0,
        "decimals that a reward model's reward of 0 to 1 is rounded to, so that groups don't blow up its noise (null: not rounded)",
    )
    floor: float | None = said(-2.0, "nats a byte, below 0: no proxy token counts for less (null: no floor)")
    end_token: Literal["both", "none"] = said("both", "both: the end token is scored on both sides; none: on neither")
    direction: Literal["distillable", "undistillable"] | None = said(
        None, "optional statement of the aim; an eta of the other sign is refused"
    )
    kl_ceiling: float | None = said(0.4, "guard: KL to the original teacher, nats a token (null: off)")
    entropy_floor: float | None = said(None, "guard: the teacher's entropy, nats a token (null: off)")
    truncation_ceiling: float | None = said(0.5, "guard: share of completions that are cut off, 0 to 1 (null: off)")
    utility_floor: float | None = said(None, "guard: mean task reward on held-out prompts (null: off)")
    guard_action: Literal["stop", "rollback"] = said(
        "stop", "on a breach, stop keeps the weights, rollback takes the last good ones"
    )
    on_bad_reward: Literal["error", "leave_out"] = said(
        "error", "an infinite or invalid reward ends the run, or is left out and counted"
    )
    check_proxy: Literal["refuse", "warn", "off"] = said(
        "refuse", "before any step at eta other than 0: what to do with a proxy that fails the check"
    )
    save_steps: int = said(50, "updates between checkpoints, and between evaluations of utility_floor")
    validation_items: int = said(256, "held-out prompts for utility_floor and the final KL, 1 or more")
    dtype: Dtype = field(
        default="float32", metadata={"help": "number type of the weights; in a study, set the study's dtype instead"}
    )
    lora: Lora | None = None
    trl: dict[str, Any] | None = field(
        default=None, metadata={"help": "further arguments of TRL's GRPOConfig, such as {max_grad_norm: 0.5}"}
    )

    def kind(self, eta: float) -> Kind:
        """The calibration reward at a dial: log_ratio stalls at the proxy's own style prior where text is to become explicit."""
        return self.calibration if self.calibration != "auto" else "proxy_only" if eta > 0 else "log_ratio"

    def __post_init__(self) -> None:
        for name in ("steps", "prompts_per_step", "gradient_accumulation_steps", "save_steps", "validation_items"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: must be at least 1")
        if self.learning_rate <= 0:
            raise ValueError("learning_rate: must be above 0")
        if self.beta < 0:
            raise ValueError("beta: must be 0 or above")
        if self.beta == 0 and self.kl_ceiling is not None:
            raise ValueError("kl_ceiling: with beta 0 no KL is measured: set kl_ceiling: null")
        for name, most in (("kl_ceiling", None), ("entropy_floor", None), ("truncation_ceiling", 1.0)):
            value = getattr(self, name)
            if value is not None and not (value > 0 and (most is None or value <= most)):
                raise ValueError(f"{name}: must be above 0{f' and at most {most:g}' if most else ''}, or null")
        if self.utility_floor is not None and not 0 <= self.utility_floor <= 1:
            raise ValueError("utility_floor: must be a mean task reward from 0 to 1, or null")
        if self.reward_decimals is not None and self.reward_decimals < 0:
            raise ValueError("reward_decimals: must be 0 or above, or null")
        if not 0 < self.gate_at <= 1:
            raise ValueError("gate_at: must be above 0 and at most 1, the largest task reward")
        if self.floor is not None and self.floor >= 0:
            raise ValueError("floor: must be below 0 nats a byte, or null")
        batch = self.prompts_per_step * self.num_generations
        if self.num_generations >= 2 and batch % self.gradient_accumulation_steps:
            divisors = [n for n in range(1, batch + 1) if batch % n == 0]
            raise ValueError(f"gradient_accumulation_steps: must divide the {batch} completions of a step; valid: {divisors}")
        check_groups(
            processes=1, per_device_batch=self.prompts_per_step * self.num_generations, accumulation=1, group=self.num_generations
        )


@dataclass(frozen=True)
class CalibrateConfig:
    """One teacher to calibrate: the settings, the dial and the seed."""

    task: TaskConfig
    settings: Calibration
    eta: float
    seed: int

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise ValueError("seed: must be 0 or above")
        if abs(self.eta) > MAXIMUM_ETA:
            raise ValueError(f"eta: must be from {-MAXIMUM_ETA:g} to {MAXIMUM_ETA:g}; rewards are compared at the scale of 1")
        sign = {"distillable": 1, "undistillable": -1, None: 0}[self.settings.direction]
        if sign and sign * self.eta < 0:
            raise ValueError(f"eta: {self.eta:g} contradicts direction: {self.settings.direction}")


def calibrate(config: CalibrateConfig, inputs: Mapping[str, Path], output: Path, work: Path) -> None:
    """Stage: inputs `teacher`, `proxy` and perhaps `reward`, a reward model that scores in the task's place (folders); output a
    model folder with calibration.json and metrics.jsonl."""
    from datasets import Dataset

    from distillknob.rewards.errors import UserError
    from distillknob.rewards.jsonl import write_json, write_jsonl
    from distillknob.rewards.models import load_model, load_tokenizer
    from distillknob.rewards.rendering import check_lengths, positions_of
    from distillknob.rewards.reward_model import load_reward_model
    from distillknob.rewards.tasks import load_task
    from distillknob.rewards.tasks.base import TaskReward
    from distillknob.trainer.calibration import CalibrationTrainer
    from distillknob.trainer.checkpoints import last_checkpoint
    from distillknob.trainer.progress import show_progress
    from distillknob.trainer.proxy import proxy_of
    from distillknob.trainer.supervised import save_model, timeless
    from distillknob.trainer.tiles import fitted_tiles

    settings, task, args = config.settings, load_task(config.task), arguments(config, work)
    check = None if config.eta == 0 or settings.check_proxy == "off" else proxy_of(config, inputs)
    if check is not None and not check.passes:
        if settings.check_proxy == "refuse":
            raise UserError(f"proxy check: {check.reason} (check_proxy: warn goes on all the same)\n{check.table()}")
        logger.warning("proxy check: %s", check.reason)
    rows = task.rows("train", settings.steps * settings.prompts_per_step, config.seed)
    held_out = task.rows("validation", settings.validation_items, 0)
    tokenizer, model = load_tokenizer(inputs["teacher"]), load_model(inputs["teacher"], settings.dtype)
    check_lengths(tokenizer, [row["prompt"] for row in rows], config.task.longest, positions_of(model))
    judge = inputs.get("reward")
    reward = TaskReward(task) if judge is None else load_reward_model(str(judge), "reward", settings.reward_decimals)
    trainer = CalibrationTrainer(
        model,
        reward,
        args,
        proxy=load_model(inputs["proxy"], settings.dtype),
        proxy_tokenizer=load_tokenizer(inputs["proxy"]),
        train_dataset=Dataset.from_list(rows),
        eval_dataset=Dataset.from_list(held_out),
        processing_class=tokenizer,
        peft_config=None if settings.lora is None else settings.lora.peft_config(),
    )
    show_progress(trainer, ("kl", "rewards/calibration/mean", f"rewards/{reward.__name__}/mean"))
    with fitted_tiles(model):
        trainer.train(resume_from_checkpoint=last_checkpoint(work))
        record = calibration_record(config, trainer, task, held_out, anchor=inputs["teacher"])
    save_model(trainer.accelerator.unwrap_model(trainer.model), tokenizer, output)
    write_json(output / "calibration.json", record | {"proxy_check": None if check is None else check.as_dict()})
    write_jsonl(output / "metrics.jsonl", timeless(trainer.state.log_history))


_SAME_NAME = (
    *("num_generations", "gradient_accumulation_steps", "learning_rate", "beta", "calibration_per", "gate", "gate_at", "floor"),
    *("end_token", "kl_ceiling", "entropy_floor", "truncation_ceiling", "utility_floor", "guard_action", "on_bad_reward"),
    "save_steps",
)


def arguments(config: CalibrateConfig, work: Path) -> CalibrationConfig:
    """The trainer's arguments for a stage; UserError for a `trl` key that can't be set there."""
    from dataclasses import fields
    from typing import get_type_hints

    from distillknob.rewards.errors import UserError
    from distillknob.trainer.calibration_config import CalibrationConfig
    from distillknob.trainer.supervised import cpu_arguments

    s = config.settings
    batch = s.prompts_per_step * s.num_generations // s.gradient_accumulation_steps
    ours: dict[str, Any] = {
        "output_dir": str(work),
        "max_steps": s.steps,
        "per_device_train_batch_size": batch,
        "per_device_eval_batch_size": batch,
        "max_completion_length": config.task.longest,
        "eta": config.eta,
        "direction": None if config.eta == 0 else s.direction,  # the control has no direction
        "save_strategy": "steps",
        "save_total_limit": 2 if s.guard_action == "stop" else None,
        "eval_strategy": "no" if s.utility_floor is None else "steps",
        "eval_steps": s.save_steps,
        "logging_steps": 1,
        "seed": config.seed,
        "disable_tqdm": True,  # our own bar shows less
        **{name: getattr(s, name) for name in _SAME_NAME},
        "calibration": s.kind(config.eta),
    }
    defaults: dict[str, Any] = {"lr_scheduler_type": "constant", "top_k": 0, "report_to": [], "dataloader_pin_memory": False}
    given, known = s.trl or {}, {field.name for field in fields(CalibrationConfig) if field.init}
    hints = get_type_hints(CalibrationConfig) if given else {}
    for key in given:
        if key in ours:
            raise UserError(f"calibration.trl.{key}: set by the study (steps, seed, output …) or by the key of that name")
        if key not in known:
            raise UserError(f"calibration.trl.{key}: unknown key; valid: the arguments of TRL's GRPOConfig")
        check_trl_value(key, given[key], hints[key])
    try:
        return CalibrationConfig(**(defaults | cpu_arguments() | given | ours))
    except (TypeError, ValueError) as error:
        raise UserError(f"calibration: {error}") from error


def check_trl_value(key: str, value: Any, hint: Any) -> None:
    """UserError for a value of another type than GRPOConfig's field has, or one that TRL would only stumble over in training."""
    from pydantic import ConfigDict, TypeAdapter, ValidationError

    from distillknob.rewards.errors import UserError

    try:
        TypeAdapter(hint, config=ConfigDict(arbitrary_types_allowed=True)).validate_python(value)
    except ValidationError as error:
        first = error.errors()[0]["msg"]
        raise UserError(f"calibration.trl.{key}: {value!r}: {first[:1].lower()}{first[1:]}") from error
    if key == "loss_type" and value not in LOSS_TYPES:
        raise UserError(f"calibration.trl.loss_type: {value!r}; valid: {', '.join(LOSS_TYPES)}")
    if key in ("temperature", "num_iterations", "max_grad_norm", "repetition_penalty") and value is not None and value <= 0:
        raise UserError(f"calibration.trl.{key}: {value!r}; valid: above 0")


def calibration_record(
    config: CalibrateConfig, trainer: CalibrationTrainer, task: Task, held_out: Sequence[dict[str, Any]], anchor: Path
) -> dict[str, Any]:
    """calibration.json: what was asked, what the guards did, and the KL to the anchor, sampled as optimised and over the whole
    vocabulary on held-out prompts."""
    from distillknob.eval.divergence import full_vocabulary_kl
    from distillknob.eval.generation import generate
    from distillknob.rewards.models import load_model
    from distillknob.rewards.rendering import encode_completion, encode_prompt
    from distillknob.rewards.seeds import derive_seed

    tokenizer, s = trainer.processing_class, config.settings
    model = trainer.accelerator.unwrap_model(trainer.model)
    prompts = [row["prompt"] for row in held_out]
    written = generate(
        model, tokenizer, prompts, temperature=1.0, max_new_tokens=config.task.longest, seed=derive_seed(config.seed, "held-out")
    )
    tails = [[*encode_completion(tokenizer, w.text), *([tokenizer.eos_token_id] if w.finished else [])] for w in written]
    heads = [encode_prompt(tokenizer, prompt) for prompt in prompts]
    exact = full_vocabulary_kl(model, load_model(anchor, s.dtype), heads, tails)
    history = trainer.state.log_history
    kl = [entry["kl"] for entry in history if entry.get("kl") is not None]
    steps = trainer.guards.steps_kept(trainer.state.global_step)
    guards = trainer.guards.record()
    if not guards and s.kl_ceiling is not None and exact.value is not None and exact.value > s.kl_ceiling:
        told = {"step": steps, "guard": "kl_ceiling", "value": exact.value, "limit": s.kl_ceiling, "action": "told at the end"}
        guards = [{**told, "restored": None}]
    shares = {
        key.removeprefix("calibration/"): sum(entry.get(key) or 0.0 for entry in history) / max(1, sum(key in e for e in history))
        for key in sorted({k for entry in history for k in entry if k.startswith("calibration/")})
    }
    return {
        "schema": 1,
        "eta": config.eta,
        "seed": config.seed,
        "steps": steps,
        "settings": asdict(s) | {"calibration": s.kind(config.eta)},
        "guards": guards,
        "kl": {
            "optimised": {"estimator": "k3 with bias correction, sampled, nats a token", "last_steps": kl[-5:]},
            "full_vocabulary": {"value": exact.value, "low": exact.low, "high": exact.high, "n": exact.n, "unit": "nats a token"},
        },
        "shares": shares,
        "learnt_nothing": all(entry.get("grad_norm") in (None, 0.0) for entry in history),
    }
