"""The paper's claims from rows made by hand: yes, no and open."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tsdfm.cli import main
from tsdfm.errors import UserError
from tsdfm.report.claims.answers import CLAIMS
from tsdfm.report.claims.evidence import Evidence, Part, Ratio, Verdict, matched_ratio, ratio_of
from tsdfm.report.commands.claims import run
from tsdfm.report.settings import ClaimsSettings

ASKED = ClaimsSettings(runs=(Path("x"),))
BY_LETTER = {claim.letter: claim.answer for claim in CLAIMS}
Rows = list[dict[str, Any]]


def row(method: str, steps: int, ppl: float, width: float = 0.02, **more: Any) -> dict[str, Any]:
    """Measured at T = 1 with an interval of ± width on the log scale."""
    ends = [ppl * math.exp(-width), ppl * math.exp(width)]
    known = {"method": method, "source": "uniform", "steps": steps, "temperature": 1.0, "guide": None}
    return {**known, "ppl": ppl, "ppl_interval": ends, "entropy_bits": 7.0, **more}


def ratio(value: float, width: float = 0.05) -> dict[str, Any]:
    return {"ratio_at_own_entropy": value, "ratio_at_own_interval": [value - width, value + width]}


def swept(method: str, steps: int, value: float, width: float = 0.05, **more: Any) -> dict[str, Any]:
    known = {"method": method, "source": "uniform", "steps": steps, "control_method": "control", "entropy_bits": 7.0}
    return {**known, **ratio(value, width), **more}


def verdict(letter: str, *, source: str = "uniform", judge: str | None = None, **rows: Any) -> Verdict:
    return BY_LETTER[letter](Evidence(source, judge, **rows), ASKED)


def test_a_ratio_and_its_interval_by_hand() -> None:
    found = ratio_of(row("a", 8, 50.0, 0.03), row("b", 8, 100.0, 0.04))
    assert found is not None
    assert found.interval is not None
    assert found.value == 0.5
    assert found.interval == pytest.approx((0.5 * math.exp(-0.05), 0.5 * math.exp(0.05)))  # 3, 4, 5
    assert ratio_of(row("a", 8, 50.0), {"ppl": None}) is None
    assert str(ratio_of({"ppl": 1.0}, {"ppl": 2.0})) == "0.50"


def test_what_an_interval_says() -> None:
    assert [Ratio(0.9, ends).below for ends in ((0.8, 0.99), (0.8, 1.0), (1.01, 1.2), None)] == [
        "yes",
        "open",
        "no",
        "open",
    ]
    assert Ratio(0.5, (0.4, 0.8)).inverse() == Ratio(2.0, (1.25, 2.5))
    parts = {answer: Part("", None, answer) for answer in ("yes", "no", "open")}
    assert Verdict.of([parts["yes"], parts["yes"]]).answer == "yes"
    assert Verdict.of([parts["yes"], parts["open"]]).answer == "open"
    assert Verdict.of([parts["yes"], parts["open"], parts["no"]]).answer == "no"
    assert Verdict.of([]) == Verdict("open", (), "not measured")


def test_matched_entropy_falls_back_on_the_overlap() -> None:
    over = {"ratio_at_own_entropy": None, "ratio_over_overlap": 0.8, "ratio_over_interval": [0.7, 0.9]}
    assert matched_ratio(over) == (Ratio(0.8, (0.7, 0.9)), "over shared entropies")
    own = {"ratio_at_own_entropy": 0.6, "ratio_at_own_interval": [0.5, 0.7]}
    assert matched_ratio(over | own) == (Ratio(0.6, (0.5, 0.7)), "")
    assert matched_ratio({}) is None
    assert matched_ratio(None) is None


@pytest.mark.parametrize(("ppl", "answer"), [(80.0, "yes"), (99.0, "open"), (120.0, "no")])
def test_few_steps_against_many(ppl: float, answer: str) -> None:
    found = verdict("a", metrics=[row("ts-dfm", 8, ppl), row("teacher", 1024, 100.0)])
    assert found.answer == answer
    assert f"{ppl:.1f} at 7.00 bits / 100.0 at 7.00 bits" in str(found)
    assert verdict("a", metrics=[row("ts-dfm", 8, ppl), row("teacher", 256, 100.0)]).answer == "open"
    warm = row("ts-dfm", 8, 10.0, temperature=0.5)
    guided = row("ts-dfm", 8, 10.0, guide="token")
    assert verdict("a", metrics=[warm, guided, row("teacher", 1024, 100.0)]).answer == "open"


def test_every_step_count_and_every_control() -> None:
    rows = [row(name, at, 100.0) for name in ("fs-dfm", "control", "control-time") for at in (4, 8)]
    good = [row("ts-dfm", at, 80.0) for at in (4, 8)]
    assert verdict("b", metrics=[*rows, *good]).answer == "yes"
    assert len(verdict("b", metrics=[*rows, *good]).parts) == 6
    assert verdict("b", metrics=[*rows, good[0], row("ts-dfm", 8, 130.0)]).answer == "no"
    assert verdict("b", metrics=[*rows, good[0], row("ts-dfm", 8, 100.0)]).answer == "open"
    without = [r for r in rows if r["method"] != "control-time"]
    found = verdict("b", metrics=[*without, *good])
    assert (found.answer, found.remark) == ("yes", "not measured: control-time")
    alone = verdict("b", metrics=[*(r for r in rows if r["method"] == "fs-dfm"), *good])
    assert (alone.answer, alone.remark) == ("open", "not measured: control, control-time")


def test_matched_entropy_in_the_papers_and_the_best_other_setting() -> None:
    rows = [
        *(swept("ts-dfm", at, 1.2) for at in (4, 8)),
        *(swept("ts-a", at, 0.8) for at in (4, 8)),
        swept("ts-b", 4, 0.5, bigram_ratio_at_own_entropy=0.7, bigram_ratio_at_own_interval=[0.6, 0.8]),
        swept("ts-b", 8, 0.98),
        swept("ts-random", 8, 0.1),
        {"method": "control", "source": "uniform", "steps": 8, "at_own": "control"},
    ]
    assert verdict("c1", frontier=rows).answer == "no"
    found = verdict("c2", frontier=rows)  # log 0.5 + log 0.98 < 2·log 0.8, and 0.98 ± 0.05 holds 1
    assert (found.answer, found.remark) == ("open", "ts-b, chosen by these very figures")
    assert "by bigrams 0.70 [0.60, 0.80]" in str(found)
    assert verdict("c2", frontier=rows[:4]).answer == "yes"
    assert verdict("c2", frontier=rows[:2]).answer == "open"
    outside = [{**swept("ts-dfm", 8, 0.8), "ratio_at_own_entropy": None, "ratio_over_overlap": None}]
    assert verdict("c1", frontier=outside).answer == "open"


def test_the_best_setting_against_the_unigram_bias() -> None:
    name = "control + unigram bias"
    base = {"method": name, "source": "uniform", "steps": 8, **ratio(0.9), "control_method": "control"}
    for value, answer in ((0.8, "yes"), (1.2, "no"), (1.0, "open")):
        rows = [base, swept("ts-a", 8, 0.7, against={name: ratio(value)})]
        assert verdict("c3", frontier=rows).answer == answer
    assert verdict("c3", frontier=rows[1:]).remark == "not measured: report frontier --unigram"


def test_the_compass_against_a_random_pick() -> None:
    rows = [row("ts-dfm", 8, 80.0), row("ts-random", 8, 100.0)]
    assert verdict("d1", metrics=rows).answer == "yes"
    assert verdict("d1", metrics=rows[:1]).answer == "open"
    for value, answer in ((0.8, "yes"), (1.0, "open"), (1.1, "no")):
        assert verdict("d2", frontier=[swept("ts-dfm", 8, 9.0, against={"ts-random": ratio(value)})]).answer == answer


def test_guidance_against_the_temperature_curve() -> None:
    def guided(**more: Any) -> Rows:
        return [row("fs-dfm", at, 60.0, policy="sequence-to-token", guide="x", **more) for at in (8, 16)]

    assert verdict("e", policy=guided(**ratio(0.8))).answer == "yes"
    assert verdict("e", policy=guided(**ratio(1.2))).answer == "no"
    outside = verdict("e", policy=guided(ratio_at_own_entropy=None, ratio_over_overlap=None))
    assert outside.answer == "open"
    assert "outside the curve" in str(outside)
    assert verdict("e", policy=guided()).remark == "not measured: report policy --temperatures"


def test_the_best_threshold() -> None:
    def other(name: str, value: float) -> dict[str, Any]:
        return swept(name, 8, 9.0, against={"ts-dfm": ratio(value)})

    rows = [other("ts-tau-0.02", 1.2), other("ts-tau-0.4", 1.1)]
    found = verdict("f", frontier=rows, metrics=[row("ts-tau-0.4", 8, 55.0)])
    assert found.answer == "yes"
    assert "8 steps / ts-tau-0.02 0.83 [0.80, 0.87]" in str(found)
    assert "ts-tau-0.4 at T = 1: 55.0 at 7.00 bits" in str(found)
    assert verdict("f", frontier=[rows[0], other("ts-tau-0.4", 0.9)]).answer == "no"
    assert verdict("f", frontier=[rows[0], other("ts-tau-0.4", 1.0)]).answer == "open"


def test_the_better_start_depends_on_the_source() -> None:
    rows = [row("ts-dfm", 8, 80.0), row("ts-from-teacher", 8, 100.0)]
    assert verdict("g", metrics=rows).answer == "yes"
    masked = [{**one, "source": "mask"} for one in rows]
    assert verdict("g", source="mask", metrics=masked).answer == "no"


def test_both_phases_at_32_and_64() -> None:
    def phases(both: float) -> Rows:
        values = {"none": 120.0, "sequence": 100.0, "token": 90.0, "sequence-to-token": both}
        return [row("fs-dfm", at, ppl, policy=name) for at in (32, 64) for name, ppl in values.items()]

    assert verdict("h", policy=phases(80.0)).answer == "yes"
    assert verdict("h", policy=phases(90.0)).answer == "open"
    assert verdict("h", policy=phases(95.0)).answer == "no"
    assert verdict("h", policy=phases(80.0)[:4]).answer == "open"  # 32 alone


@pytest.mark.parametrize(
    ("two", "eight", "answer"),
    [(120.0, 100.0, "yes"), (120.0, 105.0, "yes"), (120.0, 90.0, "no"), (100.0, 100.0, "open"), (90.0, 100.0, "no")],
)
def test_five_candidates(two: float, eight: float, answer: str) -> None:
    rows = [row("fs-dfm", 8, ppl, k=k) for k, ppl in ((2, two), (5, 100.0), (8, eight))]
    assert verdict("i", candidates=rows).answer == answer
    assert verdict("i", candidates=[{**one, "paper": True} for one in rows]).answer == "open"


def test_the_accuracy_of_the_plain_compass_decides() -> None:
    def exam(overall: float) -> dict[str, Any]:
        return {"accuracy": {"overall": overall}, "pairs": {"a": 600, "b": 400, "velocity_step": 5000}}

    exams = {"compass-uniform": exam(0.98), "ratio-uniform": exam(0.6)}
    found = verdict("j", exams=exams)
    assert found.answer == "yes"
    assert "compass-uniform 98.0% [96.9, 98.7]; ratio-uniform 60.0%" in str(found)
    assert verdict("j", exams={"x": exam(0.955)}).answer == "open"  # Wilson over 1 000 pairs: ± 1.3 points
    assert verdict("j", exams={"x": exam(0.93)}).answer == "no"


def test_a_judge_has_its_own_answer() -> None:
    two = {"ppl": 130.0, "ppl_interval": [128.0, 132.0]}
    rows = [
        row("ts-dfm", 8, 80.0, judges={"one": {}, "two": two}),
        row("ts-random", 8, 100.0, judges={"one": {}, "two": {}}),
    ]
    assert verdict("d1", judge="one", metrics=rows).answer == "yes"
    assert verdict("d1", judge="two", metrics=rows).answer == "no"
    assert verdict("d1", judge="three", metrics=rows).answer == "open"


def test_the_table_reads_what_is_there(report_home: Path, tmp_path: Path) -> None:
    def seen(first: float, second: float) -> dict[str, Any]:
        return {
            "judges": {n: {"ppl": p, "ppl_interval": [0.98 * p, 1.02 * p]} for n, p in (("j1", first), ("j2", second))}
        }

    rows = [row("ts-dfm", 8, 80.0, **seen(80.0, 130.0)), row("teacher", 1024, 100.0, **seen(100.0, 100.0))]
    (tmp_path / "metrics.json").write_text(json.dumps([*rows, {"method": "held-out text", "source": None}]))
    path = run(ClaimsSettings(runs=(report_home,), out=tmp_path))
    found = json.loads(path.read_text())
    first = found["rows"][0]
    assert (first["letter"], first["source"], first["answer"]) == ("a", "uniform", "yes")
    assert first["claim"] == "8 steps of the student beat 1024 of its teacher"
    assert first["judges"]["j2"]["answer"] == "no"
    assert first["answer j2"].startswith("no: 1.30 [")
    assert [one["letter"] for one in found["rows"]] == [claim.letter for claim in CLAIMS]
    assert found["rows"][-1]["numbers"].startswith("compass-uniform ")
    assert found["judge_names"] == ["j1", "j2"]
    for ending in ("md", "tex"):
        assert "K = 5 is enough" in (tmp_path / f"claims.{ending}").read_text()


def test_nothing_measured_is_said(report_home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError, match="nothing was measured"):
        run(ClaimsSettings(runs=(report_home / "fs-dfm-uniform",), out=tmp_path))
    (tmp_path / "metrics.json").write_text("[{")
    assert main(["report", "claims", str(report_home), "--out", str(tmp_path)]) == 2
    assert "cannot read" in capsys.readouterr().err
