"""The pages in a real browser: scripts run without errors, every chart is drawn, nothing sticks out, the player plays.

Chromium is asked only by its command line: it loads a page and prints the document as it is after the scripts ran.
"""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from view_parts import END, HOSTILE, pipeline, way

from tsdfm.report.page.build import build_page
from tsdfm.samples.trajectory import Trajectory
from tsdfm.view.page import trajectory_page

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: install the Debian package `chromium`")

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--hide-scrollbars",
)


def chromium(page: Path, home: Path, width: int, *flags: str) -> str:
    """What Chromium prints for a page at a width."""
    assert CHROMIUM is not None
    place = [f"--user-data-dir={home}", f"--window-size={width},1600", *flags, page.resolve().as_uri()]
    done = subprocess.run([CHROMIUM, *FLAGS, *place], capture_output=True, text=True, timeout=1200, check=True)
    return done.stdout


def dom(page: Path, home: Path, width: int, *flags: str) -> str:
    return chromium(page, home, width, "--dump-dom", *flags)


def root(document: str) -> dict[str, str]:
    """The data- attributes of the html element."""
    (tag,) = re.findall(r"<html[^>]*>", document)
    return {name: html.unescape(value) for name, value in re.findall(r'data-(\w+)="([^"]*)"', tag)}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("chromium")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_page(pipeline(tmp_path_factory.mktemp("report")))


FRAME = """
<!doctype html><html><body style="margin:0"><iframe style="width:{width}px;height:1600px;border:0"></iframe><script>
const frame = document.querySelector("iframe"), outer = document.documentElement;
frame.addEventListener("load", () => Object.assign(outer.dataset, frame.contentDocument.documentElement.dataset));
frame.srcdoc = {text};
</script></body></html>
"""


@pytest.mark.parametrize("width", [360, 390, 768])
def test_nothing_sticks_out_on_a_phone(report: Path, home: Path, tmp_path: Path, width: int) -> None:
    """In a frame, as a window of Chromium's is at least 500 pixels wide."""
    text = json.dumps(report.read_text(encoding="utf-8")).replace("<", "\\u003c")
    page = tmp_path / "phone.html"
    page.write_text(FRAME.strip().replace("{width}", str(width)).replace("{text}", text), encoding="utf-8")
    told = root(dom(page, home, 1000))
    assert (told["ready"], told["errors"], told["width"], told["overflow"]) == ("1", "", str(width), "0")


def test_the_report_is_drawn(report: Path, home: Path) -> None:
    document = dom(report, home, 1280)
    told = root(document)
    assert (told["ready"], told["errors"], told["width"], told["overflow"]) == ("1", "", "1280", "0")
    figures = re.findall(r'<figure class="chart" data-chart="([^"]+)">(.*?)</figure>', document, re.S)
    assert {"valid-uniform", "ppl-mask", "energy-uniform"} <= {name for name, _ in figures}
    assert all("<svg" in inside for _, inside in figures)
    assert all("NaN" not in inside and "Infinity" not in inside for _, inside in figures)
    assert document.count('class="controls"') == 2
    assert "<title>owned" not in document


def test_the_dark_page_has_no_errors_either(report: Path, home: Path) -> None:
    told = root(dom(report, home, 1280, "--blink-settings=preferredColorScheme=0"))
    assert (told["ready"], told["errors"], told["overflow"]) == ("1", "", "0")


def test_it_prints(report: Path, home: Path, tmp_path: Path) -> None:
    chromium(report, home, 1280, f"--print-to-pdf={tmp_path / 'page.pdf'}", f"--screenshot={tmp_path / 'page.png'}")
    made = [path for path in tmp_path.iterdir() if path.stat().st_size > 10_000]
    assert made


def driven(text: str, script: str) -> str:
    """The page with a script of the test's after its own; the policy that would forbid it is taken out."""
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text)
    return text.replace("</body>", f"<script>{script}</script></body>")


PLAY = """
const seen = [], box = document.querySelector(".player");
const [, , on] = box.querySelectorAll("button"), slide = box.querySelector("input");
const look = () => seen.push([...box.querySelectorAll(".panel")].map(panel => ({
  text: [...panel.querySelector(".text").childNodes]
    .map(n => n.classList?.contains("mask") ? "#" : n.textContent).join(""),
  fresh: [...panel.querySelectorAll(".new")].map(n => n.textContent),
  swapped: [...panel.querySelectorAll(".swap")].map(n => n.textContent),
  gauges: [...panel.querySelectorAll(".gauges b")].map(n => n.textContent)})));
look();
while (!on.disabled) { on.click(); look(); }
slide.value = 0; slide.dispatchEvent(new Event("input")); look();
box.querySelector(".panels").dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowRight", bubbles: true})); look();
document.documentElement.dataset.seen = JSON.stringify(seen);
"""


def states(made: Trajectory) -> list[str]:
    """The first text's states as the page writes them, told by Python."""
    pieces = {**made.pieces, END: "¶", made.mask: "#"}
    return ["".join(pieces[token] for token in state.tokens[1:]) for state in made.rows[0].replay(made.mask)]


@pytest.mark.parametrize("source", ["uniform", "mask"])
def test_the_player_shows_every_state(home: Path, tmp_path: Path, source: str) -> None:
    page, made = tmp_path / "view.html", way("teacher", source)
    page.write_text(driven(trajectory_page([made, way("ts-dfm", source)]), PLAY), encoding="utf-8")
    told = root(dom(page, home, 1280))
    assert told["errors"] == ""
    seen = json.loads(told["seen"])
    assert [frame[0]["text"] for frame in seen[:4]] == states(made)
    assert [frame[0] for frame in seen] == [frame[1] for frame in seen]  # the same way, so the same picture
    assert [frame[0]["fresh"] for frame in seen[:4]] == [[], ["the"], ["cat"], []]
    assert [frame[0]["swapped"] for frame in seen[:4]] == [[], [], ["sat"], ["the"]]
    assert [frame[0]["gauges"] for frame in seen[:4]] == [
        ["–", "4"],
        ["0.25", "2.50"],
        ["0.50", "1.25"],
        ["0.88", "−3"],
    ]
    assert seen[4] == seen[0]  # the slider goes back
    assert seen[5] == seen[1]  # and an arrow key on
    assert HOSTILE in seen[0][0]["text"] or source == "mask"


def test_play_runs_to_the_end_and_stops(home: Path, tmp_path: Path) -> None:
    page = tmp_path / "play.html"
    page.write_text(driven(trajectory_page([way()]), 'document.querySelector(".play").click();'), encoding="utf-8")
    begun, ended = (dom(page, home, 800, f"--virtual-time-budget={ms}") for ms in (100, 20_000))
    assert [re.search(r"step (\d) of 3, t = ", text)[1] for text in (begun, ended)] == ["0", "3"]
    assert [re.search(r'class="play">(\w+)<', text)[1] for text in (begun, ended)] == ["Pause", "Play"]


def test_an_error_would_be_noticed(home: Path, tmp_path: Path) -> None:
    page = tmp_path / "broken.html"
    page.write_text(driven(trajectory_page([way()]), "nothing.there();"), encoding="utf-8")
    assert "nothing is not defined" in root(dom(page, home, 800))["errors"]


def test_a_script_that_is_not_the_page_s_own_does_not_run(home: Path, tmp_path: Path) -> None:
    page = tmp_path / "injected.html"
    hostile = (
        "<script>document.documentElement.dataset.owned = '1'</script><img src=x onerror=\"this.dataset.owned=1\">"
    )
    page.write_text(trajectory_page([way()]).replace("<main>", f"<main>{hostile}"), encoding="utf-8")
    told = root(dom(page, home, 800))
    assert told["ready"] == "1"
    assert "owned" not in told
