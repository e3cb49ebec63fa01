"""The report page: it says the summary's figures, survives missing ones, and shows hostile text without obeying it."""

from __future__ import annotations

import html
import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from distillknob.eval.distillability import summarise
from distillknob.eval.rules import VerdictRules
from distillknob.rewards.errors import UserError
from distillknob.rewards.jsonl import write_json
from distillknob.scripts.report.figures import _spread, positions
from distillknob.scripts.report.names import controls, student_names
from distillknob.scripts.report.page import write_report
from distillknob.scripts.report.words import fold, guard_sentence, interval, pct, points, shares_sentence, tidy, visible
from tests.fake_run import NO_REASONING, SID, add_calibrations, add_controls, add_others, make_fake_run

CALIBRATION: dict[str, Any] = {"schema": 1, "steps": 100, "guards": [], "learnt_nothing": False}


def new_run(folder: Path, hostile: bool = False) -> Path:
    """A fake run with whole calibration records."""
    return make_fake_run(folder, hostile=hostile, calibration=CALIBRATION)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A measured fake run with every control whose model texts are hostile, with its report."""
    folder = new_run(tmp_path_factory.mktemp("runs") / "fake", hostile=True)
    add_controls(folder, hostile=True)
    add_others(folder)
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


def words_of(page: str) -> str:
    """The page's text without markup."""
    return plain(html.unescape(re.sub(r"<[^>]*>", " ", page)))


def redrawn(folder: Path, change: Any) -> str:
    """The page of a new fake run whose summary `change` has edited in place."""
    run = new_run(folder)
    summary = summarise(run, VerdictRules(), {})
    change(summary)
    write_json(run / "measures" / "summary.json", summary)
    return write_report(run).read_text(encoding="utf-8")


def calibrated(folder: Path, **record: Any) -> str:
    """The words of a fake run's page whose calibration of η = −0.5 recorded this."""

    def change(summary: dict[str, Any]) -> None:
        summary["teachers"]["eta-0.5-c0"]["calibration"] = {**CALIBRATION, **record}

    return words_of(redrawn(folder, change))


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
        kept = cell["retained"]
        assert shown[5] == ("—" if kept is None else plain(f"{interval(kept)} corrected {pct(kept['corrected'])}"))
        assert shown[6].startswith(plain(pct(cell["di"]["value"])))
        for column, name, aside in ((7, "collapse", ""), (8, "better", "not what η < 0 aims at ")):
            said = cell[name]
            assert shown[column] == ("—" if said is None else f"{said['verdict']} {aside}p = {said['permutation_p']:.3f}")


def test_teacher_figures_and_verdict_sentences_are_the_summary_s(run: Path) -> None:
    summary, page = summary_of(run), page_of(run)
    rows, paid, words = cells_of(page, "teachers"), cells_of(page, "paid"), words_of(page)
    for tid, teacher in summary["teachers"].items():
        assert rows[tid][1:3] == [plain(interval(teacher["accuracy"])), plain(interval(teacher["accuracy_t1"]))]
        assert paid[tid][1] == interval(teacher["traces"]["tokens"], 1)
        assert paid[tid][4] == plain(interval(teacher["traces"]["step_validity_right"]))
        for column, other in ((6, teacher["others"]["reverse"]), (7, teacher["others"]["largest"])):
            kept = other["kept"]
            assert paid[tid][column] == plain(f"{interval(other['accuracy'])} {kept['verdict'] if kept else ''}")
            assert kept is None or (plain(points(kept)) in words and tidy(kept["reason"]) in words)
        if teacher["utility"]:
            assert plain(points(teacher["utility"])) in words and tidy(teacher["utility"]["reason"]) in words
    judged = summary["students"]["eta-0.5-c0"]["lab-seqkd-t1-chain"]
    for name in ("collapse", "better"):
        assert plain(points(judged[name])) in words and tidy(judged[name]["reason"]) in words


def empty(value: Any) -> Any:
    """The same structure with every measured number and verdict gone; lists of figures are empty."""
    if isinstance(value, dict):
        kept = ("eta", "calibration_seed", "name", "recipe", "sampling", "control", "schema", "learnt_nothing")
        return {k: v if k in kept else None if k == "verdict" else empty(v) for k, v in value.items()}
    return [] if isinstance(value, list) else value if isinstance(value, str) else None


def test_missing_figures_leave_a_page(run: Path, tmp_path: Path) -> None:
    whole = summary_of(run)
    fewer = {**whole, "students": {"none": {"lab-base": None}}, "teachers": {"orig": {"eta": None}}}
    fewer |= {"controls": {}, "seconds": {}, "rules": {}}
    for number, summary in enumerate((empty(whole), fewer)):
        folder = new_run(tmp_path / str(number))
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
    assert svg.index(">original<") < svg.index(">−0.5<") < svg.index(">0<")


def test_controls_are_lines_of_the_dial_and_rows_of_a_table(run: Path) -> None:
    summary, page = summary_of(run), page_of(run)
    lines = {f"{c.tid} / {c.sid}": c for c in controls(summary)}
    assert [c.name for c in lines.values()] == [
        *(
            "greedy original",
            "original at T = 0.5",
            "likeliest of 8",
            "matched in length",
            "bare answers",
            "teacher on bare answers",
        )
    ]
    svg, alt = (run / "report" / "dial.svg").read_text(encoding="utf-8"), re.findall(r'<img[^>]*alt="([^"]*)"', page)[0]
    table = page.split('<table id="controls">')[1].split("</table>")[0]
    for key, line in lines.items():
        value = line.cell["accuracy"]["value"]
        assert f">{line.name}: {100 * value:.0f}\u00a0%<" in svg and f"{line.name} {pct(value)}" in alt
        assert f'{line.name}<span class="id">{key}</span></th><td class="n">{interval(line.cell["accuracy"])}' in table
    for tid in ("eta-0.5-c0", "eta+0-c0"):
        shown = interval(summary["students"][tid][SID]["accuracy"])
        assert f'<span class="id">{tid} / {SID}</span></th><td class="n">{shown}' in table
    assert ">SeqKD, teacher sampled at T = 1<" in svg and svg.count("SeqKD") == 1
    assert "students of the original (" not in words_of(page)  # controls are no part of what collapse is held against


def test_a_teacher_without_eta_stands_not_where_the_original_does(run: Path) -> None:
    summary = summary_of(run)
    assert set(positions(summary)[0]) == {"orig", "eta+0-c0", "eta-0.5-c0"}
    assert (run / "report" / "dial.svg").read_text(encoding="utf-8").count(">original<") == 1
    name = cells_of(page_of(run), "teachers")[NO_REASONING][0]
    assert (
        name.startswith("original fine-tuned on bare answers") and "original fine-tuned" not in page_of(run).split("alt=")[1][:2000]
    )


def test_labels_keep_their_order_and_their_distance() -> None:
    sizes = [5.0, 5.0, 10.0, 5.0]
    heights = _spread([29.0, 30.0, 31.0, 97.0], sizes)
    assert heights[3] == 97.0 and sum(heights[:3]) == pytest.approx(90.0 + 0.0)
    for levels in ([29.0, 30.0, 31.0, 97.0], [0.0] * 4, [100.0] * 4):
        heights = _spread(levels, sizes)
        gaps = [b - a for a, b in pairwise(heights)]
        assert all(g >= (s + t) / 2 - 1e-9 for g, s, t in zip(gaps, sizes, sizes[1:], strict=False))
        assert min(heights) >= 0 and max(heights) <= 100


def test_recipes_and_their_texts_have_words() -> None:
    sampling = {"temperature": 1.0, "keep_right": False, "candidates": 8, "select": "likeliest"}
    kinds = {
        "lab-seqkd-t1-likeliest8-chain": {"recipe": "seqkd", "sampling": sampling},
        "lab-seqkd-t1-length8-chain": {"recipe": "seqkd", "sampling": sampling | {"select": "length"}},
        "lab-seqkd-t1-right-chain": {"recipe": "seqkd", "sampling": {"temperature": 1.0, "keep_right": True}},
        "lab-gkd-chain": {"recipe": "gkd"},
        "lab-gkd-b0-chain": {"recipe": "gkd"},
        "lab-gkd-b0.5-warm-chain": {"recipe": "gkd"},
    }
    assert list(student_names({"orig": kinds}, []).values()) == [
        "SeqKD, teacher sampled at T = 1, likeliest of 8",
        "SeqKD, teacher sampled at T = 1, right one of 8 nearest in length to the calibrated teacher's",
        "SeqKD, teacher sampled at T = 1, right samples only",
        "on-policy (reverse KL)",
        "on-policy (forward KL)",
        "on-policy (JSD 0.5) from the SeqKD student",
    ]


def test_the_calibration_reward_and_a_reward_model_are_told(tmp_path: Path) -> None:
    words = calibrated(tmp_path / "run", settings={"calibration": "proxy_only"})
    assert "100 updates, calibration reward proxy_only." in words and "a reward model" not in words
    (tmp_path / "run" / "lab" / "reward").mkdir(parents=True)
    write_report(tmp_path / "run")
    assert "a reward model (made in the lab) scored the texts in the task's place" in words_of(page_of(tmp_path / "run"))


def test_an_unmeasured_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"summary\.json: not found"):
        write_report(new_run(tmp_path / "run"))


def test_numbers_have_a_true_minus_and_zero_has_no_sign(run: Path) -> None:
    assert tidy("-0.1 points, +0.0 to -2 (x-3, a-4=1): -0.05, +0.3, -0") == "−0.1 points, 0.0 to −2 (x-3, a-4=1): −0.05, +0.3, 0"
    assert points({"value": -0.0, "low": -0.0001, "high": 0.02}) == "0.0 points (95\u00a0% interval 0.0 to +2.0)"
    assert (pct(-0.0001), interval({"value": 0.1, "low": -0.2, "high": 0.3})) == ("0.0\u00a0%", "10.0\u00a0% (−20.0 to 30.0)")
    found = words_of(page_of(run)).split("What was found")[2].split("The dial")[0]
    assert "−" in found and not re.search(r"(?<!\w)-\d|[+−]0\.0(?!\d)", found)


def test_a_verdict_that_eta_does_not_aim_at_is_neutral(run: Path, tmp_path: Path) -> None:
    page = page_of(run)
    assert '<span class="badge aside">does not hold: not what η &lt; 0 aims at</span>' in page and "η &gt; 0 aims" not in page

    def positive(summary: dict[str, Any]) -> None:
        summary["teachers"]["eta-0.5-c0"]["eta"] = 0.5

    page = redrawn(tmp_path / "run", positive)
    assert '<span class="badge aside">holds: not what η &gt; 0 aims at</span>' in page and "η &lt; 0 aims" not in page


def test_collapse_names_the_students_of_the_original(run: Path, tmp_path: Path) -> None:
    figure = plain(interval(summary_of(run)["students"]["orig"][SID]["accuracy"]))
    assert f"reach {figure}" in words_of(page_of(run)).split("Plain RFT itself changes")[1].split("overlap with those")[0]
    assert "overlaps that of the original" not in page_of(run)

    def close(summary: dict[str, Any]) -> None:
        summary["students"]["orig"][SID]["accuracy"] = summary["students"]["eta-0.5-c0"][SID]["accuracy"]

    assert "The first interval overlaps that of the original's students" in words_of(redrawn(tmp_path / "run", close))


def test_traces_show_the_prompt(run: Path, tmp_path: Path) -> None:
    shown = page_of(run).split('<table class="traces">')[1]
    assert "user: &lt;/script&gt;&lt;script&gt;alert(1)" in shown
    old = new_run(tmp_path / "old")
    write_json(old / "measures" / "summary.json", summarise(old, VerdictRules(), {}))
    long = '{"id": "chain-0", "prompt": "' + "p" * 401 + '", "gold": "0"}'
    (old / "items.jsonl").write_text(long, encoding="utf-8")
    page = write_report(old).read_text(encoding="utf-8")
    assert "p" * 400 + "</div>" in page and "1 more characters" in page
    (old / "items.jsonl").unlink()
    assert '<span class="small">prompt</span>' not in write_report(old).read_text(encoding="utf-8")
    (old / "items.jsonl").write_text('{"id": "chain-0", "prompt": 3}', encoding="utf-8")
    with pytest.raises(UserError, match=r"items\.jsonl, line 1"):
        write_report(old)


def test_a_task_without_steps_has_no_sentence_and_no_column_for_them(run: Path, tmp_path: Path) -> None:
    def bare(summary: dict[str, Any]) -> None:
        for teacher in summary["teachers"].values():
            for name in ("explicit", "step_validity", "step_validity_right"):
                teacher["traces"][name] = {"value": None, "low": None, "high": None, "n": 0}

    words = ("Steps written", "All written steps", "in right traces")
    assert all(w in page_of(run) for w in words)
    page = redrawn(tmp_path / "run", bare)
    assert not any(w in page for w in words) and {len(cells) for cells in cells_of(page, "paid").values()} == {3}


def test_a_student_at_chance_in_every_seed_is_told(run: Path, tmp_path: Path) -> None:
    def constant(summary: dict[str, Any]) -> None:
        same = [summary["task"]["majority"]] * 5
        summary["controls"]["S_0"]["per_seed"] = summary["students"]["none"]["lab-base"]["per_seed"] = same

    told = "S_0 has exactly this accuracy in every seed"
    assert told not in page_of(run) and "each exactly chance" not in page_of(run)
    page = redrawn(tmp_path / "run", constant)
    assert told in page and page.count("each exactly chance") == 1
    assert "Adding seeds after having seen a result weakens a verdict" in page


def test_guards_are_told_as_they_ended(tmp_path: Path) -> None:
    breach = {"step": 30, "guard": "kl_ceiling", "value": 0.512, "limit": 0.4, "action": "stop", "restored": None}
    sentence = "The guard kl_ceiling tripped at step 30 (value 0.512, limit 0.400): the calibration was stopped there"
    assert sentence in calibrated(tmp_path / "run", guards=[breach])
    back = guard_sentence({**breach, "action": "rollback", "restored": "checkpoint-20", "value": None})
    assert "(its value was not a number, limit 0.400)" in back and back.endswith("the weights are those of checkpoint-20.")
    assert "before the first step" in guard_sentence({**breach, "action": "rollback", "restored": "start"})
    end = guard_sentence({**breach, "action": "told at the end"})
    assert end.startswith("No guard tripped") and "0.512" in end and "step" not in end


def test_a_calibration_that_learnt_nothing_and_its_shares_are_told(tmp_path: Path) -> None:
    shares = {"groups_with_signal": 0.634, "left_out/cut off": 0.0002, "left_out/empty": 0.0, "clipped": 0.03}
    words = calibrated(tmp_path / "run", learnt_nothing=True, shares=shares)
    assert words.count("This teacher is the original unchanged") == 1 and words.count("the dial did nothing") == 2
    said = "The calibration reward could act in 63.4 % of the groups. Texts left out of it: cut off < 0.1 %. Tokens clipped"
    assert said in words
    assert shares_sentence({}, -0.5) == "" and "left out of it: none" in shares_sentence({"left_out/empty": 0.0}, -0.5)
    assert "the dial did nothing" not in calibrated(tmp_path / "other", learnt_nothing=False)


@pytest.mark.parametrize(("passes", "said"), [(True, "passed"), (False, "did not pass")])
def test_the_proxy_check_is_told(tmp_path: Path, passes: bool, said: str) -> None:
    words = calibrated(tmp_path / "run", proxy_check={"passes": passes, "reason": "correlation +0.21 <b>"})
    assert f"Before the first step the proxy check {said}: correlation +0.21 <b>." in words


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        (("schema",), 2, "summary.json: key 'schema'"),
        (("task",), None, "summary.json: key 'task'"),
        (("students", "orig"), [], "summary.json: key 'students.orig'"),
        (("teachers", "eta-0.5-c0", "accuracy"), 0.5, "summary.json: key 'teachers.eta-0.5-c0.accuracy'"),
        (("teachers", "orig", "others"), {"reverse": {"kept": 1}}, "summary.json: key 'teachers.orig.others.reverse.kept'"),
        (("teachers", "eta-0.5-c0", "calibration"), {"guards": []}, "teachers/eta-0.5-c0/calibration.json: key 'schema'"),
        (("teachers", "eta-0.5-c0", "calibration", "guards"), [{}], "teachers/eta-0.5-c0/calibration.json: key 'guards.0.guard'"),
    ],
)
def test_another_structure_is_a_named_mistake(tmp_path: Path, path: tuple[str, ...], value: Any, named: str) -> None:
    def change(summary: dict[str, Any]) -> None:
        for key in path[:-1]:
            summary = summary[key]
        summary[path[-1]] = value

    with pytest.raises(UserError, match=re.escape(named)):
        redrawn(tmp_path / "run", change)


def test_joint_verdicts_are_on_the_page(tmp_path: Path) -> None:
    """Against all copiers, and about an η over calibrated teachers: each with its verdict and reason; nothing without them."""
    folder = new_run(tmp_path / "fake")
    add_calibrations(folder, 5)
    write_json(folder / "measures" / "summary.json", summarise(folder, VerdictRules(), {}))
    write_report(folder)
    page = page_of(folder)
    assert "do all copies that were tried fail to learn?" in page and "copier was tried; the strongest: SeqKD" in page
    assert page.count("<b>η = −0.5, beta 0.02; ") == 3 and "over calibrated teachers, " in page
    summary = summary_of(folder)
    summary["etas"] = {}
    for teacher in summary["teachers"].values():
        teacher["undistillable"] = None
    write_json(folder / "measures" / "summary.json", summary)
    write_report(folder)
    assert "About an η" not in page_of(folder) and "all copies that were tried" not in page_of(folder)
