"""The cases of scoring, templates, alignment, masks and precision, each with a property of its whole kind."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tiny
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GPT2Config, GPT2LMHeadModel, set_seed

from distillknob.rewards.calibration import CalibrationReward
from distillknob.rewards.forward import CompletionLogps, _logps, completion_logps
from distillknob.rewards.models import load_tokenizer
from distillknob.rewards.rendering import encode_completion, encode_prompt, render_prompt
from distillknob.rewards.scoring import Score, TextScorer, encode_exactly
from distillknob.rewards.spans import TokenBytes, common_groups
from distillknob.trainer.calibration import MAX_LOG_RATIO, CalibrationTrainer
from distillknob.trainer.calibration_config import CalibrationConfig
from distillknob.trainer.policy import GRPOPolicy

FILES = Path(tiny.__file__).parent / "cases" / "files"
TEXT = st.text(st.characters(codec="utf-8"), max_size=30)
LOGP = st.floats(-200, 0, allow_nan=False, width=32)


def case(name: str) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    return tiny.CASES[name]["input"], tiny.CASES[name]["expected"], tiny.CASES[name]["wrong_value"]


def trainer_of(output: Path, model: Any = None, **changes: Any) -> CalibrationTrainer:
    teacher, tokenizer = tiny.teacher()
    return CalibrationTrainer(
        model if model is not None else teacher,
        tiny.digits,
        tiny.arguments(CalibrationConfig, output, **changes),
        proxy=None,
        train_dataset=tiny.prompts(),
        processing_class=tokenizer,
    )


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> CalibrationTrainer:
    return trainer_of(tmp_path_factory.mktemp("run"), beta=1.0)


def own_loss(
    trainer: CalibrationTrainer, policy: list[float], anchor: list[float], mask: list[float]
) -> tuple[torch.Tensor, torch.Tensor, float]:
    """`CalibrationTrainer`'s own loss for one row with these log-probabilities and no advantage; the gradient; the logged KL."""
    logps_1_T = torch.tensor([policy], requires_grad=True)
    mask_1_T = torch.tensor([mask])
    ids = torch.ones(1, len(policy), dtype=torch.long)
    stock = type(trainer).__mro__[1]
    whole = stock._get_per_token_logps_and_entropies
    stock._get_per_token_logps_and_entropies = lambda *_, **__: (logps_1_T, torch.zeros_like(logps_1_T), None)
    trainer._first_kl_checked = True
    trainer.current_gradient_accumulation_steps = 1  # what `train` sets
    trainer.model.train()
    try:
        loss = trainer._compute_loss(
            trainer.model,
            {
                "prompt_ids": ids[:, :1],
                "prompt_mask": ids[:, :1],
                "completion_ids": ids,
                "completion_mask": mask_1_T,
                "advantages": torch.zeros(1),
                "ref_per_token_logps": torch.tensor([anchor]),
                "num_items_in_batch": mask_1_T.sum(),
            },
        )
    finally:
        stock._get_per_token_logps_and_entropies = whole
    loss.backward()
    assert logps_1_T.grad is not None
    return loss.detach(), logps_1_T.grad[0], float(trainer._metrics["train"]["kl"][-1])


def k3(policy: float, anchor: float) -> float:
    return math.exp(anchor - policy) - (anchor - policy) - 1


def test_b01_the_kl_of_the_loss_is_the_masked_mean_of_k3(trainer: CalibrationTrainer) -> None:
    given_, expected, wrong = case("B01")
    loss, _, logged = own_loss(trainer, given_["logp_policy"], given_["logp_ref"], given_["mask"])
    assert logged == pytest.approx(expected["masked_mean_k3"], abs=1e-6)
    assert float(loss) == pytest.approx(expected["masked_mean_k3"], abs=1e-6)  # beta 1, no advantage
    assert abs(logged - wrong["unmasked_mean_k3"]) > 1e-2


@settings(max_examples=60, deadline=None)
@given(rows=st.lists(st.tuples(st.floats(-9, 0), st.floats(-9, 0), st.booleans()), min_size=1, max_size=12))
def test_b01_for_any_mask_the_kl_is_never_negative_and_padding_is_not_in_it(
    trainer: CalibrationTrainer, rows: list[tuple[float, float, bool]]
) -> None:
    rows = [(-1.0, -2.0, True), *rows]
    policy, anchor, mask = ([float(row[i]) for row in rows] for i in range(3))
    _, gradient, logged = own_loss(trainer, policy, anchor, mask)
    kept = [k3(p, a) for p, a, m in rows if m]
    assert logged >= 0
    assert logged == pytest.approx(sum(kept) / len(kept), rel=1e-3, abs=1e-5)
    assert all(float(g) == 0 for g, m in zip(gradient, mask, strict=True) if not m)


def test_b03_a_token_far_from_the_anchor_leaves_loss_and_gradient_finite(trainer: CalibrationTrainer) -> None:
    given_, expected, wrong = case("B03")
    assert torch.tensor(given_["logp_ref"][0] - given_["logp_policy"][0]).exp().isinf()
    assert wrong["k3_first_float32"] == "inf"
    loss, gradient, logged = own_loss(trainer, given_["logp_policy"], given_["logp_ref"], given_["mask"])
    assert math.isfinite(loss) and bool(gradient.isfinite().all()) and math.isfinite(logged)
    assert trainer._metrics["train"]["kl/bounded"][-1] == 0.5
    alone = own_loss(trainer, given_["logp_policy"][1:], given_["logp_ref"][1:], [1.0])
    assert float(alone[0]) == pytest.approx(expected["k3_exact_second"], rel=1e-6)
    assert trainer._metrics["train"]["kl/bounded"][-1] == 0


@settings(max_examples=60, deadline=None)
@given(rows=st.lists(st.tuples(LOGP, LOGP), min_size=1, max_size=8))
def test_b03_any_log_probabilities_give_a_finite_loss_and_only_far_tokens_are_bounded(
    trainer: CalibrationTrainer, rows: list[tuple[float, float]]
) -> None:
    policy, anchor = [row[0] for row in rows], [row[1] for row in rows]
    loss, gradient, _ = own_loss(trainer, policy, anchor, [1.0] * len(rows))
    assert math.isfinite(loss) and bool(gradient.isfinite().all())
    kept = [k3(p, min(a, p + MAX_LOG_RATIO)) for p, a in rows]
    assert float(loss) == pytest.approx(sum(kept) / len(kept), rel=1e-3, abs=1e-4)
    far = sum(a - p > MAX_LOG_RATIO + 1e-3 for p, a in rows)
    near = sum(a - p > MAX_LOG_RATIO - 1e-3 for p, a in rows)
    assert far <= round(trainer._metrics["train"]["kl/bounded"][-1] * len(rows)) <= near


@pytest.mark.parametrize("temperature", [1.0, 0.7, 1.8])
def test_b04_equal_models_are_neutral_at_every_temperature(tmp_path: Path, temperature: float) -> None:
    trainer = trainer_of(tmp_path, temperature=temperature, max_steps=1)
    trainer.train()
    (kl,) = [entry["kl"] for entry in trainer.state.log_history if "kl" in entry]
    assert abs(kl) <= 1e-6


def test_b04_the_reward_takes_both_sides_at_temperature_1(tmp_path: Path) -> None:
    """The policy as its own proxy: r_cal is 0 whatever the temperature that the rollouts are sampled at."""
    model, tokenizer = tiny.teacher()
    trainer = trainer_of(tmp_path, model, temperature=0.7)
    reward = CalibrationReward(TextScorer(tiny.teacher()[0], tokenizer), per="none")
    reward.attach(GRPOPolicy(trainer))
    rows = tiny.TASK.rows("train", 4, 1)
    texts = [tiny.TASK.gold_text(row) for row in rows]
    ids = [[*encode_completion(tokenizer, text), tokenizer.eos_token_id] for text in texts]
    values = reward([row["prompt"] for row in rows], texts, ids)
    assert values == pytest.approx([0.0] * 4, abs=1e-4)


def test_b05_dropout_is_off_on_both_sides_of_the_first_kl(tmp_path: Path) -> None:
    _, expected, wrong = case("B05")
    _, tokenizer = tiny.teacher()
    set_seed(1)
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=len(tokenizer), n_embd=32, n_layer=2, n_head=2, resid_pdrop=0.1, embd_pdrop=0.1, attn_pdrop=0.1)
    )
    model.config.eos_token_id = model.generation_config.eos_token_id = tokenizer.eos_token_id
    trainer = trainer_of(tmp_path, model, max_steps=1)
    trainer.train()
    (kl,) = [entry["kl"] for entry in trainer.state.log_history if "kl" in entry]
    assert abs(kl) <= expected["tolerance"] < wrong["train_mode_max_abs_k1_seen"]


@settings(max_examples=25, deadline=None)
@given(pads=st.lists(st.integers(0, 20), min_size=1, max_size=5), seed=st.integers(0, 99))
def test_b16_padding_on_either_side_moves_no_number(pads: list[int], seed: int) -> None:
    set_seed(seed)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=64, n_embd=32, n_layer=2, n_head=2)).eval()
    ids = tiny.CASES["B16"]["input"]["ids"]
    alone = completion_logps(model, [ids[:2]], [ids[2:]])[0]
    others = [[(3 * i + pad) % 64 for i in range(len(ids) + pad - 1)] for pad in pads]
    for logps in (CompletionLogps(model, 8), lambda p, c: completion_logps(model, p, c)):
        found = logps([ids[:2], *([5] for _ in pads)], [ids[2:], *others])
        assert float((found[0] - alone).abs().max()) <= 1e-5


def test_b17_the_log_softmax_is_taken_in_float32() -> None:
    _, expected, wrong = case("B17")
    logits_1_V = torch.tensor([math.sin(0.37 * i) * 8 for i in range(4096)]).bfloat16()[None]
    targets = torch.arange(0, 4096, 64)
    found = float(_logps(logits_1_V.expand(64, -1), targets).double().sum())
    assert found == pytest.approx(expected["sum_logp"], abs=expected["tolerance"])
    assert abs(found - wrong["bf16_log_softmax_then_float64_sum"]) > 0.1


@settings(max_examples=40, deadline=None)
@given(logits=st.lists(st.floats(-30, 30), min_size=2, max_size=50), dtype=st.sampled_from([torch.bfloat16, torch.float16]))
def test_b17_any_narrow_logits_lose_nothing_more(logits: list[float], dtype: torch.dtype) -> None:
    narrow_1_V = torch.tensor([logits], dtype=dtype)
    exact_V = narrow_1_V.double().log_softmax(-1)[0]
    found = _logps(narrow_1_V.expand(len(logits), -1), torch.arange(len(logits)))
    torch.testing.assert_close(found.double(), exact_V, atol=2e-5, rtol=0)


@pytest.mark.parametrize("name", ["tok_spm", "tok_bytelevel"])
@settings(max_examples=40, deadline=None)
@given(text=TEXT, system=st.none() | TEXT)
def test_b18_b19_any_conversation_has_the_templates_own_bos_and_all_of_its_text(name: str, text: str, system: str | None) -> None:
    tokenizer = load_tokenizer(FILES / name)
    messages = [{"role": "user", "content": text}]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    rendered = render_prompt(tokenizer, messages)
    ids = encode_prompt(tokenizer, messages)
    if not any(token in text + (system or "") for token in tokenizer.all_special_tokens):
        bos = tokenizer.bos_token_id
        assert ids.count(bos) == rendered.count(tokenizer.bos_token) if bos is not None else True
    assert text.strip() in rendered and (system or "").strip() in rendered
    assert encode_prompt(tokenizer, text or "x").count(tokenizer.bos_token_id) <= 1 + text.count(str(tokenizer.bos_token))


@settings(max_examples=40, deadline=None)
@given(thought=TEXT, answer=TEXT)
def test_b20_a_reasoning_completion_is_scored_as_written(thought: str, answer: str) -> None:
    tokenizer = load_tokenizer(FILES / "tok_bytelevel")
    tokenizer.chat_template = (FILES / "think_template.jinja").read_text()
    completion = f"<think>\n{thought}\n</think>\n\n{answer}"
    ids, spans, masked = encode_exactly(TokenBytes(tokenizer), completion)
    if masked is None:
        assert tokenizer.decode(ids) == completion
        assert spans[-1][1] == len(completion.encode())
    else:
        assert any(token in completion for token in tokenizer.all_special_tokens)


class Unigram(torch.nn.Module):
    """A model that gives every id the same log-probability wherever it stands."""

    def __init__(self, logps: list[float]) -> None:
        super().__init__()
        self.logps = torch.nn.Parameter(torch.tensor(logps))

    def forward(self, input_ids: torch.Tensor, **_: Any) -> Any:
        return SimpleNamespace(logits=self.logps.expand(*input_ids.shape, -1))


def test_b21_each_model_is_given_its_own_ids() -> None:
    given_, expected, wrong = case("B21")
    sums = {}
    for side in ("teacher", "proxy"):
        vocabulary = {text: int(i) for i, text in given_[f"{side}_vocab"].items()}
        model = Unigram([math.log(given_[f"{side}_unigram"][str(i)]) for i in range(2)])
        ids = [vocabulary[piece] for piece in ("Hello", " world", " world")]
        assert ids == expected[f"{side}_ids"]
        (values,) = completion_logps(model, [[0]], [ids])
        sums[side] = float(values.sum())
        assert sums[side] == pytest.approx(expected[f"{side}_logp"], abs=1e-6)
    assert sums["teacher"] - sums["proxy"] == pytest.approx(expected["log_ratio"], abs=1e-6)
    assert abs(sums["teacher"] - sums["proxy"] - wrong["log_ratio"]) > 0.1


@settings(max_examples=60, deadline=None)
@given(text=st.text(st.characters(codec="utf-8"), min_size=1, max_size=30))
def test_b21_what_is_scored_decodes_to_the_text_under_its_own_tokenizer(text: str) -> None:
    for name in ("tok_bytelevel", "tok_spm"):
        tokenizer = load_tokenizer(FILES / name)
        ids, spans, masked = encode_exactly(TokenBytes(tokenizer), text)
        assert masked is not None or (tokenizer.decode(ids) == text and spans[-1][1] == len(text.encode()))


def spans_of(tokens: list[Any]) -> list[tuple[int, int] | None]:
    spans, done = [], 0
    for _, size in tokens:
        spans.append(None if size == "special" else (done, done + size))
        done += 0 if size == "special" else size
    return spans


def test_b23_special_tokens_are_in_no_group() -> None:
    given_, expected, wrong = case("B23")
    groups = common_groups(spans_of(given_["tokens_a"]), spans_of(given_["tokens_b"]))
    assert [list(group[0]) for group in groups] == expected["groups_a"] != wrong["single_group"]
    assert [list(group[1]) for group in groups] == expected["groups_b"]


CUTS = st.lists(st.integers(0, 40), max_size=12)


@settings(max_examples=200, deadline=None)
@given(size=st.integers(1, 40), cuts=st.tuples(CUTS, CUTS), specials=st.tuples(st.booleans(), st.booleans()))
def test_b23_groups_are_the_finest_common_ones(size: int, cuts: tuple[list[int], list[int]], specials: tuple[bool, bool]) -> None:
    sides: list[list[tuple[int, int] | None]] = []
    for inner, special in zip(cuts, specials, strict=True):
        edges = [0, *sorted(cut for cut in inner if cut <= size), size]  # equal cuts: tokens without bytes
        spans: list[tuple[int, int] | None] = list(itertools.pairwise(edges))
        sides.append([None, *spans, (size, size)] if special else spans)
    groups = common_groups(*sides)
    ends = [{span[1] for span in side if span is not None} - {0} for side in sides]
    assert len(groups) == len(ends[0] & ends[1])  # finest: no common edge is left inside a group
    for side, spans in enumerate(sides):
        members = [token for group in groups for token in group[side]]
        wanted = [i for i, span in enumerate(spans) if span is not None and span != (size, size)]
        assert members == wanted  # in order, once each
    covered = [[sum(b - a for t in group[i] if (s := sides[i][t]) for a, b in [s]) for group in groups] for i in (0, 1)]
    assert covered[0] == covered[1] and sum(covered[0]) == size


@settings(max_examples=60, deadline=None)
@given(prompt=TEXT, completion=st.text(st.characters(codec="utf-8"), min_size=1, max_size=20))
def test_b25_the_border_is_where_the_completion_begins(prompt: str, completion: str) -> None:
    tokenizer = load_tokenizer(FILES / "tok_bytelevel")
    ids, spans, masked = encode_exactly(TokenBytes(tokenizer), completion)
    if masked is None:
        assert sum(end - start for start, end in spans) == len(completion.encode())
        assert tokenizer.decode(ids) == completion
        head = encode_prompt(tokenizer, prompt or "x")
        assert head == encode_prompt(tokenizer, prompt or "x") and head[-1] != tokenizer.eos_token_id


def test_b26_the_policy_is_scored_on_the_ids_that_it_sampled() -> None:
    given_, expected, wrong = case("B26")
    tokenizer = load_tokenizer(FILES / "tok_bytelevel")
    logps = torch.full((len(tokenizer),), -50.0)
    for token, value in given_["unigram_logp"].items():
        logps[tokenizer.convert_tokens_to_ids(token)] = value
    ids = tokenizer.convert_tokens_to_ids(given_["sampled_tokens"])
    assert ids == expected["scored_ids"]
    assert encode_completion(tokenizer, "the") == wrong["reencoded_ids"]
    model = Unigram(logps.tolist())
    normaliser = float(logps.logsumexp(0))
    (values,) = completion_logps(model, [[0]], [ids])
    assert float(values.sum()) + len(ids) * normaliser == pytest.approx(expected["teacher_logp"], abs=1e-4)


@settings(max_examples=25, deadline=None)
@given(pieces=st.lists(st.sampled_from(["t", "h", "e", "the", "Ġanswer", "Ġ", "i", "s"]), min_size=1, max_size=12))
def test_b26_any_split_of_a_text_into_tokens_is_scored_as_sampled(pieces: list[str], trainer: CalibrationTrainer) -> None:
    tokenizer = trainer.processing_class
    ids = [3 + sum(map(ord, piece)) % (len(tokenizer) - 3) for piece in pieces]
    (values,) = GRPOPolicy(trainer).sampled_logps(["0+1=1"], [ids])
    (wanted,) = completion_logps(trainer.model, [encode_prompt(tokenizer, "0+1=1")], [ids])
    assert values == pytest.approx(wanted.tolist(), abs=1e-4)


class Fixed:
    """A proxy and a policy whose log-probabilities are given: the content's, and the end token's."""

    eos_token_ids = (9,)

    def __init__(self, own: list[float], proxy: list[float], end_token: str, proxy_end: float, masked: Any = None) -> None:
        self.own, self.proxy, self.end_token, self.proxy_end, self.masked = own, proxy, end_token, proxy_end, masked

    def sampled_logps(self, prompts: Any, completion_ids: Any) -> list[list[float]]:
        return [list(self.own)]

    def score(self, prompts: Any, texts: list[str], ended: list[bool]) -> list[Score]:
        if not texts[0] or not ended[0]:
            return [Score((), (), "cut off" if texts[0] else "empty")]
        end = [self.proxy_end] if self.end_token == "both" else []
        return [Score((*self.proxy, *end), tuple((i, i + 1) for i in range(len(self.proxy) + len(end))))]


def reward_of(fixed: Fixed, text: str, ids: list[int], per: str = "none") -> float | None:
    reward = CalibrationReward(fixed, per=per)  # type: ignore[arg-type]
    reward.attach(fixed)
    return reward(["x"], [text], [ids])[0]


def test_b28_end_tokens_on_both_sides_or_on_none() -> None:
    given_, expected, _ = case("B28")
    own, proxy = given_["teacher_token_logps"], given_["proxy_token_logps"]
    ended = [*own, given_["also_terminated"]["teacher_end_logp"]]
    both = reward_of(Fixed(ended, proxy, "both", given_["proxy_end_logp"]), "ab", [1, 2, 9])
    none = reward_of(Fixed(ended, proxy, "none", given_["proxy_end_logp"]), "ab", [1, 2, 9])
    assert both == pytest.approx(-expected["log_ratio_terminated_with_ends"])  # cases name l_T − l_P
    assert none == pytest.approx(-expected["log_ratio_terminated_content_only"])
    # A cut-off completion is left out (method §2), so that no end token is ever set against none.
    assert reward_of(Fixed(own, proxy, "both", given_["proxy_end_logp"]), "ab", [1, 2]) is None


@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(st.tuples(st.floats(-9, 0), st.floats(-9, 0)), min_size=1, max_size=6),
    ends=st.tuples(st.floats(-9, 0), st.floats(-9, 0)),
)
def test_b28_the_two_rules_differ_by_the_end_tokens_alone(values: list[tuple[float, float]], ends: tuple[float, float]) -> None:
    own, proxy = [v[0] for v in values], [v[1] for v in values]
    ids = [*range(1, len(own) + 1), 9]
    text = "a" * len(own)
    both, none = (reward_of(Fixed([*own, ends[0]], proxy, rule, ends[1]), text, ids) for rule in ("both", "none"))
    assert both is not None and none is not None
    assert both - none == pytest.approx(ends[1] - ends[0], abs=1e-9)


def test_b29_an_empty_completion_has_no_reward_and_no_nan() -> None:
    given_, expected, _ = case("B29")
    values = []
    for own, proxy, text, size in zip(*(given_[k] for k in ("teacher_sums", "proxy_sums", "completions", "n_bytes")), strict=True):
        assert len(text.encode()) == size
        values.append(reward_of(Fixed([own, 0.0], [proxy], "both", 0.0), text, [1, 9] if text else [9], per="bytes"))
    assert values[0] is None  # left out, not 0: it must not be the best of its group (method §2)
    assert values[1] == pytest.approx(-expected["log_ratio_per_byte"][1])


@settings(max_examples=15, deadline=None)
@given(texts=st.lists(st.sampled_from(["", " ", "0", "1+2=3", "=#0"]), min_size=1, max_size=6))
def test_b29_a_batch_with_empty_completions_scores_the_others_as_alone(texts: list[str]) -> None:
    proxy, tokenizer = tiny.proxy()
    scorer = TextScorer(proxy, tokenizer)
    together = scorer.score(["0+1"] * len(texts), texts, [True] * len(texts))
    for text, score in zip(texts, together, strict=True):
        assert (score.masked == "empty") == (text == "")
        (alone,) = scorer.score(["0+1"], [text], [True])
        assert score.token_logps == pytest.approx(alone.token_logps, abs=1e-5)
        assert not any(math.isnan(value) for value in score.token_logps)


def test_every_case_of_this_kind_is_here() -> None:
    ids = ["B01", "B03", "B04", "B05", "B16", "B17", "B18", "B19", "B20", "B21", "B23", "B25", "B26", "B28", "B29"]
    assert all(name in tiny.CASES for name in ids)
    written = Path(__file__).read_text() + (Path(tiny.__file__).parent / "unit" / "test_rendering.py").read_text()
    assert [name for name in ids if f"{name.lower()}_" not in written] == []
