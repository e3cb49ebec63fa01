"""Model folders: what is wrong with one is said before a weight is loaded; only safetensors, never a model's own code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from distillknob.rewards.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def find_model(path: str, key: str) -> Path:
    """The folder of a model, or UserError where it can't be a causal language model with its tokenizer; `key` names the setting.

    A name like `organisation/model` that is no folder is looked up in the hub's cache, and on the hub where HF_HUB_OFFLINE=0.
    """
    folder = Path(path)
    if not folder.exists():
        folder = _from_hub(path, key)
    if (folder / "adapter_config.json").is_file():
        raise UserError(
            f"{key}: {path}: an adapter, not a whole model; merge it into its base model and save that (peft: merge_and_unload)"
        )
    if not (folder / "config.json").is_file():
        raise UserError(f"{key}: {path}: not a model folder (no config.json); valid: a Hugging Face model folder")
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{key}: {path}/config.json can't be read: {error}") from None
    if not isinstance(config, dict) or "model_type" not in config:
        raise UserError(f"{key}: {path}/config.json names no model_type; valid: the config of a causal language model")
    if not any(folder.glob("*.safetensors")):
        raise UserError(f"{key}: {path}: no *.safetensors weights (pickled *.bin weights are not loaded; convert them first)")
    if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json", "tokenizer.model")):
        raise UserError(f"{key}: {path}: no tokenizer beside the weights; save the model's tokenizer into the same folder")
    return folder


def _from_hub(path: str, key: str) -> Path:
    parts = path.split("/")
    if len(parts) != 2 or not all(parts) or path.startswith((".", "~")):
        raise UserError(f"{key}: {path}: no such folder; valid: a Hugging Face model folder or a hub name organisation/model")
    from huggingface_hub import snapshot_download
    from huggingface_hub.constants import HF_HUB_OFFLINE
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    wanted = ["*.json", "*.safetensors", "*.model", "*.jinja", "*.txt"]
    try:
        return Path(snapshot_download(path, allow_patterns=wanted, local_files_only=HF_HUB_OFFLINE))
    except (LocalEntryNotFoundError, HfHubHTTPError, HFValidationError, OSError) as error:
        hint = (
            "not in the hub's cache (HF_HUB_OFFLINE=0 allows a download)"
            if HF_HUB_OFFLINE
            else f"not to be had from the hub: {_first_line(error)}"
        )
        raise UserError(f"{key}: {path}: no such folder, and {hint}") from error


def load_tokenizer(path: str | Path) -> PreTrainedTokenizerBase:
    """The tokenizer of a model folder or hub name; the end token pads where there is no padding token."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(path), trust_remote_code=False, padding_side="left")
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: its tokenizer can't be loaded: {_first_line(error)}") from error
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load_model(path: str | Path, dtype: str = "float32") -> PreTrainedModel:
    """The causal language model of a folder or hub name, on the GPU where there is one. `dtype`: float32, bfloat16, auto …"""
    import torch
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    try:
        model = AutoModelForCausalLM.from_pretrained(str(path), dtype=dtype, trust_remote_code=False, use_safetensors=True)
    except (OSError, ValueError, SafetensorError) as error:
        raise UserError(f"{path}: can't be loaded as a causal language model: {_first_line(error)}") from error
    return model.to("cuda" if torch.cuda.is_available() else "cpu")


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
