"""The paper's claims from rows made by hand: yes, no and open."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tsdfm.errors import UserError
from tsdfm.metrics.intervals import wilson
from tsdfm.report.commands.claims import CLAIMS, accuracy, answer, matched, parts_of, ratio, run
from tsdfm.report.settings import ClaimsSettings

EMPTY: dict[str, Any] = {"metrics": [], "frontier": [], "policy": [], "candidates": []}


def row(ppl: float, steps: int = 8, width: float = 0.02, **more: Any) -> dict[str, Any]:
    ends = [ppl * math.exp(-width), ppl * math.exp(width)]
    return {"source": "uniform", "steps": steps, "ppl": ppl, "ppl_interval": ends, "guide": None, **more}


def said(letter: str, *, source: str = "uniform", judge: str = "", **rows: Any) -> str:
    claim = next(claim for claim in CLAIMS if claim.letter == letter)
    return answer(parts_of(claim, source, judge, EMPTY | rows, ClaimsSettings(runs=(Path("x"),)), []))


def test_ratios_and_their_intervals_by_hand() -> None:
    found = ratio(row(50.0, width=0.03), row(100.0, width=0.04))
    assert found == pytest.approx((0.5, 0.5 * math.exp(-0.05), 0.5 * math.exp(0.05)))  # 3, 4, 5
    over = {"ratio_at_own_entropy": None, "ratio_over_overlap": 0.8, "ratio_over_interval": [0.7, 0.9]}
    assert matched(over) == (0.8, 0.7, 0.9)
    assert matched({**over, "ratio_at_own_entropy": 0.6, "ratio_at_own_interval": [0.5, 0.7]}) == (0.6, 0.5, 0.7)


@pytest.mark.parametrize(("ppl", "wanted"), [(80.0, "yes"), (99.0, "open"), (120.0, "no")])
def test_perplexities_at_one_temperature(ppl: float, wanted: str) -> None:
    student, teacher = row(ppl, method="ts-dfm"), row(100.0, 1024, method="teacher")
    assert said("a", metrics=[student, teacher]) == wanted
    others = [row(100.0, method=name) for name in ("fs-dfm", "control")]
    assert said("b", metrics=[student, *others]) == wanted
    assert said("b", metrics=[student, others[0]]) == ("no" if wanted == "no" else "open")  # a control is missing
    start = row(100.0, method="ts-from-teacher")
    assert said("g", metrics=[student, start]) == wanted
    swapped = {"yes": "no", "no": "yes", "open": "open"}[wanted]
    assert said("g", source="mask", metrics=[{**one, "source": "mask"} for one in (student, start)]) == swapped
    two = {"ppl": 200.0, "ppl_interval": [190.0, 210.0]}
    assert said("a", judge="j", metrics=[{**student, "judges": {"j": two}}, teacher]) == "no"


def test_matched_entropy_policies_and_candidates() -> None:
    def swept(method: str, value: float, **against: float) -> dict[str, Any]:
        def of(x: float) -> dict[str, Any]:
            return {"ratio_at_own_entropy": x, "ratio_at_own_interval": [x - 0.05, x + 0.05]}

        known = {"method": method, "source": "uniform", "steps": 8, "control_method": "control"}
        return {**known, **of(value), "against": {n.replace("_", "-"): of(x) for n, x in against.items()}}

    for value, wanted in ((0.8, "yes"), (1.0, "open"), (1.2, "no")):
        assert said("c1", frontier=[swept("ts-dfm", 0.8, fs_dfm=value)]) == wanted
        taus = [swept("ts-tau-0.02", 9.0, ts_dfm=1.2), swept("ts-tau-0.4", 9.0, ts_dfm=2 - value)]
        assert said("f", frontier=taus) == wanted  # other τ should be worse
        phases = [row(100.0 * p, at, policy=n) for at in (32, 64) for n, p in (("sequence", 1), ("token", 1))]
        both = [row(100.0 * value, at, policy="sequence-to-token") for at in (32, 64)]
        assert said("h", policy=[*phases, *both]) == wanted
        assert said("e", policy=[{**swept("fs-dfm", value), "policy": "sequence-to-token"}]) == wanted
    ks = [row(ppl, k=k, method="fs-dfm") for k, ppl in ((2, 120.0), (5, 100.0), (8, 99.0))]
    assert (said("i1", candidates=ks), said("i2", candidates=ks)) == ("yes", "yes")
    assert said("i2", candidates=[*ks[:2], row(80.0, k=8)]) == "no"


def test_the_accuracy_of_a_compass(tmp_path: Path) -> None:
    path = tmp_path / "validation.json"
    path.write_text(json.dumps({"accuracy": {"a": 0.98, "overall": 0.5}, "pairs": {"a": 1000}}))
    (part,) = accuracy([path], 0.95)
    assert part.found == pytest.approx((0.98, *wilson(980, 1000)))  # one strategy: Wilson's own
    assert [accuracy([path], bound)[0].answer for bound in (0.95, 0.98, 0.995)] == ["yes", "open", "no"]
    assert accuracy([], 0.95)[0].answer == "open"


def test_the_table_shows_what_was_measured_and_counts_the_rest(report_home: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="run `tsdfm report measure` first"):
        run(ClaimsSettings(runs=(report_home,), out=tmp_path))
    rows = [row(80.0, method="ts-dfm"), row(100.0, 1024, method="teacher")]
    (tmp_path / "metrics.json").write_text(json.dumps([*rows, {"method": "held-out text", "source": None}]))
    found = json.loads(run(ClaimsSettings(runs=(report_home,), out=tmp_path)).read_text())
    assert (found["rows"][0]["letter"], found["rows"][0]["answer"]) == ("a", "yes")
    assert [one["letter"] for one in found["rows"]] == ["a", "j"]
    assert f"{len(CLAIMS) - 2} of {len(CLAIMS)} not measured" in found["title"]
