"""`CalibrationTrainer`: reinforcement fine-tuning of a teacher with task utility, a KL anchor and a calibration reward (method §2).

The smallest subclass of TRL's GRPOTrainer that does it. It departs from GRPO in three places: each reward is normalised in its
group by itself and there is no whitening over the batch (A = Σ w_k z(r_k) + η z(r_cal)); the calibration reward gets the policy's
log-probabilities; the anchor is a copy of the teacher as handed in, never a model that is read from a path again.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Sized
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from peft import PeftConfig, PeftModel
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerState
from transformers.trainer_utils import TrainOutput
from trl import GRPOTrainer
from trl.trainer.utils import add_fused_lm_head, disable_dropout_in_model

from distillknob.eval.generation import plain_generation
from distillknob.rewards.advantages import combined_advantages, gated, group_zscores
from distillknob.rewards.calibration import CalibrationReward
from distillknob.rewards.errors import UserError
from distillknob.rewards.models import find_model, load_model, load_tokenizer
from distillknob.rewards.scoring import TextScorer
from distillknob.trainer.anchor import check_first_kl, fingerprint, frozen_copy, same_run_as_before
from distillknob.trainer.calibration_config import CalibrationConfig
from distillknob.trainer.checked import checked
from distillknob.trainer.checkpoints import last_checkpoint
from distillknob.trainer.groups import check_groups
from distillknob.trainer.guards import Breach, GuardCallback
from distillknob.trainer.policy import GRPOPolicy

logger = logging.getLogger(__name__)
MAX_LOG_RATIO = 20.0  # nats by which the anchor may find a token likelier than the policy before the KL term stops to grow
RewardFunction = Callable[..., Any] | nn.Module | str


class CalibrationTrainer(GRPOTrainer):  # type: ignore[misc]
    """Calibrates a teacher.

    Args:
        model: the teacher: a path or hub name, a model, or a PeftModel (its adapter is then tuned further, and is the anchor).
        reward_funcs: the task reward or rewards, TRL's signature; the first one decides what is right for `gate`.
        args: `CalibrationConfig`.
        proxy: the frozen proxy: a path or hub name, or a model; may be None only where eta is 0.
        proxy_tokenizer: needed where `proxy` is a model; else read from its path.
        train_dataset, eval_dataset: column `prompt` (text or messages) and what the task reward needs.
        processing_class, reward_processing_classes (one a task reward), peft_config, callbacks: as in GRPOTrainer.

    Raises:
        UserError: settings that can't work, before any weight is loaded; a reward function that returns something invalid;
            a wrong anchor, at the first step.
    """

    def __init__(
        self,
        model: str | PreTrainedModel | PeftModel,
        reward_funcs: RewardFunction | list[RewardFunction],
        args: CalibrationConfig,
        *,
        proxy: str | PreTrainedModel | None,
        proxy_tokenizer: PreTrainedTokenizerBase | None = None,
        train_dataset: Any,
        eval_dataset: Any = None,
        processing_class: PreTrainedTokenizerBase | None = None,
        reward_processing_classes: list[PreTrainedTokenizerBase | None] | None = None,
        peft_config: PeftConfig | None = None,
        callbacks: list[Any] | None = None,
    ) -> None:
        if not isinstance(args, CalibrationConfig):
            raise UserError(f"args: must be a CalibrationConfig, not {type(args).__name__}")
        args = copy.copy(args)  # what is set below stays ours: the caller may use the arguments again
        if train_dataset is None or "prompt" not in (train_dataset.column_names or ["prompt"]):
            raise UserError("train_dataset: needs a column prompt (a text, or a list of messages)")
        if proxy is None and args.eta != 0:
            raise UserError(f"eta: {args.eta:g} needs a proxy; only the control, eta: 0, runs without one")
        said = check_groups(
            processes=args.world_size,
            per_device_batch=args.per_device_train_batch_size,
            accumulation=args.steps_per_generation,
            group=args.num_generations,
            prompts=len(train_dataset) if isinstance(train_dataset, Sized) else None,
        )
        if "left over" in said:
            logger.warning("train data %s", said)
        tasks = [
            checked(f, args.on_bad_reward) for f in (reward_funcs if isinstance(reward_funcs, (list, tuple)) else [reward_funcs])
        ]
        if not tasks:
            raise UserError("reward_funcs: at least one task reward is needed")
        weights = args.reward_weights or [1.0] * len(tasks)
        if len(weights) != len(tasks):
            raise UserError(
                f"reward_weights: {len(weights)} weights for {len(tasks)} task rewards (eta weighs the calibration reward)"
            )
        self.reward_calibration = None if proxy is None else _calibration_reward(proxy, proxy_tokenizer, args)
        extra = [] if self.reward_calibration is None else [checked(self.reward_calibration, args.on_bad_reward)]
        args.reward_weights = [*weights, *([args.eta] if extra else [])]
        self._task_count = len(tasks)

        if isinstance(model, str):
            model = load_model(find_model(model, "model"), **(args.model_init_kwargs or {}))
            args.model_init_kwargs = None
        anchor = None
        if args.beta and not isinstance(model, PeftModel) and peft_config is None:
            anchor = frozen_copy(model)
        beta = args.beta
        args.beta = 0.0 if anchor is not None else beta  # TRL would read the anchor from the model's path again
        super().__init__(
            model=model,
            reward_funcs=[*tasks, *extra],
            args=args,
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            processing_class=processing_class,
            reward_processing_classes=None
            if reward_processing_classes is None
            else [*reward_processing_classes, *(None for _ in extra)],
            peft_config=peft_config,
            callbacks=callbacks,
        )
        self.beta = args.beta = beta
        if anchor is not None:
            self._adopt_anchor(anchor)
        if self.reward_calibration is not None:
            self.reward_calibration.proxy.model.to(self.accelerator.device)
            self._policy = GRPOPolicy(self)
            self.reward_calibration.attach(self._policy)
        self.guards = GuardCallback(args.limits, self.reward_func_names[0])
        self.add_callback(self.guards)
        self._first_kl_checked = False
        self._loss_inputs: dict[str, Any] = {}

    def _adopt_anchor(self, anchor: PreTrainedModel) -> None:
        """Prepares our copy of the teacher as TRL prepares the anchor that it loads."""
        if self.args.disable_dropout:
            disable_dropout_in_model(anchor)
        add_fused_lm_head(anchor, temperature=self.temperature, cast_lm_head_to_fp32=self.args.cast_lm_head_to_fp32)
        if self.is_deepspeed_enabled:
            from trl.models import prepare_deepspeed

            self.ref_model = prepare_deepspeed(anchor, self.accelerator)
        elif self.is_fsdp_enabled:
            from trl.models import prepare_fsdp

            self.ref_model = prepare_fsdp(anchor, self.accelerator)
        else:
            self.ref_model = self.accelerator.prepare_model(anchor, evaluation_mode=True)

    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs: Any) -> Any:
        """As in Trainer; checks that a resumed run has the same anchor, and rolls back after a breach where that is asked for."""
        folder = Path(self.args.output_dir)
        resumed = last_checkpoint(folder) if resume_from_checkpoint is True else resume_from_checkpoint or None
        proxy = None if self.reward_calibration is None else fingerprint(self.reward_calibration.proxy.model)
        kept = {"anchor": fingerprint(self.ref_model or self.model), "proxy": proxy, "eta": self.args.eta, "beta": self.beta}
        same_run_as_before(kept, folder, resumed is not None)
        self._first_kl_checked = resumed is not None
        if resumed is not None:
            state = TrainerState.load_from_json(str(Path(resumed) / "trainer_state.json"))
            self.guards.replay(state, folder)
        if self.args.guard_action == "rollback":
            self.guards.last_good = self.guards.last_good or folder / "start"
            if resumed is None:
                self.save_model(str(folder / "start"), _internal_call=True)
        if resumed is not None and self.guards.breach is not None:  # it had ended there: not one step more
            self._load_from_checkpoint(resumed)
            self.state, result = state, TrainOutput(state.global_step, 0.0, {})
        else:
            result = super().train(resume_from_checkpoint=resumed, **kwargs)
        breach = self.guards.breach
        if breach is not None:
            logger.warning(
                "guard %s: %s, limit %.4g, step %d: %s", breach.guard, breach.value, breach.limit, breach.step, breach.action
            )
            if breach.action == "rollback":
                self._roll_back(breach)
        return result

    def _roll_back(self, breach: Breach) -> None:
        good = self.guards.last_good
        if good is None or not good.is_dir():
            raise UserError(f"guard {breach.guard} tripped at step {breach.step}, and the weights to go back to are gone: {good}")
        self._load_from_checkpoint(str(good))
        self.guards.breach = replace(breach, restored=good.name)

    def _generate(self, prompts: list[Any]) -> Any:
        """TRL's rollouts, without the checkpoint's own generation defaults; what they say of the sampled ids is kept where it is
        what a pass of its own would say: in float32 and without dropout."""
        model = self.accelerator.unwrap_model(self.model)
        model = model.get_base_model() if isinstance(model, PeftModel) else model
        exact = model.dtype == torch.float32 and not (self.args.bf16 or self.args.fp16) and self.args.disable_dropout
        wanted = self.reward_calibration is not None and self.reward_calibration.kind == "log_ratio"
        with plain_generation(model), self._policy.sampled.of(model) if exact and wanted else nullcontext():
            return super()._generate(prompts)

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> torch.Tensor:
        """TRL's rewards, shape (B over all processes, K), kept for our advantages; infinities of reward models are treated as
        those of functions are."""
        rewards_B_K: torch.Tensor = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        if rewards_B_K.isinf().any():
            named = [name for name, bad in zip(self.reward_func_names, rewards_B_K.isinf().any(0).tolist(), strict=True) if bad]
            if self.args.on_bad_reward == "error":
                raise UserError(f"reward function {', '.join(named)} returned an infinite reward")
            logger.warning("reward function %s returned an infinite reward: left out", ", ".join(named))
            mode = "train" if self.model.training else "eval"
            for name, share in zip(self.reward_func_names, rewards_B_K.isinf().float().mean(0).tolist(), strict=True):
                self._metrics[mode][f"rewards/{name}/infinite"].append(share)
            rewards_B_K = torch.where(rewards_B_K.isinf(), torch.nan, rewards_B_K)
        self._rewards_B_K = rewards_B_K
        return rewards_B_K

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """TRL's rollouts with our advantages in place of its whitened ones."""
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        mode = "train" if self.model.training else "eval"
        group = self.num_generations if mode == "train" else self.num_generations_eval
        advantages_B = self._advantages(self._rewards_B_K, group, mode).to(output["advantages"])
        local = len(output["advantages"])
        start = self.accelerator.process_index * local
        output["advantages"] = advantages_B[start : start + local]
        for _ in range(len(advantages_B)):
            self._logs["advantages"].pop()
        self._logs["advantages"].extend(advantages_B.tolist())
        return output

    def _advantages(self, rewards_B_K: torch.Tensor, group: int, mode: str) -> torch.Tensor:
        rewards_P_G_K = rewards_B_K.view(-1, group, rewards_B_K.shape[1])
        task_P_G_K, rest = rewards_P_G_K[:, :, : self._task_count], rewards_P_G_K[:, :, self._task_count :]
        calibration_P_G = rest[:, :, 0] if rest.shape[2] else None
        weights = torch.tensor(self.args.reward_weights[: self._task_count])
        gate_at = self.args.gate_at if self.args.gate == "correct_only" else None
        for name, values_P_G in zip(self.reward_func_names, rewards_P_G_K.unbind(2), strict=True):
            flat = (values_P_G.nan_to_num(-torch.inf).amax(1) - values_P_G.nan_to_num(torch.inf).amin(1)) <= 0
            self._metrics[mode][f"frac_zero_std/{name}"].append(flat.float().mean().item())
        if calibration_P_G is not None:
            used_P_G = group_zscores(gated(calibration_P_G, task_P_G_K[:, :, 0], gate_at))
            self._metrics[mode]["calibration/groups_with_signal"].append((used_P_G != 0).any(1).double().mean().item())
        return combined_advantages(task_P_G_K, weights, calibration_P_G, self.args.eta, gate_at=gate_at).flatten()

    def _compute_loss(self, model: nn.Module, inputs: dict[str, Any]) -> torch.Tensor:
        """TRL's loss, its KL term bounded; before the first update the KL to the anchor has to be zero up to rounding."""
        self._loss_inputs = dict(inputs)
        try:
            loss: torch.Tensor = super()._compute_loss(model, self._loss_inputs)
        finally:
            self._loss_inputs = {}
        if self.beta and not self._first_kl_checked and self.model.training:
            self._first_kl_checked = True
            mixed = {self.args.bf16: torch.bfloat16, self.args.fp16: torch.float16}.get(True)
            check_first_kl(self._metrics["train"]["kl"][0], mixed or next(self.model.parameters()).dtype)
        return loss

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        """TRL's pass. Within the loss it bounds how much likelier the anchor may find a token: k3 holds the exponential of that,
        which is infinite in float32 above 88. A bounded token's KL has no gradient; the share of such tokens is logged."""
        result = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        anchor_B_T = self._loss_inputs.get("ref_per_token_logps")
        if anchor_B_T is not None:
            highest_B_T = result[0] + MAX_LOG_RATIO
            mask_B_T = self._loss_inputs["completion_mask"]
            share = ((anchor_B_T > highest_B_T) * mask_B_T).sum() / mask_B_T.sum().clamp(min=1)
            self._metrics["train" if self.model.training else "eval"]["kl/bounded"].append(share.item())
            self._loss_inputs["ref_per_token_logps"] = torch.minimum(anchor_B_T, highest_B_T)
        return result


def _calibration_reward(
    proxy: str | PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None, args: CalibrationConfig
) -> CalibrationReward:
    if isinstance(proxy, str):
        folder = find_model(proxy, "proxy")
        tokenizer, proxy = tokenizer or load_tokenizer(folder), load_model(folder)
    if tokenizer is None:
        raise UserError("proxy_tokenizer: a proxy that is handed over as a model needs its tokenizer")
    scorer = TextScorer(proxy, tokenizer, batch_size=args.proxy_batch_size, end_token=args.end_token)
    return CalibrationReward(scorer, kind=args.calibration, per=args.calibration_per, floor=args.floor)
