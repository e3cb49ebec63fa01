"""Texts that a model writes, the graded predictions file, and the full-vocabulary divergence."""

from __future__ import annotations

import copy
import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch

from distillknob.eval.divergence import full_vocabulary_kl
from distillknob.eval.generation import generate
from distillknob.eval.predict import PredictConfig, predict
from distillknob.rewards.models import load_tokenizer
from distillknob.rewards.rendering import encode_completion, encode_prompt
from distillknob.rewards.seeds import derive_seed
from distillknob.rewards.tasks import TaskConfig
from distillknob.trainer.supervised import save_model

ROWS = tiny.TASK.rows("test", 12, 0)
PROMPTS: list[Any] = [row["prompt"][: 4 + i] for i, row in enumerate(ROWS)]  # of 4 to 14 characters, so that rows are padded


def by_hand(model: Any, tokenizer: Any, prompt: str, limit: int) -> tuple[list[int], bool]:
    """Greedy continuation of one unpadded prompt, without a cache."""
    ids, written = encode_prompt(tokenizer, prompt), list[int]()
    for _ in range(limit):
        with torch.no_grad():
            token = int(model(input_ids=torch.tensor([[*ids, *written]])).logits[0, -1].argmax())
        if token == tokenizer.eos_token_id:
            return written, True
        written.append(token)
    return written, False


def ending(seed: int = 0) -> tuple[Any, Any]:
    """A random teacher, wide awake (large weights) and with some liking for its end token."""
    model, tokenizer = tiny.teacher(seed)
    with torch.no_grad():
        model.lm_head.weight.mul_(60)
        model.lm_head.weight[tokenizer.eos_token_id].mul_(2)
    return model.eval(), tokenizer


def test_greedy_is_the_argmax_with_the_end_and_tokens_counted() -> None:
    model, tokenizer = ending()
    got = generate(model, tokenizer, PROMPTS, temperature=0, max_new_tokens=10, seed=0)
    assert {one.finished for one in got} == {True, False}
    for prompt, one in zip(PROMPTS, got, strict=True):
        written, finished = by_hand(model, tokenizer, prompt, 10)
        assert (one.text, one.finished) == (tokenizer.decode(written, skip_special_tokens=True), finished)
        assert one.tokens == len(written) + finished


@pytest.mark.parametrize("batch_size", [1, 5])
def test_greedy_does_not_depend_on_batch_size_or_seed(batch_size: int) -> None:
    model, tokenizer = ending()
    whole = generate(model, tokenizer, PROMPTS, temperature=0, max_new_tokens=10, seed=0)
    assert generate(model, tokenizer, PROMPTS, temperature=0, max_new_tokens=10, seed=9, batch_size=batch_size) == whole
    assert len({one.text for one in whole}) > 3


def test_dropout_is_off_even_for_a_model_in_training() -> None:
    model, tokenizer = ending()
    wanted = generate(model, tokenizer, PROMPTS, temperature=0, max_new_tokens=10, seed=0)
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.9
    assert generate(model.train(), tokenizer, PROMPTS, temperature=0, max_new_tokens=10, seed=0) == wanted


def test_sampling_is_the_seeds_and_a_low_temperature_is_nearly_greedy() -> None:
    model, tokenizer = ending()
    one, again, other = (generate(model, tokenizer, PROMPTS, temperature=1.0, max_new_tokens=8, seed=s) for s in (1, 1, 2))
    assert one == again != other
    greedy = generate(model, tokenizer, PROMPTS, temperature=0, max_new_tokens=8, seed=0)
    assert generate(model, tokenizer, PROMPTS, temperature=1e-4, max_new_tokens=8, seed=0) == greedy != one


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_sampling_has_the_models_own_frequencies(temperature: float) -> None:
    model, tokenizer = tiny.teacher()
    with torch.no_grad():
        model.lm_head.weight.mul_(20)
    prompt, draws = PROMPTS[5], 6_000
    with torch.no_grad():
        logits = model.eval()(input_ids=torch.tensor([encode_prompt(tokenizer, prompt)])).logits[0, -1].double()
    expected: Counter[tuple[str, bool]] = Counter()  # tokens without a text of their own share one
    for token, p in enumerate(torch.softmax(logits / temperature, -1).tolist()):
        expected[tokenizer.decode([token], skip_special_tokens=True), token == tokenizer.eos_token_id] += p  # type: ignore[assignment]
    got = generate(model, tokenizer, [prompt] * draws, temperature=temperature, max_new_tokens=1, seed=4, batch_size=2_000)
    seen = Counter((one.text, one.finished) for one in got)
    assert set(seen) <= set(expected)
    cells = {key: p for key, p in expected.items() if p * draws >= 5}
    assert len(cells) > 30
    rest = 1 - sum(cells.values())
    chi = sum((seen[key] - p * draws) ** 2 / (p * draws) for key, p in cells.items())
    chi += (draws - sum(seen[key] for key in cells) - rest * draws) ** 2 / (rest * draws)
    assert chi < len(cells) + 4 * math.sqrt(2 * len(cells))
    tail = sum(seen[key] for key, p in expected.items() if p < sorted(expected.values())[-50])
    assert tail > 0  # top_k 0: also what is not among the fifty likeliest


def test_messages_and_an_empty_prompt_are_rendered_as_in_scoring() -> None:
    tokenizer = load_tokenizer(Path(tiny.__file__).parent / "cases" / "files" / "tok_spm")
    from distillknob.trainer.lab import tiny_llama

    model = tiny_llama(tokenizer, width=16, layers=1, seed=0)
    messages = [{"role": "user", "content": "the answer"}]
    got = generate(model, tokenizer, [messages, "", "the answer"], temperature=0, max_new_tokens=4, seed=0)
    alone = [generate(model, tokenizer, [p], temperature=0, max_new_tokens=4, seed=0)[0] for p in (messages, "", "the answer")]
    assert got == alone


def test_every_end_token_of_the_model_ends_a_text() -> None:
    model, tokenizer = ending()
    free = generate(model, tokenizer, PROMPTS, temperature=0, max_new_tokens=10, seed=0)
    written = by_hand(model, tokenizer, PROMPTS[0], 10)[0]
    model.generation_config.eos_token_id = [written[0]]
    first = generate(model, tokenizer, PROMPTS, temperature=0, max_new_tokens=10, seed=0)
    assert (first[0].text, first[0].finished, first[0].tokens) == ("", True, 1)
    assert all(b.finished for a, b in zip(free, first, strict=True) if a.finished)  # the tokenizer's own still does


@pytest.mark.parametrize(
    ("temperature", "field", "value"),
    [(0.0, "repetition_penalty", 3.0), (0.0, "no_repeat_ngram_size", 1), (1.0, "min_p", 0.9), (1.0, "typical_p", 0.1)],
)
def test_the_models_own_generation_settings_do_not_change_decoding(temperature: float, field: str, value: float) -> None:
    model, tokenizer = ending()
    plain = generate(model, tokenizer, PROMPTS, temperature=temperature, max_new_tokens=10, seed=0)
    setattr(model.generation_config, field, value)
    assert generate(model, tokenizer, PROMPTS, temperature=temperature, max_new_tokens=10, seed=0) == plain


def test_predictions_hold_both_decodings_of_the_same_items(tmp_path: Path) -> None:
    model, tokenizer = ending()
    save_model(model, tokenizer, tmp_path / "model")
    config = PredictConfig(TaskConfig(max_new_tokens=8), items=6, seed=3)
    predict(config, {"model": tmp_path / "model"}, tmp_path / "p.jsonl", tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    ids, prompts = [row["id"] for row in ROWS[:6]], [row["prompt"] for row in ROWS[:6]]
    assert [line["id"] for line in lines] == ids * 2 and [line["decoding"] for line in lines] == ["greedy"] * 6 + ["t1"] * 6
    greedy = generate(model, tokenizer, prompts, temperature=0, max_new_tokens=8, seed=0)
    sampled = generate(model, tokenizer, prompts, temperature=1.0, max_new_tokens=8, seed=derive_seed(3, "t1"))
    assert [(x["text"], x["finished"], x["tokens"]) for x in lines] == [(g.text, g.finished, g.tokens) for g in greedy + sampled]
    assert greedy != sampled
    for line in lines:
        row = next(r for r in ROWS if r["id"] == line["id"])
        grade = tiny.TASK.grade(line["text"], row)
        assert (line["correct"], line["answer"], line["explicit"], line["valid"]) == (
            grade.correct,
            grade.answer,
            grade.explicit,
            grade.valid,
        )
        assert line["bytes"] == len(line["text"].encode()) and line["gold"] == row["gold"]


def kl_by_hand(model: Any, anchor: Any, head: list[int], tail: list[int]) -> float:
    """Mean over the tail's positions of Σ p (log p − log q), one unpadded row in float64."""
    wide = [copy.deepcopy(m).double().eval() for m in (model, anchor)]
    total = 0.0
    for i in range(len(tail)):
        with torch.no_grad():
            p, q = (m(input_ids=torch.tensor([[*head, *tail[:i]]])).logits[0, -1].log_softmax(-1).tolist() for m in wide)
        total += sum(math.exp(a) * (a - b) for a, b in zip(p, q, strict=True))
    return total / len(tail)


def test_full_vocabulary_kl_is_zero_for_equal_models_and_a_float64_loop_else() -> None:
    model, tokenizer = ending()
    anchor, _ = ending(seed=7)
    heads = [encode_prompt(tokenizer, prompt) for prompt in PROMPTS[:6]]
    tails = [encode_completion(tokenizer, tiny.TASK.gold_text(row)[: 3 + 3 * i]) for i, row in enumerate(ROWS[:6])]
    same = full_vocabulary_kl(model, copy.deepcopy(model), heads, tails)
    assert abs(same.value) < 1e-9 and same.n == 6
    wanted = [kl_by_hand(model, anchor, head, tail) for head, tail in zip(heads, tails, strict=True)]
    other_way = [kl_by_hand(anchor, model, head, tail) for head, tail in zip(heads, tails, strict=True)]
    for batch_size in (1, 4, 32):
        got = full_vocabulary_kl(model, anchor, heads, tails, batch_size=batch_size)
        assert got.value == pytest.approx(sum(wanted) / 6, rel=1e-4)
        assert got.value != pytest.approx(sum(other_way) / 6, rel=1e-3)
        assert got.low is not None and got.high is not None and got.low < got.value < got.high
    one = full_vocabulary_kl(model, anchor, [*heads[:2], heads[2]], [tails[0], [], tails[2]])  # an empty text has no token
    assert one.n == 2 and one.value == pytest.approx((wanted[0] + wanted[2]) / 2, rel=1e-4)
