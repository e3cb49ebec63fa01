"""Model folders: what is wrong with one is said before a weight is loaded; only safetensors, never a model's own code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from distillknob.rewards.errors import UserError
from distillknob.rewards.rendering import Prompt, encode_prompt

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

Dtype = Literal["float32", "bfloat16", "float16", "auto"]


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
    weights = sorted(folder.glob("*.safetensors"))
    if not weights:
        raise UserError(f"{key}: {path}: no *.safetensors weights (pickled *.bin weights are not loaded; convert them first)")
    if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json", "tokenizer.model")):
        raise UserError(f"{key}: {path}: no tokenizer beside the weights; save the model's tokenizer into the same folder")
    for file in weights:
        _check_header(file, key)
    _check_tokenizer(folder, config, key)
    return folder


def _check_header(file: Path, key: str) -> None:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(file), framework="pt") as opened:
            opened.keys()
    except (SafetensorError, OSError) as error:
        raise UserError(f"{key}: {file}: not a whole safetensors file: {_first_line(error)}") from error


def _check_tokenizer(folder: Path, config: dict[str, Any], key: str) -> None:
    tokenizer = load_tokenizer(folder)
    if tokenizer.eos_token_id is None:
        raise UserError(f"{key}: {folder}: its tokenizer has no end token; set eos_token in tokenizer_config.json")
    rows = config.get("vocab_size") or config.get("text_config", {}).get("vocab_size")
    largest = max(tokenizer.get_vocab().values())
    if isinstance(rows, int) and largest >= rows:
        raise UserError(f"{key}: {folder}: its tokenizer has ids up to {largest}, but the model has {rows} rows: not its tokenizer")


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


def read_config(folder: Path, key: str) -> PretrainedConfig:
    """The config of a model folder, without code of its own; `key` names the setting in errors."""
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(str(folder), trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise UserError(f"{key}: {folder}: its config can't be read: {_first_line(error)}") from error


def load_tokenizer(path: str | Path) -> PreTrainedTokenizerBase:
    """The tokenizer of a model folder or hub name; the end token pads where there is no padding token."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(path), trust_remote_code=False, padding_side="left")
    except Exception as error:  # the tokenizers library raises plain Exception for a broken file
        raise UserError(f"{path}: its tokenizer can't be loaded: {_first_line(error)}") from error
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def check_same_tokenizer(student: Path, teacher: Path, prompt: Prompt, recipe: str) -> None:
    """UserError where the tokens of two model folders differ, whatever their number: `recipe` compares distributions over them."""
    ours, theirs = load_tokenizer(student), load_tokenizer(teacher)
    our_ids, their_ids = ours.get_vocab(), theirs.get_vocab()
    if our_ids != their_ids:
        both = len(our_ids.items() & their_ids.items())
        what = f"different vocabularies ({len(our_ids)} and {len(their_ids)} tokens, {both} of them the same)"
    elif ours.eos_token_id != theirs.eos_token_id:
        what = f"different end tokens ({ours.eos_token} and {theirs.eos_token})"
    elif encode_prompt(ours, prompt) != encode_prompt(theirs, prompt):
        what = "one vocabulary, but encode a prompt differently (chat template, first token or merges)"
    else:
        return
    raise UserError(
        f"recipe {recipe}: needs one tokenizer, but student {student} and teacher {teacher} have {what}; valid: recipe seqkd, "
        "which passes texts"
    )


def load_model(path: str | Path, dtype: str = "float32", **settings: Any) -> PreTrainedModel:
    """The causal language model of a folder or hub name, on the GPU where there is one. `dtype`: float32, bfloat16, auto …

    `settings` go to `from_pretrained`. UserError where weights are missing or don't fit (transformers would fill them at random),
    and where the model is no causal language model or gives numbers that are not finite.
    """
    import torch
    from transformers import AutoModelForCausalLM

    model = from_safetensors(AutoModelForCausalLM, path, "a causal language model", **({"dtype": dtype} | settings))
    if "device_map" not in settings:
        model = model.to("cuda" if torch.cuda.is_available() else "cpu")
    _check_causal(model, path)
    return model


def from_safetensors(auto_class: Any, path: str | Path, what: str, **settings: Any) -> Any:
    """A model of one of transformers' auto classes, from safetensors and without code of its own; UserError where it can't be
    `what`, or where weights are missing or don't fit."""
    from safetensors import SafetensorError

    safe = {"trust_remote_code": False, "use_safetensors": True, "output_loading_info": True}
    try:
        model, found = auto_class.from_pretrained(str(path), **(settings | safe))
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise UserError(f"{path}: can't be loaded as {what}: {_first_line(error)}") from error
    missing = sorted(map(str, [*found["missing_keys"], *found["mismatched_keys"]]))
    if missing:
        raise UserError(f"{path}: {len(missing)} weights are missing or of another shape than config.json says: {missing[0]} …")
    return model


def _check_causal(model: PreTrainedModel, path: str | Path) -> None:
    """A later token must not change what is said of the earlier ones; an encoder's does."""
    import torch

    last = model.config.get_text_config().vocab_size - 1
    ids_2_T = torch.tensor([[0, 1, 2, 0], [0, 1, 2, last]], device=model.device).clamp(max=last)
    with torch.no_grad():
        logits_2_T_V = model(input_ids=ids_2_T, attention_mask=torch.ones_like(ids_2_T), use_cache=False).logits[:, :3].float()
    if not logits_2_T_V.isfinite().all():
        raise UserError(f"{path}: gives logits that are not finite: its weights are broken")
    rounding = 1e-5 if model.dtype == torch.float32 else 1e-2
    if not torch.allclose(logits_2_T_V[0], logits_2_T_V[1], atol=rounding, rtol=rounding):
        raise UserError(f"{path}: not a causal language model: a later token changes the logits of earlier ones (an encoder?)")


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
