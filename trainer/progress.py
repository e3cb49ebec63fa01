"""One progress bar for a training, in place of the trainer's dump of every metric."""

from __future__ import annotations

import sys
from typing import Any

from tqdm import tqdm
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

LINES = 10  # where stderr is no terminal: so many lines a training


class _Bar(TrainerCallback):  # type: ignore[misc]
    """A bar with the latest values of a few metrics; plain lines where stderr is no terminal."""

    def __init__(self, metrics: tuple[str, ...]) -> None:
        self.metrics = metrics
        self.bar: tqdm[Any] | None = None
        self.values: dict[str, str] = {}

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Opens the bar where a resumed training stands."""
        terminal = sys.stderr.isatty()
        self.bar = tqdm(total=state.max_steps, initial=state.global_step, disable=not terminal, unit="step", dynamic_ncols=True)

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: dict[str, Any] | None = None, **_: Any
    ) -> None:
        """Takes the metrics."""
        found = {name: (logs or {}).get(name) for name in self.metrics}
        self.values |= {name.split("/")[-2 if "/" in name else 0]: f"{v:.3g}" for name, v in found.items() if v is not None}

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Moves the bar."""
        if self.bar is None:
            return
        self.bar.set_postfix(self.values, refresh=False)
        self.bar.update()
        if self.bar.disable and state.global_step % max(1, state.max_steps // LINES) == 0:
            values = " ".join(f"{name} {value}" for name, value in self.values.items())
            print(f"step {state.global_step}/{state.max_steps} {values}", file=sys.stderr, flush=True)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Closes the bar."""
        if self.bar is not None:
            self.bar.close()


def show_progress(trainer: Trainer, metrics: tuple[str, ...]) -> None:
    """Gives a trainer (made with `disable_tqdm=True`) a bar that shows `metrics` by their logged names."""
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(_Bar(metrics))
