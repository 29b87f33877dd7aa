"""A corpus on disk: one gzipped jsonl file a split, or one a split and part; a line a document."""

from __future__ import annotations

import gzip
import io
import json
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from tsdfm.corpus.files import Document, open_text
from tsdfm.errors import UserError
from tsdfm.store.files import parse_json


def split_file(folder: str | Path, split: str) -> Path:
    return Path(folder) / f"{split}.jsonl.gz"


class Written(NamedTuple):
    """How much of a split's file is safe on the disk: bytes, documents, and where its gzip members begin."""

    bytes: int
    documents: int
    members: list[list[int]]


class SplitWriter:
    """Writes documents of one split. The fastest gzip level, and no time stamp: equal documents make equal files.

    `cut` ends a gzip member. Behind it a reader can begin, and a writer that is made with what `cut` gave goes on.
    """

    def __init__(self, folder: Path, split: str, before: Written | None = None) -> None:
        self.path = split_file(folder, split)
        self.raw = self.path.open("r+b" if before else "wb")
        self.documents, self.members = (before.documents, before.members) if before else (0, [])
        self.file: io.BufferedWriter | None = None
        if before:
            self.raw.truncate(before.bytes)
            self.raw.seek(before.bytes)
        else:
            self._begin()

    def _begin(self) -> io.BufferedWriter:
        self.members = [*self.members, [self.raw.tell(), self.documents]]
        packed = gzip.GzipFile(filename="", mode="wb", fileobj=self.raw, compresslevel=1, mtime=0)
        self.file = io.BufferedWriter(packed, 1 << 20)  # type: ignore[arg-type, unused-ignore]
        return self.file

    def write(self, document: Document) -> None:
        asked = {"prompt": document.prompt} if document.prompt else {}
        row = {**asked, "text": document.text, "origin": document.origin}
        (self.file or self._begin()).write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
        self.documents += 1

    def cut(self) -> Written:
        """Put all documents so far on the disk."""
        if self.file is not None:
            self.file.close()
            self.file = None
        self.raw.flush()
        os.fsync(self.raw.fileno())
        return Written(self.raw.tell(), self.documents, self.members)

    def __enter__(self) -> SplitWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        try:
            self.cut()
        finally:
            self.raw.close()


class SplitFile(NamedTuple):
    """A file of a split, how many documents lie before it, its own (None: not known), and its gzip members."""

    path: Path
    before: int = 0
    documents: int | None = None
    members: Sequence[Sequence[int]] = ((0, 0),)

    @property
    def after(self) -> float:
        """How many documents lie before its end."""
        return math.inf if self.documents is None else self.before + self.documents


def split_files(folder: str | Path, split: str) -> list[SplitFile]:
    """The files of a split, in their order: one, or those of the parts that a corpus was made in."""
    from tsdfm.store.manifest import NAME, read_manifest

    if not (Path(folder) / NAME).is_file():
        return [SplitFile(split_file(folder, split))]
    about, found, before = read_manifest(folder)["splits"][split], [], 0
    for file in about.get("files", [{**about, "file": split_file(folder, split).name}]):
        path = Path(folder) / file["file"]
        found.append(SplitFile(path, before, file["documents"], file.get("members", SplitFile(path).members)))
        before += file["documents"]
    return found


def read_split(folder: str | Path, split: str, start: int = 0) -> Iterator[str]:
    """The texts of a split, from document number `start`."""
    return (document.text for document in read_documents(folder, split, start))


def read_documents(
    folder: str | Path, split: str, start: int = 0, stop: float = math.inf, step: int = 1
) -> Iterator[Document]:
    """Documents start, start + step, … of a split, before number `stop`; the others are not parsed."""
    for file in split_files(folder, split):
        if file.before < stop and start < file.after:
            yield from _read_file(file, start, stop, step)


def _read_file(file: SplitFile, start: int, stop: float, step: int) -> Iterator[Document]:
    """The same of one file, from the last gzip member that begins at the start or before it."""
    within = max(start - file.before, 0)
    offset, passed = max(((m[0], m[1]) for m in file.members if len(m) == 2 and m[1] <= within), default=(0, 0))
    with open_text(file.path, offset) as lines:
        for number, line in enumerate(lines, file.before + passed):
            if number >= stop:
                return
            if number < start or (number - start) % step:
                continue
            try:
                row = parse_json(line)
                document = Document(str(row["text"]), str(row.get("origin", "")), str(row.get("prompt", "")))
            except (ValueError, KeyError, TypeError, AttributeError):
                place = f"{file.path}, line {number - file.before + 1}"
                raise UserError(f"{place} is damaged: make the corpus again") from None
            yield document


def count_documents(folder: str | Path, split: str) -> int:
    """How many documents the manifest says a split has."""
    from tsdfm.store.manifest import read_manifest

    manifest = read_manifest(folder)
    if manifest.get("stage") != "corpus":
        raise UserError(f"{folder} is not a corpus (its stage is {manifest.get('stage')!r}): give what `corpus` made")
    return int(manifest["splits"][split]["documents"])
