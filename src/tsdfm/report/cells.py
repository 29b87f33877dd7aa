"""Cells: sets of texts kept on disk, so that nothing is sampled or scored twice.

A cell is what one model wrote at one step count, temperature and guide (or held-out text, for the target). Its file,
`report/cells/<method>-<source>-<steps>-<hash>.json`, is named after everything that decides the texts: the checkpoint's
hash, the steps, the number of texts, the seed, temperature, top-p, jump, guide and precision. What judges said is not
in it but in `report/cells/scores.jsonl`, by text, so another judge costs no new sampling.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tsdfm.engine.distributed import pick_device
from tsdfm.errors import UserError
from tsdfm.metrics.diversity import token_accuracy
from tsdfm.report.rows import REAL, Plain
from tsdfm.samples.given import Given
from tsdfm.store.files import read_json, write_json
from tsdfm.store.schema import Wrong, check
from tsdfm.tokens.tokenizer import Tokenizer

FORMAT = 1


def hardware(device: torch.device | str = "auto") -> str:
    """`NVIDIA H200`, or the processor's name and how many threads torch uses of how many cores."""
    place = pick_device(device) if isinstance(device, str) else device
    if place.type == "cuda":
        return torch.cuda.get_device_name(place)
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8", errors="replace").splitlines() if info.is_file() else []
    named = next((line.partition(":")[2].strip() for line in lines if line.lower().startswith("model name")), None)
    processor = platform.processor() or platform.machine() if named is None else named
    return f"CPU {processor}, {torch.get_num_threads()} of {os.cpu_count()} cores"


@dataclass(kw_only=True)
class Cell:
    """Texts and how they were made. `tokens` are whole rows [n, L]; `given` counts the prefix tokens of each row."""

    key: Plain
    method: str
    source: str | None
    steps: int | None
    nfe: float | None
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
        anchor: int,
        tokenizer: Tokenizer,
        device: torch.device | str,
        *,
        given: Tensor | None = None,
        **more: Any,
    ) -> Cell:
        """Rows [n, L] as a cell, with their texts as a model's are written; `given` counts each row's prefix [n]."""
        end, texts, prefixes = " ¶ " if anchor else "\n\n", list[str](), list[str]()
        for i, row in enumerate(tokens):
            texts.append(tokenizer.decode(written(row[anchor:], tokenizer.end_of_text) if anchor else row, end=end))
            if given is not None:
                # a prefix may end inside a character: what both have in common is the prefix that can be read
                prefixes.append(shared_start(texts[-1], tokenizer.decode(row[anchor : int(given[i])], end=end)))
        about = {"key": key, "method": key.get("method", REAL), "source": key.get("source"), "steps": key.get("steps")}
        about |= {"nfe": key.get("steps"), "length": tokens.shape[1], "anchor": anchor, "seconds": 0.0}
        about |= {"end_of_text": tokenizer.end_of_text, "hardware": hardware(device)}
        about |= {} if given is None else {"prefixes": prefixes, "given": given.tolist()}
        return cls(**{**about, "texts": texts, "tokens": tokens.tolist(), **more})

    def continuations(self) -> list[str]:
        """What comes after the prefix of each text; the whole text where there is none."""
        prefixes = self.prefixes or [""] * len(self.texts)
        return [text[len(prefix) :] for text, prefix in zip(self.texts, prefixes, strict=True)]

    def rows(self) -> list[Tensor]:
        """What was written of each row [n] int64: without anchor, prefix and padding."""
        given = self.given or [0] * len(self.tokens)
        table = torch.tensor(self.tokens, dtype=torch.int64)  # rows of one cell are equally long
        places = torch.arange(1, self.length + 1)
        ends = torch.where(table != self.end_of_text, places, 0).amax(1).tolist()  # after the last that is no padding
        starts = [max(self.anchor, count) for count in given]
        return [row[start : max(start, end)] for row, start, end in zip(table, starts, ends, strict=True)]


@dataclass(frozen=True)
class Prefixes:
    """Held-out rows [n, L] with the length of each prefix (the anchor included) and of each text, both [n]."""

    key: Plain  # what decides them
    rows: Tensor
    given: Tensor
    ends: Tensor

    @property
    def held(self) -> Tensor:
        """The positions that are given, [n, L]."""
        return torch.arange(self.rows.shape[1]) < self.given[:, None]

    def given_rows(self) -> Given:
        """As a model takes them."""
        return Given(self.held, self.rows, torch.zeros_like(self.rows))

    def accuracy(self, cell: Cell) -> list[float]:
        """The share of tokens that are the held-out text's: of its rest and, if there is room, its end."""
        asked = ~self.held & (torch.arange(self.rows.shape[1]) <= self.ends[:, None])
        return token_accuracy(torch.tensor(cell.tokens), self.rows, asked)


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
        """The cell of this key, from the disk or made now (and written in one atomic step)."""
        if self.folder is None:
            return make()
        text = json.dumps(key, sort_keys=True, ensure_ascii=False)
        words = [str(key[name]) for name in ("method", "source", "steps") if key.get(name) is not None]
        name = "-".join([*words, hashlib.sha256(text.encode()).hexdigest()[:16]])
        path = self.folder / f"{''.join(c if c.isalnum() or c in '-._' else '_' for c in name)}.json"
        if path.is_file():
            found = load_cell(path)
            if json.dumps(found.key, sort_keys=True, ensure_ascii=False) != text:
                raise UserError(f"{path} is damaged (it is of other texts): remove it, and it is made again")
            return found
        made = make()
        plain = {f.name: getattr(made, f.name) for f in fields(made)}
        # a row of tokens is one string, which keeps the file readable and small
        write_json(path, {"format": FORMAT, **plain, "tokens": [" ".join(map(str, row)) for row in made.tokens]})
        return made


def load_cell(path: Path) -> Cell:
    """A cell from its file, or one clear line."""
    plain = read_json(path)
    try:
        if plain.pop("format", None) != FORMAT:
            raise Wrong("it has another format")
        check(list[str], plain.get("tokens"), "tokens")
        plain["tokens"] = [[int(word) for word in row.split()] for row in plain["tokens"]]
        check(Cell, {**plain, "tokens": []})  # numbers they are; to look at each of millions again takes seconds
        if any(len(row) != plain["length"] for row in plain["tokens"]) or len(plain["tokens"]) != len(plain["texts"]):
            raise Wrong(f"there are not {plain['length']} tokens of every text")
        return Cell(**{f.name: plain[f.name] for f in fields(Cell) if f.name in plain})
    except ValueError as problem:
        raise UserError(f"{path} is damaged ({problem}): remove it, and it is made again") from None
