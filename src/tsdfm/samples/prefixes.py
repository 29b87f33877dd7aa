"""Prefixes from a file or from stdin."""

from __future__ import annotations

from pathlib import Path

from tsdfm.errors import UserError
from tsdfm.samples.given import as_prompts
from tsdfm.store.files import parse_json, text_lines

FIELDS = ("prefix", "prompt", "question", "text")


def read_prefixes(path: str | Path, prompted: bool = False) -> list[str]:
    """One prefix a line, spaces at its end included; or JSON lines, objects with one of `FIELDS`. `-` is stdin.

    They are JSON if the file is a .jsonl, or its first line begins with a brace and can be read as such. For a
    `prompted` model all but the field `prefix` are prompts, which a newline ends.
    """
    path = Path(path)
    lines = text_lines(path)
    if path.suffix != ".jsonl" and not isinstance(_object(lines[0][1]), dict):
        return as_prompts([line for _, line in lines], prompted)
    out = []
    for number, line in lines:
        read = _object(line)
        found = read if isinstance(read, dict) else {}
        name = next((name for name in FIELDS if name in found), "")
        value = found.get(name)
        if not isinstance(value, str):
            raise UserError(
                f"{path}, line {number}: expected a JSON object with a field `prefix`, `prompt`, `question` or `text`"
            )
        out += as_prompts([value], prompted and name != "prefix")
    return out


def _object(line: str) -> object:
    try:
        return parse_json(line) if line.lstrip().startswith("{") else None
    except ValueError:
        return None
