"""How documents become rows of equal length, in pieces of one shard.

A `Place` says where in the corpus the next shard begins. A packing that was killed goes on from the place after its
last finished shard, and what it makes from there is the same to the byte.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tsdfm.tokens.settings import Layout

ANCHOR = 1  # positions at the front of a row of layout `document` or `prompt` that always hold end-of-text


class Place(NamedTuple):
    """A document's number in its split, and how many of its tokens are already in earlier rows."""

    document: int
    token: int


@dataclass(frozen=True, kw_only=True)
class Piece:
    """The rows [n, L] of one shard, where the next one begins, and what was left out on the way.

    `rest` [k], k < L, are the tokens behind the last row where the documents end; they are also `dropped_tokens`.
    `given` [n] says how many tokens at the front of each row are given: its anchor and its prompt; none: no token is.
    """

    rows: NDArray[Any]
    after: Place
    given: NDArray[Any] | None = None
    rest: NDArray[Any] | None = None
    dropped_tokens: int = 0
    skipped_documents: int = 0


class Encoded(NamedTuple):
    """The ids of a document, end-of-text at their end, and those of the prompt before it, which have none."""

    ids: NDArray[Any]
    prompt: NDArray[Any] | None = None


def lay_out(
    documents: Iterable[Encoded], start: Place, *, layout: Layout, length: int, shard_rows: int, end_of_text: int
) -> Iterator[Piece]:
    """Rows of the documents, which begin with number `start.document`, a piece for each shard."""
    if layout == "packed":
        return _packed((document.ids for document in documents), start, length, shard_rows)
    return _one_a_row(documents, start, length, shard_rows, end_of_text)


def _packed(documents: Iterable[NDArray[Any]], start: Place, length: int, shard_rows: int) -> Iterator[Piece]:
    """The documents as one stream, cut every `length` tokens; the tail that fills no row is dropped."""
    room = shard_rows * length
    held: list[NDArray[Any]] = []
    size, number = 0, start.document
    for number, ids in enumerate(documents, start.document):
        used = start.token if number == start.document else 0
        while size + len(ids) - used >= room:
            cut = used + room - size
            held.append(ids[used:cut])
            yield Piece(rows=np.concatenate(held).reshape(shard_rows, length), after=Place(number, cut))
            held, size, used = [], 0, cut
        held.append(ids[used:])
        size += len(ids) - used
    if size:
        stream = np.concatenate(held)
        rows = size // length
        kept, rest = stream[: rows * length].reshape(rows, length), stream[rows * length :]
        yield Piece(rows=kept, after=Place(number + 1, 0), rest=rest, dropped_tokens=len(rest))


def _one_a_row(documents: Iterable[Encoded], start: Place, length: int, shard_rows: int, end: int) -> Iterator[Piece]:
    """A document in each row, between end-of-text before it and end-of-text as padding; too long a one is skipped.

    The token in front is the row's anchor. Rotary positions are relative, so a network that looks at pure noise cannot
    tell one place of the row from another; a token that is always given at the front lets it count from there. A
    prompt stands between the anchor and its document.
    """
    held: list[NDArray[Any]] = []
    given: list[int] = []
    skipped, number = 0, start.document

    def piece(after: Place) -> Piece:
        rows = np.stack(held) if held else np.empty((0, length), dtype=np.int64)
        return Piece(rows=rows, after=after, given=np.array(given, dtype=np.int64), skipped_documents=skipped)

    for number, (ids, prompt) in enumerate(documents, start.document):
        front = np.concatenate([np.full(ANCHOR, end, dtype=ids.dtype), ids[:0] if prompt is None else prompt])
        if len(front) + len(ids) > length:
            skipped += 1
            continue
        held.append(np.concatenate([front, ids, np.full(length - len(front) - len(ids), end, dtype=ids.dtype)]))
        given.append(len(front))
        if len(held) == shard_rows:
            yield piece(Place(number + 1, 0))
            held, given, skipped = [], [], 0
    if held or skipped:
        yield piece(Place(number + 1, 0))
