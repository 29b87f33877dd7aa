"""A corpus on disk: one gzipped jsonl file a split, a line a document."""

from __future__ import annotations

import gzip
import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from tsdfm.corpus.files import Document, open_text
from tsdfm.errors import UserError
from tsdfm.store.files import parse_json


def split_file(folder: str | Path, split: str) -> Path:
    return Path(folder) / f"{split}.jsonl.gz"


class SplitWriter:
    """Writes documents of one split. The fastest gzip level, and no time stamp: equal documents make equal files."""

    def __init__(self, folder: Path, split: str) -> None:
        self.path = split_file(folder, split)
        self.raw = self.path.open("wb")
        packed = gzip.GzipFile(filename="", mode="wb", fileobj=self.raw, compresslevel=1, mtime=0)
        self.file = io.BufferedWriter(packed, 1 << 20)  # type: ignore[arg-type, unused-ignore]

    def write(self, document: Document) -> None:
        asked = {"prompt": document.prompt} if document.prompt else {}
        row = {**asked, "text": document.text, "origin": document.origin}
        self.file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")

    def __enter__(self) -> SplitWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        try:
            self.file.close()
            self.raw.flush()
            os.fsync(self.raw.fileno())
        finally:
            self.raw.close()


def read_split(folder: str | Path, split: str, start: int = 0) -> Iterator[str]:
    """The texts of a split, from document number `start`."""
    return (document.text for document in read_documents(folder, split, start))


def read_documents(folder: str | Path, split: str, start: int = 0) -> Iterator[Document]:
    """The documents of a split, from number `start`; those before it are passed over without being parsed."""
    path = split_file(folder, split)
    with open_text(path) as file:
        for number, line in enumerate(file):
            if number < start:
                continue
            try:
                row = parse_json(line)
                document = Document(str(row["text"]), str(row.get("origin", "")), str(row.get("prompt", "")))
            except (ValueError, KeyError, TypeError, AttributeError):
                raise UserError(f"{path}, line {number + 1} is damaged: make the corpus again") from None
            yield document


def count_documents(folder: str | Path, split: str) -> int:
    """How many documents the manifest says a split has."""
    from tsdfm.store.manifest import read_manifest

    manifest = read_manifest(folder)
    if manifest.get("stage") != "corpus":
        raise UserError(f"{folder} is not a corpus (its stage is {manifest.get('stage')!r}): give what `corpus` made")
    return int(manifest["splits"][split]["documents"])
