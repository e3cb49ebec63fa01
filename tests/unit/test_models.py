"""Model folders that can't be used: each is refused with its reason, at `find_model` or when its weights are loaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertLMHeadModel, GPT2Config, GPT2LMHeadModel

from distillknob.eval.generation import generate
from distillknob.rewards.errors import UserError
from distillknob.rewards.models import find_model, load_model
from distillknob.rewards.rendering import encode_prompt
from distillknob.rewards.scoring import TextScorer
from distillknob.trainer.supervised import save_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A good model folder."""
    save_model(*tiny.teacher(), tmp_path / "m")
    return tmp_path / "m"


def change(folder: Path, name: str, new: Callable[[torch.Tensor], torch.Tensor] | None) -> None:
    """Replaces one weight of a folder, or drops it."""
    weights = load_file(folder / "model.safetensors")
    old = weights.pop(name)
    save_file(weights if new is None else weights | {name: new(old)}, folder / "model.safetensors", metadata={"format": "pt"})


def test_a_good_folder_is_found_and_loaded(folder: Path) -> None:
    assert find_model(str(folder), "teacher") == folder
    assert torch.equal(load_model(folder).lm_head.weight, tiny.teacher()[0].lm_head.weight)
    assert load_model(folder, "bfloat16").dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("name", "new", "said"),
    [
        ("lm_head.weight", None, r"1 weights are missing .*lm_head\.weight"),
        ("model.layers.0.mlp.up_proj.weight", None, r"1 weights are missing .*up_proj\.weight"),
        ("lm_head.weight", lambda weight: weight[:3].clone(), "loaded as a causal language model|of another shape"),
        ("model.norm.weight", lambda weight: weight * torch.nan, "logits that are not finite"),
        ("lm_head.weight", lambda weight: weight * torch.inf, "logits that are not finite"),
    ],
)
def test_missing_and_broken_weights_are_refused(folder: Path, name: str, new: Any, said: str) -> None:
    change(folder, name, new)
    with pytest.raises(UserError, match=said):
        load_model(folder)


def test_an_encoder_is_refused_and_other_causal_models_are_not(tmp_path: Path) -> None:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    for name, decoder in (("encoder", False), ("decoder", True)):
        torch.manual_seed(0)
        bert = BertConfig(vocab_size=64, is_decoder=decoder, initializer_range=0.02, **sizes)
        BertLMHeadModel(bert).save_pretrained(tmp_path / name)
    with pytest.raises(UserError, match="not a causal language model: a later token changes"):
        load_model(tmp_path / "encoder")
    load_model(tmp_path / "decoder")
    GPT2LMHeadModel(GPT2Config(vocab_size=8, n_embd=16, n_layer=1, n_head=2)).save_pretrained(tmp_path / "gpt2")
    load_model(tmp_path / "gpt2")


def test_a_truncated_file_is_refused_before_anything_is_loaded(folder: Path) -> None:
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    for kept in (len(whole) - 4, 100, 0):
        weights.write_bytes(whole[:kept])
        with pytest.raises(UserError, match=r"proxy: .*model\.safetensors: not a whole safetensors file"):
            find_model(str(folder), "proxy")


def test_a_tokenizer_with_ids_beyond_the_models_rows_is_not_its_tokenizer(folder: Path) -> None:
    _, tokenizer = tiny.teacher()
    rows = len(tokenizer)
    tokenizer.add_tokens(["<one more>"])
    tokenizer.save_pretrained(folder)
    with pytest.raises(UserError, match=rf"teacher: .* ids up to {rows}, but the model has {rows} rows: not its tokenizer"):
        find_model(str(folder), "teacher")


def test_a_tokenizer_without_an_end_token_is_refused(folder: Path) -> None:
    _, tokenizer = tiny.teacher()
    tokenizer.eos_token = None
    tokenizer.save_pretrained(folder)
    with pytest.raises(UserError, match="its tokenizer has no end token"):
        find_model(str(folder), "teacher")


def test_a_proxy_that_gives_nan_is_an_error_not_a_reward() -> None:
    model, tokenizer = tiny.proxy()
    with torch.no_grad():
        model.model.norm.weight[0] = torch.nan
    with pytest.raises(UserError, match="gives NaN: its weights are broken"):
        TextScorer(model, tokenizer).score(["3a+0?"], ["#4"], [True])


def test_a_prompt_that_leaves_no_room_is_refused_with_its_length() -> None:
    model, tokenizer = tiny.teacher()
    prompt = "3a+0b-4c*3d-3?" * 20
    length = len(encode_prompt(tokenizer, prompt))
    model.config.max_position_embeddings = length + 4
    assert len(generate(model, tokenizer, ["3?", prompt], temperature=0, max_new_tokens=4, seed=0)) == 2
    with pytest.raises(UserError, match=rf"prompt 1 .* has {length} tokens; with 5 new ones .* {length + 4} positions"):
        generate(model, tokenizer, ["3?", prompt], temperature=0, max_new_tokens=5, seed=0)
