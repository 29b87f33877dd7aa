"""HTML by hand: escaping, tables, numbers, and data that no text can break out of."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Sequence
from importlib import resources
from typing import Any

ORDER = ("teacher", "fs-dfm", "control", "ts-dfm")
GLYPHS = ("●", "■", "▼", "◆", "▲", "✚", "✕", "★")
REAL = "held-out text"


def esc(value: object) -> str:
    """Text as HTML shows it, safe between tags and in attributes. Control characters, which it may not hold, are �."""
    text = "".join("\ufffd" if ord(c) < 32 and c not in "\n\t" else c for c in str(value))
    return html.escape(text, quote=True)


def part(name: str) -> str:
    """A piece of the page that comes with the package."""
    return resources.files(__package__).joinpath("parts", name).read_text(encoding="utf-8")


def data_block(name: str, value: Any) -> str:
    """JSON in a script element that never runs; `<`, `>` and `&` are spelled out, so nothing in it can end it."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return f'<script type="application/json" id="{esc(name)}">{text}</script>'


def document(*, title: str, body: str, data: Any, scripts: Sequence[str], styles: Sequence[str]) -> str:
    """A whole page around `body`. Its policy lets no byte come from anywhere else, and no script run but its own."""
    script = "\n".join(part(name) for name in scripts)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'; base-uri 'none'"
    )
    slots = {
        "title": esc(title),
        "policy": policy,
        "style": "\n".join(part(name) for name in styles),
        "body": body,
        "data": data_block("data", data),
        "script": script,
    }
    page = part("page.html")
    head, *rest = page.split("{{")  # one pass: what is filled in is never read as a slot
    return head + "".join(slots[name] + after for name, _, after in (piece.partition("}}") for piece in rest))


def style_of(method: str, others: Sequence[str]) -> int:
    """Which colour, marker and dash a method has: the same in every figure of a page."""
    if method in ORDER:
        return ORDER.index(method)
    rest = sorted(set(others) - set(ORDER) - {REAL})
    return len(ORDER) + (rest.index(method) if method in rest else 0) % (len(GLYPHS) - len(ORDER))


def badge(method: str, others: Sequence[str]) -> str:
    """A method's name with its marker."""
    if method == REAL:
        return f'<span class="method real">{esc(method)}</span>'
    style = style_of(method, others)
    glyph = f'<span class="glyph s{style}" aria-hidden="true">{GLYPHS[style]}</span>'
    return f'<span class="method">{glyph}{esc(method)}</span>'


def number(value: Any, digits: int | None = None) -> str:
    """A number as people read it; `digits` none keeps about three that matter."""
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if digits is None:
        size = abs(value)
        digits = (
            0 if isinstance(value, int) or size >= 100 else 1 if size >= 10 else 2 if size >= 0.1 or not size else 4
        )
    text = f"{value:,.{digits}f}".replace(",", "\u202f")
    return text.replace("-", "\u2212")


def percent(value: Any) -> str:
    """0.163 → 16 %, 0.0042 → 0.4 %."""
    if value is None:
        return ""
    share = 100.0 * value
    return f"{share:.1f}\u202f%" if 0 < share < 1 or 99 < share < 100 else f"{share:.0f}\u202f%"


def table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    caption: str = "",
    left: int = 1,
    label: str = "",
    foot: tuple[str, str] | None = None,
) -> str:
    """A table of ready-made cells in a box of its own that scrolls sideways; the first `left` columns are words.

    `foot` is a last row of two cells, the second as wide as all columns but the first.
    """
    columns = "".join(f'<th scope="col"{_side(i, left)}>{cell}</th>' for i, cell in enumerate(head))
    body = "".join(f"<tr>{_cells(row, left)}</tr>" for row in rows)
    above = f"<caption>{caption}</caption>" if caption else ""
    below = ""
    if foot is not None:
        wide = f'<td colspan="{len(head) - 1}">{foot[1]}</td>'
        below = f'<tfoot><tr><th scope="row">{foot[0]}</th>{wide}</tr></tfoot>'
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{esc(label or "table")}"><table>{above}'
        f"<thead><tr>{columns}</tr></thead><tbody>{body}</tbody>{below}</table></div>"
    )


def _cells(row: Sequence[str], left: int) -> str:
    first, *rest = row
    return f'<th scope="row">{first}</th>' + "".join(f"<td{_side(i, left)}>{c}</td>" for i, c in enumerate(rest, 1))


def _side(index: int, left: int) -> str:
    return "" if index < left else ' class="n"'


def figure(chart: str, caption: str) -> str:
    """A place for the script to draw chart `chart` in."""
    return f'<figure class="chart" data-chart="{esc(chart)}"><figcaption>{caption}</figcaption></figure>'


def details(summary: str, inside: str, *, open: bool = False) -> str:
    """Something to unfold."""
    return f"<details{' open' if open else ''}><summary>{summary}</summary>{inside}</details>"
