"""The pages: one to play with at /, and the API's at /docs. Each is one file that loads nothing from anywhere."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator
from html import escape
from importlib import resources
from typing import Any

from tsdfm.report.page.markup import part

HEADERS = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "X-Frame-Options": "DENY"}


def own(name: str) -> str:
    """A piece of the page that lies here; the others are the report's."""
    return resources.files(__package__).joinpath("parts", name).read_text(encoding="utf-8")


def page() -> str:
    """The page at /, with its styles and scripts inside."""
    style = "\n".join([part("style.css"), part("player.css"), own("serve.css")])
    return own("page.html").replace("{style}", style).replace("{script}", script())


def script() -> str:
    """All that runs on the page."""
    return "\n".join([part("base.js"), part("player.js"), own("serve.js")])


def policy() -> str:
    """What a browser lets the page do: run its own script, and ask this server."""
    digest = base64.b64encode(hashlib.sha256(script().encode()).digest()).decode()
    own_alone = f"script-src 'sha256-{digest}'; connect-src 'self'; style-src 'unsafe-inline'; img-src data:"
    return f"default-src 'none'; {own_alone}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"


def docs(document: dict[str, Any]) -> str:
    """An OpenAPI document to read: each path with the fields of its body and what it answers."""
    body = "".join(section(document, path, method, about) for path, method, about in operations(document))
    about = "<meta charset=utf-8><meta name=viewport content='width=device-width'><title>tsdfm, the API</title>"
    lead = "<p class=lead>Also as an <a href=/openapi.json>OpenAPI document</a>. <a href=/>The page</a></p>"
    head = f"<head>{about}<style>{part('style.css')}</style></head>"
    return f"<!doctype html><html lang=en>{head}<body><h1>The API</h1>{lead}{body}</body></html>"


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Every path with its method and what is said of it."""
    for path, methods in document["paths"].items():
        for method, about in methods.items():
            yield path, method.upper(), about


def section(document: dict[str, Any], path: str, method: str, about: dict[str, Any]) -> str:
    """One operation."""
    schemas = document["components"]["schemas"]
    asked = about.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    shape = schemas.get(asked.get("$ref", "").rpartition("/")[2], {})
    rows = "".join(
        f"<tr><th scope=row><code>{escape(name)}</code></th><td>{escape(kind(field))}</td>"
        f"<td>{marked(field.get('description', ''))}</td></tr>"
        for name, field in shape.get("properties", {}).items()
    )
    head = "<thead><tr><th>field<th>takes<th>what it is</thead>"
    table = f"<div class=scroll><table>{head}<tbody>{rows}</tbody></table></div>"
    answers = " · ".join(f"{status} {marked(each['description'])}" for status, each in about["responses"].items())
    said = f"<p>{marked(shape['description'])}</p>{table}" if shape else ""
    return f"<section><h2>{method} {escape(path)}</h2>{said}<p class=note>{answers}</p></section>"


def marked(text: str) -> str:
    """Text with its `code` as markup."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def kind(field: dict[str, Any]) -> str:
    """What a field takes, in a few words."""
    if "anyOf" in field:
        return " or ".join(kind(each) for each in field["anyOf"])
    if "enum" in field or "const" in field:
        return ", ".join(str(value) for value in field.get("enum", [field.get("const")]))
    if "$ref" in field:
        return str(field["$ref"].rpartition("/")[2])
    if field.get("type") == "array":
        return f"list of {kind(field['items'])}"
    low, high = field.get("minimum", field.get("exclusiveMinimum")), field.get("maximum")
    return str(field.get("type", "anything")) + ("" if low is None or high is None else f" {low:g} to {high:g}")
