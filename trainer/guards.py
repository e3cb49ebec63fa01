"""Run-time guards of a calibration: ceilings and floors that end a run which goes wrong (method §2)."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

Action = Literal["stop", "rollback"]


@dataclass(frozen=True)
class Breach:
    """A guard that tripped: at which step, the value (mean of the last logged ones) and its limit."""

    step: int
    guard: str
    value: float
    limit: float
    action: Action
    restored: str | None = None


@dataclass(frozen=True)
class Limits:
    """Guard limits, None for off. `kl_ceiling`: nats a token to the anchor; `entropy_floor`: nats a token; `truncation_ceiling`:
    share of completions cut off; `utility_floor`: mean task reward on the held-out slice. Means over `window` logged values,
    so that one noisy batch doesn't end a run; the utility floor looks at each evaluation by itself."""

    kl_ceiling: float | None
    entropy_floor: float | None
    truncation_ceiling: float | None
    utility_floor: float | None
    action: Action
    window: int = 5


class GuardCallback(TrainerCallback):  # type: ignore[misc]
    """Watches the trainer's own metrics; on a breach the training stops, and `breach` says why."""

    def __init__(self, limits: Limits, task_reward: str) -> None:
        self.limits = limits
        self.task_reward = task_reward
        self.breach: Breach | None = None
        self.last_good: Path | None = None
        self._recent: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=limits.window))

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """A resumed run starts with the values of the run that it continues, from its last checkpoint, which was a good one."""
        self._recent.clear()
        for logs in state.log_history:
            self._look(state, control, logs)
        if state.global_step > 0:
            self.last_good = Path(args.output_dir) / f"checkpoint-{state.global_step}"

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: dict[str, Any] | None = None, **_: Any
    ) -> None:
        """Checks the training metrics."""
        self._look(state, control, logs or {})

    def _look(self, state: TrainerState, control: TrainerControl, logs: dict[str, Any]) -> None:
        watched = (
            ("kl_ceiling", "kl", self.limits.kl_ceiling, 1),
            ("entropy_floor", "entropy", self.limits.entropy_floor, -1),
            ("truncation_ceiling", "completions/clipped_ratio", self.limits.truncation_ceiling, 1),
        )
        for guard, key, limit, sign in watched:
            value = logs.get(key)
            if limit is None or value is None:
                continue
            recent = self._recent[key]
            recent.append(float(value))
            if len(recent) == self.limits.window:
                self._check(state, control, guard, sum(recent) / len(recent), limit, sign)

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, metrics: dict[str, Any] | None = None, **_: Any
    ) -> None:
        """Checks the task reward on the held-out slice."""
        value = (metrics or {}).get(f"eval_rewards/{self.task_reward}/mean")
        if self.limits.utility_floor is not None and value is not None:
            self._check(state, control, "utility_floor", float(value), self.limits.utility_floor, -1)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """A checkpoint saved before any breach is a good one."""
        if self.breach is None:
            self.last_good = Path(args.output_dir) / f"checkpoint-{state.global_step}"

    def record(self) -> list[dict[str, Any]]:
        """The breaches as they go into calibration.json."""
        return [] if self.breach is None else [asdict(self.breach)]

    def steps_kept(self, taken: int) -> int:
        """How many of the `taken` steps are in the weights: fewer after a rollback."""
        restored = self.breach.restored if self.breach is not None else None
        return taken if restored is None else int(restored.rpartition("-")[2])

    def _check(self, state: TrainerState, control: TrainerControl, guard: str, value: float, limit: float, sign: int) -> None:
        if self.breach is None and not sign * value <= sign * limit:  # NaN breaches too
            self.breach = Breach(state.global_step, guard, value, limit, self.limits.action)
            control.should_training_stop = True
