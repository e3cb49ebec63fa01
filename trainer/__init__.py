"""What changes weights. `CalibrationTrainer` and `CalibrationConfig` are loaded when they are first asked for, since TRL takes
seconds to import."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distillknob.trainer.calibration import CalibrationTrainer
    from distillknob.trainer.calibration_config import CalibrationConfig

__all__ = ["CalibrationConfig", "CalibrationTrainer"]


def __getattr__(name: str) -> Any:
    if name == "CalibrationTrainer":
        from distillknob.trainer.calibration import CalibrationTrainer

        return CalibrationTrainer
    if name == "CalibrationConfig":
        from distillknob.trainer.calibration_config import CalibrationConfig

        return CalibrationConfig
    raise AttributeError(name)
