"""Reading texts from a file, for `tsdfm judge score`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tsdfm.errors import UserError
from tsdfm.store.files import parse_json, text_lines


@dataclass(frozen=True)
class Texts:
    """Whole texts and, if the file has them, the prefix each begins with."""

    texts: list[str]
    prefixes: list[str] | None


def read_texts(path: str | Path, limit: int | None = None) -> Texts:
    """`.jsonl`: a JSON object a line with `text` and perhaps `prefix` (as `tsdfm sample --out` writes); `.txt`: a text
    a line, blank lines left out, unless the first is such an object. A file of any other name is either of the two, and
    so is `-`, stdin: JSON if its first line begins with a brace."""
    path = Path(path)
    filled = text_lines(path)[:limit]
    braced = filled[0][1].lstrip().startswith("{")
    if not (_is_row(filled[0][1]) if path.suffix == ".txt" else braced or path.suffix == ".jsonl"):
        return Texts([line for _, line in filled], None)
    rows = [_row(path, number, line) for number, line in filled]
    given = [prefix for _, prefix in rows]
    return Texts([text for text, _ in rows], [p or "" for p in given] if any(given) else None)


def _is_row(line: str) -> bool:
    try:
        return isinstance(parse_json(line)["text"], str)
    except (ValueError, KeyError, TypeError, AttributeError):
        return False


def _row(path: Path, number: int, line: str) -> tuple[str, str | None]:
    try:
        row = parse_json(line)
        text, prefix = row["text"], row.get("prefix")
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"{path}, line {number}: expected a JSON object with a field `text`") from None
    if not isinstance(text, str) or not (prefix is None or isinstance(prefix, str)):
        raise UserError(f"{path}, line {number}: `text` and `prefix` must be strings")
    return text, prefix
