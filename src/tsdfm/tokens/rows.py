"""Rows of tokens on disk, read through memory maps."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tsdfm.errors import UserError
from tsdfm.machine import allow_files
from tsdfm.store.files import MEND, file_sha256
from tsdfm.store.hashes import SPLITS, stored
from tsdfm.store.manifest import read_manifest
from tsdfm.tokens.layout import ANCHOR
from tsdfm.tokens.tokenizer import Tokenizer, load_tokenizer

CHUNK = 4096  # rows counted at a time


class TokenRows:
    """The rows of one split of a tokens folder.

    rows = TokenRows(Path("runs/demo/tokens"), "train")
    rows[0]              # [L], uint16 or uint32, a view into the file
    rows.take([5, 2])    # [2, L], a copy
    """

    def __init__(self, folder: str | Path, split: str = "train") -> None:
        folder = Path(folder)
        manifest = read_manifest(folder)
        if manifest["stage"] != "tokens":
            raise UserError(f"{folder} holds no tokens (its stage is {manifest['stage']!r}): give what `tokens` made")
        if split not in SPLITS:
            raise UserError(f"{folder} has no split {split!r}: it has {', '.join(SPLITS)}")
        about = manifest["splits"][split]
        self.folder, self.split = folder, split
        self.rows: int = about["rows"]
        self.characters: int = about["characters"]
        self.length: int = manifest["length"]
        self.layout: str = manifest["layout"]
        self.anchor = 0 if self.layout == "packed" else ANCHOR  # positions at the front that are never noise
        self.prompted = self.layout == "prompt"  # have rows a prompt, which is given too?
        self.vocab_size: int = manifest["vocab_size"]
        self.end_of_text: int = manifest["end_of_text"]
        self.fingerprint: str = manifest["tokenizer"]["fingerprint"]
        if not self.rows:
            raise UserError(
                f"the {split} split of {folder} has no rows: hold out more (corpus --valid) or shorten length"
            )
        self.dtype = np.dtype(manifest["dtype"]).newbyteorder("<")
        self._records: list[dict[str, Any]] = about["shards"]
        self._width = self.length + self.prompted  # after its tokens, a row says how many of them are given
        allow_files(len(self._records))  # a memory map holds its file open
        self._shards = [self._open(record) for record in self._records if stored(record, self._width)]
        self._windows = [_windows(shard, self._width) for shard in self._shards]
        self._starts = np.cumsum([0] + [len(shard) for shard in self._shards])  # of each, among all tokens
        found = int(self._starts[-1]) // self._width
        if found != self.rows:
            raise UserError(f"{folder} is damaged (its {split} shards have {found} rows, not {self.rows}): {MEND}")

    def _open(self, record: dict[str, Any]) -> NDArray[Any]:
        path = self.folder / record["file"]
        if not path.is_file():
            raise UserError(f"{path} is missing: make the tokens again, or restore it from a copy")
        count = stored(record, self._width)
        offset = record.get("offset", 0)
        wanted, found = offset + count * self.dtype.itemsize, path.stat().st_size
        if found != wanted:
            raise UserError(f"{path} has {found} bytes, not {wanted}: make the tokens again, or restore it from a copy")
        return np.memmap(path, dtype=self.dtype, mode="r", offset=offset, shape=(count,))

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, index: int) -> NDArray[Any]:
        """Row `index` [L]."""
        if not 0 <= index < self.rows:
            raise IndexError(f"row {index} of {self.rows}")
        first = index * self._width
        shard = int(np.searchsorted(self._starts, first, side="right")) - 1
        if first + self._width > self._starts[shard + 1]:
            return self._known(self._stretch(first, shard)[: self.length])
        inside = first - int(self._starts[shard])
        row: NDArray[Any] = self._shards[shard][inside : inside + self.length]
        return self._known(row)

    def take(self, indices: Sequence[int] | NDArray[np.integer[Any]]) -> NDArray[Any]:
        """Rows `indices` as one array [n, L], in the order of the indices."""
        return self._take(indices)[:, : self.length]

    def given(self, indices: Sequence[int] | NDArray[np.integer[Any]]) -> NDArray[np.bool_]:
        """What is given of rows `indices`, bool [n, L]: the anchor and, where there is one, the prompt."""
        counts = self._take(indices)[:, self.length] if self.prompted else np.full(len(indices), self.anchor)
        known: NDArray[np.bool_] = np.arange(self.length) < counts[:, None]
        return known

    def _take(self, indices: Sequence[int] | NDArray[np.integer[Any]]) -> NDArray[Any]:
        """Rows as they lie on the disk."""
        wanted = np.asarray(indices, dtype=np.int64)
        if wanted.size and not (wanted.min() >= 0 and wanted.max() < self.rows):
            raise IndexError(f"rows {wanted.min()} to {wanted.max()} of {self.rows}")
        width, out = self._width, np.empty((len(wanted), self._width), dtype=self.dtype)
        first = wanted * width
        shard_of = np.searchsorted(self._starts, first, side="right") - 1
        across = first + width > self._starts[shard_of + 1]
        for shard in np.unique(shard_of[~across]):
            here = (shard_of == shard) & ~across
            out[here] = self._windows[shard][first[here] - self._starts[shard]]
        for row in np.flatnonzero(across):
            out[row] = self._stretch(int(first[row]), int(shard_of[row]))
        self._known(out[:, : self.length])
        return out

    def _stretch(self, first: int, shard: int) -> NDArray[Any]:
        """A row that begins at token `first`, in one shard, and ends in another."""
        parts: list[NDArray[Any]] = []
        left = self._width
        while left:
            inside = first + self._width - left - int(self._starts[shard])
            parts.append(self._shards[shard][inside : inside + left])
            left, shard = left - len(parts[-1]), shard + 1
        return np.concatenate(parts)

    def _known(self, tokens: NDArray[Any]) -> NDArray[Any]:
        """Rows, if all their tokens are of the vocabulary: what would be made of others is anybody's guess."""
        if tokens.size and int(tokens.max()) >= self.vocab_size:
            raise UserError(
                f"the {self.split} rows of {self.folder} hold token {int(tokens.max())}, and there are "
                f"{self.vocab_size}: {MEND}"
            )
        return tokens

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer the rows were made with."""
        made = load_tokenizer(self.folder)
        if made.fingerprint != self.fingerprint:
            raise UserError(f"the tokenizer in {self.folder} is not the one its rows were made with: make them again")
        return made

    def count_characters(self, tokens: Any) -> int:
        """Characters of the text in tokens of any shape (an array or tensor), exactly; for bits per character."""
        host = tokens.cpu() if hasattr(tokens, "cpu") else tokens
        return int(self.tokenizer.characters[np.asarray(host, dtype=np.int64)].sum())

    def verify(self) -> None:
        """Compare every shard with the hash it was written with (reads them all)."""
        for record in self._records:
            if file_sha256(self.folder / record["file"]) != record["sha256"]:
                raise UserError(f"{self.folder / record['file']} was changed after it was made: make the tokens again")


def _windows(shard: NDArray[Any], width: int) -> NDArray[Any]:
    """Every stretch [n, width] of a shard's tokens, a view: picking rows of it copies them in one call."""
    if len(shard) < width:
        return shard[:0].reshape(0, width)
    return np.lib.stride_tricks.sliding_window_view(shard, width)


def valid_rows(tokens: Path) -> TokenRows | None:
    """The held-out rows, if any were held out."""
    found = read_manifest(tokens).get("splits")
    return TokenRows(tokens, "valid") if found is None or found["valid"]["rows"] else None  # the former says why


def count_tokens(rows: TokenRows, most: int | None = None) -> NDArray[np.int64]:
    """How often each token occurs [V] where rows are not given: in all rows, or in `most` of them spread evenly."""
    count = len(rows) if most is None else min(most, len(rows))
    take = np.linspace(0, len(rows), count, endpoint=False).astype(np.int64) if count < len(rows) else np.arange(count)
    counts = np.zeros(rows.vocab_size, dtype=np.int64)
    for first in range(0, count, CHUNK):
        part = take[first : first + CHUNK]
        counts += np.bincount(rows.take(part)[~rows.given(part)], minlength=rows.vocab_size)
    return counts


def asking(words: tuple[str | Path, ...], tokens: Path) -> tuple[str | Path, ...]:
    """The words of a command that samples, with a prompt where the model's rows have one, since it answers prompts."""
    rows = TokenRows(tokens)
    if words[:1] != ("sample",) or not rows.prompted:
        return words
    prompt = rows.tokenizer.decode(rows[0][rows.given([0])[0]][rows.anchor :]).removesuffix("\n")
    return (*words, f"--prompt={prompt}")
