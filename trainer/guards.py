"""Run-time guards of a calibration: ceilings and floors that end a run which goes wrong (method §2)."""

from __future__ import annotations

import math
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
    value: float | None
    limit: float
    action: Action
    restored: str | None = None


@dataclass(frozen=True)
class Limits:
    """Guard limits, None for off. `kl_ceiling`: nats a token to the anchor; `entropy_floor`: nats a token; `truncation_ceiling`:
    share of completions cut off; `utility_floor`: mean task reward on the held-out slice. Means over the log entries of the last
    `window` steps (fewer at the start), so that one noisy batch doesn't end a run; the utility floor looks at each evaluation by
    itself, and a value that is no number trips at once."""

    kl_ceiling: float | None
    entropy_floor: float | None
    truncation_ceiling: float | None
    utility_floor: float | None
    action: Action
    window: int = 5


class GuardCallback(TrainerCallback):  # type: ignore[misc]
    """Watches the trainer's own metrics; on a breach the training stops, and `breach` says why.

    `last_good` is the newest checkpoint whose weights were seen to be within every limit, `start` (the weights before the first
    step) where there is none. What is logged at a step was measured before its update, so that a checkpoint is judged by the first
    entry after it.
    """

    def __init__(self, limits: Limits, task_reward: str) -> None:
        self.breach: Breach | None = None
        self.last_good: Path | None = None
        self._unjudged: Path | None = None
        self._limits = limits
        self._watched = {
            "kl": ("kl_ceiling", limits.kl_ceiling, 1),
            "entropy": ("entropy_floor", limits.entropy_floor, -1),
            "completions/clipped_ratio": ("truncation_ceiling", limits.truncation_ceiling, 1),
            f"eval_rewards/{task_reward}/mean": ("utility_floor", limits.utility_floor, -1),
        }
        self._recent: dict[str, deque[float]] = {}

    def observe(self, step: int, logs: dict[str, Any], logging_steps: float) -> None:
        """Looks at one log entry. A metric that TRL logs as None had no value that is a number."""
        entries = max(1, math.ceil(self._limits.window / max(1, logging_steps)))
        for key, (guard, limit, sign) in self._watched.items():
            if limit is None or key not in logs:
                continue
            recent = self._recent.setdefault(key, deque(maxlen=1 if guard == "utility_floor" else entries))
            recent.append(math.nan if logs[key] is None else float(logs[key]))
            value = sum(recent) / len(recent)
            if self.breach is None and (math.isnan(value) or sign * value > sign * limit):
                self.breach = Breach(step, guard, None if math.isnan(value) else value, limit, self._limits.action)
        if "kl" in logs or "entropy" in logs:  # a training entry: it was measured on the weights of the checkpoint before it
            if self._unjudged is not None and self._within_limits():
                self.last_good = self._unjudged
            self._unjudged = None

    def _within_limits(self) -> bool:
        """Whether the newest value of everything watched is within its limit."""
        newest = ((recent[-1], limit, sign) for key, (_, limit, sign) in self._watched.items() if (recent := self._recent.get(key)))
        return self.breach is None and all(limit is not None and sign * value <= sign * limit for value, limit, sign in newest)

    def replay(self, state: TrainerState, folder: Path) -> None:
        """Takes up a resumed run where it was: looks at its whole log again, and at which of its checkpoints were good."""
        self._recent.clear()
        by_step: dict[int, list[dict[str, Any]]] = defaultdict(list)
        for logs in state.log_history:
            by_step[int(logs.get("step", 0))].append(logs)
        for step in range(state.global_step + 1):
            for logs in by_step[step]:
                self.observe(step, logs, state.logging_steps)
            self._unjudged = self._saved(folder / f"checkpoint-{step}") or self._unjudged

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: dict[str, Any] | None = None, **_: Any
    ) -> None:
        """Checks the metrics of training and of evaluation, both of which the trainer logs."""
        self.observe(state.global_step, logs or {}, state.logging_steps)
        control.should_training_stop = control.should_training_stop or self.breach is not None

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Remembers a checkpoint, to be judged by what is measured on it."""
        self._unjudged = self._saved(Path(args.output_dir) / f"checkpoint-{state.global_step}")

    def _saved(self, checkpoint: Path) -> Path | None:
        return checkpoint if checkpoint.is_dir() else None

    def record(self) -> list[dict[str, Any]]:
        """The breaches as they go into calibration.json."""
        return [] if self.breach is None else [asdict(self.breach)]

    def steps_kept(self, taken: int) -> int:
        """How many of the `taken` steps are in the weights: fewer after a rollback."""
        restored = self.breach.restored if self.breach is not None else None
        return taken if restored is None else int(restored.removeprefix("checkpoint-").replace("start", "0"))
