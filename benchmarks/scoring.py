"""How fast texts are scored: `python -m benchmarks.scoring MODEL`, one run, everything interleaved.

Three ways with the same rows, dtype and threads: ours; the plain one, a padded forward pass with a full log-softmax in float32; and
the floor, which is nothing but the products of the model's own linear layers and head at the shapes that the plain way has them.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.timing import interleaved, peak_memory, ratio
from distillknob.eval.statistics import Interval
from distillknob.rewards.forward import CompletionLogps, padded

Rows = tuple[list[list[int]], list[list[int]]]


def rows_of(model: Any, prompts: int, each: int, prompt: int, completion: int, seed: int) -> Rows:
    """`each` random completions of so many ids after each of so many random prompts."""
    random = torch.Generator().manual_seed(seed)
    top = int(model.config.vocab_size)
    heads = torch.randint(top, (prompts, prompt), generator=random).repeat_interleave(each, 0)
    return heads.tolist(), torch.randint(top, (prompts * each, completion), generator=random).tolist()


def plain(model: Any, rows: Rows, batch_size: int) -> list[torch.Tensor]:
    """Padded passes, each with a full log-softmax."""
    found = []
    for start in range(0, len(rows[0]), batch_size):
        heads, tails = (side[start : start + batch_size] for side in rows)
        given = padded([[*h, *t] for h, t in zip(heads, tails, strict=True)], torch.device("cpu"))
        with torch.no_grad():
            logps_B_T_V = model(**given, use_cache=False).logits.float().log_softmax(-1)
        for logps_T_V, head, tail in zip(logps_B_T_V, heads, tails, strict=True):
            found.append(logps_T_V[len(head) - 1 : -1].gather(-1, torch.tensor(tail)[:, None]).squeeze(-1).double())
    return found


def floor(model: Any, run: Callable[[], object]) -> Callable[[], None]:
    """The linear products that `run` makes with the model, alone, with the same shapes."""
    shapes: list[tuple[torch.nn.Linear, torch.Size]] = []
    linears = [module for module in model.modules() if isinstance(module, torch.nn.Linear)]
    hooks = [m.register_forward_hook(lambda module, given, _: shapes.append((module, given[0].shape))) for m in linears]
    run()
    for hook in hooks:
        hook.remove()
    inputs = {shape: torch.randn(shape, dtype=model.dtype) for _, shape in shapes}

    def products() -> None:
        with torch.no_grad():
            for module, shape in shapes:
                module(inputs[shape])

    return products


def compare(model: Any, rows: Rows, batch_size: int, rounds: int) -> dict[str, Interval]:
    """Tokens a second of the three ways, and their ratios, over interleaved rounds."""
    ours = CompletionLogps(model, batch_size)
    ways = {"ours": lambda: ours(*rows), "plain": lambda: plain(model, rows, batch_size)}
    ways["floor"] = floor(model, ways["plain"])  # type: ignore[assignment]
    seconds = interleaved(ways, rounds)
    tokens = [float(sum(len(tail) for tail in rows[1]))] * rounds
    return {
        **{f"{way}: tokens/s": ratio(tokens, times) for way, times in seconds.items()},
        "ours over plain, speed": ratio(seconds["plain"], seconds["ours"]),
        "ours over the floor, speed": ratio(seconds["floor"], seconds["ours"]),
    }


def head_memory(model: Any, rows: Rows, batch_size: int) -> dict[str, Interval]:
    """Peak bytes of tensors above those of the body alone, ours and plain, and their ratio."""
    ours = CompletionLogps(model, batch_size)
    given = padded([[*h, *t] for h, t in zip(*rows, strict=True)][:batch_size], torch.device("cpu"))
    hidden_B_T_H = torch.randn(*given["input_ids"].shape, model.config.hidden_size, dtype=model.dtype)
    hidden_N_H, targets_N = hidden_B_T_H.flatten(0, 1), given["input_ids"].flatten()
    with torch.no_grad():
        mine = peak_memory(lambda: ours._head_logps(hidden_N_H, targets_N))
        theirs = peak_memory(lambda: model.get_output_embeddings()(hidden_B_T_H).float().log_softmax(-1))
    one = [float(mine)], [float(theirs)]
    return {
        "head, ours: peak MB": Interval(mine / 1e6, None, None, 1),
        "head, plain: peak MB": Interval(theirs / 1e6, None, None, 1),
        "head memory, ours over plain": ratio(*one),
    }


def main() -> dict[str, Interval]:
    """Runs the comparisons and prints them."""
    from distillknob.rewards.models import load_model

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--vocabulary", type=int, default=151_936, help="rows of the head in the comparison of memory")
    chosen = parser.parse_args()
    model = load_model(chosen.model, dtype="float32").eval()
    figures = {
        f"256-token texts, {key}": value
        for key, value in compare(model, rows_of(model, 16, 1, 1, 255, 0), chosen.batch_size, chosen.rounds).items()
    }
    figures |= {
        f"prompt 256, completion 64, groups of 8: {key}": value
        for key, value in compare(model, rows_of(model, 2, 8, 256, 64, 1), 8, chosen.rounds).items()
    }
    model.resize_token_embeddings(chosen.vocabulary, mean_resizing=False)
    figures |= head_memory(model, rows_of(model, 4, 1, 1, 255, 2), 4)
    for key, value in figures.items():
        limits = "" if value.low is None else f" [{value.low:.4g}, {value.high:.4g}]"
        print(f"{key}: {value.value:.4g}{limits}")
    return figures


if __name__ == "__main__":
    main()
