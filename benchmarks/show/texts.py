"""Random strings of mixed scripts, code, digits and emoji, from a seed: what tokenizers are tried on."""

from __future__ import annotations

import random

SCRIPTS = {
    "latin": (0x61, 0x7A),
    "latin with marks": (0xC0, 0x17F),
    "combining marks": (0x300, 0x36F),
    "greek": (0x391, 0x3C9),
    "cyrillic": (0x410, 0x44F),
    "hebrew": (0x5D0, 0x5EA),
    "arabic": (0x621, 0x64A),
    "devanagari": (0x904, 0x94D),
    "thai": (0xE01, 0xE3A),
    "hangul": (0xAC00, 0xD7A3),
    "jamo": (0x1100, 0x1112),
    "kana": (0x3041, 0x30F6),
    "han": (0x4E00, 0x9FA5),
    "han, rare": (0x20000, 0x2A6DF),
    "emoji": (0x1F300, 0x1F6FF),
    "signs": (0x2000, 0x214F),
    "ascii": (0x20, 0x7E),
    "any": (0x1, 0x10FFFF),
}
CODE = (
    "def f(x):\n\treturn x",
    "    if a != b:\n",
    "x += 1;",
    "</div>",
    '{"k": [1, 2]}',
    "\\frac{1}{2}",
    "a->b",
    "//",
    "\r\n",
    "\u200d",
    "\ufe0f",
)
SPACES = (" ", "  ", "   ", "\n", "\n\n", "\t", "\u3000", "\u00a0", "▁", "Ġ")


def random_text(rng: random.Random) -> str:
    """One to twelve pieces, each a run of one script, digits, code or white space; never half a surrogate."""
    return "".join(_piece(rng) for _ in range(rng.randint(1, 12)))


def _piece(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.15:
        return str(rng.randrange(10 ** rng.randint(1, 12)))
    if kind < 0.25:
        return rng.choice(CODE)
    if kind < 0.45:
        return rng.choice(SPACES)
    low, high = SCRIPTS[rng.choice(list(SCRIPTS))]
    codes = (rng.randint(low, high) for _ in range(rng.randint(1, 8)))
    return "".join(chr(code) for code in codes if not 0xD800 <= code < 0xE000)
