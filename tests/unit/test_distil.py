"""Students: what they are trained on, and that the training is what it says."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from peft import LoraConfig, get_peft_model

from distillknob.eval.generation import Generated, generate
from distillknob.rewards.errors import UserError
from distillknob.rewards.forward import completion_logps
from distillknob.rewards.models import load_model
from distillknob.rewards.seeds import derive_seed
from distillknob.rewards.tasks import TaskConfig
from distillknob.trainer import distil as module
from distillknob.trainer.distil import DistilConfig, Recipe, distil, texts_to_learn
from distillknob.trainer.lora import Lora
from distillknob.trainer.supervised import Supervised, save_model, train_on_pairs


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Model folders of a teacher and a student."""
    root = tmp_path_factory.mktemp("models")
    save_model(*tiny.teacher(), root / "teacher")
    save_model(*tiny.teacher(3, 16), root / "student")
    return {"teacher": root / "teacher", "student": root / "student"}


def written_by_teacher(monkeypatch: pytest.MonkeyPatch) -> None:
    """A teacher whose samples are right, wrong, cut off and empty in turn."""

    def fake(model: Any, tokenizer: Any, prompts: list[str], **_: Any) -> list[Generated]:
        rows = [{"prompt": p, "gold": str(tiny.parse(p).states[-1])} for p in prompts]
        gold = [tiny.TASK.gold_text(row) for row in rows]
        wrong = [text[:-1] + str((int(text[-1]) + 1) % 5) for text in gold]
        kinds = [lambda i: Generated(gold[i], True, 9), lambda i: Generated(wrong[i], True, 9)]
        kinds += [lambda i: Generated(gold[i][:5], False, 9), lambda i: Generated("", True, 1)]
        return [kinds[i % 4](i) for i in range(len(prompts))]

    monkeypatch.setattr("distillknob.eval.generation.generate", fake)


def test_seqkd_keeps_what_ended_by_itself_and_with_keep_right_only_what_is_right(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    written_by_teacher(monkeypatch)
    plain = texts_to_learn(DistilConfig(TaskConfig(), Recipe(samples=8), 1), folders)
    assert [s["kept"] for s in plain] == [True, True, False, False] * 2
    assert [s["correct"] for s in plain] == [1, 0, 0, 0] * 2
    right = texts_to_learn(DistilConfig(TaskConfig(), Recipe(samples=8, keep_right=True), 1), folders)
    assert [s["kept"] for s in right] == [True, False, False, False] * 2
    assert [s["prompt"] for s in right] == [s["prompt"] for s in plain]


@pytest.mark.parametrize("recipe", ["sft", "answer_only"])
def test_gold_recipes_need_no_teacher(folders: dict[str, Path], recipe: Any) -> None:
    samples = texts_to_learn(DistilConfig(TaskConfig(), Recipe(recipe, samples=20), 1), {"student": folders["student"]})
    grades = [tiny.TASK.grade(s["text"], {"prompt": s["prompt"], "gold": s["text"][-1]}) for s in samples]
    assert all(s["correct"] == 1 and s["kept"] for s in samples)
    assert {g.explicit for g in grades} == ({4.0} if recipe == "sft" else {0.0})


def test_no_sample_left_is_said(folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "texts_to_learn", lambda *_: [{"kept": False, "prompt": "p", "text": "t"}])
    with pytest.raises(UserError, match="none of 1 samples"):
        distil(DistilConfig(TaskConfig(), Recipe(), 1), folders, tmp_path / "out", tmp_path / "work")


def test_the_loss_is_the_mean_over_completion_tokens_and_the_end_token(tmp_path: Path) -> None:
    """One step of plain gradient descent equals a float32 step by hand."""
    model, tokenizer = tiny.teacher()
    reference, _ = tiny.teacher()
    rows = tiny.TASK.rows("train", 4, 0)
    pairs = [(row["prompt"], tiny.TASK.gold_text(row)) for row in rows]
    settings = Supervised(steps=1, batch_size=4, learning_rate=1e-3, decay=False)
    trained, log = train_on_pairs(model, tokenizer, pairs, settings, seed=1, work=tmp_path)
    heads = [tokenizer(p)["input_ids"] for p, _ in pairs]
    tails = [[*tokenizer(c)["input_ids"], tokenizer.eos_token_id] for _, c in pairs]
    logps = completion_logps(reference, heads, tails)
    expected = -sum(float(row.sum()) for row in logps) / sum(map(len, tails))
    assert log[-1]["train_loss"] == pytest.approx(expected, abs=1e-4)
    assert not torch.equal(trained.lm_head.weight, reference.lm_head.weight)


def test_a_cut_off_training_continues_to_the_same_weights(tmp_path: Path) -> None:
    pairs = [(row["prompt"], tiny.TASK.gold_text(row)) for row in tiny.TASK.rows("train", 40, 0)]
    settings = Supervised(steps=6, batch_size=4, save_every=3)

    def run(work: Path) -> torch.Tensor:
        model, tokenizer = tiny.teacher()
        model, _ = train_on_pairs(model, tokenizer, pairs, settings, seed=1, work=work)
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    whole = run(tmp_path / "a")
    assert sorted(p.name for p in (tmp_path / "a").glob("checkpoint-*")) == ["checkpoint-6"]
    # cut off after step 3: the state of a run whose later checkpoint was not finished
    first = Supervised(steps=6, batch_size=4, save_every=3)
    model, tokenizer = tiny.teacher()
    monkey = tiny.StopAfter(3)
    with pytest.raises(KeyboardInterrupt):
        train_on_pairs(model, tokenizer, pairs, first, seed=1, work=tmp_path / "b", callbacks=[monkey])
    (tmp_path / "b" / "checkpoint-5").mkdir()  # begun, not finished: to be ignored
    assert torch.equal(run(tmp_path / "b"), whole)
    shutil.rmtree(tmp_path / "b")
    assert torch.equal(run(tmp_path / "b"), whole)


def test_a_merged_adapter_is_the_adapted_model(tmp_path: Path) -> None:
    base, tokenizer = tiny.teacher()
    model = get_peft_model(base, LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM"))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.2)
    ids = torch.arange(3, 20)[None]
    before = model(input_ids=ids).logits
    save_model(model, tokenizer, tmp_path / "merged")
    merged = load_model(tmp_path / "merged")
    assert torch.allclose(merged(input_ids=ids).logits, before, atol=1e-5)
    assert not torch.allclose(tiny.teacher()[0](input_ids=ids).logits, before, atol=1e-3)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"samples": 0}, "samples: must be at least 1"),
        ({"temperature": -1.0}, "temperature: must be 0"),
        ({"learning_rate": 0.0}, "learning_rate: must be above 0"),
        ({"recipe": "sft", "keep_right": True}, "sft takes no samples of a teacher"),
        ({"recipe": "sft", "candidates": 2}, "sft takes no samples of a teacher"),
        ({"candidates": 2}, "select: likeliest and length choose"),
        ({"select": "likeliest"}, "select: likeliest and length choose"),
        ({"recipe": "answer_only", "teachers": "calibrated"}, "takes nothing from a teacher"),
        ({"recipe": "gkd", "temperature": 0.5}, "gkd takes no samples of a teacher"),
        ({"recipe": "gkd", "keep_right": True}, "gkd takes no samples of a teacher"),
        ({"recipe": "gkd", "jsd_beta": 1.1}, "jsd_beta: must be from 0"),
        ({"adam_beta2": 1.0}, "adam_beta2: must be from 0 to below 1"),
        ({"recipe": "seqkd", "jsd_beta": 0.5}, "jsd_beta: seqkd compares no distributions"),
    ],
)
def test_impossible_recipes_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Recipe(**changes)


def test_labels_tell_recipes_apart() -> None:
    recipes = [Recipe(), Recipe(keep_right=True), Recipe("gkd"), Recipe("gkd", jsd_beta=0.5), Recipe("gkd", lora=Lora())]
    assert [r.label for r in recipes] == ["seqkd-t1", "seqkd-t1-right", "gkd", "gkd-b0.5", "gkd-lora"]


def test_one_of_several_samples_is_chosen_as_the_recipe_says(tmp_path: Path) -> None:
    from distillknob.eval.proxy_check import SampledBy

    model, tokenizer = tiny.teacher()
    other, _ = tiny.teacher(seed=3)
    save_model(model, tokenizer, tmp_path / "teacher")
    save_model(other, tokenizer, tmp_path / "reference")
    inputs = {role: tmp_path / role for role in ("teacher", "reference")}

    def texts(**changes: Any) -> list[dict[str, Any]]:
        return texts_to_learn(DistilConfig(TaskConfig(), Recipe(samples=6, **changes), 7), inputs)

    every = generate(
        model,
        tokenizer,
        [row["prompt"] for row in texts() for _ in range(4)],
        temperature=1.0,
        max_new_tokens=TaskConfig().longest,
        seed=derive_seed(7, "samples"),
    )
    logps = SampledBy(model, tokenizer).sampled_logps([r["prompt"] for r in texts() for _ in range(4)], [one.ids for one in every])
    for i, row in enumerate(texts(candidates=4, select="likeliest")):
        group = range(4 * i, 4 * i + 4)
        finished = [j for j in group if every[j].finished] or list(group)
        assert row["text"] == every[max(finished, key=lambda j: sum(logps[j]))].text


def test_of_several_samples_the_right_one_nearest_in_length_is_taken(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def shown(prompt: str, states: int, right: bool = True) -> str:
        steps = zip("abcd", tiny.parse(prompt).steps, tiny.parse(prompt).states, range(4), strict=True)
        text = "".join(f"{label}{op}{n}={state if i < states else ''}" for label, (op, n), state, i in steps)
        return f"{text}#{(tiny.parse(prompt).states[-1] + (not right)) % 5}"

    def fake(model: Any, tokenizer: Any, prompts: list[str], **_: Any) -> list[Generated]:
        if len(prompts) == 2:  # the reference shows two states
            return [Generated(shown(prompt, 2), True, 9) for prompt in prompts]
        group = [(4, True), (2, False), (3, True), (0, True)]  # as long as the reference's: a wrong one; then one of three states
        written = [Generated(shown(prompt, *group[i % 4]), True, 9) for i, prompt in enumerate(prompts)]
        return [*written[:4], *(Generated(shown(prompt, 2), False, 9) for prompt in prompts[4:])]  # all cut off for the second

    monkeypatch.setattr("distillknob.eval.generation.generate", fake)
    recipe = Recipe(samples=2, candidates=4, select="length")
    first, second = texts_to_learn(DistilConfig(TaskConfig(), recipe, 1), {**folders, "reference": folders["teacher"]})
    assert (first["text"], first["kept"]) == (shown(first["prompt"], 3), True)
    assert second["kept"] is False
