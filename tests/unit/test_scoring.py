"""The log-probability of a text under a model, against an independent float64 pass (method §2)."""

from __future__ import annotations

import copy
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from transformers import GPT2Config, GPT2LMHeadModel, set_seed

from distillknob.rewards.errors import UserError
from distillknob.rewards.forward import completion_logps
from distillknob.rewards.models import load_tokenizer
from distillknob.rewards.rendering import encode_completion, encode_prompt
from distillknob.rewards.scoring import Score, TextScorer, encode_exactly
from distillknob.rewards.spans import TokenBytes
from distillknob.trainer.lab import tiny_llama

FILES = Path(tiny.__file__).parent / "cases" / "files"
NON_ASCII = ["the answer is 42", "é 42 — ok", "日本🙂x", "naïve\n\n ", "e\u0301\u200d🏳️\u200d🌈", "\x00", "ok 🙂", "🙂🙂 日"]
PROMPTS = ["the answer", "", [{"role": "user", "content": "the answer is?"}], "é " * 9, "t"]
TEXTS = ["s 42", "the answer is 42", "日本🙂", "ok ok ok ok ok", "4"]
ENDED = [True] * 5


def tokenizer_of(name: str) -> Any:
    return load_tokenizer(FILES / name)


def model_of(kind: str, tokenizer: Any, positions: int = 128) -> Any:
    """A random model with a head as wide as the tokenizer; GPT-2 has learned positions, Llama rotary ones."""
    if kind == "llama":
        return tiny_llama(tokenizer, width=32, layers=2, seed=3, positions=positions).eval()
    set_seed(3)
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=positions,
        n_embd=32,
        n_layer=2,
        n_head=2,
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
    )
    return GPT2LMHeadModel(config).eval()


def independent(model: Any, head: list[int], tail: list[int]) -> list[float]:
    """One unpadded row in float64, token by token."""
    wide = copy.deepcopy(model).double()
    with torch.no_grad():
        logits_T_V = wide(input_ids=torch.tensor([[*head, *tail]])).logits[0]
    values = []
    for i, token in enumerate(tail):
        row = logits_T_V[len(head) + i - 1]
        values.append(float(row[token] - row.exp().sum().log()))
    return values


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.parametrize("name", ["tok_bytelevel", "tok_spm"])
def test_token_logps_equal_an_independent_float64_pass(kind: str, name: str) -> None:
    tokenizer = tokenizer_of(name)
    model = model_of(kind, tokenizer)
    scores = TextScorer(model, tokenizer).score(PROMPTS, TEXTS, ENDED)
    for prompt, text, score in zip(PROMPTS, TEXTS, scores, strict=True):
        tail = [*encode_completion(tokenizer, text), tokenizer.eos_token_id]
        wanted = independent(model, encode_prompt(tokenizer, prompt), tail)
        assert score.masked is None
        assert score.token_logps == pytest.approx(wanted, abs=1e-5)
        assert score.logp == pytest.approx(sum(wanted), abs=1e-4)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.parametrize("batch_size", [1, 2, 3])
def test_batch_size_order_and_padding_change_nothing(kind: str, batch_size: int) -> None:
    tokenizer = tokenizer_of("tok_bytelevel")
    model = model_of(kind, tokenizer)
    whole = TextScorer(model, tokenizer, batch_size=5).score(PROMPTS, TEXTS, ENDED)
    order = [3, 1, 4, 0, 2]
    other = TextScorer(model, tokenizer, batch_size=batch_size).score([PROMPTS[i] for i in order], [TEXTS[i] for i in order], ENDED)
    for place, i in enumerate(order):
        assert other[place].token_logps == pytest.approx(whole[i].token_logps, abs=1e-5)
        assert other[place].spans == whole[i].spans
    assert len({round(score.logp, 3) for score in whole}) == 5


def test_b16_learned_positions_are_not_moved_by_padding() -> None:
    given, expected = tiny.CASES["B16"]["input"], tiny.CASES["B16"]["expected"]
    set_seed(0)
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=64, n_positions=64, n_embd=32, n_layer=2, n_head=2, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
    ).eval()
    head, tail, longer = given["ids"][:2], given["ids"][2:], list(range(40))
    alone = completion_logps(model, [head], [tail])[0]
    padded = completion_logps(model, [head, longer], [tail, [1, 2]])[0]
    assert (alone - padded).abs().max() <= expected["tolerance_fp32"]
    assert alone.tolist() == pytest.approx(independent(model, head, tail), abs=expected["tolerance_fp32"])


def test_the_end_token_is_scored_with_both_and_not_with_none() -> None:
    tokenizer = tokenizer_of("tok_bytelevel")
    model = model_of("gpt2", tokenizer)
    both = TextScorer(model, tokenizer).score(PROMPTS, TEXTS, ENDED)
    none = TextScorer(model, tokenizer, end_token="none").score(PROMPTS, TEXTS, ENDED)
    for with_end, without, text in zip(both, none, TEXTS, strict=True):
        size = len(text.encode())
        assert with_end.token_logps[:-1] == pytest.approx(without.token_logps, abs=1e-5)
        assert with_end.spans == (*without.spans, (size, size))
        assert with_end.logp < without.logp


def test_a_tokenizer_without_an_end_token_is_refused_only_where_it_would_be_scored() -> None:
    tokenizer = tokenizer_of("tok_spm")
    model = model_of("llama", tokenizer)
    tokenizer.eos_token = None
    with pytest.raises(UserError, match="end_token: none"):
        TextScorer(model, tokenizer)
    (score,) = TextScorer(model, tokenizer, end_token="none").score(["t"], ["the answer"], [True])
    assert score.masked is None and len(score.token_logps) == len(encode_completion(tokenizer, "the answer"))


def test_what_cannot_be_scored_says_why_and_the_others_are_scored() -> None:
    tokenizer = tokenizer_of("tok_spm")
    model = model_of("gpt2", tokenizer, positions=32)
    scorer = TextScorer(model, tokenizer)
    texts = ["", "the answer", "  lead", "a</s>b", "the answer " * 30, "the answer", ""]
    ended = [True, False, True, True, True, True, False]
    scores = scorer.score(["t"] * 7, texts, ended)
    assert [s.masked for s in scores] == [
        "empty",
        "cut off",
        "not re-encodable",
        "special token in the text",
        "longer than the model's positions",
        None,
        "cut off",
    ]
    assert all(s == Score((), (), s.masked) for s in scores if s.masked)
    assert scores[5].token_logps == pytest.approx(scorer.score(["t"], ["the answer"], [True])[0].token_logps, abs=1e-5)


def test_a_text_that_just_fits_the_positions_is_scored() -> None:
    tokenizer = tokenizer_of("tok_bytelevel")
    head, text = encode_prompt(tokenizer, "the answer"), "the answer is 42"
    needed = len(head) + len(encode_completion(tokenizer, text)) + 1
    for positions, masked in ((needed, None), (needed - 1, "longer than the model's positions")):
        scorer = TextScorer(model_of("gpt2", tokenizer, positions), tokenizer)
        assert scorer.score(["the answer"], [text], [True])[0].masked == masked


def test_unknown_characters_are_not_re_encodable() -> None:
    _, tokenizer = tiny.proxy()
    assert encode_exactly(TokenBytes(tokenizer), "a+0=é#1")[2] == "not re-encodable"
    assert encode_exactly(TokenBytes(tokenizer), "a+0=3#1")[2] is None


def test_a_control_token_of_the_template_in_the_text_is_not_scored() -> None:
    tokenizer = tokenizer_of("tok_bytelevel")
    assert tokenizer.added_tokens_decoder[2].special
    assert encode_exactly(TokenBytes(tokenizer), "42<|turn|>user")[2] == "special token in the text"


@pytest.mark.parametrize("name", ["tok_bytelevel", "tok_spm"])
@pytest.mark.parametrize("text", NON_ASCII)
def test_spans_cover_the_bytes_without_overlap(name: str, text: str) -> None:
    tokenizer = tokenizer_of(name)
    ids, spans, masked = encode_exactly(TokenBytes(tokenizer), text)
    assert masked is None and len(ids) == len(spans)
    assert spans[0][0] == 0 and spans[-1][1] == len(text.encode())
    assert all(start <= end for start, end in spans)
    assert all(one[1] == two[0] for one, two in pairwise(spans))


def test_random_texts_are_covered_or_masked() -> None:
    tokenizer = tokenizer_of("tok_bytelevel")
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        codes = torch.randint(32, 0x1FFFF, (6,), generator=generator).tolist()
        text = "".join(chr(c) for c in codes if not 0xD800 <= c < 0xE000)
        ids, spans, masked = encode_exactly(TokenBytes(tokenizer), text)
        assert masked is None, text
        assert sum(end - start for start, end in spans) == len(text.encode())
        assert tokenizer.decode(ids) == text


def test_bfloat16_weights_get_a_float32_log_softmax() -> None:
    tokenizer = tokenizer_of("tok_bytelevel")
    model = model_of("gpt2", tokenizer).bfloat16()
    head, tail = encode_prompt(tokenizer, "the answer"), [*encode_completion(tokenizer, "is 42 and 日本🙂"), tokenizer.eos_token_id]
    with torch.no_grad():
        logits_T_V = model(input_ids=torch.tensor([[*head, *tail]])).logits[0, len(head) - 1 : -1]
    assert logits_T_V.dtype == torch.bfloat16
    index = torch.tensor(tail)[:, None]
    exact = torch.log_softmax(logits_T_V.double(), -1).gather(-1, index)[:, 0]
    coarse = torch.log_softmax(logits_T_V, -1).gather(-1, index)[:, 0].double()
    assert (coarse - exact).abs().max() > 1e-3
    got = TextScorer(model, tokenizer).score(["the answer"], ["is 42 and 日本🙂"], [True])[0].token_logps
    assert got == pytest.approx(exact.tolist(), abs=1e-5)


def test_the_model_is_put_in_evaluation_mode_and_frozen() -> None:
    tokenizer = tokenizer_of("tok_bytelevel")
    model = model_of("gpt2", tokenizer).train()  # dropout .1
    scorer = TextScorer(model, tokenizer)
    first, second = (scorer.score(PROMPTS, TEXTS, ENDED) for _ in range(2))
    assert first == second
    assert not any(p.requires_grad for p in model.parameters())


def test_partitioned_weights_are_refused() -> None:
    tokenizer = tokenizer_of("tok_bytelevel")
    model = model_of("gpt2", tokenizer)
    model.transformer.wpe.weight.data = torch.empty(0)
    with pytest.raises(UserError, match=r"partitioned.*wpe"):
        TextScorer(model, tokenizer)
