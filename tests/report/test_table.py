"""Tables in every form: escaping, marks, quoted rows, and what the JSON holds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from tsdfm.report.table import COLLAPSED, Column, Table, markdown_escape

NASTY = "a_b & 50% {x} \\ ~^ #1 $2 | *c* <d> [e] †"


def table() -> Table:
    columns = [Column("method", "method_name", "left"), Column("ppl", "PPL | T", format=".2f"), Column("n", "n")]
    made = Table("demo", "A & B", columns, about={"command": "tsdfm report demo x", "samples": 4, "seed": 7})
    made.add(method=NASTY, ppl=3.14159, n=4, extra=[1, 2], marks=["ppl"])
    made.add(method="quoted", ppl=1.0, paper=True)
    made.add(method="odd", ppl=float("nan"))
    return made


def test_markdown_shows_text_as_it_is() -> None:
    assert markdown_escape("a|b*c_d") == r"a\|b\*c\_d"
    assert markdown_escape("<img>\nx") == r"\<img\> x"


def test_every_markdown_line_has_the_same_cells() -> None:
    lines = [line for line in table().markdown().splitlines() if line.startswith("|")]
    assert [line.replace(r"\|", "").count("|") for line in lines] == [4] * 5
    assert "3.14†" in lines[2]
    assert lines[3] == "| *quoted* | *1.00* |  |"
    assert lines[4] == "| odd | – |  |"


def test_the_note_on_collapse_stands_where_a_row_of_ours_is_marked() -> None:
    made = table()
    assert COLLAPSED in made.footnotes()
    made.rows = [{"method": "x", "ppl": 1.0, "marks": []}, {"method": "y", "paper": True, "marks": ["ppl"]}]
    assert COLLAPSED not in made.footnotes()


def test_files_and_json(tmp_path: Path) -> None:
    path = table().save(tmp_path / "deep" / "report")
    assert sorted(p.name for p in path.parent.iterdir()) == ["demo.json", "demo.md"]
    found = json.loads(path.read_text(), parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert found["rows"][2]["ppl"] is None
    assert found["columns"][0] == {"name": "method", "label": "method_name", "align": "left", "format": "text"}
    assert found["rows"][0]["extra"] == [1, 2]
    assert (found["command"], found["samples"], found["seed"]) == ("tsdfm report demo x", 4, 7)
    assert found["notes"][-1] == "command: tsdfm report demo x"


def test_the_terminal_takes_brackets_for_text(capsys: pytest.CaptureFixture[str]) -> None:
    table().show(Console(width=140))
    shown = capsys.readouterr().out
    assert "[e]" in shown
    assert "3.14†" in shown
