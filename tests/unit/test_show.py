"""The show-commands' own arithmetic: totals over root seeds, parts that are kept, the page of the dial."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fake_run import SID, make_fake_run

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.show import dial, dial_page, results, runs  # noqa: E402
from benchmarks.show.results import Figure, run_parts  # noqa: E402
from benchmarks.show.runs import summary_figures  # noqa: E402
from distillknob.eval.distillability import summarise  # noqa: E402
from distillknob.eval.rules import VerdictRules  # noqa: E402

RECORD = {"steps": 100, "kl": {"full_vocabulary": {"value": 0.2, "low": 0.19, "high": 0.21, "n": 256}}}


def figures(tmp_path: Path, holds: int) -> dict[str, Figure]:
    """Side A of five root seeds as the fake run has it, GKD like SeqKD; in the first `holds` its verdicts hold."""
    found: dict[str, Figure] = {}
    for root in range(1, 6):
        run = make_fake_run(tmp_path / f"run-{root}", items=200, calibration=RECORD)
        one = summary_figures(f"chain A, root seed {root}", summarise(run, VerdictRules(), {}))
        head = f"chain A, root seed {root}: students eta-0.5-c0"
        one[f"{head} {SID}: collapse holds"] = Figure(float(root <= holds))
        found |= one | {name.replace(SID, dial.GKD): figure for name, figure in one.items() if SID in name}
    return found


@pytest.mark.parametrize("holds", [3, 4])
def test_totals_count_root_seeds_and_take_them_as_the_top_level(tmp_path: Path, holds: int) -> None:
    found = dial.totals(figures(tmp_path, holds))
    count = found["over five root seeds: A, collapse, SeqKD: holds in"]
    assert (count.value, count.holds) == (holds, holds >= 4)
    gap = found["over root seeds: A, SeqKD: students of the tuned teacher less the control's"]
    assert gap.value is not None and gap.value < -0.4 and gap.high is not None and gap.high < 0 and gap.holds is True
    missing = found["over root seeds: B, SeqKD: students of the tuned teacher less the control's"]
    assert missing.value is None and missing.holds is False  # what was not measured does not hold


def test_parts_are_run_once_and_the_whole_holds_only_with_all_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[str] = []

    def part(name: str) -> dict[str, Figure]:
        ran.append(name)
        return {name: Figure(1.0, asked="1", holds=True)}

    def total(found: dict[str, Figure]) -> dict[str, Figure]:
        return {"sum": Figure(sum(figure.value or 0 for figure in found.values()), asked="2", holds=len(found) == 2)}

    monkeypatch.setattr(results, "ROOT", tmp_path)
    monkeypatch.setattr(results, "_files_version", lambda unreached: "1")
    monkeypatch.setattr(results, "_commit", lambda: "c")
    parts: dict[str, Any] = {"a": lambda: part("a"), "b": lambda: part("b")}
    result = tmp_path / "docs" / "results" / "x.json"
    assert run_parts("x", parts, "a", total) == 0 and ran == ["a"]
    assert json.loads(result.read_text())["holds"] is False and "sum" not in json.loads(result.read_text())["figures"]
    assert run_parts("x", parts, None, total) == 0 and ran == ["a", "b"]
    written = json.loads(result.read_text())
    assert written["holds"] is True and written["figures"]["sum"]["value"] == 2.0
    monkeypatch.setattr(results, "_files_version", lambda unreached: "2")
    assert run_parts("x", parts, None, lambda _: {"sum": Figure(0.0, asked="2", holds=False)}) == 1 and ran == ["a", "b", "a", "b"]
    assert run_parts("x", parts, "c") == 2


def test_a_part_is_stale_where_a_file_that_it_can_reach_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "ROOT", tmp_path)
    monkeypatch.setattr(results, "git", lambda *words: "rewards/tasks/chain.py\nrewards/tasks/choice.py")
    (tmp_path / "rewards" / "tasks").mkdir(parents=True)

    def versions(chain: str, choice: str) -> list[str]:
        (tmp_path / "rewards" / "tasks" / "chain.py").write_text(chain)
        (tmp_path / "rewards" / "tasks" / "choice.py").write_text(choice)
        return [results._files_version(dial.unreached(part)) for part in ("chain-1", "choice")]

    first, other_task, other_chain = versions("a", "b"), versions("a", "c"), versions("d", "b")
    assert first[0] == other_task[0] != other_chain[0] and len({first[1], other_task[1], other_chain[1]}) == 3


def test_every_file_that_only_some_parts_reach_is_there() -> None:
    assert all((results.ROOT / path).exists() for part in dial.PARTS for path in dial.unreached(part))


@pytest.mark.parametrize("text", ["{", "[]", "", '{"parts": 3}', '{"parts": {"a": {}}}', '{"parts": {"a": 1}}', '{"figures": {}}'])
def test_a_damaged_result_file_is_named_and_stays_as_it_is(
    tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(results, "ROOT", tmp_path)
    path = tmp_path / "docs" / "results" / "x.json"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert run_parts("x", {"a": dict}, None) == 2
    assert str(path) in capsys.readouterr().out and path.read_text() == text


def test_the_page_has_every_root_seed_and_says_what_was_not_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dial_page, "ROOT", tmp_path)
    found = figures(tmp_path, 4)
    proxy = "proxy of some kind (expected: none)"
    found[f"{proxy}: correlation; says none"] = Figure(None)
    found[f"{proxy}: steps written, +0.5 less -0.5; is right"] = Figure(1.5, 1.4, 1.6)
    every = {name: vars(figure) for name, figure in (dial.totals(found) | found).items()}
    (tmp_path / "docs" / "results").mkdir(parents=True)
    result = {"figures": every, "hardware": "2 x CPU", "parts": {"chain-1": {"seconds": 60}}}
    (tmp_path / "docs" / "results" / "dial.json").write_text(json.dumps(result))
    dial_page.write_page()
    page = (tmp_path / "docs" / "dial.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith(("| 1 |", "| 5 |"))]
    assert len(rows) == 2 and all("holds" in rows[0] and row.count("[") >= 5 for row in rows) and "**undecided**" in rows[1]
    assert page.count("*Not measured yet.*") == 5 and "**does not hold**" in page and "NaN" not in page and "-0" not in page
    assert [line for line in page.splitlines() if "of some kind" in line and "none" in line and "**wrong**" in line]


def test_proxies_with_equal_figures_are_counted_once() -> None:
    """Three rows alike and two more alike are two rows, whatever their names."""
    found = {}
    for name, correlation in (("a", 0.5), ("b", 0.5), ("c", 0.5), ("d", None), ("e", None), ("f", 0.6)):
        said = "none" if correlation is None else "right"
        found[f"proxy {name} (expected: right): correlation; says {said}"] = vars(Figure(correlation))
        found[f"proxy {name} (expected: right): steps written; is right"] = vars(Figure(1.0))
    assert "Rows with equal figures counted once, it is right on 2 of 3.\n" in dial_page._proxies(found)
    assert "counted once" not in dial_page._proxies({name: one for name, one in found.items() if name[6] in "adf"})


def test_a_verdict_that_does_not_hold_is_told_from_an_undecided_one() -> None:
    head, tuned = "chain B, root seed 1", "eta+0.5-c0"
    name = f"{head}: students {tuned} lab-seqkd-t1-chain: better"
    for loss, margin, kept, better in (
        (Figure(0.0, -0.01, 0.01), Figure(0.1, 0.05, 0.2), "undecided", "not shown"),  # the greedy original may have been as good
        (Figure(-0.1, -0.2, -0.05), Figure(-0.1, -0.2, -0.05), "does not hold", "does not hold"),
        (Figure(-0.1, None, None), Figure(-0.1, None, None), "undecided", "not shown"),
    ):
        found = {f"{head}: teacher {tuned}: accuracy less the original's": loss, f"{name}, margin": margin}
        found |= {f"{head}: teacher {tuned}: utility kept holds": Figure(0.0), f"{name} holds": Figure(0.0)}
        judged = dial_page._verdicts({key: vars(one) for key, one in found.items()}, head, "chain", "B", tuned)
        assert judged == [("utility kept", f"**{kept}**"), ("better, SeqKD", f"**{better}**")]


def test_a_refused_model_is_a_figure_and_another_end_stops_the_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Teacher or proxy refused: no summary, and the part goes on; any other error ends it with the command."""
    monkeypatch.setattr(runs, "RUNS", tmp_path)

    def says(text: str) -> None:
        monkeypatch.setattr(subprocess, "run", lambda words, **_: subprocess.CompletedProcess(words, 1, "", text))

    for text in ("stage teachers/orig: lab teacher: 0.9 right", "stage teachers/eta-0.5-c0: proxy check: does not tell"):
        says(text)
        assert runs.study("A", 1) is None
    says("stage lab/base: out of memory")
    with pytest.raises(SystemExit, match="ended with status 1"):
        runs.study("A", 1)
