"""Which bytes of a text each token stands for, and the finest groups in which two tokenizations of one text meet (method §2, §3).

A token's bytes are read from the vocabulary, so that a character split over several tokens is split at the right byte:

* byte-level BPE (a `ByteLevel` decoder): every character of a token's name is one byte;
* SentencePiece-like (`Metaspace`, or `Replace` with `ByteFallback`): the mark stands for a space, `<0xAB>` for one byte. The space
  that such a tokenizer puts in front of a text, and takes off again when it decodes, belongs to no byte;
* tokens that are simply joined (`Fuse`): their own UTF-8 bytes;
* any other decoder: the offsets that the tokenizer gives, at whole characters.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Span = tuple[int, int]
Group = tuple[list[int], list[int]]
Kind = Literal["byte-level", "sentencepiece", "joined", "offsets"]


def _byte_of_character() -> dict[str, int]:
    """The alphabet of byte-level BPE: printable bytes stand for themselves, the others for the characters from 256 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


BYTE_OF = _byte_of_character()
FALLBACK = {f"<0x{byte:02X}>": bytes([byte]) for byte in range(256)}


class TokenBytes:
    """The bytes of a tokenizer's tokens. `special`: ids of control tokens, which stand for no byte of a text."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        self.special: dict[int, str] = {int(i): str(t) for i, t in tokenizer.added_tokens_decoder.items() if t.special}
        self.special |= {int(i): str(t) for i, t in zip(tokenizer.all_special_ids, tokenizer.all_special_tokens, strict=True)}
        self.kind: Kind = "offsets"
        self.mark = ""
        self.strips_space = False
        self._known: dict[str, bytes] = {}
        if tokenizer.is_fast:
            self._read(_steps(tokenizer.backend_tokenizer.decoder))

    def _read(self, steps: list[dict[str, Any]]) -> None:
        names = [step["type"] for step in steps]
        marks = [step["pattern"].get("String", "") for step in steps if step["type"] == "Replace" and step["content"] == " "]
        if names == ["ByteLevel"]:
            self.kind = "byte-level"
        elif names == ["Metaspace"]:
            self.kind, self.mark = "sentencepiece", steps[0]["replacement"]
            self.strips_space = steps[0].get("prepend_scheme", "always") != "never"
        elif len(marks) == 1 and set(names) <= {"Replace", "ByteFallback", "Fuse", "Strip"} and names.count("Replace") == 1:
            strips = [step for step in steps if step["type"] == "Strip"]
            if all((step["content"], step["start"], step["stop"]) == (" ", 1, 0) for step in strips):
                self.kind, self.mark, self.strips_space = "sentencepiece", marks[0], bool(strips)
        elif names == ["Fuse"]:
            self.kind = "joined"

    def of(self, ids: Sequence[int]) -> list[bytes] | None:
        """The bytes of each token, b"" for special ones; None where only offsets tell (see the module's text)."""
        if self.kind == "offsets":
            return None
        names = self.tokenizer.convert_ids_to_tokens(list(ids))
        return [b"" if i in self.special else self._bytes(str(name)) for i, name in zip(ids, names, strict=True)]

    def _bytes(self, name: str) -> bytes:
        found = self._known.get(name)
        if found is None:
            found = self._known[name] = self._make(name)
        return found

    def _make(self, name: str) -> bytes:
        if self.kind == "byte-level":
            inner = [BYTE_OF.get(character) for character in name]
            return name.encode() if None in inner else bytes(byte for byte in inner if byte is not None)
        if self.kind == "sentencepiece":
            return FALLBACK.get(name) or name.replace(self.mark, " ").encode()
        return name.encode()

    def spans(self, text: str, ids: Sequence[int], offsets: Sequence[Span] | None = None) -> list[Span] | None:
        """The byte range of each token in the UTF-8 text; together they cover it. None where the ids are not this text's.

        Args:
            offsets: of the tokenizer, in characters; read only where nothing else tells.
        """
        whole = text.encode()
        pieces = self.of(ids)
        if pieces is None:
            return _from_offsets(text, offsets or ())
        joined = b"".join(pieces)
        dummy = int(self.strips_space and joined[:1] == b" ")  # the decoder takes one space off
        if joined[dummy:] != whole:
            return None
        spans, done = [], 0
        for piece in pieces:
            size = len(piece)
            if dummy and size:
                size, dummy = size - 1, 0
            spans.append((done, done + size))
            done += size
        return spans


def _steps(decoder: Any) -> list[dict[str, Any]]:
    """A fast tokenizer's decoder as a list of its steps' settings."""
    if decoder is None:
        return [{"type": "none"}]
    state = json.loads(decoder.__getstate__())
    return list(state["decoders"]) if state["type"] == "Sequence" else [state]


def _from_offsets(text: str, offsets: Sequence[Span]) -> list[Span] | None:
    """A token with a part of a character gets those of its bytes that no token before it has."""
    starts = [0]
    for character in text:
        starts.append(starts[-1] + len(character.encode()))
    spans, done = [], 0
    for _, end in offsets:
        stop = max(done, starts[end])
        spans.append((done, stop))
        done = stop
    return spans if done == starts[-1] else None


def common_groups(ours: Sequence[Span | None], theirs: Sequence[Span | None]) -> list[Group]:
    """The finest groups of tokens that stand for the same bytes on both sides, in O(tokens).

    Args:
        ours, theirs: byte ranges of two tokenizations of the same bytes, in order; None for a special token.

    Returns:
        Pairs of token indices. Special tokens, and one without bytes at the end of the text (an end token), are in no group; one
        without bytes elsewhere (a space that the tokenizer put in front) is in the group of the bytes that follow.

    Raises:
        ValueError: the two sides don't cover the same number of bytes.
    """
    ends = [[span[1] for span in side if span is not None] for side in (ours, theirs)]
    totals = [max(side, default=0) for side in ends]
    if totals[0] != totals[1]:
        raise ValueError(f"two tokenizations of one text cover {totals[0]} and {totals[1]} bytes")
    shared = set(ends[1]) - {0}
    cuts = [end for end in dict.fromkeys(ends[0]) if end in shared]  # in order, as the spans are
    groups: list[Group] = [([], []) for _ in cuts]
    for side, spans in enumerate((ours, theirs)):
        place = 0
        for token, span in enumerate(spans):
            if span is None or (span[0] == span[1] and span[1] == totals[0]):
                continue
            while cuts[place] <= span[0]:
                place += 1
            groups[place][side].append(token)
    return groups
