"""The pages in a real browser: scripts run without errors, charts are drawn, nothing sticks out, the player plays."""

from __future__ import annotations

import base64
import html
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from devtools import Page, browser
from view_parts import END, HOSTILE, pipeline, way

from tsdfm.report.page.build import build_page
from tsdfm.samples.trajectory import Change, Row, Trajectory
from tsdfm.terminal import visible
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


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    assert CHROMIUM is not None
    with browser(CHROMIUM, tmp_path_factory.mktemp("chromium"), *FLAGS) as made:
        yield made


def shown(page: Page, path: Path, text: str | None = None, *, still: bool = True, **window: Any) -> Page:
    """The page of a file, which holds `text` if it is given, once its scripts have run."""
    if text is not None:
        path.write_text(text, encoding="utf-8")
    page.look(**window, still=still)
    page.open(path.resolve().as_uri())
    page.until("document.documentElement.dataset.ready === '1'")
    return page


def dom(page: Page) -> str:
    return page.do("document.documentElement.outerHTML")


def root(document: str) -> dict[str, str]:
    """The data- attributes of the html element."""
    (tag,) = re.findall(r"<html[^>]*>", document)
    return {name: html.unescape(value) for name, value in re.findall(r'data-(\w+)="([^"]*)"', tag)}


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_page(pipeline(tmp_path_factory.mktemp("report")))


@pytest.mark.parametrize("width", [360, 390, 768])
def test_nothing_sticks_out_on_a_phone(report: Path, page: Page, width: int) -> None:
    told = root(dom(shown(page, report, width=width, height=1600)))
    assert (told["ready"], told["errors"], told["width"], told["overflow"]) == ("1", "", str(width), "0")


def test_the_report_is_drawn(report: Path, page: Page) -> None:
    document = dom(shown(page, report, width=1280))
    told = root(document)
    assert (told["ready"], told["errors"], told["width"], told["overflow"]) == ("1", "", "1280", "0")
    figures = re.findall(r'<figure class="chart" data-chart="([^"]+)">(.*?)</figure>', document, re.S)
    assert {"valid-uniform", "ppl-mask", "energy-uniform"} <= {name for name, _ in figures}
    assert all("<svg" in inside for _, inside in figures)
    assert all("NaN" not in inside and "Infinity" not in inside for _, inside in figures)
    assert document.count('class="controls"') == 2
    assert "<title>owned" not in document


def test_the_dark_page_has_no_errors_either(report: Path, page: Page) -> None:
    told = root(dom(shown(page, report, width=1280, dark=True)))
    assert (told["ready"], told["errors"], told["overflow"]) == ("1", "", "0")


def test_it_prints(report: Path, page: Page, tmp_path: Path) -> None:
    assert shown(page, report, width=1280).picture(tmp_path / "page.png").stat().st_size > 10_000
    printed = base64.b64decode(page.call("Page.printToPDF")["data"])
    assert printed.startswith(b"%PDF")
    assert len(printed) > 10_000


TO_THE_START = """(slide => { slide.value = 0; slide.dispatchEvent(new Event("input")); })(
  document.querySelector(".player input"))"""
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
    pieces = {token: visible(piece) for token, piece in made.pieces.items()} | {END: "¶", made.mask: "#"}
    return ["".join(pieces[token] for token in state.tokens[1:]) for state in made.rows[0].replay(made.mask)]


@pytest.mark.parametrize("source", ["uniform", "mask"])
def test_the_player_shows_every_state(page: Page, tmp_path: Path, source: str) -> None:
    made = way("teacher", source)
    shown(page, tmp_path / "view.html", trajectory_page([made, way("ts-dfm", source)]), width=1280)
    page.do(TO_THE_START)
    page.do(f"(() => {{{PLAY}}})()")
    told = root(dom(page))
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
    assert visible(HOSTILE) in seen[0][0]["text"] or source == "mask"


STANDS = """(box => [+box.querySelector("input").value, box.querySelector(".play").textContent])(
  document.querySelector(".player"))"""
WATCH = """new Promise(done => {
  const box = document.querySelector(".player"), slide = box.querySelector("input"), play = box.querySelector(".play");
  const seen = new Set();
  const look = () => {
    seen.add(+slide.value);
    if (+slide.value === 3 && play.textContent === "Play") done([...seen]); };
  new MutationObserver(look).observe(box, {subtree: true, childList: true, characterData: true, attributes: true});
  look(); %s })"""


def test_play_runs_to_the_end_and_stops(page: Page, tmp_path: Path) -> None:
    shown(page, tmp_path / "play.html", trajectory_page([way()]), width=800)
    assert page.do(STANDS) == [2, "Play"]  # less motion is asked for: it waits halfway, where there is something to see
    page.do(TO_THE_START)
    assert page.do(STANDS) == [0, "Play"]
    assert page.do(WATCH % "play.click();") == [0, 1, 2, 3]


def test_it_plays_by_itself(page: Page, tmp_path: Path) -> None:
    shown(page, tmp_path / "itself.html", trajectory_page([way()]), width=800, still=False)
    assert page.do(WATCH % "")[-1] == 3


def test_the_report_s_players_wait_until_they_are_seen(report: Path, page: Page) -> None:
    shown(page, report, width=1280, still=False)
    page.do("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done))))")
    assert page.do(STANDS) == [0, "Play"]  # far below the fold, and by now the page knows what is in sight
    page.do("document.querySelector('.player').scrollIntoView()")
    page.until(f"{STANDS}[1] === 'Pause'")


def long_way(method: str) -> Trajectory:
    """256 tokens, more than a window shows, in two steps."""
    start = (END, *[4] * 255)
    steps = (
        Change(0.0, 0.5, tuple((i, 1) for i in range(1, 128)), 0.5, 1.0),
        Change(0.5, 0.5, tuple((i, 2) for i in range(100, 256)), 0.9, -1.0),
    )
    pieces = {1: " something", 2: " written", 4: " noise\x1b[2J"}
    return way(method, steps=2, nfe=2, pieces=pieces, rows=(Row(start, (0,), steps, 4.0),))


LAID = """
const box = document.querySelector(".player"), seen = node => {
  const {top, bottom} = node.getBoundingClientRect(); return top >= -1 && bottom <= innerHeight + 1; };
const curves = () => [...box.querySelectorAll(".gauges")].map(seen), told = {first: curves()};
scrollTo(0, box.getBoundingClientRect().top + scrollY);
told.top = curves();
scrollTo(0, box.getBoundingClientRect().bottom + scrollY - 200);
told.controls = [...box.querySelectorAll(".controls > *")].map(seen);
told.focusable = [...box.querySelectorAll(".text")].map(node => node.tabIndex);
document.documentElement.dataset.told = JSON.stringify(told);
"""


@pytest.mark.parametrize(
    ("methods", "width", "height", "first"), [(2, 1280, 800, 2), (4, 1280, 800, 4), (2, 390, 844, 1), (1, 360, 640, 1)]
)
def test_long_texts_leave_controls_and_curves_in_sight(
    page: Page, tmp_path: Path, methods: int, width: int, height: int, first: int
) -> None:
    ways = [long_way(name) for name in ("teacher", "fs-dfm", "control", "ts-dfm")[:methods]]
    shown(page, tmp_path / "long.html", trajectory_page(ways), width=width, height=height)
    page.do(f"(() => {{{LAID}}})()")
    about = root(dom(page))
    assert (about["ready"], about["errors"], about["width"], about["overflow"]) == ("1", "", str(width), "0")
    told = json.loads(about["told"])
    assert told["first"].count(True) >= first  # when the page opens
    assert told["top"] == [True] * methods  # with the player at the top of the window
    assert told["controls"]
    assert all(told["controls"])  # and at its lower end
    assert told["focusable"] == [0] * methods  # a text that scrolls can be scrolled by keys


KEYS = """
const box = document.querySelector(".player"), seen = [];
const look = () => seen.push([+box.querySelector("input").value, box.querySelector(".play").textContent]);
const press = (key, node) => {
  const event = new KeyboardEvent("keydown", {key, bubbles: true, cancelable: true});
  node.dispatchEvent(event); look(); return event.defaultPrevented; };
const grid = box.querySelector(".panels"), on = box.querySelectorAll("button")[2], pace = box.querySelector("select");
const own = [press("ArrowRight", document.body), press("ArrowRight", on), press("ArrowLeft", grid), press("End", grid),
  press("Home", grid), press(" ", document.body), press(" ", document.body),
  press("End", document.body), press(" ", on), press("ArrowDown", pace)];
document.documentElement.dataset.seen = JSON.stringify({seen, own});
"""


def test_keys_play_and_step_wherever_the_focus_is(page: Page, tmp_path: Path) -> None:
    shown(page, tmp_path / "keys.html", trajectory_page([way()]), width=1000)
    page.do(TO_THE_START)
    page.do(f"(() => {{{KEYS}}})()")
    told = root(dom(page))
    assert told["errors"] == ""
    found = json.loads(told["seen"])
    assert found["seen"][:5] == [[1, "Play"], [2, "Play"], [1, "Play"], [3, "Play"], [0, "Play"]]
    assert found["seen"][5:] == [[0, "Pause"], *[[0, "Play"]] * 4]
    assert found["own"] == [True] * 7 + [False] * 3  # the page's own End, and what a button or a list does by itself


def test_signs_are_explained_and_control_characters_are_seen(page: Page, tmp_path: Path) -> None:
    document = dom(shown(page, tmp_path / "signs.html", trajectory_page([long_way("teacher")]), width=1000))
    assert '<span class="tok end">¶</span> end of the text' in document
    assert "noise\\x1b[2J" in document
    assert "\x1b" not in document
    assert "lower is better" in document


def test_an_error_would_be_noticed(page: Page, tmp_path: Path) -> None:
    shown(page, tmp_path / "broken.html", trajectory_page([way()]), width=800)
    page.do("setTimeout(() => nothing.there())")
    page.until("document.documentElement.dataset.errors.includes('nothing is not defined')")


def test_a_script_that_is_not_the_page_s_own_does_not_run(page: Page, tmp_path: Path) -> None:
    hostile = (
        "<script>document.documentElement.dataset.owned = '1'</script><img src=x onerror=\"this.dataset.owned=1\">"
    )
    injected = trajectory_page([way()]).replace("<main>", f"<main>{hostile}")
    told = root(dom(shown(page, tmp_path / "injected.html", injected, width=800)))
    assert told["ready"] == "1"
    assert "owned" not in told
