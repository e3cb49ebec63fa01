"""The lab: a teacher, a proxy and students made from scratch in a few minutes (method §7).

Sizes and rates are the ones that learnt the tasks in fresh seeds (docs/LOG.md). Each model is a stage of a study; the teacher is
made in two, so that studies of different styles share its base.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from distillknob.eval.generation import generate
from distillknob.rewards.errors import UserError
from distillknob.rewards.jsonl import write_jsonl
from distillknob.rewards.models import load_model, load_tokenizer
from distillknob.rewards.seeds import derive_seed
from distillknob.rewards.settings import said
from distillknob.rewards.tasks import LabName, lab_task
from distillknob.rewards.tasks.base import LabTask
from distillknob.rewards.tasks.side import SIDE_TASKS, SideTask
from distillknob.trainer.supervised import Pair, Supervised, save_model, train_on_pairs

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_SPECIAL = ["<pad>", "<eos>", "<unk>"]
_TOKENIZER_TEXTS = 2000
POSITIONS = 128  # of every model of the lab
BETA2 = 0.95  # of AdamW for the teacher: with 0.999 its base takes a third more updates (docs/LOG.md)
S = TypeVar("S")


def _check(settings: LabBase | LabTeacher | LabProxy | LabStudent) -> None:
    """Sizes and shares that can work."""
    width = vars(settings).get("width")
    if width is not None and (width < 16 or width % 16):
        raise ValueError("width: must be a multiple of 16 (heads of 16)")
    for name, value in vars(settings).items():
        if isinstance(value, int) and value < 1:
            raise ValueError(f"{name}: must be at least 1")
    for name in ("written", "required"):
        if not 0 <= vars(settings).get(name, 0.0) <= 1:
            raise ValueError(f"{name}: must be a share from 0 to 1")
    if not 0 <= vars(settings).get("side", 0.0) <= 0.1:
        raise ValueError("side: must be a share from 0 to 0.1")


@dataclass(frozen=True)
class LabBase:
    """The pre-trained teacher, before it has a style: it learns the task from terse texts (leaving out has to be learnt), and
    the two side tasks beside it."""

    width: int = said(64, "hidden size, a multiple of 16 (heads of 16)")
    layers: int = said(3, "layers of the model")
    steps: int | None = said(None, "updates (null: as many as the task needs)")
    written: float = said(0.35, "share of steps written in its training texts, 0 to 1")
    side: float = said(0.04, "share of training rows from each of the two side tasks, 0 to 0.1")

    def __post_init__(self) -> None:
        _check(self)


@dataclass(frozen=True)
class LabTeacher:
    """Rounds of `style_steps` on texts with `written` of the steps, until `required` sampled accuracy on validation items, or
    refusal."""

    style_steps: int = said(400, "updates of a round on the style that it is to show")
    written: float = said(0.8, "share of steps written in that style, 0 to 1")
    side: float = said(0.04, "share of training rows from each of the two side tasks, 0 to 0.1")
    required: float = said(0.98, "sampled accuracy on validation items below which it is refused, 0 to 1")
    rounds: int = said(8, "rounds of style_steps at most until it is reached")
    validation_items: int = said(1024, "items that accuracy is taken on")

    def __post_init__(self) -> None:
        _check(self)


@dataclass(frozen=True)
class LabProxy:
    """Smaller, other tokens (characters), less competent: few problems, so that it knows the style but not the long hops."""

    width: int | None = said(None, "hidden size, a multiple of 16 (heads of 16; null: as wide as the task needs)")
    layers: int = said(2, "layers of the model")
    steps: int | None = said(None, "updates (null: as many as the task needs)")
    problems: int | None = said(None, "different worked problems that it learns from (null: as many as the task needs)")
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
class LabReward:
    """The reward model of the task `instruct`. Half of its texts are right and half have one fault; the share of words shown is
    drawn evenly for each text."""

    layers: int = said(2, "fresh layers above the base's")
    steps: int = said(3000, "updates of 32 texts")
    learning_rate: float = said(1e-3, "step size, held for 60 % of the steps, then falling to 1 %")
    required: float = said(0.95, "share of validation texts told rightly below which it is refused, 0 to 1")
    validation_items: int = said(1024, "instructions that this is taken on, with one right and one faulty response each")

    def __post_init__(self) -> None:
        if min(self.layers, self.steps, self.validation_items) < 1 or self.learning_rate <= 0:
            raise ValueError("layers, steps, validation_items and learning_rate: must be above 0")
        if not 0 <= self.required <= 1:
            raise ValueError("required: must be a share from 0 to 1")


@dataclass(frozen=True)
class Lab:
    """The models of the lab."""

    base: LabBase = LabBase()
    teacher: LabTeacher = LabTeacher()
    proxy: LabProxy = LabProxy()
    student: LabStudent = LabStudent()
    reward: LabReward = LabReward()


@dataclass(frozen=True)
class Made(Generic[S]):
    """A lab model's settings, its seed and its task: the config of a stage."""

    settings: S
    seed: int
    task: LabName = "chain"


def make_base(config: Made[LabBase], inputs: Mapping[str, Path], output: Path, work: Path) -> None:
    """Stage: trains the teacher before it has a style."""
    settings, task = config.settings, lab_task(config.task)
    tokenizer = bpe_tokenizer(_tokenizer_texts(task), task, 128)
    model = tiny_llama(tokenizer, width=settings.width, layers=settings.layers, seed=derive_seed(config.seed, "init"))
    batch = Supervised(settings.steps or task.base_steps, adam_beta2=BETA2)
    pairs = _texts(task, settings.written, batch, config.seed, "base", side=settings.side)
    _train_and_save(model, tokenizer, pairs, batch, config.seed, output, work)


def make_teacher(config: Made[LabTeacher], inputs: Mapping[str, Path], output: Path, work: Path) -> None:
    """Stage: gives the model in inputs `base` its style; a UserError where it doesn't reach the required accuracy (weak teachers
    lose accuracy later)."""
    settings, task = config.settings, lab_task(config.task)
    tokenizer, model = load_tokenizer(inputs["base"]), load_model(inputs["base"])
    batch, log, accuracy = Supervised(settings.style_steps, learning_rate=1e-3, adam_beta2=BETA2), [], 0.0
    for number in range(settings.rounds):
        name = f"style-{number}"
        pairs = _texts(task, settings.written, batch, config.seed, name, side=settings.side)
        model, more = train_on_pairs(model, tokenizer, pairs, batch, seed=derive_seed(config.seed, name), work=work / name)
        accuracy = _sampled_accuracy(task, model, tokenizer, settings.validation_items, config.seed)
        log += [*more, {"validation_accuracy_t1": accuracy}]
        if accuracy >= settings.required:
            save_model(model, tokenizer, output)
            write_jsonl(output / "metrics.jsonl", log)
            return
    raise UserError(
        f"lab teacher: {accuracy:.3f} right on validation items after {settings.rounds} rounds of {settings.style_steps} steps, "
        f"below the {settings.required} that a study needs; take another seed or more lab.base.steps"
    )


def make_proxy(config: Made[LabProxy], inputs: Mapping[str, Path], output: Path, work: Path) -> None:
    """Stage: trains the proxy on `problems` worked problems, many times over."""
    settings, task = config.settings, lab_task(config.task)
    tokenizer = character_tokenizer(task.alphabet)
    width = settings.width or task.proxy_width
    model = tiny_llama(tokenizer, width=width, layers=settings.layers, seed=derive_seed(config.seed, "init"))
    batch = Supervised(settings.steps or task.proxy_steps, learning_rate=settings.learning_rate)
    problems = settings.problems or task.proxy_problems
    pairs = _texts(task, settings.written, batch, config.seed, "proxy", problems=problems)
    _train_and_save(model, tokenizer, pairs, batch, config.seed, output, work)


def make_student(config: Made[LabStudent], inputs: Mapping[str, Path], output: Path, work: Path) -> None:
    """Stage: trains S_0 for a few steps."""
    settings, task = config.settings, lab_task(config.task)
    tokenizer = bpe_tokenizer(_tokenizer_texts(task), task, 128)
    model = tiny_llama(tokenizer, width=settings.width, layers=settings.layers, seed=derive_seed(config.seed, "init"))
    batch = Supervised(settings.steps)
    pairs = _texts(task, settings.written, batch, config.seed, "student")
    _train_and_save(model, tokenizer, pairs, batch, config.seed, output, work)


def _train_and_save(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    pairs: Sequence[Pair],
    batch: Supervised,
    seed: int,
    output: Path,
    work: Path,
) -> None:
    model, log = train_on_pairs(model, tokenizer, pairs, batch, seed=derive_seed(seed, "order"), work=work)
    save_model(model, tokenizer, output)
    write_jsonl(output / "metrics.jsonl", log)


def _texts(
    task: LabTask, written: float, batch: Supervised, seed: int, name: str, *, side: float = 0.0, problems: int | None = None
) -> list[Pair]:
    """Worked problems of the task, one a row of training unless `problems` says fewer, with a share `side` of each side task."""
    rng = random.Random(derive_seed(seed, name, "style"))
    rows = task.rows("train", problems or batch.steps * batch.batch_size, derive_seed(seed, name, "problems"))
    pairs: list[Pair] = [(row["prompt"], task.worked(row, written, rng)) for row in rows]
    count = int(side * len(pairs))
    places = iter(rng.sample(range(len(pairs)), count * len(SIDE_TASKS)))
    for kind in SIDE_TASKS:
        other = SideTask(kind, task.symbols)
        for row, place in zip(other.rows("train", count, derive_seed(seed, name, kind)), places, strict=False):
            pairs[place] = (row["prompt"], other.gold_text(row))
    return pairs


def _sampled_accuracy(task: LabTask, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, items: int, seed: int) -> float:
    rows = task.rows("validation", items, 0)
    written = generate(
        model,
        tokenizer,
        [row["prompt"] for row in rows],
        temperature=1.0,
        max_new_tokens=task.max_new_tokens,
        seed=derive_seed(seed, "validation"),
    )
    right = [bool(task.grade(one.text, row).correct) for one, row in zip(written, rows, strict=True)]
    return sum(right) / len(right)  # the split may have fewer items than were asked for


def _tokenizer_texts(task: LabTask) -> list[str]:
    rng = random.Random("tokenizer")
    rows = task.rows("train", _TOKENIZER_TEXTS, 0)
    return [text for row in rows for text in (row["prompt"], task.worked(row, 0.5, rng))]


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


def bpe_tokenizer(texts: Iterable[str], task: LabTask, vocabulary: int) -> PreTrainedTokenizerBase:
    """A BPE tokenizer trained on `texts`, over the task's alphabet; merges stay inside the matches of its `unit`."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(task.unit), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=_SPECIAL, initial_alphabet=sorted(task.alphabet), show_progress=False
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


def tiny_llama(
    tokenizer: PreTrainedTokenizerBase, *, width: int, layers: int, seed: int, positions: int = POSITIONS
) -> PreTrainedModel:
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
