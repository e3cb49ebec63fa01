"""Tiles of TRL's fused head that are no wider than the vocabulary."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_WIDTH = "_CHUNKED_LOGPROB_CHUNK_SIZE"


@contextmanager
def fitted_tiles(model: PreTrainedModel) -> Iterator[None]:
    """While it lasts, TRL's trainers project onto tiles of at most as many columns as `model` has tokens.

    TRL allocates 32,768 columns in each forward and each backward pass whatever the vocabulary. With the lab's 128 tokens that is a
    fifth of a student's time; models with more tokens than that keep TRL's width. The width is private to TRL (one more reason for
    the narrow range in pyproject.toml); it changes no result, only how many columns lie side by side.
    """
    from trl.trainer import utils

    usual = getattr(utils, _WIDTH)
    setattr(utils, _WIDTH, min(usual, model.config.get_text_config().vocab_size))
    try:
        yield
    finally:
        setattr(utils, _WIDTH, usual)
