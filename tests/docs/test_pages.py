"""Pages stay readable: short lines and cells, few questions, figures that say where they come from, no diary."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
README = ROOT / "README.md"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
FENCE = re.compile(r"^( *)(```+).*?^\1\2[ \t]*$", re.MULTILINE | re.DOTALL)
DIARY = re.compile(
    r"\b(first|second|third|fourth|fifth|sixth|seventh|this|last) (session|sitting)\b"
    r"|\bcomes? along\b|\bbrought home\b|\bwarmth\b",
    re.IGNORECASE,
)

by_name = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())


def prose(page: Path) -> list[str]:
    """Lines of a page outside of fenced code."""
    return FENCE.sub("", page.read_text(encoding="utf-8")).splitlines()


def cells(page: Path) -> list[str]:
    rows = (line for line in prose(page) if line.startswith("|"))
    return [cell.strip() for row in rows for cell in re.split(r"(?<!\\)\|", row)]


@by_name
def test_lines_and_cells_are_short(page: Path) -> None:
    assert [line for line in prose(page) if len(line) > (200 if page == README else 500)] == []
    assert [cell for cell in cells(page) if len(cell) > 100] == []


@by_name
def test_no_diary(page: Path) -> None:
    assert [line for line in prose(page) if DIARY.search(line)] == []


def test_readme_is_one_page_with_one_table_of_six_rows() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 90
    assert sum(line.startswith("|") for line in prose(README)) == 2 + 6


def test_readme_names_every_room() -> None:
    text = README.read_text(encoding="utf-8")
    here = [path for path in (ROOT / "src" / "tsdfm").iterdir() if not path.name.startswith("_")]
    rooms = {path.name for path in here if path.is_dir()}
    assert rooms | {"cli"} == set(re.findall(r"^  (\w+) {2,}", text, re.MULTILINE))
    (shared,) = re.findall(r"^src/tsdfm/ +(.*): ", text, re.MULTILINE)
    assert {path.stem for path in here if path.suffix == ".py"} == {*shared.split(", "), "cli"}


def test_results_say_once_where_figures_come_from_and_are_ten_short_questions() -> None:
    text = (DOCS / "results.md").read_text(encoding="utf-8")
    assert len(re.sub(r"\||---", " ", text).split()) <= 1_100
    top, *questions = re.split(r"^## (?=\d)", text, flags=re.MULTILINE)
    for word in ("`tsdfm report", "commit [", "H200", "seed", "512 texts", "95 % intervals", "Exceptions:"):
        assert word in top, word
    assert sum(line.startswith("| ---") for line in text.splitlines()) == 1, "one table"
    assert len(re.findall(r"^!\[", text, re.MULTILINE)) == 1, "one figure"
    assert len(questions) == 10
    for question in questions:
        title, _, body = question.partition("\n\n")
        assert body.startswith("**"), (title, "the answer comes first, in bold")
        assert len(body.split()) <= 75, (title, "the rest is on other pages")


def test_real_text_is_few_short_questions_each_with_its_limits() -> None:
    text = (DOCS / "runs" / "real-text.md").read_text(encoding="utf-8")
    assert len(re.sub(r"\||---", " ", text).split()) <= 1_100
    top, *questions = re.split(r"^## (?=\d)", text, flags=re.MULTILINE)
    for word in ("`tsdfm report", "commit [", "H200", "seed", "512 texts", "95 % intervals", "Exceptions:"):
        assert word in top, word
    assert 1 <= len(questions) <= 6
    for question in questions:
        title, _, body = question.partition("\n\n")
        assert body.startswith("**"), (title, "the answer comes first, in bold")
        assert 3 <= sum(line.startswith("|") for line in body.splitlines()) <= 2 + 5, (title, "one small table")
        limits = body[body.rindex("\n|") :].partition("Limits:")[2]
        assert "](" in limits, (title, "limits, and where the rest is")
