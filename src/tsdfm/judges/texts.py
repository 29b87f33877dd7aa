"""Reading texts from a file, for `tsdfm judge score`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from tsdfm.errors import UserError


@dataclass(frozen=True)
class Texts:
    """Whole texts and, if the file has them, the prefix each begins with."""

    texts: list[str]
    prefixes: list[str] | None


def read_texts(path: Path, limit: int | None = None) -> Texts:
    """`.jsonl`: a JSON object a line with `text` and perhaps `prefix` (as `tsdfm sample --out` writes); `.txt`: a text
    a line, blank lines left out."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except FileNotFoundError:
        raise UserError(f"no file at {path}") from None
    except OSError as problem:
        raise UserError(f"cannot read {path} ({problem.strerror})") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is not UTF-8 text") from None
    filled = [(number, line) for number, line in enumerate(lines, 1) if line.strip()][:limit]
    if not filled:
        raise UserError(f"{path} holds no text")
    if path.suffix != ".jsonl":
        return Texts([line for _, line in filled], None)
    rows = [_row(path, number, line) for number, line in filled]
    given = [prefix for _, prefix in rows]
    return Texts([text for text, _ in rows], [p or "" for p in given] if any(given) else None)


def _row(path: Path, number: int, line: str) -> tuple[str, str | None]:
    try:
        row = json.loads(line)
        text, prefix = row["text"], row.get("prefix")
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"{path}, line {number}: expected a JSON object with a field `text`") from None
    if not isinstance(text, str) or not (prefix is None or isinstance(prefix, str)):
        raise UserError(f"{path}, line {number}: `text` and `prefix` must be strings")
    return text, prefix
