"""The paper's claims from rows made by hand: yes, no and open."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from tsdfm.cli import main
from tsdfm.compass.statistics import wilson
from tsdfm.errors import UserError
from tsdfm.report.claims.answers import CLAIMS, mean_share
from tsdfm.report.claims.evidence import Evidence, Part, Ratio, Trained, Verdict, matched_ratio, ratio_of
from tsdfm.report.commands.claims import run, trained_by_source
from tsdfm.report.desk import Desk
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


def trained(name: str, divergence: str = "forward", average: str = "logits", steps: int = 600) -> Trained:
    """A student that went on from another; those called control are blind."""
    blind = name.startswith("control")
    return Trained(name, name, divergence, average, steps, blind=blind, went_on=True)


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


@pytest.mark.parametrize("lacking", ["fs-dfm", "control", "control-time"])
@pytest.mark.parametrize("steps", [(4, 8), (8,)])
def test_what_is_missing_leaves_every_step_count_open(lacking: str, steps: tuple[int, ...]) -> None:
    rows = [row(name, at, 100.0) for name in ("fs-dfm", "control", "control-time") for at in (4, 8)]
    good = [row("ts-dfm", at, 80.0) for at in (4, 8)]
    less = [r for r in rows if r["method"] != lacking or r["steps"] not in steps]
    found = verdict("b", metrics=[*less, *good])
    assert (found.answer, len(found.parts)) == ("open", 6)
    unknown = [(part.what, part.steps, part.answer, part.more) for part in found.parts if part.ratio is None]
    assert unknown == [(f"/ {lacking}", at, "open", "not measured") for at in steps]
    assert verdict("b", metrics=[*less, good[0], row("ts-dfm", 8, 130.0)]).answer == "no"  # whatever else is missing


def test_the_students_own_missing_step_counts_count() -> None:
    rows = [row(name, at, 100.0) for name in ("fs-dfm", "control", "control-time") for at in (4, 8)]
    found = verdict("b", metrics=[*rows, row("ts-dfm", 8, 80.0)])
    assert found.answer == "open"
    assert "4 steps / fs-dfm (not measured: ts-dfm)" in str(found)
    for letter, other in (("d1", "ts-random"), ("g", "ts-from-teacher")):
        both = [row("ts-dfm", 8, 80.0), row(other, 8, 100.0)]
        assert verdict(letter, metrics=both).answer == "yes"
        assert verdict(letter, metrics=[*both, row("ts-dfm", 16, 80.0)]).answer == "open"
        assert verdict(letter, metrics=[*both, row(other, 16, 80.0)]).answer == "open"
        assert verdict(letter, metrics=[*both, row("ts-dfm", 16, 80.0, temperature=0.5)]).answer == "yes"
    assert verdict("b").remark == "not measured"


def test_matched_entropy_in_the_papers_setting() -> None:
    def student(value: float, fs: float, **more: Any) -> dict[str, Any]:
        return swept("ts-dfm", 8, value, against={"fs-dfm": ratio(fs), **more})

    assert verdict("c1", frontier=[student(0.8, 0.7)]).answer == "yes"
    assert verdict("c1", frontier=[student(1.2, 0.7)]).answer == "no"
    assert verdict("c1", frontier=[student(0.8, 1.2)]).answer == "no"
    assert verdict("c1", frontier=[student(0.8, 0.7, **{"control-time": ratio(1.2)})]).answer == "no"
    control = {"method": "control", "source": "uniform", "steps": 16, "at_own": "control", "against": {}}
    assert verdict("c1", frontier=[student(0.8, 0.7), control]).answer == "open"  # not swept at 16 steps
    alone = verdict("c1", frontier=[swept("ts-dfm", 8, 0.8, against={})])
    assert (alone.answer, str(alone)) == (
        "open",
        "8 steps / fs-dfm (not measured); 8 steps / control 0.80 [0.75, 0.85]",
    )
    instead = [student(0.8, 0.7) | {"control_method": "fs-dfm"}]  # no run was called control
    assert verdict("c1", frontier=instead).answer == "open"
    outside = [student(0.8, 0.7) | {"ratio_at_own_entropy": None, "ratio_over_overlap": None}]
    assert verdict("c1", frontier=outside).answer == "open"
    assert "the curves share no entropy" in str(verdict("c1", frontier=outside))


def test_the_best_other_setting() -> None:
    runs = [trained(name) for name in ("control", "ts-dfm", "ts-a", "ts-b", "ts-random")]
    rows = [
        *(swept("ts-dfm", at, 1.2) for at in (4, 8)),
        *(swept("ts-a", at, 0.8) for at in (4, 8)),
        swept("ts-b", 4, 0.5, bigram_ratio_at_own_entropy=0.7, bigram_ratio_at_own_interval=[0.6, 0.8]),
        swept("ts-b", 8, 0.98),
        swept("ts-random", 8, 0.1),
        {"method": "control", "source": "uniform", "steps": 8, "at_own": "control"},
    ]
    found = verdict("c2", frontier=rows, trained=runs)  # log 0.5 + log 0.98 < 2·log 0.8, and 0.98 ± 0.05 holds 1
    said = "ts-b against control (forward KL, average of logits), chosen by these very figures"
    assert (found.answer, found.remark) == ("open", said)
    assert "by bigrams 0.70 [0.60, 0.80]" in str(found)
    assert verdict("c2", frontier=rows[:4], trained=runs).answer == "yes"
    assert verdict("c2", frontier=[*rows[:4], {**rows[-1], "steps": 16}], trained=runs).answer == "open"
    assert verdict("c2", frontier=rows[:2], trained=runs).answer == "open"
    unknown = verdict("c2", frontier=rows[:4])
    assert (unknown.answer, unknown.remark) == ("open", "open: ts-a (its run is not among those given)")


def test_a_setting_is_compared_with_the_control_of_its_divergence_and_average() -> None:
    runs = [trained("control"), trained("ts-a"), trained("ts-r", "reverse"), trained("ts-p", average="probabilities")]
    reverse = trained("control-r", "reverse")
    rows = [
        swept("ts-a", 8, 0.9, 0.01, against={"control-r": ratio(0.2)}),
        swept("ts-r", 8, 0.3, against={"control-r": ratio(0.97)}),  # wins by its divergence alone
        swept("ts-p", 8, 0.2, against={"control-r": ratio(0.1)}),
    ]
    found = verdict("c2", frontier=rows, trained=[*runs, reverse])
    assert (found.answer, [part.what for part in found.parts]) == ("yes", ["/ control"])
    assert found.remark == (
        "ts-a against control (forward KL, average of logits), chosen by these very figures; "
        "open: ts-p (forward KL, average of probabilities: no such control)"
    )
    better = [rows[0], swept("ts-r", 8, 1.3, against={"control-r": ratio(0.6)})]
    found = verdict("c2", frontier=better, trained=[*runs, reverse])
    assert (found.answer, str(found.parts[0])) == ("yes", "8 steps / control-r 0.60 [0.55, 0.65]")
    found = verdict("c2", frontier=[swept("ts-r", 8, 0.3, against={})], trained=[*runs, reverse])
    assert found.answer == "open"
    assert found.remark == "open: ts-r against control-r (reverse KL, average of logits): not measured"
    worse = [swept("ts-a", 8, 1.3), rows[1]]
    assert verdict("c2", frontier=worse, trained=runs).answer == "open"  # ts-r has no control, and may be better
    assert verdict("c2", frontier=worse[:1], trained=runs).answer == "no"


def test_the_control_of_equal_training_comes_first() -> None:
    runs = [trained("control-time", steps=900), trained("control"), trained("control-x"), trained("ts-a")]
    row_ = swept("ts-a", 8, 0.8, against={"control-time": ratio(0.5), "control-x": ratio(0.6)})
    assert verdict("c2", frontier=[row_], trained=runs).parts[0].what == "/ control"
    longer = [*runs[:3], trained("ts-a", steps=900)]
    assert verdict("c2", frontier=[row_], trained=longer).parts[0].what == "/ control-time"
    neither = [*runs[:3], trained("ts-a", steps=2100)]
    assert verdict("c2", frontier=[row_], trained=neither).parts[0].what == "/ control"
    other = Trained("fs-dfm", "fs-dfm", "forward", "logits", 600, blind=True, went_on=False)
    assert verdict("c2", frontier=[row_], trained=[other, runs[-1]]).answer == "open"  # FS-DFM is no control


def test_the_best_setting_against_the_unigram_bias() -> None:
    name = "control + unigram bias"
    runs = [trained("control"), trained("control-r", "reverse"), trained("ts-a"), trained("ts-r", "reverse")]
    base = {"method": name, "source": "uniform", "steps": 8, **ratio(0.9), "control_method": "control"}
    for value, answer in ((0.8, "yes"), (1.2, "no"), (1.0, "open")):
        rows = [base, swept("ts-a", 8, 0.7, against={name: ratio(value)})]
        assert verdict("c3", frontier=rows, trained=runs).answer == answer
    reverse = swept("ts-r", 8, 0.1, against={name: ratio(0.1)})  # the biased one has another divergence
    found = verdict("c3", frontier=[*rows, reverse], trained=runs)
    assert found.parts[0].what == "/ control + unigram bias"
    assert "ts-a against control + unigram bias" in found.remark
    assert "open: ts-r against control-r + unigram bias (reverse KL, average of logits): not measured" in found.remark
    own = swept("ts-dfm", 8, 1.0, against={name: ratio(0.5)})
    best = verdict("c3", frontier=[*rows, own], trained=[*runs, trained("ts-dfm")])
    assert (best.answer, best.remark.split(" against")[0]) == ("yes", "ts-dfm")  # the paper's setting may be the best
    assert verdict("c3", frontier=rows[1:], trained=runs).remark == "not measured: report frontier --unigram"


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
    some = [*guided(**ratio(0.8)), row("fs-dfm", 32, 60.0, policy="none")]
    assert verdict("e", policy=some).answer == "open"  # no guided texts at 32 steps


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
    for one in rows:
        alone = verdict("f", frontier=[one])
        assert (alone.answer, [part.answer for part in alone.parts].count("open")) == ("open", 1)
    assert "8 steps / ts-tau-0.4 (not measured)" in str(verdict("f", frontier=[rows[0]]))


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


def test_the_interval_of_a_mean_over_strategies() -> None:
    assert mean_share([(0.98, 1000)]) == pytest.approx((0.98, *wilson(980, 1000)))  # one strategy: Wilson's own
    low, high = wilson(970, 1000)
    found = mean_share([(0.97, 1000)] * 4)  # four alike: half as wide
    assert found == pytest.approx((0.97, 0.97 - (0.97 - low) / 2, 0.97 + (high - 0.97) / 2))
    # 0.9 of 50 and 1 of 5 000 is not 0.999 of 5 050: the small strategy decides the width
    low, high = wilson(45, 50)
    mean, down, up = mean_share([(0.9, 50), (1.0, 5000)])
    assert (mean, down, up) == pytest.approx((0.95, 0.95 - (0.9 - low) / 2, 0.95 + (high - 0.9) / 2), abs=1e-4)


def test_the_accuracy_of_the_plain_compass_decides() -> None:
    def exam(one: float, two: float, few: int = 400) -> dict[str, Any]:
        right = {"a": one, "b": two, "velocity_step": 0.5, "overall": (one + two) / 2}
        return {"accuracy": right, "pairs": {"a": 600, "b": few, "velocity_step": 5000}}

    exams = {"compass-uniform": exam(0.99, 0.97), "ratio-uniform": exam(0.6, 0.6)}
    found = verdict("j", exams=exams)
    assert found.answer == "yes"
    assert "compass-uniform 98.0% [96.8, 98.7]; ratio-uniform 60.0%" in str(found)
    assert verdict("j", exams={"x": exam(0.96, 0.95)}).answer == "open"
    assert verdict("j", exams={"x": exam(0.94, 0.92)}).answer == "no"
    assert verdict("j", exams={"x": exam(1.0, 0.95, few=20)}).answer == "open"  # 97.5 % of 620 would be yes


@pytest.mark.parametrize(
    "exam", [{}, {"accuracy": {"overall": 0.99}}, {"accuracy": {"a": 0.99}, "pairs": {}}, {"accuracy": 1, "pairs": 2}]
)
def test_an_examination_without_figures_is_not_measured(exam: dict[str, Any]) -> None:
    found = verdict("j", exams={"compass-uniform": exam})
    assert (found.answer, str(found)) == ("open", "compass-uniform (not measured)")


def test_a_judge_has_its_own_answer() -> None:
    two = {"ppl": 130.0, "ppl_interval": [128.0, 132.0]}
    rows = [
        row("ts-dfm", 8, 80.0, judges={"one": {}, "two": two}),
        row("ts-random", 8, 100.0, judges={"one": {}, "two": {}}),
    ]
    assert verdict("d1", judge="one", metrics=rows).answer == "yes"
    assert verdict("d1", judge="two", metrics=rows).answer == "no"
    assert verdict("d1", judge="three", metrics=rows).answer == "open"


def test_rows_of_older_versions_stand_for_their_own_judge() -> None:
    rows = [swept("ts-dfm", 8, 0.8, judge="one"), swept("fs-dfm", 8, 1.1, judge="one")]
    found = verdict("c1", judge="one", frontier=rows)
    assert str(found.parts[1]) == "8 steps / control 0.80 [0.75, 0.85]"
    assert found.parts[0].more == "made by an older version: run `tsdfm report frontier` again"  # no `against`
    other = verdict("c1", judge="two", frontier=[*rows, swept("control", 8, 1.0, judge="one")])
    assert {part.more for part in other.parts} == {"made by an older version: run `tsdfm report frontier` again"}
    assert verdict("d2", judge="one", frontier=rows).parts[0].more == "not measured"  # ts-random was not swept
    ks = [row("fs-dfm", 8, ppl, k=k, judge="one") for k, ppl in ((2, 120.0), (5, 100.0), (8, 100.0))]
    assert verdict("i", judge="one", candidates=ks).answer == "yes"
    found = verdict("i", judge="two", candidates=ks)
    assert (found.answer, found.parts[0].more) == (
        "open",
        "made by an older version: run `tsdfm report candidates` again",
    )


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


def test_older_tables_and_the_runs_own_report_folder(report_home: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    shutil.copytree(report_home, home, ignore=shutil.ignore_patterns("report"))
    (home / "report").mkdir()
    judged: dict[str, Any] = {"judges": {"j1": {"ppl": 80.0, "ppl_interval": [79.0, 81.0]}}}
    metrics = [row("ts-dfm", 8, 80.0, **judged), row("teacher", 1024, 100.0, **judged)]
    (home / "report" / "metrics.json").write_text(json.dumps(metrics))
    old = {"rows": [swept("ts-dfm", 8, 1.2), swept("control", 8, 1.0)], "judge_names": ["j1"]}
    (home / "report" / "frontier.json").write_text(json.dumps(old))
    (home / "compass-uniform" / "validation.json").write_text("{}")
    path = run(ClaimsSettings(runs=(home,), out=tmp_path / "other"))
    assert path.parent == tmp_path / "other"
    found = json.loads(path.read_text())
    rows = {one["letter"]: one for one in found["rows"]}
    assert rows["a"]["answer"] == "open"  # 1.00 [0.98, 1.02]
    assert (rows["c1"]["answer"], rows["j"]["numbers"]) == ("no", "compass-uniform (not measured)")
    assert "read from the runs' own report folder: metrics.json, frontier.json" in found["notes"]
    assert "frontier.json is of an older version: its figures are taken as those of j1" in found["notes"]
    metrics[0]["judges"] = {"j1": {"ppl": 60.0, "ppl_interval": [59.0, 61.0]}}
    (tmp_path / "other" / "metrics.json").write_text(json.dumps(metrics))  # --out comes first, where it has a table
    found = json.loads(run(ClaimsSettings(runs=(home,), out=tmp_path / "other")).read_text())
    assert found["rows"][0]["answer"] == "yes"


def test_divergence_and_average_are_read_off_the_manifests(report_home: Path) -> None:
    found = trained_by_source(Desk("claims", ClaimsSettings(runs=(report_home,))))["uniform"]
    assert [one.method for one in found] == ["fs-dfm", "control", "ts-dfm"]
    assert {(one.divergence, one.average, one.steps) for one in found} == {("reverse", "logits", 6)}
    assert [(one.blind, one.went_on) for one in found] == [(True, False), (True, True), (False, True)]


def test_nothing_measured_is_said(report_home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = tmp_path / "home"
    shutil.copytree(report_home, home, ignore=shutil.ignore_patterns("report"))
    with pytest.raises(UserError, match=r"nothing was measured in \S+ or \S+/home/report: run `tsdfm report measure`"):
        run(ClaimsSettings(runs=(home,), out=tmp_path))
    assert not (tmp_path / "claims.json").exists()
    (tmp_path / "metrics.json").write_text("[{")
    assert main(["report", "claims", str(home), "--out", str(tmp_path)]) == 2
    assert "cannot read" in capsys.readouterr().err
