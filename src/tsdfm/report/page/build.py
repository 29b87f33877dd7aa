"""Put the page together and write it."""

from __future__ import annotations

import os
from pathlib import Path

from tsdfm import __version__
from tsdfm.report.page.gather import Found, gather
from tsdfm.report.page.markup import document, esc
from tsdfm.report.page.sections import Page, fill, glance, methods_line
from tsdfm.report.page.settings import PageSettings
from tsdfm.report.page.ways import player_data, players
from tsdfm.store.files import disk

SCRIPTS = ("base.js", "chart.js", "player.js", "start.js")
STYLES = ("style.css", "player.css")


def build_page(folder: Path) -> Path:
    """Write OUT/report/index.html from what lies in the pipeline's folder OUT, and return its path."""
    return write_page(folder / "report" / "index.html", page_of(gather(folder)))


def page_of(found: Found) -> str:
    """The report as HTML."""
    page, name = Page(found), found.folder.resolve().name
    fill(page)
    data = {"charts": page.charts, "players": [player_data(group, found.methods) for group in players(found.ways)]}
    head = (
        f'<header><p class="kind">tsdfm report</p><h1>{esc(name)}</h1>'
        '<p class="lead">Language models that write a whole text in a few network passes: what each method writes, '
        f"measured one way. {esc(methods_line(found)).capitalize()}.</p>{glance(found)}</header>"
    )
    foot = f"<footer>Written by tsdfm {esc(__version__)}. This file holds all it shows and asks no server for anything."
    return document(
        title=f"{name} · tsdfm report",
        body=head + page.html() + foot + "</footer>",
        data=data,
        scripts=SCRIPTS,
        styles=STYLES,
    )


def write_page(path: Path, text: str) -> Path:
    """Write a page so that a reader sees the old one or the new one."""
    temp = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    with disk(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            temp.write_bytes(text.encode("utf-8", "replace"))  # half a surrogate pair in a text must not stop the page
            temp.replace(path)
        finally:
            temp.unlink(missing_ok=True)
    return path


def run(settings: PageSettings) -> Path:
    """`tsdfm report page`: write the page and say where it is."""
    path = build_page(settings.folder)
    print(path)
    if settings.open:
        import webbrowser

        webbrowser.open(path.resolve().as_uri())
    return path
