"""Links of README, CHANGELOG, CONTRIBUTING and docs/ lead somewhere: files, images and headings exist."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])

FENCE = re.compile(r"^( *)(```+|~~~+).*?^\1\2[ \t]*$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)", re.DOTALL)
INLINE = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(\s*<?([^()\s<>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
REFERENCE = re.compile(r"^ {0,3}\[[^\]]+\]:\s*<?(\S+?)>?\s*$", re.MULTILINE)
HTML = re.compile(r"<(?:a|img)\b[^>]*?\b(?:href|src)=\"([^\"]+)\"")
HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", re.MULTILINE)


def links(text: str) -> Iterator[str]:
    """Targets of all links and images outside of code."""
    plain = CODE.sub("", FENCE.sub("", text))
    for pattern in (INLINE, REFERENCE, HTML):
        yield from pattern.findall(plain)


def anchors(text: str) -> set[str]:
    """Anchors that both GitHub and the site give to the headings of a page: a link must work on either."""
    titles = [re.sub(r"[*`]|\[([^\]]*)\]\([^)]*\)", r"\1", title) for title in HEADING.findall(FENCE.sub("", text))]
    return _numbered([_github(title) for title in titles], "-") & _numbered([_site(title) for title in titles], "_")


def _github(title: str) -> str:
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def _site(title: str) -> str:
    ascii_only = unicodedata.normalize("NFKD", title).encode("ascii", "ignore").decode()
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", ascii_only).strip().lower())


def _numbered(slugs: list[str], join: str) -> set[str]:
    """The second heading of a name gets `-1` on GitHub and `_1` on the site."""
    return {slug if (before := slugs[:i].count(slug)) == 0 else f"{slug}{join}{before}" for i, slug in enumerate(slugs)}


def broken(page: Path) -> list[str]:
    """Links of `page` that lead nowhere, each with the reason."""
    faults = []
    for target in links(page.read_text(encoding="utf-8")):
        if re.match(r"[a-z][a-z0-9+.-]*:|//", target):
            continue
        path, _, anchor = unquote(target).partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists():
            faults.append(f"{target}: no such file")
        elif page.is_relative_to(DOCS) and not file.is_relative_to(DOCS):
            faults.append(f"{target}: leaves docs/, which the site cannot follow")
        elif anchor and file.suffix == ".md" and anchor not in anchors(file.read_text(encoding="utf-8")):
            faults.append(f"{target}: no such heading")
    return faults


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    assert broken(page) == []


def test_faults_are_found(tmp_path: Path) -> None:
    (tmp_path / "there.md").write_text("# A heading: two `words`\n\n## Again\n\n## Again\n", encoding="utf-8")
    page = tmp_path / "page.md"
    page.write_text(
        "# Here\n\n[a](there.md) [b](there.md#a-heading-two-words) [c](#here) [d](https://example.org/x#y)\n"
        '[e](gone.md) ![f](gone.svg) [g](there.md#gone) [h](there.md#again-1) <img src="gone.png">\n\n'
        "[i]: gone.txt\n\n`[j](code.md)`\n\n```\n[k](code.md)\n```\n",
        encoding="utf-8",
    )
    assert [fault.split(":")[0] for fault in broken(page)] == [
        "gone.md", "gone.svg", "there.md#gone", "there.md#again-1", "gone.txt", "gone.png",
    ]  # fmt: skip


def test_every_page_is_on_the_site() -> None:
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2]
    listed = set(re.findall(r"[\w/-]+\.md", nav))
    assert listed == {page.relative_to(DOCS).as_posix() for page in PAGES if page.is_relative_to(DOCS)}
