"""What a corpus is made of. One source can be given by flags (`--path`, `--name`), several in a recipe:

[corpus]
out = "runs/mix/corpus"
[[corpus.sources]]
path = "wikipedia"
weight = 3
[[corpus.sources]]
name = "fineweb-edu"
limit = 100000
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tsdfm.errors import UserError
from tsdfm.ranges import SEED
from tsdfm.settings import Settings, option, required
from tsdfm.store.parts import part_of

Kind = Literal["auto", "text", "jsonl", "csv", "parquet", "hub", "world", "storyteller", "sums"]
Cut = Literal["whole", "lines", "paragraphs", "wikitext"]


@dataclass(frozen=True, kw_only=True)
class SourceSettings(Settings):
    """One source of documents: a local file or folder (`path`), or something with a name (`name`)."""

    path: Path | None = option(None, "a file, or a folder that is searched for files")
    name: str | None = option(
        None, "a hub dataset, fineweb-edu, wikitext-103, world:small, sums:small, storyteller:FOLDER"
    )
    kind: Kind = option("auto", "what to read; auto goes by the name's ending")
    field: str = option("text", "field or column that holds the text; 'question+answer' joins two by a newline")
    prompt: str | None = option(None, "field or column that holds a prompt, to which the text is the answer")
    cut: Cut = option("whole", "documents of a text file: the whole file, its lines, its paragraphs, WikiText articles")
    tidy: bool = option(False, "plain line ends, quotes, dashes and dots; no blank lines, no runs of spaces")
    drop: str | None = option(None, "leave out lines in which this regular expression is found, as in https?://")
    weight: float = option(1.0, "share of the characters this source gets in a mixture", above=0)
    repeat: int = option(1, "read the source this many times over", low=1)
    limit: int | None = option(None, "stop after this many documents of the source (a world needs it)", low=1)
    seed: int = option(0, "seed of the story world, or of the storyteller", **SEED)
    config: str | None = option(None, "configuration of a hub dataset")
    part: str = option("train", "split of a hub dataset to read")

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.path is None) == (self.name is None):
            raise UserError("a corpus source takes either path (a file or folder) or name (a hub dataset, or 'world')")
        try:
            re.compile(self.drop or "")
        except re.error as problem:
            raise UserError(f"drop is no regular expression ({problem}): {self.drop!r}") from None

    @property
    def label(self) -> str:
        """A short name for counts and messages; holds no folder of the machine it was read on."""
        if self.path is not None:
            return self.path.resolve().name
        kind = str(self.name).split(":")[0]
        return kind if kind == "storyteller" else str(self.name)

    def world(self) -> tuple[str, str] | None:
        """The world whose stories are drawn, as its kind and which one it is; none where texts are read."""
        named, _, which = str(self.name or "").partition(":")
        kind = named if self.kind == "auto" else self.kind
        return (kind, which) if kind in ("world", "storyteller", "sums") and self.path is None else None


@dataclass(frozen=True, kw_only=True)
class CorpusSettings(Settings):
    """A corpus: its sources, how they are mixed, and how many documents are held out."""

    out: Path = required("folder for the corpus")
    path: Path | None = option(None, "the one source, if a file or folder")
    name: str | None = option(
        None,
        "the one source, if it has a name: a hub dataset, fineweb-edu, world:small, sums:small, storyteller:FOLDER",
    )
    kind: Kind = option("auto", "what the one source is; auto goes by the name's ending")
    field: str = option("text", "field of the one source that holds the text; 'question+answer' joins two")
    prompt: str | None = option(None, "field of the one source that holds a prompt, to which the text is the answer")
    cut: Cut = option("whole", "documents of a text file: the whole file, its lines, its paragraphs, WikiText articles")
    tidy: bool = option(False, "plain line ends, quotes, dashes and dots; no blank lines, no runs of spaces")
    drop: str | None = option(None, "leave out lines in which this regular expression is found, as in https?://")
    limit: int | None = option(None, "stop after this many documents of the one source", low=1)
    sources: tuple[SourceSettings, ...] = option((), "several sources (recipe only: [[corpus.sources]])")
    stop: Literal["first", "all"] = option(
        "first", "a mixture ends when its first source runs out (weights hold), or reads all of them (weights give way)"
    )
    valid: float = option(
        0.01,
        "share of the documents held out for validation; above 0, at least one of them or the end of one",
        low=0,
        below=1,
    )
    seed: int = option(0, "seed of the split, and of the world if it is the one source", **SEED)
    part: str | None = option(None, "make one part of several, i/n from 0/n to (n-1)/n, each by a process of its own")

    def __post_init__(self) -> None:
        super().__post_init__()
        part_of(self.part)

    def all_sources(self) -> tuple[SourceSettings, ...]:
        """The sources of the recipe, or the one given by flags."""
        one = self.path is not None or self.name is not None
        if one and self.sources:
            raise UserError("give the corpus either path/name (one source) or sources (several), not both")
        if one:
            same = ("path", "name", "kind", "field", "prompt", "cut", "tidy", "drop", "limit", "seed")
            return (SourceSettings(**{name: getattr(self, name) for name in same}),)
        if not self.sources:
            raise UserError("the corpus has no source: give --path FILE_OR_FOLDER or --name DATASET")
        return self.sources
