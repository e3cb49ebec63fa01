"""Checkpoints of an interrupted run: which one is whole."""

from __future__ import annotations

from pathlib import Path


def last_checkpoint(folder: Path) -> str | None:
    """The newest complete checkpoint of a transformers Trainer in `folder`, None where there is none.

    The Trainer writes `trainer_state.json` last; a folder without it was cut off while it was written and is ignored.
    """
    whole = [p for p in folder.glob("checkpoint-*") if (p / "trainer_state.json").is_file() and p.name[11:].isdigit()]
    return str(max(whole, key=lambda p: int(p.name[11:]))) if whole else None
