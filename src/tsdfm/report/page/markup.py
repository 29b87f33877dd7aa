"""The templates, and what they need: numbers as people read them, and data that no text can break out of.

The page is a Jinja2 template (torch needs Jinja2 too, so it is wherever torch is): loops and escaping are its own, and
every text that is not markup of ours is escaped. It is loaded when a page is made.
"""

from __future__ import annotations

import base64
import hashlib
import json
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from tsdfm import charts
from tsdfm.report.page.gather import GLYPHS, way_label
from tsdfm.report.page.ways import finished
from tsdfm.report.rows import REAL

SCRIPTS = ("base.js", "player.js", "start.js")
STYLES = ("style.css", "player.css")
SPACE = "\u202f"


def part(name: str) -> str:
    """A piece of the page that comes with the package."""
    return resources.files(__package__).joinpath("parts", name).read_text(encoding="utf-8")


def clean(value: object) -> object:
    """What a template shows: control characters, which HTML may not hold, are �."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return "".join("\ufffd" if ord(c) < 32 and c not in "\n\t" else c for c in value)


@cache
def environment() -> Environment:
    """The templates with the functions they use."""
    made = Environment(
        loader=FunctionLoader(part),
        autoescape=True,
        finalize=clean,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals |= {"number": number, "glyphs": GLYPHS, "real": REAL}
    made.globals |= {"way_label": way_label, "finished": finished}
    made.globals |= {"svg": lambda chart: Markup(charts.svg(chart)), "sample": lambda n: Markup(charts.sample(n))}
    return made


def document(template: str, *, data: Any, **about: Any) -> str:
    """A page from its template. Its policy lets no byte come from anywhere else, and no script run but its own."""
    script = "\n".join(part(name) for name in SCRIPTS)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    allowed = f"style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'; base-uri 'none'"
    about |= {"policy": f"default-src 'none'; {allowed}", "data": data_text(data), "script": Markup(script)}
    about["style"] = Markup("\n".join(part(name) for name in STYLES))
    return environment().get_template(template).render(about)


def data_text(value: Any) -> Markup:
    """JSON for a script element that never runs; `<`, `>` and `&` are spelled out, so nothing in it can end it."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Markup(text)


def number(value: Any, digits: int | None = None) -> str:
    """A number as people read it; `digits` none keeps about three that matter."""
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if digits is None:
        size = 100 if isinstance(value, int) else abs(value)
        digits = 0 if size >= 100 else 1 if size >= 10 else 2 if size >= 0.1 or not size else 4
    return f"{value:,.{digits}f}".replace(",", SPACE).replace("-", "\u2212")
