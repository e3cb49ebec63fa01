"""python tests/independent_verdicts.py RUN: recomputes RUN's summary by formulas of its own; exits 1 with a line a mismatch."""

import json
import sys
from collections import Counter
from functools import reduce
from pathlib import Path

import numpy as np
from scipy.optimize import brentq
from scipy.stats import norm, t

run = Path(sys.argv[1])
manifest, said = (json.loads((run / name).read_text("utf-8")) for name in ("manifest.json", "measures/summary.json"))
rules, cells = manifest["verdict_rules"], [json.loads(line) for line in (run / "cells.jsonl").read_bytes().splitlines()]
q, f, margin = 0.5 + rules["confidence"] / 2, rules["collapse_fraction"], rules["utility_margin"]


def load(c, decoding="greedy", other=""):
    folder = f"students/{c['tid']}/{c['sid']}/{c['seed']}" if c["sid"] else f"teachers/{c['tid']}{other}"
    rows = [json.loads(x) for x in (run / folder / "predictions.jsonl").read_text("utf-8").split("\n") if x]
    return {r["id"]: r for r in rows if (r["split"], r["decoding"]) == ("test", decoding)}


def acc(c, decoding="greedy"):
    return np.mean([r["correct"] for r in load(c, decoding).values() if r["correct"] is not None])


def combine(x, y, c, k):  # mean(x) - c mean(y) - k and its Welch limits
    u, v, m = np.var(x, ddof=1) / len(x), c * c * np.var(y, ddof=1) / len(y), np.mean(x) - c * np.mean(y) - k
    half = t.ppf(q, (u + v) ** 2 / (u * u / (len(x) - 1) + v * v / (len(y) - 1))) * (u + v) ** 0.5 if u + v > 1e-24 else 0
    return m, m - half, m + half


def judge(low, high, bound, enough=True):
    return "undecided" if not enough else "holds" if low > bound else "does not hold" if high < bound else "undecided"


def root(function, low, high):  # of a falling function; the end where it keeps its sign
    return low if function(low) <= 0 else high if function(high) >= 0 else brentq(function, low, high, xtol=1e-15)


def kept(mine, original):  # paired difference in accuracy by Tango's score, its nuisance by the likelihood's slope; the verdict
    d = [x - r["correct"] for i, r in original.items() if None not in ((x := mine[i]["correct"]), r["correct"])]
    g, k, n, e = d.count(1), d.count(-1), len(d), 1e-15

    def score(at):
        p = root(lambda p: g / (p + at) + k / p - 2 * (n - g - k) / (1 - 2 * p - at), max(0, -at) + e, (1 - at) / 2 - e)
        gap = g - k - n * at
        return np.sign(gap) * max(0, abs(gap) - 0.5) / (n * max(2 * p + at - at * at, 1e-300)) ** 0.5

    low, high = (root(lambda at, z=z: score(at) - z, -1 + 3 * e, 1 - 3 * e) for z in norm.ppf([q, 1 - q]))
    return [np.mean(d), low, high, judge(low, high, -margin)]


def expect(numbers, *path):
    want.update({(*path, key): x for key, x in zip(("value", "low", "high", "verdict"), numbers, strict=False)})


teachers, want = {c["tid"]: c for c in cells if not c["sid"]}, {("rules", k): v for k, v in rules.items()}
greedy, ranks = {tid: load(c) for tid, c in teachers.items()}, sorted(cells, key=lambda c: c["seed"] or 0)
students = {(c["tid"], c["sid"]): [o for o in ranks if (o["tid"], o["sid"]) == (c["tid"], c["sid"])] for c in cells if c["sid"]}
score = {k: [acc(c) for c in v] for k, v in students.items()}
verified = [r["gold"] for r in greedy["orig"].values() if r["correct"] is not None]
majority = max(Counter(verified).values()) / len(verified)
expect([b := max(majority, *(np.mean(v) for k, v in score.items() if k[0] == "none"))], "controls", "floor")
for tid, c in teachers.items():
    want["teachers", tid, "accuracy", "value"], want["teachers", tid, "accuracy_t1", "value"] = acc(c), acc(c, "t1")
    expect(kept(greedy[tid], greedy["orig"]) * (tid != "orig"), "teachers", tid, "utility")
    for name in c.get("others", ()):
        mine, at = load(c, other=f"/others/{name}"), ("teachers", tid, "others", name)
        want[(*at, "accuracy", "value")] = np.mean([r["correct"] for r in mine.values() if r["correct"] is not None])
        expect(kept(mine, load(teachers["orig"], other=f"/others/{name}")) * (tid != "orig"), *at, "kept")
for (tid, sid), x in score.items():
    c, at = students[tid, sid][0], ("students", tid, sid)
    expect(combine(x, [0, 0], 0, 0) if len(x) > 1 else x, *at, "accuracy")
    expect([np.mean([acc(k, "t1") for k in students[tid, sid]])], *at, "accuracy_t1")
    want |= {(*at, "per_seed", i): v for i, v in enumerate(x)}
    want |= {(*at, "collapse", "verdict"): "undecided"} if c["eta"] else {}
    same = [k for k, o in teachers.items() if o["eta"] == 0 and all(o[e] == c[e] for e in ("beta", "calibration_seed"))]
    y = score.get((same[0], sid), []) if c["eta"] and same else []
    if min(len(x), len(y)) > 1:
        cold = (c["sampling"] or {}) | {"temperature": 0}
        like = {"student": c["student"], "recipe": c["recipe"], "task": c["task"], "tid": "orig", "sampling": cold}
        z = [score[k] for k, (o, *_) in students.items() if c["sampling"] and all(o[e] == v for e, v in like.items())]
        low, room = combine(x, y, f, (1 - f) * b), combine(y, [0, 0], 0, b)[1] >= rules["minimum_headroom"] - 1e-12
        expect([*low, judge(-low[2], -low[1], 0, room and min(len(x), len(y)) >= 5)], *at, "collapse")
        two = [judge(*combine(x, o, 1, 0)[1:], 0, min(len(x), len(o)) >= 5) for o in [y, *z]] + ["undecided"] * (not z)
        expect([*combine(x, y, 1, 0), next(v for v in ("does not hold", "undecided", "holds") if v in two)], *at, "better")
for tid, c in teachers.items():
    collapses = [want["students", k, s, "collapse", "verdict"] for k, s in students if k == tid and c["eta"]]
    worst = next((v for v in ("does not hold", "undecided", "holds") if v in collapses), None)
    if (c["eta"] or 0) < 0 and worst:  # with a measured copier; without one it is undecided, as each of them is
        want["teachers", tid, "undistillable", "verdict"] = worst
for eta, beta in {(c["eta"], c["beta"]) for c in teachers.values() if c["eta"]}:
    at = ("etas", f"eta {eta:+g}" + ("" if beta is None else f", beta {beta:g}"))
    tids = [tid for tid, c in teachers.items() if (c["eta"], c["beta"]) == (eta, beta)]
    d, many = [want["teachers", tid, "utility", "value"] for tid in tids], len(tids) >= 5
    m = combine(d, [0, 0], 0, 0) if len(d) > 1 else d
    expect([*m, judge(*m[1:], -margin)] if many else m, *at, "utility")
    want[(*at, "utility", "verdict")] = want[(*at, "utility", "verdict")] if many else "undecided"
    for sid in {s for k, s in students if k in tids}:
        pairs = []
        for tid in tids:
            like = {"eta": 0, "beta": beta, "calibration_seed": teachers[tid]["calibration_seed"]}
            control = [k for k, o in teachers.items() if all(o[e] == v for e, v in like.items())]
            if (tid, sid) in score and control and (control[0], sid) in score:
                pairs.append((np.mean(score[tid, sid]), np.mean(score[control[0], sid])))
        if len(pairs) >= 5:
            x, y = zip(*pairs, strict=True)
            low, room = combine(np.subtract(x, f * np.array(y)), [0, 0], 0, (1 - f) * b), combine(y, [0, 0], 0, b)[1]
            judged = judge(-low[2], -low[1], 0, room >= rules["minimum_headroom"] - 1e-12)
            expect([*low, judged], *at, "students", sid, "collapse")
            c = next(cell for (k, s), (cell, *_) in students.items() if k in tids and s == sid)
            cold = (c["sampling"] or {}) | {"temperature": 0}
            like = {"student": c["student"], "recipe": c["recipe"], "task": c["task"], "tid": "orig", "sampling": cold}
            z = [score[k] for k, (o, *_) in students.items() if c["sampling"] and all(o[e] == v for e, v in like.items())]
            first = combine(np.subtract(x, y), [0, 0], 0, 0)
            two = [judge(*first[1:], 0), *(judge(*combine(x, o, 1, 0)[1:], 0) for o in z)] + ["undecided"] * (not z)
            judged = next(v for v in ("does not hold", "undecided", "holds") if v in two)
            expect([*first, judged], *at, "students", sid, "better")
found = {path: reduce(lambda o, key: o[key], path, said) for path in want}
bad = [p for p, x in want.items() if (found[p] != x if isinstance(x, str) or found[p] is None else abs(found[p] - x) > 1e-9)]
print("\n".join(f"{p}: {found[p]} in the summary, {want[p]} recomputed" for p in bad) or f"{len(want)} figures agree")
sys.exit(bool(bad))
