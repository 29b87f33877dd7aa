"""`tsdfm report seeds`: means over seeds, what is left out, and what is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tsdfm.cli import main
from tsdfm.report.table import Column, Table

COLUMNS = [Column("method", "method", "left"), Column("steps", "steps"), Column("ppl", "perplexity", format=".1f"),
           Column("at_own", "ppl / reference")]  # fmt: skip


def report(folder: Path, seed: int, rows: list[dict[str, object]], columns: list[Column] = COLUMNS) -> Path:
    return Table("neighbours", "Methods", columns, rows, about={"seed": seed, "command": f"made {seed}"}).save(folder)


def test_the_mean_of_two_seeds_with_half_their_range(tmp_path: Path) -> None:
    quoted = {"method": "SEDD (paper)", "steps": 8, "ppl": 1.0, "paper": True}
    first = [{"method": "a", "steps": 8, "ppl": 10.0, "at_own": "outside"}, {"method": "b", "steps": 8, "ppl": 1.0}]
    second = [{"method": "a", "steps": 16, "ppl": 99.0}, {"method": "a", "steps": 8, "ppl": 13.0, "at_own": "0.9"}]
    report(tmp_path / "s0" / "report", 0, [*first, quoted])
    report(tmp_path / "s1" / "report", 1, [*second, quoted])
    folders = [str(tmp_path / name) for name in ("s0", "s1")]
    assert main(["report", "seeds", *folders, "--name", "neighbours", "--out", str(tmp_path / "both")]) == 0
    found = json.loads((tmp_path / "both" / "neighbours.json").read_text())
    row, kept = found["rows"]
    assert (row["ppl"], row["ppl_spread"], row["ppl_seeds"], row["at_own"]) == (11.5, 1.5, [10.0, 13.0], "outside, 0.9")
    assert kept["method"] == "SEDD (paper)"
    assert found["seeds"] == [0, 1]
    assert "rows that not every seed has are left out: 2" in found["notes"]
    assert "| a | 8 | 11.5 ± 1.5 | outside, 0.9 |" in (tmp_path / "both" / "neighbours.md").read_text()


@pytest.mark.parametrize("wrong", ["one", "columns", "none", "no table"])
def test_what_cannot_be_joined_is_refused(tmp_path: Path, wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    one = report(tmp_path / "a", 0, [{"method": "a", "steps": 8, "ppl": 1.0}])
    two = report(
        tmp_path / "b", 1, [{"method": "a", "steps": 8, "ppl": 1.0}], COLUMNS[: 3 if wrong == "columns" else 4]
    )
    other = tmp_path / "metrics.json"
    other.write_text('{"loss": 1.0}')
    choices = {"one": [one, one], "columns": [one, two], "none": [one, tmp_path / "c"], "no table": [one, other]}
    files = choices[wrong]
    assert main(["report", "seeds", *map(str, files), "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err.strip()
    assert said.count("\n") == 0
    assert not (tmp_path / "out").exists()


def frontier(folder: Path, seed: int, lift: float, **more: object) -> Path:
    """A frontier whose control has exp(bits) and whose student has `lift` times that, at three temperatures."""
    points = []
    for temperature, bits in ((0.7, 1.0), (1.0, 2.0), (1.3, 3.0)):
        point = {"source": "uniform", "steps": 8, "temperature": temperature, "entropy_bits": bits}
        for method, off, times in (("control", 0.0, 1.0), ("student", 0.5, lift), ("wide", 1.5, 1.0)):
            ppl = times * math.exp(bits + off)
            at = {"entropy_bits": bits + off, "bigram_entropy_bits": 9 + 2 * (bits + off)}
            points.append({**point, **at, "method": method, "ppl": 1e6, "ppl_geometric": ppl})
    real = {"entropy_bits": 2.55, "bigram_entropy_bits": 5.0, "ppl": 2.0, "ppl_geometric": 2.0}
    about = {"seed": seed, "judge": "j", "points": points, "control": "control", "target": real, **more}
    rows = [{"method": m, "steps": 8, "ppl": 1.0} for m in ("control", "student", "wide")]
    return Table("frontier", "Frontier", COLUMNS[:3], rows, about=about).save(folder / "report")


def test_frontiers_of_several_seeds_have_mean_curves_and_each_seeds_ratio_at_equal_entropy(tmp_path: Path) -> None:
    frontier(tmp_path / "s0", 0, 0.5)
    frontier(tmp_path / "s1", 1, 2.0)
    out = tmp_path / "both"
    words = ["--name", "frontier", "--definition", "geometric", "--within", "0.6", "--out", str(out)]
    assert main(["report", "seeds", str(tmp_path / "s0"), str(tmp_path / "s1"), *words]) == 0
    found = json.loads((out / "frontier-seeds.json").read_text())
    rows = {row["method"]: row for row in found["rows"]}
    assert rows["student"]["entropy_bits control"] == "0.500, 2.000"
    assert rows["student"]["bigram_entropy_bits control"] == "0.500, 2.000"
    assert rows["wide"]["entropy_bits control"] == "outside"
    assert (rows["student"]["ppl"], rows["student"]["entropy_bits"]) == ("6.09, 24.4", "2.50, 2.50")
    assert rows["control"].keys() == {"source", "method", "steps", "ppl", "entropy_bits"}
    assert found["seeds"] == [0, 1]
    for name, at in (("frontier.svg", "entropy, bits 2.5"), ("frontier-bigrams.svg", "bigram entropy, bits 14")):
        drawn = (out / name).read_text()
        assert f"student: 12.2, {at}" in drawn  # exp(2.5), the geometric mean of half and twice as much
        assert "T = 1.3" not in drawn.split("student")[1].split("wide")[0]  # its 3.5 bits are too far from 2.5


def test_what_one_seed_alone_has_is_told_apart_from_what_cannot_be_compared(tmp_path: Path) -> None:
    plain = json.loads(frontier(tmp_path / "s0", 0, 1.0).read_text())
    plain["points"] = [point for point in plain["points"] if point["method"] != "student"]
    plain["rows"] = plain["rows"][:1]
    (tmp_path / "few.json").write_text(json.dumps(plain))
    files = [tmp_path / "few.json", frontier(tmp_path / "s1", 1, 1.0)]
    assert (
        main(["report", "seeds", *map(str, files), "--definition", "geometric", "--out", str(tmp_path / "both")]) == 0
    )
    rows = {row["method"]: row for row in json.loads((tmp_path / "both/frontier-seeds.json").read_text())["rows"]}
    assert (rows["student"]["ppl"], rows["student"]["entropy_bits control"]) == ("–, 12.2", "–, 1.000")
    joined = json.loads((tmp_path / "both/few.json").read_text())
    assert "rows that not every seed has are left out: 2" in joined["notes"]


@pytest.mark.parametrize(
    ("change", "words", "said"),
    [
        ({}, ["--steps", "3"], "no frontier has 3 steps: they have 8"),
        ({}, ["--within", "0.001"], "raise within"),
        ({"target": None}, ["--within", "1"], "leave within out"),
        ({"judge": "other"}, [], "different judges or controls"),
        ({"points": None}, [], "points"),
        ({"points": [{"source": "uniform"}]}, [], "points[0].steps is missing"),
        ("no curves", ["--steps", "8"], "has no curves"),
        ("no curves", [], "has no curves"),
        ("input", [], "holds one of the tables"),
    ],
)
def test_curves_that_cannot_be_joined_are_refused(
    tmp_path: Path, change: Any, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out, more = tmp_path / "out", change if isinstance(change, dict) else {}
    files = [frontier(tmp_path / "a", 0, 1.0), frontier(tmp_path / "b", 1, 1.0, **more)]
    if "target" in more:
        files.reverse()
    if change == "no curves":
        files[1] = report(tmp_path / "c", 1, [], COLUMNS[:3])
    if change == "input":
        out = tmp_path / "a" / "report"
    before = files[0].read_text()
    assert main(["report", "seeds", *map(str, files), *words, "--out", str(out)]) == 2
    found = capsys.readouterr().err.strip()
    assert said in found
    assert "\n" not in found
    assert files[0].read_text() == before
    assert change == "input" or not out.exists()
