"""The report page: it says the summary's figures, survives missing ones, and shows hostile text without obeying it."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import pytest

from distillknob.eval.distillability import summarise
from distillknob.eval.rules import VerdictRules
from distillknob.rewards.errors import UserError
from distillknob.rewards.jsonl import write_json
from distillknob.scripts.report.page import fold, interval, pct, points, visible, write_report
from tests.fake_run import GREEDY_SID, add_student, make_fake_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A measured fake run whose model texts are hostile, with its report."""
    folder = make_fake_run(tmp_path_factory.mktemp("runs") / "fake", hostile=True)
    add_student(folder, "orig", GREEDY_SID, 0.8, temperature=0.0, hostile=True)
    write_json(folder / "measures" / "summary.json", summarise(folder, VerdictRules(), {"teachers": 12.5}))
    write_report(folder)
    return folder


def summary_of(run: Path) -> dict[str, Any]:
    """What the run measured."""
    loaded: dict[str, Any] = json.loads((run / "measures" / "summary.json").read_text(encoding="utf-8"))
    return loaded


def page_of(run: Path) -> str:
    """The page as a text."""
    return (run / "report" / "index.html").read_text(encoding="utf-8")


def cells_of(page: str, table: str) -> dict[str, list[str]]:
    """Plain text of the cells of a table's body rows, by the identifier that each row shows."""
    body = page.split(f'<table id="{table}">')[1].split("<tbody>")[1].split("</tbody>")[0]
    rows = {}
    for row in re.findall(r"<tr>.*?</tr>", body, re.DOTALL):
        key = re.search(r'<span class="id">(.*?)</span>', row)
        assert key is not None
        plain = [html.unescape(re.sub(r"<[^>]*>", " ", c)) for c in re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row, re.DOTALL)]
        rows[key[1]] = [" ".join(text.split()) for text in plain]
    return rows


def plain(text: str) -> str:
    """With ordinary spaces only, as `cells_of` gives it."""
    return " ".join(text.split())


def test_the_report_is_whole_and_stands_alone(run: Path) -> None:
    assert sorted(p.name for p in (run / "report").iterdir()) == ["dial.png", "dial.svg", "index.html"]
    assert not list(run.glob(".report-*"))
    page = page_of(run)
    assert page.startswith("<!doctype html>") and '<html lang="en">' in page
    assert "default-src 'none'; style-src 'sha256-" in page
    assert not re.search(r"<script|<[a-z][^>]*\son\w+=|(src|srcset|href)=\"(?!data:|#)|<[^>]*\sstyle=", page)
    assert all(re.search(r'alt="[^"]{40,}"', image) for image in re.findall(r"<img[^>]*>", page))
    assert "distillknob run runs/fake/config.yaml" in page and "12.5" in page


def test_words_make_no_promise(run: Path) -> None:
    page = page_of(run).lower()
    assert "this teacher and these copiers only" in page
    assert not re.search(r"protected|guarant|undistillable", page)


def test_hostile_text_is_shown_not_obeyed(run: Path) -> None:
    page = page_of(run)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page and "<img src=x" not in page
    for code in (0x202E, 0x1B):
        assert chr(code) not in page and f"<span class=ctl>U+{code:04X}</span>" in page
    assert "U+D83D" in page and "{{7*7}}" in page


def test_visible_is_harmless_in_an_attribute_and_keeps_ordinary_text() -> None:
    assert '"' not in visible('a" onload="x\u2066\u200b')
    assert visible("2 < 3\n\tär 語 😀 ½") == "2 &lt; 3\n\tär 語 😀 ½"
    assert fold("x" * 401) == {"head": "x" * 400, "rest": "x", "more": 1}


def test_student_figures_are_the_summary_s(run: Path) -> None:
    summary, rows = summary_of(run), cells_of(page_of(run), "students")
    expected = {f"{tid} / {sid}": cell for tid, kinds in summary["students"].items() for sid, cell in kinds.items()}
    assert rows.keys() == expected.keys()
    for key, cell in expected.items():
        shown = rows[key]
        assert shown[2:4] == [plain(interval(cell["accuracy"])), plain(interval(cell["accuracy_t1"]))]
        assert shown[4].split() == [f"{100 * v:.1f}" for v in cell["per_seed"]]
        assert shown[5] == plain(interval(cell["retained"]))
        assert shown[6] == ("—" if cell["retained"] is None else plain(pct(cell["retained"]["corrected"])))
        assert shown[7].startswith(plain(pct(cell["di"]["value"])))
        for column, name in ((8, "collapse"), (9, "better")):
            said = cell[name]
            assert shown[column] == ("—" if said is None else f"{said['verdict']} p = {said['permutation_p']:.3f}")


def test_teacher_figures_and_verdict_sentences_are_the_summary_s(run: Path) -> None:
    summary, page = summary_of(run), page_of(run)
    rows, words = cells_of(page, "teachers"), plain(html.unescape(re.sub(r"<[^>]*>", " ", page)))
    for tid, teacher in summary["teachers"].items():
        assert rows[tid][1:3] == [plain(interval(teacher["accuracy"])), plain(interval(teacher["accuracy_t1"]))]
        assert rows[tid][5] == interval(teacher["traces"]["tokens"], 1)
        if teacher["utility"]:
            assert plain(points(teacher["utility"])) in words and teacher["utility"]["reason"] in words
    judged = summary["students"]["eta-0.5-c0"]["lab-seqkd-t1-chain"]
    for name in ("collapse", "better"):
        assert plain(points(judged[name])) in words and judged[name]["reason"] in words


def empty(value: Any) -> Any:
    """The same structure with every measured number and verdict gone; lists of seeds' figures are empty."""
    if isinstance(value, dict):
        kept = ("eta", "calibration_seed", "name", "recipe", "sampling", "control")
        return {k: v if k in kept else None if k == "verdict" else empty(v) for k, v in value.items()}
    return [] if isinstance(value, list) else value if isinstance(value, str) else None


def test_missing_figures_leave_a_page(run: Path, tmp_path: Path) -> None:
    whole = summary_of(run)
    fewer = {**whole, "students": {"none": {"lab-base": None}}, "teachers": {"orig": {"eta": None}}}
    fewer |= {"controls": {}, "seconds": {}, "rules": {}}
    for number, summary in enumerate((empty(whole), fewer)):
        folder = make_fake_run(tmp_path / str(number))
        write_json(folder / "measures" / "summary.json", summary)
        page = write_report(folder).read_text(encoding="utf-8")
        assert "—" in page and "None" not in page and "nan" not in page.lower().split()


def test_equal_input_gives_equal_bytes_and_an_old_report_goes(run: Path) -> None:
    before = {p.name: p.read_bytes() for p in (run / "report").iterdir()}
    (run / "report" / "stale.txt").write_text("left over", encoding="utf-8")
    write_report(run)
    assert {p.name: p.read_bytes() for p in (run / "report").iterdir()} == before


def test_the_dial_keeps_text_as_text(run: Path) -> None:
    svg = (run / "report" / "dial.svg").read_text(encoding="utf-8")
    assert all(f">{word}<" in svg for word in ("original", "−0.5", "0", "teacher")) and "S_0 " in svg and "chance " in svg


def test_an_unmeasured_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"summary\.json: not found"):
        write_report(make_fake_run(tmp_path / "run"))


def test_a_guard_that_tripped_is_told(tmp_path: Path) -> None:
    run = make_fake_run(tmp_path / "run")
    breach = {"step": 30, "guard": "kl_ceiling", "value": 0.512, "limit": 0.4, "action": "stop", "restored": None}
    (run / "teachers" / "eta-0.5-c0" / "calibration.json").write_text(json.dumps({"guards": [breach]}), encoding="utf-8")
    write_json(run / "measures" / "summary.json", summarise(run, VerdictRules(), {}))
    page = write_report(run).read_text(encoding="utf-8")
    assert "The guard kl_ceiling tripped at step 30" in page and "0.512" in page
