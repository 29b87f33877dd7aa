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
<!doctype html><html><body style="margin:0"><iframe style="width:{width}px;height:{height}px;border:0"></iframe><script>
const frame = document.querySelector("iframe"), outer = document.documentElement;
frame.addEventListener("load", () => Object.assign(outer.dataset, frame.contentDocument.documentElement.dataset));
frame.srcdoc = {text};
</script></body></html>
"""


def framed(text: str, width: int, height: int) -> str:
    """A page in a frame of any size: a window of Chromium's is at least 500 pixels wide, and lower than it is told."""
    page = FRAME.strip().replace("{width}", str(width)).replace("{height}", str(height))
    return page.replace("{text}", json.dumps(text).replace("<", "\\u003c"))


@pytest.mark.parametrize("width", [360, 390, 768])
def test_nothing_sticks_out_on_a_phone(report: Path, home: Path, tmp_path: Path, width: int) -> None:
    page = tmp_path / "phone.html"
    page.write_text(framed(report.read_text(encoding="utf-8"), width, 1600), encoding="utf-8")
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
    pieces = {token: visible(piece) for token, piece in made.pieces.items()} | {END: "¶", made.mask: "#"}
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
    assert visible(HOSTILE) in seen[0][0]["text"] or source == "mask"


def test_play_runs_to_the_end_and_stops(home: Path, tmp_path: Path) -> None:
    page = tmp_path / "play.html"
    page.write_text(driven(trajectory_page([way()]), 'document.querySelector(".play").click();'), encoding="utf-8")
    begun, ended = (dom(page, home, 800, f"--virtual-time-budget={ms}") for ms in (100, 20_000))
    assert [re.search(r"step (\d) of 3, t = ", text)[1] for text in (begun, ended)] == ["0", "3"]
    assert [re.search(r'class="play">(\w+)<', text)[1] for text in (begun, ended)] == ["Pause", "Play"]


def stands(document: str) -> tuple[str, str]:
    """The step that the first player shows, and what its button says."""
    said, button = re.search(r"<output[^>]*>step (\d)", document), re.search(r'class="play">(\w+)<', document)
    assert said is not None
    assert button is not None
    return said[1], button[1]


def test_it_plays_by_itself(home: Path, tmp_path: Path) -> None:
    page = tmp_path / "itself.html"
    page.write_text(trajectory_page([way()]), encoding="utf-8")
    assert stands(dom(page, home, 800, "--virtual-time-budget=1000")) == ("1", "Pause")
    assert stands(dom(page, home, 800, "--virtual-time-budget=20000")) == ("3", "Play")


def test_it_does_not_play_by_itself_where_less_motion_is_asked_for(home: Path, tmp_path: Path) -> None:
    page = tmp_path / "still.html"
    page.write_text(trajectory_page([way()]), encoding="utf-8")
    flags = ("--force-prefers-reduced-motion", "--virtual-time-budget=20000")
    assert stands(dom(page, home, 800, *flags)) == ("2", "Play")  # halfway, where there is something to see


def test_the_report_s_players_wait_until_they_are_seen(report: Path, home: Path) -> None:
    assert stands(dom(report, home, 1280, "--virtual-time-budget=5000")) == ("0", "Play")  # far below the fold


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
    home: Path, tmp_path: Path, methods: int, width: int, height: int, first: int
) -> None:
    ways = [long_way(name) for name in ("teacher", "fs-dfm", "control", "ts-dfm")[:methods]]
    page = tmp_path / "long.html"
    page.write_text(framed(driven(trajectory_page(ways), LAID), width, height), encoding="utf-8")
    about = root(dom(page, home, 1400))
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


def test_keys_play_and_step_wherever_the_focus_is(home: Path, tmp_path: Path) -> None:
    page = tmp_path / "keys.html"
    page.write_text(driven(trajectory_page([way()]), KEYS), encoding="utf-8")
    told = root(dom(page, home, 1000))
    assert told["errors"] == ""
    found = json.loads(told["seen"])
    assert found["seen"][:5] == [[1, "Play"], [2, "Play"], [1, "Play"], [3, "Play"], [0, "Play"]]
    assert found["seen"][5:] == [[0, "Pause"], *[[0, "Play"]] * 4]
    assert found["own"] == [True] * 7 + [False] * 3  # the page's own End, and what a button or a list does by itself


def test_signs_are_explained_and_control_characters_are_seen(home: Path, tmp_path: Path) -> None:
    page = tmp_path / "signs.html"
    page.write_text(trajectory_page([long_way("teacher")]), encoding="utf-8")
    document = dom(page, home, 1000, "--force-prefers-reduced-motion")
    assert '<span class="tok end">¶</span> end of the text' in document
    assert "noise\\x1b[2J" in document
    assert "\x1b" not in document
    assert "lower is better" in document


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
