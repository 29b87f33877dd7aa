"""From a source's settings to its documents."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator
from pathlib import Path

from tsdfm.corpus.files import Document, file_kind, read_jsonl, read_parquet, read_text
from tsdfm.corpus.hub import read_hub
from tsdfm.corpus.settings import SourceSettings
from tsdfm.errors import UserError

__all__ = ["Document", "find_files", "read"]


def read(source: SourceSettings | Path | str) -> Iterator[Document]:
    """The documents of a source, in a fixed order. Texts without a visible character are passed over.

    for document in read("texts"):      # a folder, or one file
        print(document.origin, len(document.text))
    """
    if not isinstance(source, SourceSettings):
        source = SourceSettings(path=Path(source))
    rounds = itertools.chain.from_iterable(_read_once(source) for _ in range(source.repeat))
    made = (
        Document(clean(prepared(text, source)), origin, clean(prepared(prompt, source)), group)
        for text, origin, prompt, group in rounds
    )
    return itertools.islice((document for document in made if document.text.strip()), source.limit)


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


def _read_once(source: SourceSettings) -> Iterator[Document]:
    if source.path is not None:
        yield from _read_files(source, source.path)
    elif (world := source.world()) is not None:
        yield from _read_world(source, *world)
    elif source.kind in ("auto", "hub"):
        yield from read_hub(source)
    else:
        raise UserError(f"source {source.label!r} of kind {source.kind!r} needs a path, not a name")


def _read_world(source: SourceSettings, kind: str, which: str) -> Iterator[Document]:
    """Stories drawn from a world: `world:small` names one of several, `storyteller:FOLDER` a model's folder.

    `sums:small` draws word problems, whose texts are the answers to their prompts; those of one sum are in one split.
    """
    without_prompt(source, "a world")
    if source.limit is None:
        raise UserError("a world has no end: give limit, the number of stories")
    if kind == "sums":
        from tsdfm.corpus.sums import problems, sums_named

        sums = sums_named(which or "large")
        for number, problem in enumerate(problems(source.seed, source.limit, world=sums)):
            origin = f"sums:{sums.name}:{source.seed}:{number}"
            yield Document(problem.answer, origin, problem.prompt, str(problem.sum))
        return
    if kind == "world":
        from tsdfm.corpus.world import stories, world_named

        world = world_named(which or "full")
        texts, name = stories(source.seed, source.limit, world=world), f"world:{world.name}"
    else:
        from tsdfm.corpus.storyteller import teller_from

        texts, name = teller_from(which).stories(source.seed, source.limit), kind
    for number, text in enumerate(texts):
        yield Document(text, f"{name}:{source.seed}:{number}")


def _read_files(source: SourceSettings, root: Path) -> Iterator[Document]:
    for path in find_files(source):
        kind = source.kind if source.kind != "auto" else file_kind(path)
        place = path.relative_to(root).as_posix() if root.is_dir() else path.name
        place = os.fsencode(place).decode("utf-8", "replace")  # a name need not be text
        match kind:
            case "jsonl":
                documents = read_jsonl(path, source.field, source.prompt)
            case "parquet":
                documents = read_parquet(path, source.field, source.prompt)
            case _:
                without_prompt(source, path.name)
                documents = read_text(path, source.cut)
        for document in documents:
            yield document._replace(origin=place + document.origin.removeprefix(path.name))


def without_prompt(source: SourceSettings, what: str) -> None:
    """Refuse a prompt where there are no fields."""
    if source.prompt is not None:
        raise UserError(
            f"{what} has no field {source.prompt!r} for a prompt: prompts come from jsonl, parquet or the hub"
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
            raise UserError(f"cannot tell what {root} is by its name: set kind to text, jsonl or parquet")
        return [root]
    inside = [p for p in root.rglob("*") if p.is_file() and not _hidden(p.relative_to(root))]
    found = [p for p in inside if file_kind(p) is not None and kind in ("auto", file_kind(p))]
    if not found:
        raise UserError(f"nothing to read in {root}: it has no .txt, .md, .jsonl (.gz, .xz, .zst) or .parquet file")
    return sorted(found, key=lambda p: p.relative_to(root).as_posix())


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)
