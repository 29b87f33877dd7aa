"""The report's page: what it says, what it leaves out, and that no text can break out of it."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from view_parts import HOSTILE, a_table, pipeline, real, row, way

from tsdfm.cli import main
from tsdfm.errors import UserError
from tsdfm.report.page.build import build_page
from tsdfm.report.page.charts import curve, energy, frontier, navigation, quality, training
from tsdfm.report.page.gather import gather, group_of, styles_of
from tsdfm.report.page.markup import clean, data_text, number, part
from tsdfm.report.runs import TrainedRun
from tsdfm.store.files import write_json
from tsdfm.terminal import visible
from tsdfm.view.page import trajectory_page

VOID = {"meta", "link", "br", "img", "input", "hr"}
SECTIONS = [
    "results",
    "steps",
    "frontier",
    "trajectories",
    "samples",
    "compass",
    "navigation",
    "training",
    "tables",
    "provenance",
]


class Reader(HTMLParser):
    """Reads a page strictly: every element is closed in order, every id is there once."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.stack, self.ids, self.tags = list[str](), list[str](), list[tuple[str, dict[str, str | None]]]()
        self.words, self.scripts, self.cells = list[str](), list[str](), list[str]()
        self.feed(text)
        self.close()
        assert self.stack == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.ids += [value for name, value in attrs if name == "id" and value]
        if tag not in VOID:
            self.stack.append(tag)
        if tag in ("td", "th"):
            self.cells.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.stack and self.stack[-1] == "script":
            self.scripts.append(data)
        elif self.stack and self.stack[-1] != "style":
            self.words.append(data)
            if self.cells and {"td", "th"} & set(self.stack):
                self.cells[-1] += data


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pipeline(tmp_path_factory.mktemp("page") / "demo & <co>")


@pytest.fixture(scope="module")
def page(folder: Path) -> str:
    path = build_page(folder)
    assert path == folder / "report" / "index.html"
    return path.read_text(encoding="utf-8")


def test_it_is_well_formed_and_has_every_section(page: str) -> None:
    read = Reader(page)
    assert len(read.ids) == len(set(read.ids))
    assert [attrs["id"] for tag, attrs in read.tags if tag == "section"] == SECTIONS
    links = [attrs["href"] for tag, attrs in read.tags if tag == "a"]
    assert links == [f"#{name}" for name in SECTIONS]
    assert "demo & <co>" in read.words
    assert len(page) < 1_000_000


def test_nothing_comes_from_elsewhere(page: str) -> None:
    for tag, attrs in Reader(page).tags:
        assert not any(name.startswith("on") for name in attrs)  # no inline handlers
        for name in ("src", "href", "action", "data", "poster", "srcset"):
            assert (attrs.get(name) or "#").startswith(("#", "data:,")), (tag, attrs)
    assert not re.search(r"@import|url\(|fetch\(|XMLHttpRequest|WebSocket|import\(", page)
    addresses = set(re.findall(r"https?://[^\s\"'<)]+", page))
    assert addresses == {"http://www.w3.org/2000/svg"}  # the name of SVG, which nobody fetches


def test_its_policy_lets_only_its_own_script_run(page: str) -> None:
    read = Reader(page)
    policy = next(
        a["content"] or "" for t, a in read.tags if t == "meta" and a.get("http-equiv") == "Content-Security-Policy"
    )
    (script,) = [text for text in read.scripts if text.startswith('"use strict"')]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert "default-src 'none'" in policy
    assert f"script-src 'sha256-{digest}'" in policy


def test_hostile_text_stays_text(page: str) -> None:
    read = Reader(page)
    assert "img" not in {tag for tag, _ in read.tags}
    assert sum(tag == "script" for tag, _ in read.tags) == 2
    assert f"teacher says {HOSTILE}" in read.words
    assert HOSTILE in "".join(read.words)
    data = json.loads(read.scripts[0])
    assert data["players"][0]["panels"][0]["pieces"]["4"] == visible(HOSTILE)
    assert json.loads(data_text(HOSTILE)) == HOSTILE
    assert not set("<>&\u2028") & set(data_text(HOSTILE))
    assert "<" not in read.scripts[0]
    assert page.count("<title>demo") == 1


def test_the_tables_are_there_without_scripts(page: str) -> None:
    cells = Reader(page).cells
    shares = ("12.5% 7.5%–17.5%", "50.0% 45.0%–55.0%", "100.0% 94.0%–100.0%", "0.500 0.45–0.55")
    for told in (*shares, "2.000", "1.500†", "71.000", "12,346"):
        assert told in cells, told
    assert any(cell.startswith("3.00†") for cell in cells)  # the entropy of what has collapsed
    assert cells[cells.index("accuracy, overall") + 1 :][:2] == ["97.5%", "98.5%"]  # the compass's, and the paper's
    assert "the cat" in "".join(Reader(page).words) or "the cat sat" in "".join(Reader(page).words)


def test_the_charts_hold_the_numbers(folder: Path) -> None:
    found = gather(folder)
    valid = quality(found, "uniform")["valid-uniform"]
    assert [(s.name, [(p.x, p.y) for p in s.points]) for s in valid.series] == [
        ("teacher", [(4, 0.125), (64, 0.75)]),
        ("ts-dfm", [(4, 0.5)]),
    ]
    assert valid.refs == [(1.0, "held-out text")]
    assert valid.series[0].points[0].low == pytest.approx(0.075)
    (hollow,) = [p for s in quality(found, "mask")["valid-mask"].series if s.name == "ts-dfm" for p in s.points]
    assert (hollow.x, hollow.y, hollow.low, hollow.high) == (4, 0.25, 0.2, 0.3)
    assert (hollow.hollow, hollow.note) == (True, "collapsed")
    (front,) = frontier(found, "entropy_bits")["uniform"].values()
    assert front.marks == [(4.2, 3.0, "held-out text")]
    assert [p.hollow for p in front.series[0].points] == [True, False, True]  # T = 1 is filled
    points = energy(found)["energy-uniform"].series[0].points
    assert len(points) == 10  # a bin without a mean is left out
    assert (points[0].x, points[0].y, points[0].low, points[0].high) == (0.05, 5.0, 4.5, 5.5)
    by_kind = {kind: [stage for stage in found.stages if group_of(stage) == kind] for kind in ("Teachers", "Students")}
    by_kind["Students"] = [stage for stage in found.stages if group_of(stage).startswith("Students")]
    assert list(training("Teachers", by_kind["Teachers"])) == ["loss-teachers", "elbo-teachers"]
    assert "loss-students" in training("Students and others", by_kind["Students"])
    assert "nav-share-ts-dfm-uniform" in navigation(by_kind["Students"][0])


def logged(folder: Path, lines: list[dict[str, Any]], **manifest: str) -> TrainedRun:
    folder.mkdir()
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return TrainedRun(folder, {**manifest})


def test_bounds_of_different_names_share_no_chart(tmp_path: Path) -> None:
    lines = [{"kind": "eval", "step": at, "elbo": 4.0 - at} for at in (1, 2)]
    runs = [logged(tmp_path / name, lines, bound=bound) for name, bound in (("a", "X"), ("b", "Y"), ("c", "X"))]
    charts = training("Teachers", runs)
    assert {name: [one.name for one in chart.series] for name, chart in charts.items()} == {
        "elbo-teachers": ["a", "c"],
        "elbo-teachers-1": ["b"],
    }
    assert [chart.caption for chart in charts.values()] == ["held-out X, nats a token", "held-out Y, nats a token"]


def test_every_chart_is_in_the_page_with_its_numbers_in_words(page: str) -> None:
    names = re.findall(r'<figure class="chart" data-chart="([^"]+)">', page)
    assert len(names) == len(set(names)) == page.count('role="img"')
    wanted = ("valid-uniform", "entropy_bits-uniform-0", "energy-mask", "loss-teachers", "nav-share-ts-dfm-uniform")
    assert set(wanted) <= set(names)
    assert "<title>teacher: 12.5\u202f% (7.5\u202f% to 17.5\u202f%), network passes 4</title>" in page


def test_styles_tell_methods_apart() -> None:
    found = styles_of(["teacher", "fs-dfm", "control", "ts-dfm", "b", "a", "held-out text"])
    assert [found[name] for name in ("teacher", "fs-dfm", "control", "ts-dfm", "a", "b")] == [0, 1, 2, 3, 4, 5]


def test_the_same_folder_gives_the_same_page(folder: Path, page: str) -> None:
    assert build_page(folder).read_text(encoding="utf-8") == page
    assert sorted(p.name for p in (folder / "report").iterdir() if p.name.startswith(".")) == []
    assert str(folder.parent) not in page  # a page that is passed on does not tell where it was made


def test_sections_without_data_are_left_out(tmp_path: Path) -> None:
    generic = {name: value for name, value in row("teacher", "uniform", 4, 0.5).items() if not name.startswith("valid")}
    write_json(tmp_path / "report" / "metrics.json", [generic])
    read = Reader(build_page(tmp_path).read_text(encoding="utf-8"))
    assert [a["id"] for t, a in read.tags if t == "section"] == ["results", "steps", "samples", "provenance"]
    assert (
        "Perplexity by network passes, uniform source" in read.words
    )  # without valid stories, the headline is perplexity
    (tmp_path / "report" / "metrics.json").unlink()
    way().save(tmp_path / "report" / "trajectories" / "x.json")
    read = Reader(build_page(tmp_path).read_text(encoding="utf-8"))
    assert [a["id"] for t, a in read.tags if t == "section"] == ["trajectories"]


def test_numbers_that_are_none(tmp_path: Path) -> None:
    """JSON from Python may hold NaN; a judge may give no perplexity; an old row has no interval."""
    text = json.dumps([{**row("teacher", "uniform", 4, 0.5), "ppl": float("nan"), "valid_interval": None}, real()])
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / "metrics.json").write_text(text)
    page = build_page(tmp_path).read_text(encoding="utf-8")
    assert "nan" not in page.replace("provenance", "").lower()
    assert 'data-chart="ppl-uniform"' not in page


def test_rows_of_other_temperatures_and_guides(tmp_path: Path) -> None:
    made = [row("fs-dfm", "uniform", k, 0.5) for k in (4, 8)]
    made += [
        row("fs-dfm", "uniform", 4, 0.25, temperature=0.7),
        row("fs-dfm", "uniform", 4, 0.625, guide="token", compass_calls=24),
    ]
    write_json(tmp_path / "report" / "metrics.json", made)
    found = gather(tmp_path)
    assert len(found.made) == 3
    read = Reader(build_page(tmp_path).read_text(encoding="utf-8"))
    assert {"fs-dfm + token", "0.7", "24"} <= {cell.lstrip("●■▼◆▲✚✕★") for cell in read.cells}
    assert [s.name for s in quality(found, "uniform")["valid-uniform"].series] == ["fs-dfm", "fs-dfm + token"]


def test_what_cannot_be_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError, match="no folder at"):
        build_page(tmp_path / "nowhere")
    with pytest.raises(UserError, match="nothing to report"):
        build_page(tmp_path)
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / "metrics.json").write_text('[{"method": ')
    assert main(["report", "page", str(tmp_path)]) == 2
    assert "metrics.json is damaged" in capsys.readouterr().err
    assert not (tmp_path / "report" / "index.html").exists()


def test_the_page_as_markdown(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "page", str(folder), "--markdown", str(tmp_path / "run.md")]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "run.md")
    text = (tmp_path / "run.md").read_text(encoding="utf-8")
    for told in (
        "# demo & <co>",
        "- texts a row: 64",
        "- sampling seed: 0",
        "- hardware: CPU, 2 cores",
        '"steps": 300',
    ):
        assert told in text
    assert "| uniform | teacher | 0.12 (30.0) | 0.75 (30.0) |" in text
    assert str(folder.parent) not in text


def test_the_command(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "page", str(folder)]) == 0
    assert capsys.readouterr().out.strip() == str(folder / "report" / "index.html")


def test_curves_are_thinned_and_keep_their_ends(tmp_path: Path) -> None:
    run = logged(tmp_path / "x", [{"step": i, "kind": "train", "loss": float(i)} for i in range(1, 10_001)])
    points = curve(run, "train", "loss")
    assert len(points) <= 242
    assert (points[0].x, points[-1].x) == (1, 10_000)
    assert curve(logged(tmp_path / "y", []), "train", "loss") == []


def test_numbers_as_people_read_them() -> None:
    told = [number(x) for x in (0, 3, 1234567, 12345.6, 123.4, 12.34, 1.234, 0.1234, 0.0123, -2.5, None, "a")]
    assert told == [
        "0",
        "3",
        "1\u202f234\u202f567",
        "12\u202f346",
        "123",
        "12.3",
        "1.23",
        "0.12",
        "0.0123",
        "−2.50",
        "",
        "a",
    ]
    assert clean("a\x00\x1bb<\n") == "a\ufffd\ufffdb<\n"


def test_half_a_character_does_not_stop_the_page(tmp_path: Path) -> None:
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / "metrics.json").write_text(json.dumps([row("teacher", "uniform", 4, 0.5, texts=["\ud800"])]))
    assert build_page(tmp_path).stat().st_size > 1000


def test_the_viewer_page() -> None:
    text = trajectory_page([way("ts-dfm"), way("teacher"), way("teacher", "mask"), way("teacher", seed=1)])
    read = Reader(text)
    players = json.loads(read.scripts[0])["players"]
    assert [(p["source"], p["seed"], [panel["name"] for panel in p["panels"]]) for p in players] == [
        ("uniform", 0, ["teacher", "ts-dfm"]),
        ("uniform", 1, ["teacher"]),
        ("mask", 0, ["teacher"]),
    ]
    first = players[0]["panels"][0]["rows"][0]
    assert [(s["t"], s["r"], s["e"]) for s in first["steps"]] == [(0.25, [], 2.5), (0.5, [1], 1.25), (1.0, [1], -3.0)]
    assert "img" not in {tag for tag, _ in read.tags}
    assert a_table()["title"] not in text


def luminance(colour: str) -> float:
    """Relative luminance of #rrggbb, as WCAG 2 defines it."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_text_can_be_read_in_light_and_dark() -> None:
    themes = re.findall(r":root \{(.*?)\}", part("style.css"), re.S)
    light, dark, paper = (dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", theme)) for theme in themes)
    assert light.keys() == dark.keys()
    pairs = [(name, "bg") for name in ("ink", "soft", "accent", *(f"s{i}" for i in range(8)))]
    pairs += [("ink", ground) for ground in ("new", "swap", "faint")]
    for theme in (light, dark, {**light, **paper}):
        for text, ground in pairs:
            high, low = sorted((luminance(theme[text]), luminance(theme[ground])), reverse=True)
            assert (high + 0.05) / (low + 0.05) >= 4.5, (text, ground, theme)
