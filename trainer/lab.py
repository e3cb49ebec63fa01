"""The lab: a teacher, a proxy and students made from scratch in about two minutes (method §7).

Sizes and rates are the ones that learnt the task in fresh seeds (docs/LOG.md). All three are stages of a study.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from distillknob.eval.generation import generate
from distillknob.rewards.errors import UserError
from distillknob.rewards.jsonl import write_jsonl
from distillknob.rewards.seeds import derive_seed
from distillknob.rewards.settings import said
from distillknob.rewards.tasks.chain import ALPHABET, UNIT, ChainTask, parse, working
from distillknob.trainer.supervised import Supervised, save_model, train_on_pairs

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_SPECIAL = ["<pad>", "<eos>", "<unk>"]
_TASK = ChainTask()
_TOKENIZER_TEXTS = 2000
_MAX_NEW_TOKENS = 26
S = TypeVar("S")


def _check(settings: LabTeacher | LabProxy | LabStudent) -> None:
    """Sizes and shares that can work."""
    if settings.width < 16 or settings.width % 16:
        raise ValueError("width: must be a multiple of 16 (heads of 16)")
    for name, value in vars(settings).items():
        if isinstance(value, int) and value < 1:
            raise ValueError(f"{name}: must be at least 1")
    for name in ("written", "base_written", "required"):
        if not 0 <= vars(settings).get(name, 0.0) <= 1:
            raise ValueError(f"{name}: must be a share from 0 to 1")


@dataclass(frozen=True)
class LabTeacher:
    """`base_steps` on a style that writes `base_written` of the states (leaving out has to be learnt), then `style_steps` that
    set the prior to `written`; then rounds of `style_steps` until `required` sampled accuracy on validation items, or refusal."""

    width: int = said(64, "hidden size, a multiple of 16 (heads of 16)")
    layers: int = said(3, "layers of the model")
    base_steps: int = said(3400, "updates on the terse style")
    base_written: float = said(0.35, "share of states written in the terse style, 0 to 1")
    style_steps: int = said(400, "updates of a round on the style that it is to show")
    written: float = said(0.8, "share of states written in that style, 0 to 1")
    required: float = said(0.98, "sampled accuracy on validation items below which it is refused, 0 to 1")
    rounds: int = said(4, "rounds of style_steps at most until it is reached")
    validation_items: int = said(1024, "items that accuracy is taken on")

    def __post_init__(self) -> None:
        _check(self)


@dataclass(frozen=True)
class LabProxy:
    """Smaller, other tokens (characters), less competent: few problems, so that it knows the style but not the long hops."""

    width: int = said(48, "hidden size, a multiple of 16 (heads of 16)")
    layers: int = said(2, "layers of the model")
    steps: int = said(900, "updates")
    problems: int = said(2000, "different worked problems that it learns from")
    written: float = said(0.8, "share of states written in them, 0 to 1")
    learning_rate: float = said(3e-3, "step size, held for 60 % of the steps, then falling to 1 %")

    def __post_init__(self) -> None:
        _check(self)


@dataclass(frozen=True)
class LabStudent:
    """S_0: a weak base that knows the format and little else. Its initialisation is the seed's, the same in every cell."""

    width: int = said(48, "hidden size, a multiple of 16 (heads of 16)")
    layers: int = said(2, "layers of the model")
    steps: int = said(150, "updates of the student before distillation")
    written: float = said(0.8, "share of states written in its training texts, 0 to 1")

    def __post_init__(self) -> None:
        _check(self)


@dataclass(frozen=True)
class Lab:
    """The three models of the lab."""

    teacher: LabTeacher = LabTeacher()
    proxy: LabProxy = LabProxy()
    student: LabStudent = LabStudent()


@dataclass(frozen=True)
class Made(Generic[S]):
    """A lab model's settings and its seed: the config of a stage."""

    settings: S
    seed: int


def make_teacher(config: Made[LabTeacher], inputs: Mapping[str, Path], output: Path, work: Path) -> None:
    """Stage: trains the teacher; a UserError where it doesn't reach the required accuracy (weak teachers lose accuracy later)."""
    settings, tokenizer = config.settings, bpe_tokenizer(_tokenizer_texts(), UNIT, 128)
    model = tiny_llama(tokenizer, width=settings.width, layers=settings.layers, seed=derive_seed(config.seed, "init"))
    batch = Supervised(settings.base_steps, learning_rate=2e-3)
    model, log = _train(model, tokenizer, settings.base_written, batch, config.seed, "base", work)
    accuracy = 0.0
    for number in range(settings.rounds):
        style = Supervised(settings.style_steps, learning_rate=1e-3)
        model, more = _train(model, tokenizer, settings.written, style, config.seed, f"style-{number}", work)
        accuracy = _sampled_accuracy(model, tokenizer, settings.validation_items, config.seed)
        log += [*more, {"validation_accuracy_t1": accuracy}]
        if accuracy >= settings.required:
            save_model(model, tokenizer, output)
            write_jsonl(output / "metrics.jsonl", log)
            return
    steps = settings.base_steps + settings.rounds * settings.style_steps
    raise UserError(
        f"lab teacher: {accuracy:.3f} right on validation items after {steps} steps, "
        f"below the {settings.required} that a study needs; take another seed or more lab.teacher base_steps"
    )


def make_proxy(config: Made[LabProxy], inputs: Mapping[str, Path], output: Path, work: Path) -> None:
    """Stage: trains the proxy on `problems` worked problems, many times over."""
    settings, tokenizer = config.settings, character_tokenizer(ALPHABET)
    model = tiny_llama(tokenizer, width=settings.width, layers=settings.layers, seed=derive_seed(config.seed, "init"))
    batch = Supervised(settings.steps, learning_rate=settings.learning_rate)
    model, log = _train(model, tokenizer, settings.written, batch, config.seed, "proxy", work, problems=settings.problems)
    save_model(model, tokenizer, output)
    write_jsonl(output / "metrics.jsonl", log)


def make_student(config: Made[LabStudent], inputs: Mapping[str, Path], output: Path, work: Path) -> None:
    """Stage: trains S_0 for a few steps."""
    settings, tokenizer = config.settings, bpe_tokenizer(_tokenizer_texts(), UNIT, 128)
    model = tiny_llama(tokenizer, width=settings.width, layers=settings.layers, seed=derive_seed(config.seed, "init"))
    model, log = _train(model, tokenizer, settings.written, Supervised(settings.steps), config.seed, "student", work)
    save_model(model, tokenizer, output)
    write_jsonl(output / "metrics.jsonl", log)


def _train(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    written: float,
    settings: Supervised,
    seed: int,
    name: str,
    work: Path,
    problems: int | None = None,
) -> tuple[PreTrainedModel, list[dict[str, Any]]]:
    rng = random.Random(derive_seed(seed, name, "style"))
    rows = _TASK.rows("train", problems or settings.steps * settings.batch_size, derive_seed(seed, name, "problems"))
    pairs = [(row["prompt"], working(parse(row["prompt"]), written, rng)) for row in rows]
    return train_on_pairs(model, tokenizer, pairs, settings, seed=derive_seed(seed, name, "order"), work=work / name)


def _sampled_accuracy(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, items: int, seed: int) -> float:
    rows = _TASK.rows("validation", items, 0)
    written = generate(
        model,
        tokenizer,
        [row["prompt"] for row in rows],
        temperature=1.0,
        max_new_tokens=_MAX_NEW_TOKENS,
        seed=derive_seed(seed, "validation"),
    )
    return sum(bool(_TASK.grade(one.text, row).correct) for one, row in zip(written, rows, strict=True)) / items


def _tokenizer_texts() -> list[str]:
    rng = random.Random("tokenizer")
    rows = _TASK.rows("train", _TOKENIZER_TEXTS, 0)
    return [text for row in rows for text in (row["prompt"], working(parse(row["prompt"]), 0.5, rng))]


def _fast_tokenizer(tokenizer: object) -> PreTrainedTokenizerBase:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


def bpe_tokenizer(texts: Iterable[str], unit: str, vocabulary: int) -> PreTrainedTokenizerBase:
    """A BPE tokenizer trained on `texts`; merges stay inside the matches of the regular expression `unit`."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(unit), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=_SPECIAL, initial_alphabet=sorted(ALPHABET), show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return _fast_tokenizer(tokenizer)


def character_tokenizer(alphabet: str) -> PreTrainedTokenizerBase:
    """One token a character."""
    from tokenizers import Tokenizer, decoders, models

    vocabulary = {token: i for i, token in enumerate([*_SPECIAL, *sorted(alphabet)])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    tokenizer.decoder = decoders.Fuse()
    return _fast_tokenizer(tokenizer)


def tiny_llama(tokenizer: PreTrainedTokenizerBase, *, width: int, layers: int, seed: int, positions: int = 128) -> PreTrainedModel:
    """A freshly initialised Llama of the given size, heads of 16."""
    from transformers import LlamaConfig, LlamaForCausalLM, set_seed

    set_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // 16,
        num_key_value_heads=width // 16,
        max_position_embeddings=positions,
        tie_word_embeddings=False,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    return LlamaForCausalLM(config)
