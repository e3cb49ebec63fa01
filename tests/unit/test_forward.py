"""Body and head apart, shared prompts, any split into passes: the numbers of one unpadded float64 row (method §2)."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import set_seed

from distillknob.rewards.forward import CompletionLogps, completion_logps

SIZES: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
WINDOW = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}
# What each adds to a plain stack: learned positions, soft caps, windows shorter than the prompt, parallel blocks, scaled logits.
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "Llama": {},
    "GPT2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128},
    "Qwen3": {"tie_word_embeddings": True},
    "Gemma2": {"final_logit_softcapping": 3.0, "attn_logit_softcapping": 5.0, "query_pre_attn_scalar": 8, **WINDOW},
    "Gemma3": WINDOW,
    "Mistral": {"sliding_window": 8},
    "GPTNeoX": {"num_key_value_heads": 4},
    "Phi": {"num_key_value_heads": 4},
    "Cohere": {"logit_scale": 0.25},
    "Granite": {"logits_scaling": 4.0},
}


def tiny_model(name: str) -> Any:
    set_seed(3)
    config = getattr(transformers, f"{name}{'TextConfig' if name == 'Gemma3' else 'Config'}")(**(SIZES | ARCHITECTURES[name]))
    return getattr(transformers, f"{name}{'LMHeadModel' if name == 'GPT2' else 'ForCausalLM'}")(config).eval()


def independent(model: Any, prompt: list[int], completion: list[int]) -> torch.Tensor:
    """One unpadded row in float64."""
    ids = torch.tensor([[*prompt, *completion]])
    with torch.no_grad():
        logps_T_V = copy.deepcopy(model).double()(input_ids=ids, use_cache=False).logits[0].double().log_softmax(-1)
    return logps_T_V[len(prompt) - 1 : -1].gather(-1, ids[0, len(prompt) :, None]).squeeze(-1)


def rows_of(seed: int) -> tuple[list[list[int]], list[list[int]]]:
    """Two prompts that are shared, one longer than the windows, one that is not, and a row without a completion."""
    random = torch.Generator().manual_seed(seed)

    def draw(length: int) -> list[int]:
        return torch.randint(3, 61, (length,), generator=random).tolist()

    long, short, alone = draw(21), draw(9), draw(5)
    prompts = [long, alone, short, long, short, long, long, alone]
    return prompts, [draw(length) for length in (4, 7, 1, 17, 12, 1, 9, 0)]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_architecture_gets_the_numbers_of_a_float64_row(name: str) -> None:
    model = tiny_model(name)
    prompts, completions = rows_of(1)
    wanted = [independent(model, p, c) for p, c in zip(prompts, completions, strict=True)]
    for batch_size in (1, 3, 8):
        logps = CompletionLogps(model, batch_size)
        assert (logps.apart, logps.shares) == (True, True)
        for values, exact in zip(logps(prompts, completions), wanted, strict=True):
            torch.testing.assert_close(values, exact, atol=1e-5, rtol=0)
    assert "forward" not in vars(model.base_model)


def test_the_head_in_pieces_is_the_head(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("Gemma2")
    whole = CompletionLogps(model, 8)(*rows_of(2))
    seen: list[int] = []
    model.lm_head.register_forward_hook(lambda _, given, __: seen.append(given[0].shape[1]))
    monkeypatch.setattr("distillknob.rewards.forward.HEAD_LOGITS", 61 * 3)
    pieces = CompletionLogps(model, 8)
    seen.clear()
    for one, other in zip(whole, pieces(*rows_of(2)), strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=0)
    assert max(seen) == 3 and sum(seen) == sum(len(c) for c in rows_of(2)[1])


def test_a_shared_prompt_is_encoded_once() -> None:
    model = tiny_model("Llama")
    logps = CompletionLogps(model, 8)
    tokens: list[int] = []
    model.model.embed_tokens.register_forward_hook(lambda _, given, __: tokens.append(given[0].numel()))
    logps([[5] * 20] * 4, [[7, 8, 9]] * 4)
    assert tokens == [20, 4 * 2]  # the last id of a completion predicts nothing that is scored


class Wrapped(torch.nn.Module):
    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.module = model

    def forward(self, **given: Any) -> Any:
        return self.module(**given)


def test_a_wrapped_model_and_one_that_cannot_be_taken_apart_are_run_whole() -> None:
    model = tiny_model("Mistral")
    wanted = [independent(model, p, c) for p, c in zip(*rows_of(4), strict=True)]
    odd = tiny_model("Mistral")
    forward = odd.forward
    odd.forward = lambda *a, **k: _shifted(forward(*a, **k), k["input_ids"])
    for given_model, shift in ((Wrapped(model), 0.0), (odd, 1.0)):
        logps = CompletionLogps(given_model, 3)
        assert not logps.apart and not logps.shares
        for values, exact in zip(logps(*rows_of(4)), wanted, strict=True):
            if not shift:
                torch.testing.assert_close(values, exact, atol=1e-5, rtol=0)


def _shifted(output: Any, ids: torch.Tensor) -> Any:
    """A head that looks at the ids too: it can't be run from hidden states alone."""
    output.logits = output.logits + torch.nn.functional.one_hot(ids, output.logits.shape[-1])
    return output


def test_dropout_of_a_model_in_training_is_not_taken_for_a_broken_head() -> None:
    model = tiny_model("GPT2").train()
    assert not CompletionLogps(model, 2).apart  # two passes differ: nothing can be compared, so nothing is taken apart


@settings(max_examples=30, deadline=None)
@given(
    lengths=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 12)), min_size=1, max_size=9),
    batch_size=st.integers(1, 9),
    name=st.sampled_from(["Llama", "GPT2", "Gemma3"]),
)
def test_any_rows_in_any_split_get_the_numbers_of_one_padded_pass(
    lengths: list[tuple[int, int]], batch_size: int, name: str
) -> None:
    model = tiny_model(name)
    prompts = [[(7 * kind + i) % 58 + 3 for i in range(1 + 6 * kind)] for kind, _ in lengths]
    completions = [[(11 * row + 5 * i) % 58 + 3 for i in range(length)] for row, (_, length) in enumerate(lengths)]
    found = CompletionLogps(model, batch_size)(prompts, completions)
    for values, exact in zip(found, completion_logps(model, prompts, completions), strict=True):
        torch.testing.assert_close(values, exact, atol=1e-5, rtol=0)
