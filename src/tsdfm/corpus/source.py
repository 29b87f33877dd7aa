"""From a source's settings to its documents."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tsdfm.corpus.files import Document, file_kind, read_table, read_text
from tsdfm.corpus.hub import read_hub
from tsdfm.corpus.settings import SourceSettings
from tsdfm.errors import UserError

__all__ = ["Document", "Place", "Reader", "Unit", "find_files", "read", "units_of"]

STORIES = 1000  # of a world that are drawn as one unit


class Unit(NamedTuple):
    """A stretch of a source that can be read on its own: a file, some stories of a world, or all of a hub dataset."""

    read: Callable[[], Iterator[Document]]
    size: int = 1  # bytes of a file, stories of a world
    path: Path | None = None


class Place(NamedTuple):
    """Where a reader is: the number of its unit, documents read of that, and documents given of all."""

    unit: int = 0
    read: int = 0
    given: int = 0


class Reader(Iterator[Document]):
    """The documents of some units of a source, from a place on, up to the source's limit.

    A text without a visible character is read and not given. A reader that is made with another's `place` gives what
    that one had not given yet.
    """

    def __init__(self, source: SourceSettings, units: Sequence[Unit], place: Place | None = None) -> None:
        self.source, self.units, self.place = source, units, place or Place()
        self._stream = self._documents()

    def __next__(self) -> Document:
        if self.source.limit is not None and self.place.given >= self.source.limit:
            raise StopIteration
        return next(self._stream)

    def _documents(self) -> Iterator[Document]:
        for unit in range(self.place.unit, len(self.units)):
            _, read, given = self.place
            for text, origin, prompt, group in itertools.islice(self.units[unit].read(), read, None):
                read += 1
                text, prompt = clean(prepared(text, self.source)), clean(prepared(prompt, self.source))
                given += bool(text.strip())
                self.place = Place(unit, read, given)
                if text.strip():
                    yield Document(text, origin, prompt, group)
            self.place = Place(unit + 1, 0, given)


def read(source: SourceSettings | Path | str) -> Reader:
    """The documents of a source, in a fixed order. Texts without a visible character are passed over, but a blank
    prompt or answer is refused.

    for document in read("texts"):      # a folder, or one file
        print(document.origin, len(document.text))
    """
    if not isinstance(source, SourceSettings):
        source = SourceSettings(path=Path(source))
    return Reader(source, units_of(source))


def prepared(text: str, source: SourceSettings) -> str:
    """A text as the source's `drop` and `tidy` want it."""
    if source.drop:
        found = re.compile(source.drop)
        text = "".join(line for line in text.splitlines(keepends=True) if not found.search(line))
    return tidy(text) if source.tidy else text


def clean(text: str) -> str:
    """`text`, with half surrogate pairs (which JSON can carry and UTF-8 cannot) replaced by U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


PLAIN = str.maketrans(
    {
        "‘": "'",
        "’": "'",
        "“": '"',
        "”": '"',
        "…": "...",
        "\r": "\n",
        "\t": " ",
        "\xa0": " ",
        "\xad": None,
        "\ufeff": None,
    }
)


def tidy(text: str) -> str:
    """One way to write what typesetters write in several: fewer tokens are spent on it, and a model learns it sooner.

    >>> tidy("  He said:\\r\\n\\r\\n“Well -- I’m  here…” ")
    'He said:\\n"Well—I\\'m here..."'
    """
    text = re.sub(r" {2,}", " ", text.translate(PLAIN))
    text = re.sub(r" *\n[ \n]*", "\n", text)
    return re.sub(r" ?(?:(?<!-)--(?!-)|—) ?", "—", text).strip()


def units_of(source: SourceSettings) -> list[Unit]:
    """The stretches of a source, in the order they are read."""
    if source.path is not None:
        root = source.path
        once = [Unit(partial(_read_file, source, root, path), path.stat().st_size, path) for path in find_files(source)]
        return once * source.repeat
    if (world := source.world()) is not None:
        return _world_units(source, *world)
    if source.kind in ("auto", "hub"):
        return [Unit(partial(read_hub, source))] * source.repeat
    raise UserError(f"source {source.label!r} of kind {source.kind!r} needs a path, not a name")


def _world_units(source: SourceSettings, kind: str, which: str) -> list[Unit]:
    """Stories drawn from a world: `world:small` names one of several, `storyteller:FOLDER` a model's folder.

    `sums:small` draws word problems, whose texts are the answers to their prompts; those of one sum are in one split.
    """
    without_prompt(source, "a world")
    if source.limit is None:
        raise UserError("a world has no end: give limit, the number of stories")
    if kind == "storyteller":
        return [Unit(partial(_told, source, which))]
    draw = _sums if kind == "sums" else _stories
    starts = range(0, source.limit, STORIES)
    counts = [min(STORIES, source.limit - start) for start in starts]
    return [
        Unit(partial(draw, source, which, start, count), count) for start, count in zip(starts, counts, strict=True)
    ]


def _told(source: SourceSettings, which: str) -> Iterator[Document]:
    from tsdfm.corpus.storyteller import teller_from

    for number, text in enumerate(teller_from(which).stories(source.seed, source.limit or 0)):
        yield Document(text, f"storyteller:{source.seed}:{number}")


def _stories(source: SourceSettings, which: str, start: int, count: int) -> Iterator[Document]:
    from tsdfm.corpus.world import stories, world_named

    world = world_named(which or "full")
    for number, text in enumerate(stories(source.seed, count, start, world=world), start):
        yield Document(text, f"world:{world.name}:{source.seed}:{number}")


def _sums(source: SourceSettings, which: str, start: int, count: int) -> Iterator[Document]:
    from tsdfm.corpus.sums import problems, sums_named

    sums = sums_named(which or "large")
    for number, problem in enumerate(problems(source.seed, count, start, world=sums), start):
        yield Document(problem.answer, f"sums:{sums.name}:{source.seed}:{number}", problem.prompt, str(problem.sum))


def _read_file(source: SourceSettings, root: Path, path: Path) -> Iterator[Document]:
    kind = source.kind if source.kind != "auto" else file_kind(path)
    place = path.relative_to(root).as_posix() if root.is_dir() else path.name
    place = os.fsencode(place).decode("utf-8", "replace")  # a name need not be text
    match kind:
        case "jsonl" | "csv" | "parquet":
            documents = read_table(path, source.field, source.prompt, kind)
        case _:
            without_prompt(source, path.name)
            documents = read_text(path, source.cut)
    for document in documents:
        yield document._replace(origin=place + document.origin.removeprefix(path.name))


def without_prompt(source: SourceSettings, what: str) -> None:
    """Refuse a prompt where there are no fields."""
    if source.prompt is not None:
        raise UserError(
            f"{what} has no field {source.prompt!r} for a prompt: prompts come from jsonl, csv, parquet or the hub"
        )


def find_files(source: SourceSettings) -> list[Path]:
    """The files of a source in the order they are read: sorted by their path inside the folder."""
    root, kind = source.path, source.kind
    if root is None:
        return []
    if kind in ("hub", "world", "storyteller", "sums"):
        raise UserError(f"a source of kind {kind!r} takes a name, not a path")
    if not root.exists():
        raise UserError(f"no file or folder at {root}")
    if root.is_file():
        if kind == "auto" and file_kind(root) is None:
            raise UserError(f"cannot tell what {root} is by its name: set kind to text, jsonl, csv or parquet")
        return [root]
    there = [p for p in root.rglob("*") if not _hidden(p.relative_to(root))]
    for link in (p for p in there if p.is_symlink() and not p.exists() and file_kind(p) is not None):
        raise UserError(f"{link} is a link to a file that is not there: mend it, or remove it")
    inside = [p for p in there if p.is_file()]
    found = [p for p in inside if file_kind(p) is not None and kind in ("auto", file_kind(p))]
    if not found and kind != "auto":
        raise UserError(f"no file of kind {kind} in {root}: leave kind out to read files of every kind")
    if not found:
        raise UserError(
            f"nothing to read in {root}: it has no .txt, .md, .jsonl, .csv (.gz, .xz, .zst) or .parquet file"
        )
    return sorted(found, key=lambda p: p.relative_to(root).as_posix())


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)
