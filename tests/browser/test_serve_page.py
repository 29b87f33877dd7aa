"""The server's page in a real browser, against a real server: ask, watch, compare, pass on, by hand and by keys."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest
import torch
from devtools import Page, browser
from http_parts import listening
from serve_parts import offline, served
from test_chromium import CHROMIUM, FLAGS

from tsdfm.serve.jobs import Ask
from tsdfm.serve.scheduler import Scheduler

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: install the Debian package `chromium`")

TINY, MASKED = served(source="uniform"), served("masked")
DONE = "document.documentElement.dataset.played === '1'"
READY = "document.documentElement.dataset.ready === '1'"
SHOWN = """[...document.querySelectorAll('.panel')].map(panel => [...panel.querySelector('.text').childNodes]
  .map(node => node.classList?.contains('mask') ? '#' : node.textContent).join(''))"""
FACTS = """(({errors, overflow, width}) => [errors, overflow, width])(document.documentElement.dataset)"""


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[str, Scheduler]]:
    with listening(TINY, MASKED) as made:
        yield made


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    assert CHROMIUM is not None
    with browser(CHROMIUM, tmp_path_factory.mktemp("chromium"), *FLAGS) as made:
        yield made


def states(model: str, steps: int, seed: int, prefix: str) -> list[str]:
    """Every state of a text as the page shows it, told by Python."""
    made = (TINY if model == "tiny" else MASKED).model
    told = list[torch.Tensor]()
    made.sample(
        steps=steps, seed=seed, prefix=prefix, temperature=1.0, batch=1,
        on_pass=lambda moment: told.append(moment.tokens[0, 1:].clone()),
    )  # fmt: skip
    return [*map(shown, told[:-1]), whole(told[-1])]


def shown(row: torch.Tensor) -> str:
    return "".join(
        "#" if t == 257 else "¶" if t == 256 else bytes([t]).decode("utf-8", "replace") for t in row.tolist()
    )


def whole(row: torch.Tensor) -> str:
    """As `shown`, but characters of several tokens are read: so the end of a text is shown."""
    found = bytearray()
    for token in row.tolist():
        found += {256: "¶".encode(), 257: b"#"}.get(token, bytes([token % 256]))
    return found.decode("utf-8", "replace")


def link(server: tuple[str, Scheduler], **words: object) -> str:
    return (
        f"{server[0]}/#{urlencode({'text': 'Mia', 'seed': 3, 'model': 'tiny', 'steps': 4, 'temperature': 1, **words})}"
    )


def test_a_link_writes_its_text_and_every_pass_can_be_seen_again(server: tuple[str, Scheduler], page: Page) -> None:
    page.look(1200)
    for model in ("tiny", "masked"):
        page.open(link(server, model=model))
        page.until(DONE)
        wanted = states(model, 4, 3, "Mia")
        assert page.do(SHOWN) == [wanted[-1]]
        assert page.do("document.querySelectorAll('.panel .new, .panel .swap').length") == 0  # to be read
        seen = [page.do(f"go({number}), {SHOWN}")[0] for number in range(5)]
        assert seen[1:] == wanted
        assert page.do("document.getElementById('said').textContent") == "pass 4 of 4"
        assert page.do(FACTS)[:2] == ["", "0"]


def test_it_is_written_by_hand_and_by_keys(server: tuple[str, Scheduler], page: Page) -> None:
    page.look(1200)
    page.open(server[0])
    page.until(READY)
    assert page.do("document.activeElement.id") == "text"
    page.type("Tom")
    page.do("document.getElementById('seed').value = 9")
    page.do("document.querySelector('[name=temperature]').value = 1")
    page.press("Enter", control=True)
    page.until(DONE)
    assert page.do(SHOWN) == [states("tiny", 4, 9, "Tom")[-1]]
    page.do("document.activeElement.blur()")
    page.press("ArrowLeft")
    assert page.do("[document.getElementById('slide').value, ...(" + SHOWN + ")]") == [
        "3",
        states("tiny", 4, 9, "Tom")[2],
    ]
    page.press("ArrowRight")
    assert page.do("document.getElementById('slide').value") == "4"
    address = page.do("document.getElementById('link').href")
    page.open(address)  # the link is the same text again
    page.until(DONE)
    assert page.do(SHOWN) == [states("tiny", 4, 9, "Tom")[-1]]
    assert "-d '" in page.do("document.getElementById('curl').textContent")


def test_two_step_counts_side_by_side_on_the_same_noise(server: tuple[str, Scheduler], page: Page) -> None:
    page.look(1200)
    page.open(link(server))
    page.until(DONE)
    page.do("document.getElementById('compare').click()")
    assert page.do("document.querySelectorAll('.side').length") == 2
    page.do("document.querySelectorAll('[name=steps]')[1].value = 8")
    page.do("document.querySelectorAll('[name=model]')[1].value = 'tiny'")
    page.do("document.querySelectorAll('[name=temperature]')[1].value = 1")
    page.do("document.getElementById('write').click()")
    page.until(f"document.querySelectorAll('.panel').length === 2 && {DONE}")
    assert page.do(SHOWN) == [states("tiny", steps, 3, "Mia")[-1] for steps in (4, 8)]
    first, second = page.do(f"go(0), {SHOWN}")
    assert first == second  # the same noise
    assert "model1=tiny&steps1=8" in page.do("location.hash")
    heats = "[...document.querySelectorAll('[name=temperature]')]"
    page.do(f"{heats}.forEach(heat => heat.value = 0), document.getElementById('compare').click()")
    assert page.do(f"{heats}.map(heat => heat.value)") == ["0"]


def test_gaps_are_filled(server: tuple[str, Scheduler], page: Page) -> None:
    page.look(1200)
    page.open(link(server, text="a {3} b"))
    page.until(DONE)
    (wanted,) = offline(TINY.model, Ask(model="tiny", infills=("a {3} b",), seed=3, temperature=1.0, steps=4))
    assert page.do(SHOWN) == [whole(torch.tensor(wanted[1:]))]


def test_escape_hangs_up_and_frees_the_rows(server: tuple[str, Scheduler], page: Page) -> None:
    page.look(1200)
    before = server[1].tally.texts
    page.open(link(server, steps=1000))
    page.until("document.querySelectorAll('.panel .text').length === 1")
    page.press("Escape")
    page.until("!document.querySelector('.panel.going')")
    while server[1].live:
        time.sleep(0.001)
    assert server[1].tally.texts == before
    assert page.do("document.getElementById('problem').hidden")


def test_a_refusal_is_shown(server: tuple[str, Scheduler], page: Page) -> None:
    page.look(1200)
    page.open(link(server, text="x" * 30))
    page.until("!document.getElementById('problem').hidden")
    assert "shorten it" in page.do("document.getElementById('problem').textContent")
    page.until("document.documentElement.dataset.written === '1'")
    assert page.do("[document.querySelectorAll('.panel').length, document.getElementById('scrub').hidden]") == [0, True]


def test_the_button_stops_what_is_being_written(server: tuple[str, Scheduler], page: Page) -> None:
    page.look(390)
    before = server[1].tally.texts
    page.open(link(server, steps=1000))
    page.until("document.getElementById('write').textContent === 'Stop'")
    page.do("document.getElementById('write').click()")
    page.until("document.getElementById('write').textContent === 'Write'")
    while server[1].live:
        time.sleep(0.001)
    assert server[1].tally.texts == before


def test_a_link_with_markup_is_text(server: tuple[str, Scheduler], page: Page) -> None:
    page.look(1200)
    page.open(link(server, text="<i id=owned>"))
    page.until(DONE)
    assert page.do(SHOWN)[0].startswith("<i id=owned>")
    assert page.do("[document.getElementById('owned'), document.querySelector('img'), typeof owned]") == [
        None,
        None,
        "undefined",
    ]
    assert page.do("document.getElementById('curl').textContent").count("<i id=owned>") == 1


def test_a_link_to_a_model_that_is_not_served_says_so_and_writes_nothing(
    server: tuple[str, Scheduler], page: Page
) -> None:
    page.look(1200)
    address = link(server, model="<img src=x onerror=owned=1>")
    page.open(address)
    page.until("!document.getElementById('problem').hidden")
    assert "no model called <img src=x" in page.do("document.getElementById('problem').textContent")
    assert page.do("[document.querySelector('img'), typeof owned, location.href]") == [None, "undefined", address]
    assert page.do("document.querySelectorAll('.panel').length") == 0


def test_characters_of_several_tokens_are_whole_in_the_end(server: tuple[str, Scheduler], page: Page) -> None:
    page.look(1200)
    page.open(link(server, text="é🙂"))
    page.until(DONE)
    assert page.do(SHOWN)[0].startswith("é🙂")
    assert page.do(f"go(1), {SHOWN}")[0].startswith("\ufffd" * 6)


def test_a_key_is_asked_for(page: Page) -> None:
    page.look(1200)
    with listening(TINY, api_key="sesame") as made:
        page.open(made[0])
        page.until(READY)
        assert not page.do("document.getElementById('locked').hidden")
        page.do("key = document.getElementById('key'), key.value = 'sesame', key.dispatchEvent(new Event('change'))")
        page.until("document.querySelectorAll('.side').length === 1")


@pytest.mark.parametrize(("width", "dark"), [(360, False), (390, True), (768, False), (1280, True)])
def test_nothing_sticks_out(server: tuple[str, Scheduler], page: Page, width: int, dark: bool, tmp_path: Path) -> None:
    page.look(width, 844, dark=dark, still=True)
    page.open(link(server, model1="masked", steps1=8, temperature1=1))
    page.until(f"document.documentElement.dataset.written === '1' && {READY}")
    assert page.do(FACTS) == ["", "0", str(width)]
    bright = page.do("getComputedStyle(document.body).backgroundColor").removeprefix("rgb(").split(",")[0]
    assert (int(bright) < 128) == dark
    assert page.picture(tmp_path / "page.png").stat().st_size > 5_000


def test_no_script_but_its_own_runs_and_nothing_is_loaded_from_elsewhere(
    server: tuple[str, Scheduler], page: Page
) -> None:
    page.look(800)
    page.open(link(server))
    page.until(DONE)
    page.do("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"document.body.dataset.owned=1\">')")
    blocked = "fetch('http://127.0.0.1:1/').then(() => 'sent', problem => String(problem.message))"
    assert page.do(blocked) != "sent"
    asked = page.do("performance.getEntriesByType('resource').map(entry => new URL(entry.name).origin)")
    assert {origin for origin in asked if origin not in ("null", "http://127.0.0.1:1")} == {server[0]}
    assert page.do("document.body.dataset.owned") is None


def test_the_api_is_explained(server: tuple[str, Scheduler], page: Page) -> None:
    page.look(1000)
    page.open(f"{server[0]}/docs")
    told = page.do("document.body.innerText")
    for word in (
        "POST /v1/completions",
        "POST /v1/infill",
        "GET /v1/models",
        "top_p",
        "tiny, masked",
        "integer 1 to 16",
    ):
        assert word in told
    assert page.do("document.documentElement.scrollWidth <= innerWidth")
