"""On-policy distillation: the loss is the divergence on what the student wrote, and nothing else is in it."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from distillknob.rewards.errors import UserError
from distillknob.rewards.models import check_same_tokenizer, load_model, load_tokenizer
from distillknob.rewards.rendering import encode_prompt
from distillknob.rewards.tasks import TaskConfig
from distillknob.trainer.distil import DistilConfig, Recipe, distil
from distillknob.trainer.lora import Lora
from distillknob.trainer.on_policy import _in_order, _OnPolicyTrainer, train_on_policy
from distillknob.trainer.supervised import Supervised, save_model

PROMPTS = ["3?", "3a+0b-4?", "1a*2b+1c-2d+0?", "2a-1b+1c*2?"]


def gpt2(tokenizer: Any, seed: int) -> Any:
    """A model with absolute positions: it notices where the padding lies."""
    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_embd=16,
        n_layer=1,
        n_head=2,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        initializer_range=0.1,
    )
    return GPT2LMHeadModel(config)


def divergence(student: Any, teacher: Any, prompt: list[int], completion: list[int], beta: float) -> float:
    """Sum over the completion's tokens, from the definition, one unpadded row at a time."""
    ids = torch.tensor([prompt + completion])
    with torch.no_grad():
        logp_S, logp_T = (m(input_ids=ids).logits[0, len(prompt) - 1 : -1].double().log_softmax(-1) for m in (student, teacher))
    if beta == 1.0:
        return float((logp_S.exp() * (logp_S - logp_T)).sum())
    if beta == 0.0:
        return float((logp_T.exp() * (logp_T - logp_S)).sum())
    mixed = (beta * logp_T.exp() + (1 - beta) * logp_S.exp()).log()
    return float((beta * logp_T.exp() * (logp_T - mixed) + (1 - beta) * logp_S.exp() * (logp_S - mixed)).sum())


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[int], list[int]]]:
    """Takes down (prompt ids, completion ids) of everything that is sampled."""
    taken: list[tuple[list[int], list[int]]] = []
    original = _OnPolicyTrainer._generate_single_turn

    def spy(self: Any, prompt_ids: Any, *rest: Any, **more: Any) -> Any:
        completions = original(self, prompt_ids, *rest, **more)
        taken.extend(zip(prompt_ids, completions, strict=True))
        return completions

    monkeypatch.setattr(_OnPolicyTrainer, "_generate_single_turn", spy)
    return taken


@pytest.mark.parametrize("beta", [1.0, 0.0, 0.5])
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_the_loss_is_the_divergence_a_token_on_what_the_student_wrote(
    tmp_path: Path, written: list[tuple[list[int], list[int]]], beta: float, family: str
) -> None:
    def pair() -> tuple[Any, Any, Any]:
        (student, tokenizer), (teacher, _) = tiny.teacher(3, 16), tiny.teacher(5, 32)
        if family == "gpt2":
            student, teacher = gpt2(tokenizer, 3), gpt2(tokenizer, 5)
        return student, teacher, tokenizer

    student, teacher, tokenizer = pair()
    settings = Supervised(steps=1, batch_size=24, learning_rate=1e-3, decay=False)
    _, log = train_on_policy(
        student, tokenizer, teacher, PROMPTS * 6, settings, max_new_tokens=20, beta=beta, seed=1, work=tmp_path
    )
    assert sorted(p for p, _ in written) == sorted(encode_prompt(tokenizer, p) for p in PROMPTS * 6)
    ends = [tokenizer.eos_token_id in c for _, c in written]
    assert any(ends) and not all(ends), "the test needs both kinds"
    for _, completion in written:
        assert tokenizer.eos_token_id not in completion[:-1] and (len(completion) == 20 or completion[-1] == tokenizer.eos_token_id)
    before, teacher, _ = pair()
    total = sum(divergence(before, teacher, p, c, beta) for p, c in written)
    assert log[-1]["train_loss"] == pytest.approx(total / sum(len(c) for _, c in written), rel=2e-5)
    assert not torch.equal(student.lm_head.weight, before.lm_head.weight)
    assert all(torch.equal(a, b) for a, b in zip(teacher.parameters(), pair()[1].parameters(), strict=True))


def test_it_learns_what_the_teacher_says(tmp_path: Path) -> None:
    student, tokenizer = tiny.teacher(3, 32)
    teacher, _ = tiny.teacher(5, 32)
    with torch.no_grad():
        teacher.lm_head.weight.mul_(8)
    settings = Supervised(steps=20, batch_size=16, learning_rate=1e-2)
    _, log = train_on_policy(student, tokenizer, teacher, PROMPTS, settings, max_new_tokens=6, beta=1.0, seed=1, work=tmp_path)
    losses = [entry["loss"] for entry in log if "loss" in entry]
    assert len(losses) == 2 and losses[-1] < 0.7 * losses[0]


def test_generation_defaults_of_the_checkpoint_and_dropout_do_not_reach_the_samples(
    tmp_path: Path, written: list[tuple[list[int], list[int]]]
) -> None:
    settings = Supervised(steps=1, batch_size=4, decay=False)

    def run(name: str, **defaults: Any) -> list[tuple[list[int], list[int]]]:
        written.clear()
        teacher, tokenizer = tiny.teacher(5)
        student = gpt2(tokenizer, 3)
        for module in student.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = defaults.get("dropout", 0.0)
        student.generation_config.update(**{k: v for k, v in defaults.items() if k != "dropout"})
        train_on_policy(student, tokenizer, teacher, PROMPTS, settings, max_new_tokens=8, beta=1.0, seed=1, work=tmp_path / name)
        return list(written)

    plain = run("a")
    assert run("b", suppress_tokens=list(range(3, 60)), no_repeat_ngram_size=1, dropout=0.5) == plain


def test_a_cut_off_training_continues_to_the_same_weights(tmp_path: Path) -> None:
    def run(work: Path, stop: int | None = None) -> torch.Tensor:
        student, tokenizer = tiny.teacher(3, 16)
        settings = Supervised(steps=6, batch_size=3, save_every=3)  # the fourth step begins another round over four prompts
        callbacks = [] if stop is None else [tiny.StopAfter(stop)]
        trained, _ = train_on_policy(
            student,
            tokenizer,
            tiny.teacher(5)[0],
            PROMPTS,
            settings,
            max_new_tokens=6,
            beta=1.0,
            seed=1,
            work=work,
            callbacks=callbacks,
        )
        return torch.cat([p.detach().flatten() for p in trained.parameters()])

    whole = run(tmp_path / "a")
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "b", stop=3)
    assert torch.equal(run(tmp_path / "b"), whole)


def test_each_round_has_every_prompt_once_in_a_new_order() -> None:
    rows = [[i] for i in range(50)]
    order = _in_order(rows, 120, 7)
    assert len(order) == 120 and sorted(order[:50]) == sorted(order[50:100]) == rows and order[:50] != order[50:100]
    assert order == _in_order(rows, 120, 7) != _in_order(rows, 120, 8)


@pytest.mark.parametrize("wider", ["teacher", "student"])
def test_rows_that_only_one_model_has_are_cut_with_a_warning(
    tmp_path: Path, written: list[tuple[list[int], list[int]]], caplog: pytest.LogCaptureFixture, wider: str
) -> None:
    (student, tokenizer), (teacher, _) = tiny.teacher(3, 16), tiny.teacher(5, 32)
    rows = len(tokenizer)
    (student if wider == "student" else teacher).resize_token_embeddings(rows + 8, mean_resizing=False)
    settings = Supervised(steps=1, batch_size=4, decay=False)
    with caplog.at_level(logging.WARNING):
        _, log = train_on_policy(student, tokenizer, teacher, PROMPTS, settings, max_new_tokens=6, beta=1.0, seed=1, work=tmp_path)
    assert f"{wider}: cut from {rows + 8} rows to the {rows}" in caplog.text
    assert student.lm_head.weight.shape[0] == rows
    before, teacher_before = tiny.teacher(3, 16)[0], tiny.teacher(5, 32)[0]
    total = sum(divergence(before, teacher_before, p, c, 1.0) for p, c in written)
    assert log[-1]["train_loss"] == pytest.approx(total / sum(len(c) for _, c in written), rel=1e-4)


def test_a_prompt_that_leaves_no_room_is_refused(tmp_path: Path) -> None:
    student, tokenizer = tiny.teacher(3, 16)
    teacher, _ = tiny.teacher(5)
    teacher.config.max_position_embeddings = 8
    settings = Supervised(steps=1, batch_size=1)
    with pytest.raises(UserError, match="with 8 new ones it does not fit"):
        train_on_policy(student, tokenizer, teacher, PROMPTS, settings, max_new_tokens=8, beta=1.0, seed=1, work=tmp_path)


@pytest.mark.parametrize("lora", [None, Lora(r=2)])
def test_the_stage_writes_a_model_and_its_log_and_no_samples(tmp_path: Path, lora: Lora | None) -> None:
    folders = {"student": tmp_path / "s", "teacher": tmp_path / "t"}
    save_model(*tiny.teacher(3, 16), folders["student"])
    save_model(*tiny.teacher(), folders["teacher"])
    recipe = Recipe("gkd", samples=8, steps=2, batch_size=4, lora=lora)
    for out in ("a", "b"):
        distil(DistilConfig(TaskConfig(), recipe, 1), folders, tmp_path / out, tmp_path / f"work-{out}")
    names = {p.name for p in (tmp_path / "a").iterdir()}
    assert {"model.safetensors", "metrics.jsonl", "tokenizer.json"} <= names and "samples.jsonl" not in names
    for name in ("model.safetensors", "metrics.jsonl"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    changed = load_model(tmp_path / "a").model.layers[0].self_attn.q_proj.weight
    assert not torch.equal(changed, load_model(folders["student"]).model.layers[0].self_attn.q_proj.weight)


def test_other_tokenizers_are_refused_before_a_weight_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_model(*tiny.teacher(), tmp_path / "teacher")
    save_model(*tiny.proxy(), tmp_path / "characters")
    for name, change in {
        "swapped": lambda t: t.add_tokens(["<a>", "<b>"]),
        "end": lambda t: setattr(t, "eos_token", "<unk>"),
        "template": lambda t: setattr(t, "chat_template", "{{ messages[0].content }}0"),
    }.items():
        tokenizer = load_tokenizer(tmp_path / "teacher")
        change(tokenizer)
        save_model(tiny.teacher(3)[0], tokenizer, tmp_path / name)
    other = load_tokenizer(tmp_path / "teacher")
    other.add_tokens(["<b>", "<a>"])
    other.save_pretrained(tmp_path / "swapped-too")
    monkeypatch.setattr("distillknob.rewards.models.load_model", lambda *_: pytest.fail("a weight was loaded"))
    recipe = Recipe("gkd", samples=4, steps=1, batch_size=4)
    inputs = {"student": tmp_path / "characters", "teacher": tmp_path / "teacher"}
    with pytest.raises(UserError, match=r"recipe gkd: .*different vocabularies .* valid: recipe seqkd"):
        distil(DistilConfig(TaskConfig(), recipe, 1), inputs, tmp_path / "out", tmp_path / "work")
    with pytest.raises(UserError, match="different vocabularies"):  # as many tokens, two of them swapped
        check_same_tokenizer(tmp_path / "swapped", tmp_path / "swapped-too", "3?", "gkd")
    with pytest.raises(UserError, match="different end tokens"):
        check_same_tokenizer(tmp_path / "end", tmp_path / "teacher", "3?", "gkd")
    turn = [{"role": "user", "content": "3?"}]
    with pytest.raises(UserError, match="encode a prompt differently"):
        check_same_tokenizer(tmp_path / "template", tmp_path / "teacher", turn, "gkd")
    check_same_tokenizer(tmp_path / "template", tmp_path / "teacher", "3?", "gkd")
