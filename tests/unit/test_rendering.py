"""Prompts and completions as one model reads them: strings, messages, base models, special tokens (method §2)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny

from distillknob.rewards.errors import UserError
from distillknob.rewards.models import load_tokenizer
from distillknob.rewards.rendering import (
    encode_completion,
    encode_completions,
    encode_prompt,
    encode_prompts,
    fold_system,
    render_prompt,
)

FILES = Path(tiny.__file__).parent / "cases" / "files"
USER = [{"role": "user", "content": "the answer"}]
SYSTEM = [{"role": "system", "content": "be brief"}, *USER]


@pytest.fixture
def bytelevel() -> Any:
    return load_tokenizer(FILES / "tok_bytelevel")


@pytest.fixture
def spm() -> Any:
    return load_tokenizer(FILES / "tok_spm")


def test_b18_bos_is_there_once_for_messages_and_for_strings(spm: Any) -> None:
    expected = tiny.CASES["B18"]["expected"]
    ids = encode_prompt(spm, tiny.CASES["B18"]["input"]["messages"])
    assert spm.convert_ids_to_tokens(ids)[:3] == expected["first_tokens"]
    assert ids.count(spm.bos_token_id) == expected["bos_count"]
    assert len(ids) == expected["n_tokens"]
    plain = encode_prompt(spm, "the answer")
    assert plain.count(spm.bos_token_id) == 1 and plain[0] == spm.bos_token_id and len(plain) > 1


def test_no_bos_where_the_tokenizer_adds_none(bytelevel: Any) -> None:
    assert bytelevel.decode(encode_prompt(bytelevel, "the answer")) == "the answer"
    assert not set(encode_prompt(bytelevel, "the answer")) & set(bytelevel.all_special_ids)


def test_b19_each_model_has_its_own_template_and_system_is_folded_where_refused(bytelevel: Any, spm: Any) -> None:
    case = tiny.CASES["B19"]
    messages = case["input"]["messages"]
    assert render_prompt(bytelevel, messages) == case["expected"]["teacher_prompt"]
    assert render_prompt(spm, messages) == case["expected"]["proxy_prompt"]
    assert spm.decode(encode_prompt(spm, messages)).count("be brief") == 1
    assert messages == SYSTEM  # the caller's messages are left as they were


def test_fold_system_keeps_all_later_turns_and_anything_else_unchanged() -> None:
    rest = [{"role": "assistant", "content": "42"}, {"role": "user", "content": "why?"}]
    assert fold_system([*SYSTEM, *rest]) == [{"role": "user", "content": "be brief\n\nthe answer"}, *rest]
    for unchanged in (USER, SYSTEM[:1], [SYSTEM[0], *rest], [*USER, SYSTEM[0]], []):
        assert fold_system(unchanged) == unchanged


def test_a_template_that_refuses_for_another_reason_is_named(spm: Any) -> None:
    with pytest.raises(UserError, match=r"chat template of .*tok_spm: TemplateError: no system turn in this format"):
        render_prompt(spm, [*USER, SYSTEM[0]])
    spm.chat_template = "{{ raise_exception('nothing suits me') }}"
    with pytest.raises(UserError, match="nothing suits me"):
        render_prompt(spm, SYSTEM)


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{{ messages[0].content + 1 }}", "TypeError"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{% for", "TemplateSyntaxError"),
        ("{{ missing.content }}", "UndefinedError"),
    ],
)
def test_whatever_a_template_raises_is_the_users_to_mend(bytelevel: Any, template: str, said: str) -> None:
    bytelevel.chat_template = template
    with pytest.raises(UserError, match=rf"chat template of .*tok_bytelevel: {said}"):
        encode_prompt(bytelevel, SYSTEM)


def test_b20_generation_header_of_a_reasoning_template(bytelevel: Any) -> None:
    case = tiny.CASES["B20"]
    bytelevel.chat_template = (FILES / "think_template.jinja").read_text()
    head = encode_prompt(bytelevel, case["input"]["messages"])
    ids = [*head, *encode_completion(bytelevel, case["input"]["completion"])]
    assert bytelevel.decode(ids, skip_special_tokens=False) == case["expected"]["scored_text"]


def test_a_base_model_reads_the_contents_one_a_line(bytelevel: Any) -> None:
    bytelevel.chat_template = None
    assert render_prompt(bytelevel, SYSTEM) == "be brief\nthe answer\n"
    ids = encode_prompt(bytelevel, SYSTEM)
    assert bytelevel.decode(ids) == "be brief\nthe answer\n"


def test_b25_prompt_and_completion_are_encoded_apart(bytelevel: Any) -> None:
    case = tiny.CASES["B25"]
    given, expected = case["input"], case["expected"]
    assert bytelevel.convert_ids_to_tokens(encode_prompt(bytelevel, given["prompt"])) == expected["prompt_tokens"]
    assert bytelevel.convert_ids_to_tokens(encode_completion(bytelevel, given["completion"])) == expected["completion_tokens"]


def test_an_end_token_that_the_tokenizer_appends_to_a_prompt_is_taken_off(bytelevel: Any, spm: Any) -> None:
    from tokenizers.processors import TemplateProcessing

    plain = encode_prompt(bytelevel, "the answer")
    bytelevel.backend_tokenizer.post_processor = TemplateProcessing(
        single="$A <|end|>", special_tokens=[("<|end|>", bytelevel.eos_token_id)]
    )
    assert bytelevel("the answer")["input_ids"] == [*plain, bytelevel.eos_token_id]
    assert encode_prompt(bytelevel, "the answer") == plain
    assert encode_completion(bytelevel, "the answer") == plain
    spm.backend_tokenizer.post_processor = TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", spm.bos_token_id), ("</s>", spm.eos_token_id)]
    )
    assert encode_prompt(spm, "the answer")[-1] != spm.eos_token_id
    assert not set(encode_completion(spm, "the answer")) & set(spm.all_special_ids)


def test_an_empty_prompt_is_bos_or_the_end_token_or_an_error(bytelevel: Any, spm: Any) -> None:
    assert encode_prompt(spm, "") == [spm.bos_token_id]
    assert encode_prompt(bytelevel, "") == [bytelevel.eos_token_id]
    spm.chat_template = "{% if false %}{% endif %}"
    assert encode_prompt(spm, USER) == [spm.bos_token_id]
    bytelevel.eos_token = None
    with pytest.raises(UserError, match="needs a BOS or an end token"):
        encode_prompt(bytelevel, "")


def test_completions_get_no_special_token(bytelevel: Any, spm: Any) -> None:
    for tokenizer in (bytelevel, spm):
        ids = encode_completion(tokenizer, "the answer is 42")
        assert ids and not set(ids) & set(tokenizer.all_special_ids)
        assert tokenizer.decode(ids) == "the answer is 42"
        assert encode_completion(tokenizer, "") == []


def test_many_at_once_are_what_each_is_alone(bytelevel: Any, spm: Any) -> None:
    texts = ["", "a", "a prompt", "ein Maß\n", "b" * 50]
    talk: list[Any] = [*texts, [{"role": "user", "content": "hello"}]]
    for tokenizer in (bytelevel, spm):
        for prompts in (texts, talk, []):
            assert encode_prompts(tokenizer, prompts) == [encode_prompt(tokenizer, prompt) for prompt in prompts]
        assert encode_completions(tokenizer, texts) == [encode_completion(tokenizer, text) for text in texts]
        assert encode_completions(tokenizer, []) == []
