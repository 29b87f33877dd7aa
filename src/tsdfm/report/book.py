"""What a process keeps, so that a report of hundreds of cells reads each file, loads each judge and counts texts once.

`scores.jsonl` (see `tsdfm.judges.cache`, whose file it is) grows by a line a text: reading it for every cell would make
a report's time grow with the square of its cells. A `Book` reads it once, for all judges together.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from torch import Tensor

from tsdfm.engine.manifest import NAME as MANIFEST
from tsdfm.judges import Judge, judge_from
from tsdfm.judges.base import OnDone, Score, check_prefixes
from tsdfm.judges.cache import append, key_of
from tsdfm.report.metrics import text_fields

PART = 512  # texts between two looks at the disk


class Book:
    """The scores in a file, by judge and text."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._size = 0
        self._known: dict[str, dict[str, Score]] = {}

    def refresh(self) -> Book:
        """Read the file anew if somebody else has changed it."""
        if self._size_now() != self._size:
            self._known = read_all(self.path)
            self._size = self._size_now()
        return self

    def _size_now(self) -> int:
        return self.path.stat().st_size if self.path.is_file() else 0

    def score(
        self, judge: Judge, texts: Sequence[str], prefixes: Sequence[str] | None, on_done: OnDone | None = None
    ) -> list[Score]:
        """A score for each text: known ones as they are, the others by the judge, which are then kept in the file."""
        check_prefixes(texts, prefixes)
        given = list(prefixes) if prefixes is not None else [""] * len(texts)
        keys = [key_of(text, prefix) for text, prefix in zip(texts, given, strict=True)]
        who = f"{judge.fingerprint} {judge.precision}"
        known = self._known.setdefault(who, {})
        todo = list({key: i for i, key in enumerate(keys) if key not in known}.values())
        todo.sort(key=lambda i: (-len(texts[i]), i))  # like lengths together: each part then makes full batches
        for at in range(0, len(todo), PART):
            some, before = todo[at : at + PART], len(texts) - len(todo) + at
            tell = (lambda done, _, before=before: on_done(before + done, len(texts))) if on_done is not None else None
            found = judge.score([texts[i] for i in some], prefixes=[given[i] for i in some], on_done=tell)
            fresh = {keys[i]: score for i, score in zip(some, found, strict=True)}
            append(self.path, who, fresh)
            self._size = self._size_now()
            known |= fresh
        if on_done is not None:
            on_done(len(texts), len(texts))
        return [known[key] for key in keys]


def read_all(path: Path) -> dict[str, dict[str, Score]]:
    """The whole lines of every judge; one that a kill cut short is passed over, and its text scored again."""
    found: dict[str, dict[str, Score]] = {}
    if not path.is_file():
        return found
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            try:
                saved = json.loads(line)
                score = saved["score"]
                kept = Score(score["nll"], score["tokens"], score["characters"], score["hits"])
                found.setdefault(saved["judge"], {})[saved["key"]] = kept
            except (ValueError, KeyError, TypeError):
                continue
    return found


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
