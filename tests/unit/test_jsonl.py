"""The strict reader and the atomic writer of JSON lines."""

import json
from pathlib import Path
from typing import Any

import pytest

from distillknob.rewards.errors import UserError
from distillknob.rewards.jsonl import read_json, read_jsonl, read_numbered_jsonl, write_json, write_jsonl

CASES = Path(__file__).parents[1] / "cases"


def _case(name: str) -> dict[str, Any]:
    lines = (CASES / "cases.jsonl").read_text(encoding="utf-8").splitlines()
    case: dict[str, Any] = next(row for row in map(json.loads, lines) if row["id"] == name)
    return case


def test_B45_jsonl_reading(tmp_path: Path) -> None:
    """Case B45: byte order mark, CRLF, blank lines, no last newline; a bad line is named by file and line."""
    case = _case("B45")
    rows = read_jsonl(CASES / case["input"]["good"])
    assert [row["prompt"] for row in rows] == case["expected"]["good_prompts"]
    assert len(rows) == case["expected"]["good_rows"]
    assert next(iter(rows[0])) == case["expected"]["first_key"]
    bad = CASES / case["input"]["bad"]
    with pytest.raises(UserError) as caught:
        read_jsonl(bad)
    assert all(mention in str(caught.value) for mention in case["expected"]["bad_error_mentions"])
    lines = bad.read_bytes().split(b"\n")
    for number in case["expected"]["bad_lines_invalid"]:
        alone = tmp_path / f"line{number}.jsonl"
        alone.write_bytes(b"\n" * (number - 1) + lines[number - 1])
        with pytest.raises(UserError, match=f"line{number}.jsonl, line {number}:"):
            read_jsonl(alone)
    good = tmp_path / "good.jsonl"
    good.write_bytes(b"\n".join(lines[number - 1] for number in case["expected"]["bad_lines_valid"]))
    assert [row["id"] for row in read_jsonl(good)] == [1, 4]


@pytest.mark.parametrize(
    "line",
    [
        b'{"a": NaN}',
        b'{"a": -Infinity}',
        b'{"a": 1e999}',
        b'{"a": 1, "a": 1}',
        b'{"b": {"a": 1, "a": 2}}',
        b'"x"',
        b"null",
        b"{",
        b'{"a": "\xff"}',
        b"[" * 100_000,
        b'{"a": 1} {"b": 2}',
    ],
)
def test_bad_lines_are_named(tmp_path: Path, line: bytes) -> None:
    """Whatever is wrong with a line, the error names the file and the line, and is the user's, not a traceback."""
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"a": 1}\n\n' + line + b"\n")
    with pytest.raises(UserError, match=r"x\.jsonl, line 3:"):
        read_jsonl(path)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    """A missing file is named, and so is a folder in its place."""
    with pytest.raises(UserError, match=r"none\.jsonl: cannot be read"):
        read_jsonl(tmp_path / "none.jsonl")
    with pytest.raises(UserError, match="cannot be read"):
        read_jsonl(tmp_path)


def test_unicode_line_separators_are_text(tmp_path: Path) -> None:
    """U+2028 and a form feed inside a string do not end a line, and line numbers count blank lines."""
    path = tmp_path / "x.jsonl"
    path.write_text('\n{"a": "x\u2028y\u0085z"}\n', encoding="utf-8")
    assert read_numbered_jsonl(path) == [(2, {"a": "x\u2028y\u0085z"})]
    path.write_bytes(b"")
    assert read_jsonl(path) == []


def test_round_trip_of_hostile_text(tmp_path: Path) -> None:
    """Line ends, separators and a lone surrogate come back as they were, one object a line."""
    rows: list[dict[str, Any]] = [{"text": "a\r\nb\u2028c\x00</script>"}, {"text": "\ud83d half"}, {"größe": None, "n": 1.5}]
    path = tmp_path / "deep" / "x.jsonl"
    write_jsonl(path, rows)
    assert read_jsonl(path) == rows
    assert path.read_bytes().count(b"\n") == 3
    assert "größe" in path.read_text(encoding="utf-8")


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NaN is refused, and neither that nor a failed rename leaves half a file or a temporary one."""
    path = tmp_path / "x.jsonl"
    write_jsonl(path, [{"a": 1}])
    with pytest.raises(ValueError):
        write_jsonl(path, [{"a": 2}, {"a": float("nan")}])

    def fail(self: Path, target: Path) -> Path:
        raise OSError("no space")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="no space"):
        write_jsonl(path, [{"a": 3}])
    assert read_jsonl(path) == [{"a": 1}]
    assert [p.name for p in tmp_path.iterdir()] == ["x.jsonl"]


def test_json_documents(tmp_path: Path) -> None:
    """Keys stay in order, infinity is refused on both ways, and a broken document names its file."""
    path = tmp_path / "x.json"
    write_json(path, {"b": [1, None], "a": 1e-4})
    assert path.read_text(encoding="utf-8").splitlines()[1].startswith(' "b"')
    assert read_json(path) == {"b": [1, None], "a": 1e-4}
    with pytest.raises(ValueError):
        write_json(path, {"a": float("inf")})
    path.write_text("{", encoding="utf-8")
    with pytest.raises(UserError, match=r"x\.json"):
        read_json(path)
