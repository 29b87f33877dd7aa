"""Reading documents from local files: text, jsonl and csv (plain, gz, xz, zst) and parquet, one document at a time."""

from __future__ import annotations

import codecs
import contextlib
import csv
import gzip
import io
import itertools
import lzma
import math
import zlib
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import IO, Any, NamedTuple

from tsdfm.corpus.settings import Cut
from tsdfm.corpus.wikitext import articles
from tsdfm.errors import UserError
from tsdfm.ranges import shown
from tsdfm.settings import nearest
from tsdfm.store.files import parse_json

PACKED = {".gz", ".xz", ".zst"}
FORMATS = {
    ".txt": "text",
    ".text": "text",
    ".md": "text",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
}


class Document(NamedTuple):
    """A text and where it came from (a file name and a place in it); the answer to its `prompt`, where it has one.

    Documents of one `group` are in one split.
    """

    text: str
    origin: str
    prompt: str = ""
    group: str = ""

    @property
    def key(self) -> str:
        """What decides the split: the group, or the prompt, so that no prompt is in two of them, or else the text."""
        return self.group or self.prompt or self.text


def file_kind(path: Path) -> str | None:
    """`text`, `jsonl`, `csv` or `parquet` by the name's ending (`.jsonl.xz` is jsonl), or None."""
    suffixes = [s.lower() for s in path.suffixes]
    if suffixes and suffixes[-1] in PACKED:
        suffixes.pop()
    return FORMATS.get(suffixes[-1]) if suffixes else None


@contextlib.contextmanager
def open_text(path: Path, offset: int = 0) -> Iterator[IO[str]]:
    """A text stream of a plain or packed UTF-8 file whose line ends are kept; damage becomes one clear line.

    A gzip file may be read from a member on that begins at byte `offset`.
    """
    try:
        with _open_bytes(path, offset) as raw, io.TextIOWrapper(raw, encoding="utf-8-sig", newline="\n") as text:
            yield text
    except UnicodeDecodeError as problem:
        byte, wide = problem.object[problem.start], problem.object[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
        convert = f"iconv -f {'utf-16' if wide else 'latin1'} -t utf-8"
        raise UserError(f"{path} is not UTF-8 text (byte {byte:#04x}): convert it, as by `{convert}`") from None
    except (EOFError, lzma.LZMAError, gzip.BadGzipFile, zlib.error) as problem:
        raise UserError(f"{path} is damaged or cut short ({problem}): fetch it again") from None
    except FileNotFoundError:
        raise UserError(f"no file at {path}") from None
    except PermissionError:
        raise UserError(f"may not read {path}") from None


def _open_bytes(path: Path, offset: int = 0) -> IO[bytes]:
    match path.suffix.lower():
        case ".gz":
            return io.BufferedReader(_Gzip(path, offset), 1 << 20)
        case ".xz":
            return lzma.open(path, "rb")
        case ".zst":
            return _open_zst(path)
        case _:
            return path.open("rb")


class _Gzip(gzip.GzipFile):
    """A gzip file from a byte on, closed with what reads it."""

    def __init__(self, path: Path, offset: int) -> None:
        self.below = path.open("rb")
        self.below.seek(offset)
        super().__init__(fileobj=self.below, mode="rb")

    def close(self) -> None:
        super().close()
        self.below.close()


def _open_zst(path: Path) -> IO[bytes]:
    try:
        import zstandard
    except ImportError:
        raise UserError(f"reading {path.name} needs zstandard: pip install 'tsdfm[zstd]'") from None

    class Reader(io.RawIOBase):
        """zstandard ends quietly on a file that was cut short; this one says so."""

        def __init__(self) -> None:
            self.file = path.open("rb")
            self.unpack = zstandard.ZstdDecompressor().decompressobj(read_across_frames=False)
            self.ready, self.fresh = b"", True

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: Any) -> int:
            while not self.ready:
                packed = self.unpack.unused_data if self.unpack.eof else b""
                packed = packed or self.file.read(1 << 18)
                if not packed:
                    if self.unpack.eof or self.fresh:
                        return 0
                    raise EOFError("the last frame has no end")
                if self.unpack.eof:
                    self.unpack = zstandard.ZstdDecompressor().decompressobj(read_across_frames=False)
                self.fresh = False
                try:
                    self.ready = self.unpack.decompress(packed)
                except zstandard.ZstdError as problem:
                    raise EOFError(str(problem)) from None
            part, self.ready = self.ready[: len(buffer)], self.ready[len(buffer) :]
            buffer[: len(part)] = part
            return len(part)

        def close(self) -> None:
            self.file.close()
            super().close()

    return io.BufferedReader(Reader(), 1 << 20)


def read_text(path: Path, cut: Cut) -> Iterator[Document]:
    """The documents of a text file; see `Cut` for where one ends."""
    with open_text(path) as file:
        if cut == "whole":
            yield Document(file.read(), path.name)
            return
        parts = {"lines": _lines, "paragraphs": _paragraphs, "wikitext": articles}[cut](file)
        for number, text in enumerate(parts, 1):
            yield Document(text, f"{path.name}:{number}")


def _lines(file: Iterable[str]) -> Iterator[str]:
    return (line.removesuffix("\n").removesuffix("\r") for line in file)


def _paragraphs(file: Iterable[str]) -> Iterator[str]:
    held: list[str] = []
    for line in file:
        if line.strip():
            held.append(line)
        elif held:
            yield "".join(held).rstrip("\r\n")
            held = []
    if held:
        yield "".join(held).rstrip("\r\n")


def read_jsonl(path: Path, field: str, prompt: str | None = None) -> Iterator[Document]:
    """One document from each line of a jsonl file, with the prompt in that field; blank lines are passed over."""
    with open_text(path) as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            where = f"{path}, line {number}"
            try:
                row = parse_json(line)
            except ValueError as problem:
                raise UserError(f"{where} is not valid JSON ({problem}): mend or remove the line") from None
            if not isinstance(row, dict):
                raise UserError(f"{where} is not a JSON object with a field {field!r}")
            yield document_of(row, field, prompt, where, f"{path.name}:{number}")


def read_csv(path: Path, field: str, prompt: str | None = None) -> Iterator[Document]:
    """One document from each row below the header; columns end at tabs or semicolons if the header has them."""
    with open_text(path) as file:
        head = file.readline()
        ends = [] if "," in head else [sign for sign in "\t;" if sign in head]
        ends = ["\t"] if ".tsv" in (suffix.lower() for suffix in path.suffixes) else [*ends, ","]
        csv.field_size_limit(max(csv.field_size_limit(), 1 << 28))  # csv's own, 128 kB, is less than a book
        try:
            rows = csv.reader(itertools.chain([head], file), delimiter=ends[0], strict=True)
            names = next(rows, [])
            for number, cells in enumerate(rows, 1):
                if not cells:
                    continue
                where = f"{path}, row {number}"
                if len(cells) != len(names):
                    raise UserError(f"{where} has {len(cells)} cells where the header has {len(names)}: mend the row")
                row = dict(zip(names, cells, strict=True))
                yield document_of(row, field, prompt, where, f"{path.name}:{number}")
        except csv.Error as problem:
            raise UserError(f"{path} is no whole csv file ({problem}): mend it") from None


def read_parquet(path: Path, field: str, prompt: str | None = None) -> Iterator[Document]:
    """One document from each row of a parquet file, with the prompt in that column; only wanted columns are read."""
    try:
        import pyarrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise UserError(f"reading {path.name} needs pyarrow: pip install 'tsdfm[parquet]'") from None
    try:
        with parquet.ParquetFile(path) as file:
            names = [*field.split("+"), *(prompt.split("+") if prompt else ())]
            for name in names:
                if name not in file.schema_arrow.names:
                    raise UserError(f"{path} has no column {name!r}{nearest(name, file.schema_arrow.names)}")
            number = 0
            for batch in file.iter_batches(batch_size=256, columns=names):
                for row in batch.to_pylist():
                    number += 1
                    yield document_of(row, field, prompt, f"{path}, row {number}", f"{path.name}:{number}")
    except (pyarrow.ArrowInvalid, pyarrow.ArrowIOError) as problem:
        first = str(problem).splitlines()[0] if str(problem) else type(problem).__name__
        raise UserError(f"{path} is not a whole parquet file ({first}): fetch it again") from None


def read_table(path: Path, field: str, prompt: str | None = None, kind: str | None = None) -> Iterator[Document]:
    """The documents of a jsonl, csv or parquet file, by its `kind` or its name; jsonl where that says nothing."""
    read = {"csv": read_csv, "parquet": read_parquet}.get(kind or file_kind(path) or "", read_jsonl)
    return read(path, field, prompt)


def document_of(row: Mapping[str, Any], field: str, prompt: str | None, where: str, origin: str) -> Document:
    """The document of a row, and its prompt if it is to have one: then neither may be blank."""
    text, asked = pick(row, field, where), pick(row, prompt, where, "prompt") if prompt else ""
    for name, value in ((field, text), (prompt, asked)):
        if prompt and not value.strip():
            raise UserError(f"{where}: {name!r} is blank: mend or remove the row")
    return Document(text, origin, asked)


def pick(row: Mapping[str, Any], field: str, where: str, setting: str = "field") -> str:
    """The text of a row, whose field the `setting` named; `a+b` joins two fields by a newline. A number is a text."""
    texts, what = [], "question" if setting == "prompt" else "text"
    for name in field.split("+"):
        if name not in row:
            raise UserError(
                f"{where} has no field {name!r}{nearest(name, row)} (`{setting}` names the one with the {what})"
            )
        value = row[name]
        if not isinstance(value, str | int | float) or isinstance(value, bool):
            held = "nothing" if value is None else shown(value)
            raise UserError(f"{where}: field {name!r} holds {held}, not text")
        if isinstance(value, float) and not math.isfinite(value):  # how pandas writes what is missing
            raise UserError(f"{where}: field {name!r} holds {value}, not text")
        texts.append(value if isinstance(value, str) else format(Decimal(repr(value)), "f"))  # without an exponent
    return "\n".join(texts)
