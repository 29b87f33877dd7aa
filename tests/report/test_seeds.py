"""`tsdfm report seeds`: means over seeds, what is left out, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

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
    assert "rows that not every seed has are left out: 1" in found["notes"]
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
