"""Scores on disk, so that an interrupted scoring goes on where it was and nothing is scored twice.

The file has a JSON object a line: `judge` (fingerprint and precision), `key` (sha256 of the prefix and the text) and
the score. It is only ever appended to, a part of the texts at a time; a line that a kill cut short is passed over and
its text scored again. Several judges, and several sets of texts, may share a file.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path

from tsdfm.judges.base import Judge, OnDone, Score, check_prefixes
from tsdfm.store.files import disk

PART = 256  # texts between two looks at the disk


class Book:
    """The scores in a file, by judge and text, read once for all judges together."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._size = 0
        self._known: dict[str, dict[str, Score]] = {}

    def refresh(self) -> Book:
        """Read the file anew if somebody else has changed it."""
        if self._size_now() != self._size:
            self._known = read_scores(self.path)
            self._size = self._size_now()
        return self

    def _size_now(self) -> int:
        return self.path.stat().st_size if self.path.is_file() else 0

    def score(
        self,
        judge: Judge,
        texts: Sequence[str],
        prefixes: Sequence[str] | None = None,
        on_done: OnDone | None = None,
        part: int = PART,
    ) -> list[Score]:
        """A score for each text: known ones as they are, the others by the judge, which are then kept in the file."""
        check_prefixes(texts, prefixes)
        given = list(prefixes) if prefixes is not None else [""] * len(texts)
        keys = [key_of(text, prefix) for text, prefix in zip(texts, given, strict=True)]
        who = f"{judge.fingerprint} {judge.precision}"
        known = self._known.setdefault(who, {})
        todo = list({key: i for i, key in enumerate(keys) if key not in known}.values())
        todo.sort(key=lambda i: (-len(texts[i]), i))  # like lengths together: each part then makes full batches
        for at in range(0, len(todo), part):
            some, before = todo[at : at + part], sum(key in known for key in keys)
            tell = (lambda done, _, before=before: on_done(before + done, len(texts))) if on_done is not None else None
            found = judge.score([texts[i] for i in some], prefixes=[given[i] for i in some], on_done=tell)
            fresh = {keys[i]: score for i, score in zip(some, found, strict=True)}
            append(self.path, who, fresh)
            self._size = self._size_now()
            known |= fresh
        if on_done is not None:
            on_done(len(texts), len(texts))
        return [known[key] for key in keys]


_book = lru_cache(maxsize=2)(Book)


def book_at(path: Path) -> Book:
    """The book of a file, up to date; it grows by a line a text, so the process keeps the last ones."""
    return _book(path.absolute()).refresh()


def score_file(
    judge: Judge,
    texts: Sequence[str],
    path: str | Path,
    *,
    prefixes: Sequence[str] | None = None,
    on_done: OnDone | None = None,
    part: int = PART,
) -> list[Score]:
    """A score for each text: from `path` where it is there, by the judge (and kept in `path`) where not."""
    return Book(Path(path)).refresh().score(judge, texts, prefixes, on_done, part)


def key_of(text: str, prefix: str = "") -> str:
    """sha256 of the text; of prefix and text, where there is one."""
    content = json.dumps([prefix, text]) if prefix else text
    return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()


def read_scores(path: str | Path) -> dict[str, dict[str, Score]]:
    """The whole lines, by judge and text; one that a kill cut short is passed over."""
    path, found = Path(path), dict[str, dict[str, Score]]()
    if not path.is_file():
        return found
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            try:
                saved = json.loads(line)
                found.setdefault(saved["judge"], {})[saved["key"]] = Score(**saved["score"])
            except (ValueError, KeyError, TypeError):
                continue
    return found


def append(path: Path, who: str, scores: dict[str, Score]) -> None:
    """Add lines and see that they are on the disk. The first begins on a line of its own, whatever was before it."""
    lines = [json.dumps({"judge": who, "key": key, "score": asdict(score)}) for key, score in scores.items()]
    with disk(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab+") as file:
            torn = file.tell() > 0 and not _ends_in_newline(path)
            file.write((("\n" if torn else "") + "\n".join(lines) + "\n").encode())
            file.flush()
            os.fsync(file.fileno())


def _ends_in_newline(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
