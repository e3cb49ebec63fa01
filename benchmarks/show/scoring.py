"""`make show-scoring`: the cases, real tokenizers on random strings, and how fast scoring and a calibration step are."""

from __future__ import annotations

import math
import os
import random
import subprocess
import sys
from collections import Counter
from itertools import permutations
from pathlib import Path
from typing import Any

from benchmarks.show.results import ROOT, Figure, run_parts
from benchmarks.show.texts import random_text
from distillknob.rewards.models import load_tokenizer
from distillknob.rewards.scoring import encode_exactly
from distillknob.rewards.spans import TokenBytes, common_groups

MODELS = Path(os.environ.get("MODELS", "models")).resolve()
REAL = {"smollm2": "smollm2-135m-instruct", "deepseek": "deepseek", "qwen3": "qwen3", "gemma3": "gemma3"}
LOSSY = "minilm"
STRINGS = 10_000


def fetched() -> Path:
    """The folder with the real models and tokenizers, made where they are not there yet."""
    command = [
        str(Path(sys.executable).parent / "distillknob"),
        "fetch-demo-models",
        *REAL.values(),
        LOSSY,
        "--output",
        str(MODELS),
    ]
    subprocess.run(command, cwd=ROOT, check=True)
    return MODELS


def tokenizers() -> dict[str, Figure]:
    """Every ordered pair of the real tokenizers on the same random strings, and a lossy one for what it masks."""
    folder = fetched()
    known = {name: TokenBytes(load_tokenizer(folder / path)) for name, path in (REAL | {LOSSY: LOSSY}).items()}
    rng = random.Random(0)
    texts = [random_text(rng) for _ in range(STRINGS)]
    encoded = {name: [encode_exactly(token_bytes, text) for text in texts] for name, token_bytes in known.items()}
    figures = {"strings": Figure(float(len(texts)))}
    for name, found in encoded.items():
        for reason, count in sorted(Counter(masked or "not masked" for _, _, masked in found).items()):
            figures[f"{name}: {reason}, share"] = Figure(count / len(texts))
        wrong = sum(
            masked is None and not exact(known[name], text, ids) for text, (ids, _, masked) in zip(texts, found, strict=True)
        )
        figures[f"{name}: not masked, but decodes to another text"] = Figure(float(wrong), asked="0", holds=wrong == 0)
    for one, other in permutations(REAL, 2):
        faults, both, groups = Counter[str](), 0, 0
        for text, (ids, spans, masked), (others, other_spans, other_masked) in zip(
            texts, encoded[one], encoded[other], strict=True
        ):
            if masked is None and other_masked is None:
                both += 1
                groups += len(pair_faults(text, (ids, spans), (others, other_spans), faults))
        figures[f"{one} and {other}: strings that both score"] = Figure(float(both))
        figures[f"{one} and {other}: groups a string"] = Figure(groups / both)
        for kind in ("bytes differ", "groups don't cover", "sums differ"):
            figures[f"{one} and {other}: {kind}"] = Figure(float(faults[kind]), asked="0", holds=faults[kind] == 0)
    return figures


def exact(token_bytes: TokenBytes, text: str, ids: list[int]) -> bool:
    """Whether the ids are the text's, by the tokenizer's own decoder."""
    decoded = token_bytes.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return bool(decoded == text)


def pair_faults(text: str, ours: Any, theirs: Any, faults: Counter[str]) -> list[Any]:
    """The common groups of a text on two sides; counts what should never be."""
    groups = common_groups(ours[1], theirs[1])
    total = len(text.encode())
    if not ours[1][-1][1] == theirs[1][-1][1] == total:
        faults["bytes differ"] += 1
    for side, (ids, spans) in enumerate((ours, theirs)):
        members = [token for group in groups for token in group[side]]
        edges = [(spans[group[side][0]][0], spans[group[side][-1]][1]) for group in groups]
        whole = [0, *(end for _, end in edges)] == [*(start for start, _ in edges), total]
        if members != list(range(len(ids))) or not whole:
            faults["groups don't cover"] += 1
        logps = [-1.0 / (1 + i) for i in ids]  # any number that hangs on the id
        if not math.isclose(sum(sum(logps[t] for t in group[side]) for group in groups), sum(logps), abs_tol=1e-9):
            faults["sums differ"] += 1
    return groups


PARTS = {"tokenizers": tokenizers}

if __name__ == "__main__":
    sys.exit(run_parts("scoring", PARTS, sys.argv[1] if len(sys.argv) > 1 else None))
