"""What a process keeps, so that a report of hundreds of cells reads each file, loads each judge and counts texts once.

`scores.jsonl` grows by a line a text: reading it for every cell would make a report's time grow with the square of its
cells.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from torch import Tensor

from tsdfm.judges import Judge, judge_from
from tsdfm.judges.cache import Book
from tsdfm.report.metrics import text_fields
from tsdfm.store.manifest import NAME as MANIFEST

_FIELDS: dict[bytes, dict[str, Any]] = {}


def fields_of(rows: Sequence[Tensor]) -> dict[str, Any]:
    """`text_fields`, kept by the tokens: several tables show the same cell."""
    sizes = str([len(row) for row in rows]).encode()
    name = hashlib.sha256(sizes + b"".join(row.numpy().tobytes() for row in rows)).digest()
    if name not in _FIELDS:
        _FIELDS[name] = text_fields(rows)
    return dict(_FIELDS[name])


@lru_cache(maxsize=2)
def _book(path: Path) -> Book:
    return Book(path)


def book_at(path: Path) -> Book:
    """The book of a file, up to date."""
    return _book(path.absolute()).refresh()


@lru_cache(maxsize=4)
def _judge(spec: str, device: str, stamp: int | None) -> Judge:
    return judge_from(spec, device)


def judge_named(spec: str, device: str) -> Judge:
    """`judge_from`, loaded once a process; a run that was trained again since is loaded again."""
    manifest = Path(spec) / MANIFEST
    return _judge(spec, device, manifest.stat().st_mtime_ns if manifest.is_file() else None)
