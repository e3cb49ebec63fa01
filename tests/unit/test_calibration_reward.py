"""The calibration reward and the check on what reward functions return (method §2)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from datasets import Dataset

from distillknob.rewards.advantages import EPSILON
from distillknob.rewards.calibration import CalibrationReward
from distillknob.rewards.errors import UserError
from distillknob.rewards.scoring import TextScorer
from distillknob.trainer.calibration import CalibrationTrainer
from distillknob.trainer.calibration_config import CalibrationConfig
from distillknob.trainer.checked import CheckedReward

END = 99
PROMPTS = ["3a+0b-4c*3d-3?"] * 4
TEXTS = ["a+0=3b-4=c*3=2d-3=4#4", "#4", "44444444", "a+0=3#3"]
IDS = [[5, 6, 7, END], [8, END], [9, 9, END], [1, 2, END]]


class FakePolicy:
    """Says −(i + 1)/2 nats for token i and −7 for the end token."""

    eos_token_ids = (END,)

    def sampled_logps(self, prompts: Sequence[Any], completion_ids: Sequence[Sequence[int]]) -> list[list[float]]:
        return [[-7.0 if token == END else -(i + 1) / 2 for i, token in enumerate(ids)] for ids in completion_ids]


def reward(**settings: Any) -> CalibrationReward:
    """A reward on a random proxy, attached to the fake policy."""
    model, tokenizer = tiny.proxy()
    scorer = TextScorer(model, tokenizer, end_token=settings.pop("end_token", "both"))
    made = CalibrationReward(scorer, **settings)
    made.attach(FakePolicy())
    return made


def proxy_logps(end_token: Any = "both") -> list[tuple[float, ...]]:
    model, tokenizer = tiny.proxy()
    return [s.token_logps for s in TextScorer(model, tokenizer, end_token=end_token).score(PROMPTS, TEXTS, [True] * 4)]


@pytest.mark.parametrize("end_token", ["both", "none"])
@pytest.mark.parametrize("kind", ["log_ratio", "proxy_only"])
@pytest.mark.parametrize("per", ["bytes", "none", "own_tokens"])
def test_kinds_and_units(kind: Any, per: Any, end_token: str) -> None:
    got = reward(kind=kind, per=per, end_token=end_token)(PROMPTS, TEXTS, IDS)
    for text, ids, proxy, value in zip(TEXTS, IDS, proxy_logps(end_token), got, strict=True):
        own = FakePolicy().sampled_logps([], [ids])[0]
        assert len(proxy) == len(text) + (end_token == "both")
        own = own if end_token == "both" else own[:-1]
        if kind == "proxy_only":
            own = []
        if per == "own_tokens":
            wanted = sum(proxy) / len(proxy) - (sum(own) / len(own) if own else 0.0)
        else:
            wanted = (sum(proxy) - sum(own)) / (len(text.encode()) if per == "bytes" else 1)
        assert value == pytest.approx(wanted, abs=1e-5)


def test_messages_score_like_their_text() -> None:
    made = reward()
    as_messages = [[{"role": "assistant", "content": text}] for text in TEXTS]
    assert made(PROMPTS, as_messages, IDS) == pytest.approx(made(PROMPTS, TEXTS, IDS), abs=1e-6)


def test_the_floor_cuts_each_token_by_its_bytes_and_the_share_is_logged() -> None:
    logged: dict[str, float] = {}
    free = proxy_logps()
    floor = float(np.median([v for row in free for v in row]))
    made = reward(kind="proxy_only", per="none", floor=floor)
    got = made(PROMPTS, TEXTS, IDS, log_metric=logged.__setitem__)
    assert got == pytest.approx([sum(max(v, floor) for v in row) for row in free], abs=1e-4)
    shares = [sum(v < floor for v in row) / len(row) for row in free]
    assert 0.2 < logged["calibration/clipped"] < 0.8
    assert logged["calibration/clipped"] == pytest.approx(sum(shares) / 4, abs=1e-6)
    assert reward(kind="proxy_only", floor=-1e3).terms(PROMPTS, TEXTS, IDS)[0].clipped == 0


def test_the_floor_is_per_byte_where_tokens_are_longer() -> None:
    model, tokenizer = tiny.teacher()
    made = CalibrationReward(TextScorer(model, tokenizer), kind="proxy_only", per="none", floor=-0.5)
    made.attach(FakePolicy())
    scores = made.proxy.score(PROMPTS, TEXTS, [True] * 4)
    widths = [end - start for score in scores for start, end in score.spans]
    assert max(widths) >= 2 and 0 in widths  # a merged token, and the end token that counts as one byte
    wanted = [
        sum(max(v, -0.5 * max(1, end - start)) for v, (start, end) in zip(s.token_logps, s.spans, strict=True)) for s in scores
    ]
    assert made(PROMPTS, TEXTS, IDS) == pytest.approx(wanted, abs=1e-5)
    assert made(PROMPTS, TEXTS, IDS) != pytest.approx([s.logp for s in scores], abs=0.1)


@pytest.mark.parametrize("floor", [0.0, 1.0])
def test_a_floor_that_is_not_below_zero_is_refused(floor: float) -> None:
    with pytest.raises(UserError, match="floor: must be below 0"):
        reward(floor=floor)


def test_without_a_policy_it_says_what_to_call() -> None:
    model, tokenizer = tiny.proxy()
    with pytest.raises(UserError, match="attach"):
        CalibrationReward(TextScorer(model, tokenizer))(PROMPTS, TEXTS, IDS)


def test_what_is_left_out_is_none_and_its_reason_is_logged() -> None:
    logged: dict[str, float] = {}
    texts = [*TEXTS, "", "#4", "é", "<eos>"]
    ids = [*IDS, [END], [8, 3], [4, END], [5, END]]
    got = reward()(PROMPTS * 2, texts, ids, log_metric=logged.__setitem__)
    assert [v is None for v in got] == [False] * 4 + [True] * 4
    assert got[:4] == pytest.approx(reward()(PROMPTS, TEXTS, IDS), abs=1e-5)
    shares = {key.removeprefix("calibration/left_out/"): v for key, v in logged.items() if "left_out" in key}
    assert shares == {
        "empty": 1 / 8,
        "cut off": 1 / 8,
        "not re-encodable": 1 / 8,
        "special token in the text": 1 / 8,
        "longer than the model's positions": 0.0,
    }


def test_b28_a_cut_off_completion_is_never_paid_and_an_end_token_counts_on_both_sides() -> None:
    both, none = reward(per="none", end_token="both"), reward(per="none", end_token="none")
    cut = [ids[:-1] for ids in IDS]
    assert both(PROMPTS, TEXTS, cut) == none(PROMPTS, TEXTS, cut) == [None] * 4
    ends = [row[-1] for row in proxy_logps()]
    for with_ends, without, end in zip(both(PROMPTS, TEXTS, IDS), none(PROMPTS, TEXTS, IDS), ends, strict=True):
        assert with_ends is not None and without is not None
        assert with_ends - without == pytest.approx(end + 7.0, abs=1e-4)


@pytest.mark.parametrize("on_bad", ["error", "leave_out"])
def test_good_rewards_pass_and_none_and_nan_are_left_out(on_bad: Any) -> None:
    logged: dict[str, float] = {}
    given = [1, 0.5, None, math.nan, True, np.float32(2), np.int64(3), Fraction(1, 4), -1e30]
    checked = CheckedReward(lambda prompts, completions, **_: given, on_bad)
    got = checked(["p"] * 9, ["c"] * 9, log_metric=logged.__setitem__)
    assert got == [1.0, 0.5, None, None, 1.0, 2.0, 3.0, 0.25, -1e30]
    assert all(v is None or type(v) is float for v in got)
    assert list(logged.values()) == [pytest.approx(2 / 9)]


@pytest.mark.parametrize("bad", [math.inf, -math.inf, np.float32("inf"), "1", torch.tensor(1.0), [1.0], 1j], ids=repr)
def test_a_bad_reward_names_the_function_or_is_left_out_and_counted(bad: Any) -> None:
    def graded(prompts: list[str], completions: list[str], **_: Any) -> list[Any]:
        return [0.5, bad, 0.25, 0.0]

    with pytest.raises(UserError, match=r"graded returned .*valid: a finite number"):
        CheckedReward(graded, "error")(["p"] * 4, ["c"] * 4)
    logged: dict[str, float] = {}
    got = CheckedReward(graded, "leave_out")(["p"] * 4, ["c"] * 4, log_metric=logged.__setitem__)
    assert got == [0.5, None, 0.25, 0.0]
    assert logged == {"rewards/graded/left_out": 0.25}


@pytest.mark.parametrize(
    "bad", [[1.0], [1.0] * 5, [], None, 3.0, "abcd", {"a": 1.0}, torch.ones(3), torch.tensor(1.0), np.ones(5)], ids=repr
)
def test_what_is_no_list_of_the_right_length_names_the_function_or_is_left_out(bad: Any) -> None:
    def graded(prompts: list[str], completions: list[str], **_: Any) -> Any:
        return bad

    with pytest.raises(UserError, match="graded returned"):
        CheckedReward(graded, "error")(["p"] * 4, ["c"] * 4)
    logged: dict[str, float] = {}
    assert CheckedReward(graded, "leave_out")(["p"] * 4, ["c"] * 4, log_metric=logged.__setitem__) == [None] * 4
    assert logged == {"rewards/graded/left_out": 1.0}


@pytest.mark.parametrize("given", [torch.tensor([0.5, math.nan]), np.array([0.5, math.nan]), (0.5, None)], ids=repr)
def test_tensors_arrays_and_tuples_are_taken_as_lists(given: Any) -> None:
    got = CheckedReward(lambda prompts, completions, **_: given, "error")(["p"] * 2, ["c"] * 2)
    assert got == [0.5, None] and type(got[0]) is float
    with pytest.raises(UserError, match=r"returned '\[0\.5"):  # a column of numbers is a list of lists
        CheckedReward(lambda prompts, completions, **_: torch.tensor([[0.5], [1.0]]), "error")(["p"] * 2, ["c"] * 2)


def test_an_integer_beyond_float_is_a_bad_reward() -> None:
    assert CheckedReward(lambda prompts, completions, **_: [10**400], "leave_out")(["p"], ["c"]) == [None]


class Recorder(CalibrationTrainer):
    """Keeps the task rewards and the advantages of the last generation batch."""

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        output = super()._generate_and_score_completions(inputs)
        self.paid, self.got = self._rewards_B_K[:, 0].tolist(), output["advantages"].tolist()
        return output


def run(output: Path, function: Any, on_bad: str) -> Recorder:
    """One step of a control without a proxy, two groups of four."""
    model, tokenizer = tiny.teacher()
    args = tiny.arguments(CalibrationConfig, output, max_steps=1, on_bad_reward=on_bad, max_completion_length=6)
    data = Dataset.from_list(tiny.TASK.rows("train", 2, 0))
    trainer = Recorder(model, function, args, proxy=None, train_dataset=data, processing_class=tokenizer)
    trainer.train()
    return trainer


def infinite_second(prompts: list[str], completions: list[str], **_: Any) -> list[float]:
    return [1.0, math.inf, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0]


async def infinite_later(prompts: list[str], completions: list[str], **_: Any) -> list[float]:
    return infinite_second(prompts, completions)


async def too_few_later(prompts: list[str], completions: list[str], **_: Any) -> list[float]:
    return [1.0]


def test_a_coroutine_function_that_returns_too_few_rewards_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="too_few_later returned 1 instead of a list of 8 rewards"):
        run(tmp_path / "error", too_few_later, "error")
    assert run(tmp_path / "left_out", too_few_later, "leave_out").got == [0.0] * 8


@pytest.mark.parametrize("function", [infinite_second, infinite_later])
def test_an_infinite_reward_stops_the_run_or_costs_only_that_member(tmp_path: Path, function: Any) -> None:
    with pytest.raises(UserError, match=function.__name__):
        run(tmp_path / "error", function, "error")
    trainer = run(tmp_path / "left_out", function, "leave_out")
    first = [1.0, 0.0, 0.0]
    z = [(v - 1 / 3) / (math.sqrt(1 / 3) + EPSILON) for v in first]
    assert trainer.got[:4] == pytest.approx([z[0], 0.0, z[1], z[2]], abs=1e-6)
    assert trainer.got[4:] == pytest.approx([v / (0.5 + EPSILON) for v in (0.75, -0.25, -0.25, -0.25)], abs=1e-6)
    assert trainer.state.global_step == 1


def test_an_infinite_reward_model_is_caught(tmp_path: Path) -> None:
    from transformers import LlamaForSequenceClassification

    model, tokenizer = tiny.teacher()
    judge = LlamaForSequenceClassification(type(model.config)(**(model.config.to_dict() | {"num_labels": 1})))
    with torch.no_grad():
        judge.model.norm.weight.fill_(1e30)
        judge.score.weight.zero_()[0, 0] = 3e38
    judge.save_pretrained(tmp_path / "judge")
    tokenizer.save_pretrained(tmp_path / "judge")
    with pytest.raises(UserError, match=r"judge returned an infinite reward"):
        run(tmp_path / "error", str(tmp_path / "judge"), "error")
    trainer = run(tmp_path / "left_out", str(tmp_path / "judge"), "leave_out")
    assert all(math.isnan(v) for v in trainer.paid) and trainer.got == [0.0] * 8
