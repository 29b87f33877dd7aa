"""Cells: sets of texts kept on disk, so that nothing is sampled or scored twice.

A cell is what one model wrote at one step count, temperature and guide (or held-out text, for the target). Its file,
`report/cells/<method>-<source>-<steps>-<hash>.json`, is named after everything that decides the texts: the checkpoint's
hash, the steps, the number of texts, the seed, temperature, top-p, jump, guide and precision. What judges said is not
in it but in `report/cells/scores.jsonl`, by text, so another judge costs no new sampling.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from tsdfm.errors import UserError
from tsdfm.report.hardware import hardware
from tsdfm.report.rows import REAL, Plain
from tsdfm.store.files import read_json, write_json
from tsdfm.tokens.tokenizer import Tokenizer

FORMAT = 1


class Layout(Protocol):
    """What rows are: their length, and how many tokens stand before a text."""

    @property
    def length(self) -> int: ...

    @property
    def anchor(self) -> int: ...


@dataclass(kw_only=True)
class Cell:
    """Texts and how they were made. `tokens` are whole rows [n, L]; `given` counts the prefix tokens of each row."""

    key: Plain
    method: str
    source: str | None
    steps: int | None
    nfe: int | None
    length: int
    anchor: int
    end_of_text: int
    seconds: float
    hardware: str
    texts: list[str]
    tokens: list[list[int]]
    compass_calls: float = 0.0
    navigation: dict[str, float] = field(default_factory=dict)
    prefixes: list[str] | None = None
    given: list[int] | None = None

    @classmethod
    def of(
        cls,
        key: Plain,
        tokens: Tensor,
        about: Layout,
        tokenizer: Tokenizer,
        device: str,
        *,
        given: Tensor | None = None,
        seconds: float = 0.0,
    ) -> Cell:
        """Rows [n, L] as a cell, with their texts as a model's are written; `given` counts each row's prefix."""
        end, texts, prefixes = " ¶ " if about.anchor else "\n\n", list[str](), list[str]()
        for i, row in enumerate(tokens):
            kept = written(row[about.anchor :], tokenizer.end_of_text) if about.anchor else row
            texts.append(tokenizer.decode(kept, end=end))
            if given is not None:
                # a prefix may end inside a character: what both have in common is the prefix that can be read
                prefix = tokenizer.decode(row[about.anchor : int(given[i])], end=end)
                prefixes.append(shared_start(texts[-1], prefix))
        return cls(
            key=key,
            method=key.get("method", REAL),
            source=key.get("source"),
            steps=key.get("steps"),
            nfe=key.get("steps"),
            length=about.length,
            anchor=about.anchor,
            end_of_text=tokenizer.end_of_text,
            seconds=seconds,
            hardware=hardware(device),
            texts=texts,
            tokens=tokens.tolist(),
            prefixes=prefixes if given is not None else None,
            given=given.tolist() if given is not None else None,
        )

    def rows(self) -> list[Tensor]:
        """What was written of each row [n] int64: without anchor, prefix and padding."""
        given = self.given or [0] * len(self.tokens)
        table = torch.tensor(self.tokens, dtype=torch.int64)  # rows of one cell are equally long
        places = torch.arange(1, self.length + 1)
        ends = torch.where(table != self.end_of_text, places, 0).amax(1).tolist()  # after the last that is no padding
        starts = [max(self.anchor, count) for count in given]
        return [row[start : max(start, end)] for row, start, end in zip(table, starts, ends, strict=True)]

    def plain(self) -> Plain:
        """For the file; a row of tokens is one string, which keeps it readable and small."""
        out = {f.name: getattr(self, f.name) for f in fields(self)}
        return {"format": FORMAT, **out, "tokens": [" ".join(map(str, row)) for row in self.tokens]}


def written(row: Tensor, end: int) -> Tensor:
    """A row without the end-of-text at its end, that is its padding."""
    ends = (row != end).nonzero()
    return row[: int(ends[-1]) + 1] if len(ends) else row[:0]


def shared_start(one: str, two: str) -> str:
    """The longest beginning that both texts have."""
    differ = (i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b)
    return one[: next(differ, min(len(one), len(two)))]


@dataclass(frozen=True)
class Cells:
    """The folder of cells; without a folder, nothing is kept."""

    folder: Path | None = None

    def get(self, key: Mapping[str, Any], make: Callable[[], Cell]) -> Cell:
        """The cell of this key, from the disk or made now."""
        path = self.path(key)
        if path is not None and path.is_file():
            return load_cell(path)
        made = make()
        self.keep(made)
        return made

    def keep(self, cell: Cell) -> None:
        """Write a cell, in one atomic step."""
        path = self.path(cell.key)
        if path is not None:
            write_json(path, cell.plain())

    def path(self, key: Mapping[str, Any]) -> Path | None:
        """Where the cell of this key is kept."""
        if self.folder is None:
            return None
        text = json.dumps(key, sort_keys=True, ensure_ascii=False)
        words = [str(key[name]) for name in ("method", "source", "steps") if key.get(name) is not None]
        name = "-".join([*words, hashlib.sha256(text.encode()).hexdigest()[:16]])
        return self.folder / f"{''.join(c if c.isalnum() or c in '-._' else '_' for c in name)}.json"


def load_cell(path: Path) -> Cell:
    """A cell from its file, or one clear line."""
    plain = read_json(path)
    try:
        if plain.pop("format") != FORMAT:
            raise ValueError("another format")
        tokens = [[int(word) for word in row.split()] for row in plain.pop("tokens")]
        return Cell(**plain, tokens=tokens)
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        raise UserError(f"{path} is damaged ({problem!r}): remove it, and it is made again") from None
