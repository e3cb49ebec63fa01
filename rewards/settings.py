"""Fields of config dataclasses that say in `--help` what they mean (ours)."""

from __future__ import annotations

from dataclasses import field
from typing import TypeVar

T = TypeVar("T")


def said(default: T, text: str) -> T:
    """A dataclass field with its default and a help text: units, and what valid values mean.

    Where the type is an alias or holds a dict, ruff (RUF009) asks for `field` itself.
    """
    return field(default=default, metadata={"help": text})
