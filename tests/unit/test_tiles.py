"""Tiles of the fused head: as wide as the vocabulary while a trainer runs, and nothing comes out differently."""

from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from trl.trainer import utils

from distillknob.trainer import tiles
from distillknob.trainer.supervised import Supervised, train_on_pairs
from tests import tiny


def test_the_width_is_the_vocabulary_while_it_lasts() -> None:
    """No wider than TRL's own, and TRL's own again afterwards, after an error as well."""
    model, _ = tiny.teacher()
    usual = utils._CHUNKED_LOGPROB_CHUNK_SIZE
    with pytest.raises(RuntimeError), tiles.fitted_tiles(model):
        assert utils._CHUNKED_LOGPROB_CHUNK_SIZE == model.config.vocab_size < usual
        raise RuntimeError
    assert usual == utils._CHUNKED_LOGPROB_CHUNK_SIZE
    model.config.vocab_size = usual + 1
    with tiles.fitted_tiles(model):
        assert usual == utils._CHUNKED_LOGPROB_CHUNK_SIZE


def test_training_is_the_same_with_tiles_of_any_width(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fitted, TRL's own and narrower than the vocabulary: the same weights and log within rounding."""
    pairs = [(row["prompt"], tiny.TASK.gold_text(row)) for row in tiny.TASK.rows("train", 12, 0)]

    def run(name: str) -> tuple[torch.Tensor, float]:
        model, tokenizer = tiny.teacher()
        trained, log = train_on_pairs(model, tokenizer, pairs, Supervised(3, 4), seed=1, work=tmp_path / name)
        return torch.cat([p.detach().flatten() for p in trained.parameters()]), float(log[-1]["train_loss"])

    weights, loss = run("fitted")
    monkeypatch.setattr(tiles, "fitted_tiles", nullcontext)
    for width in (utils._CHUNKED_LOGPROB_CHUNK_SIZE, 5):
        monkeypatch.setattr(utils, "_CHUNKED_LOGPROB_CHUNK_SIZE", width)
        other, other_loss = run(str(width))
        assert torch.allclose(other, weights, atol=1e-5) and other_loss == pytest.approx(loss, abs=1e-5)
