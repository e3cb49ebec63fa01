"""Strict reading and atomic writing of JSON lines: the only thing that passes between two stages is a file, so a file is whole
or absent."""

import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from distillknob.rewards.errors import UserError


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text} is larger than any number of 64 bits")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"key {next(key for key in keys if keys.count(key) > 1)!r} is given twice")
    return found


def parse_json(text: str) -> Any:
    """A JSON document; ValueError or RecursionError for broken JSON, NaN, numbers that are infinite, and keys given twice."""
    return json.loads(text, parse_constant=_refuse_constant, parse_float=_finite, object_pairs_hook=_unique)


def read_numbered_jsonl(path: Path) -> list[tuple[int, dict[str, Any]]]:
    """The objects of a JSONL file, each with its 1-based line number; blank lines are skipped but counted.

    Accepts a byte order mark, CRLF and a last line without a newline. Lines end at \\n only, so that U+2028 inside a string is
    text. Raises UserError, naming file and line, for a missing file, bytes that are not UTF-8, broken JSON, NaN or infinity, a
    key given twice, or a line that is not an object (ours; case B45)."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error}); a JSONL file is expected here") from error
    rows: list[tuple[int, dict[str, Any]]] = []
    for number, line in enumerate(raw.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            row = parse_json(line.decode("utf-8"))
        except (ValueError, RecursionError) as error:
            raise UserError(
                f"{path}, line {number}: not valid JSON in UTF-8 ({error}); one JSON object a line is expected"
            ) from error
        if not isinstance(row, dict):
            raise UserError(
                f'{path}, line {number}: a JSON {type(row).__name__}, but every line must be an object like {{"key": …}}'
            )
        rows.append((number, row))
    return rows


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSONL file in order; errors as read_numbered_jsonl (ours)."""
    return [row for _, row in read_numbered_jsonl(path)]


def read_json(path: Path) -> Any:
    """One JSON document; UserError, naming the file, for a missing file, bytes that are not UTF-8, broken JSON, NaN or infinity,
    a key given twice (ours)."""
    try:
        return parse_json(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: cannot be read as JSON in UTF-8 ({error})") from error


def _encode(value: object, indent: int | None) -> bytes:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, indent=indent)
    # A lone surrogate in model text has no UTF-8 form; backslashreplace writes it as \udXXX, which is its JSON escape.
    return text.encode("utf-8", errors="backslashreplace")


def _replace(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Writes one object a line (UTF-8, \\n) through a temporary file in the same folder and an atomic rename; missing folders
    are made.

    Raises ValueError for NaN or infinity; an older file then stays as it was (ours)."""
    _replace(path, b"".join(_encode(dict(row), None) + b"\n" for row in rows))


def write_json(path: Path, value: object) -> None:
    """Writes one JSON document (indent 1, keys in the order given) as write_jsonl does; the same errors (ours)."""
    _replace(path, _encode(value, 1) + b"\n")
