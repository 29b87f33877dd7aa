"""How likely a causal model finds each place of a text: log p(x_i | x_<i), whatever tokens the model itself reads.

A model's token counts where its last character stands. So the places of a text that is read as a whole add up to the
model's log p of it, and a place that ends no token of the model's has 0. The end of a text belongs to the end-of-text
token behind it. Models are given texts, not tokens: one text may be spelled in several ways, and none of them pays.

Shapes: n rows of L places.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tsdfm.judges.causal import Spelled
from tsdfm.tokens.tokenizer import Tokenizer


class Places(NamedTuple):
    """log p [n, L] in float32, 0 where nothing was `read` [n, L]."""

    values: Tensor
    read: Tensor


@dataclass(frozen=True)
class Story:
    """A row's text, and how many of its characters are there after each of its places [m]; `ended` before the row."""

    text: str
    where: NDArray[np.int64]
    ended: bool

    def after(self, places: int) -> int:
        """How many characters its first `places` have."""
        return int(self.where[: min(places, len(self.where))].max(initial=0))


def stories_in(x: Tensor, tokenizer: Tokenizer, anchor: int) -> list[Story]:
    """The texts of rows x [n, L]: what stands behind the anchor, up to the first end-of-text."""
    found, whole = [], tokenizer.whole
    for row in x[:, anchor:].cpu().numpy():
        over = np.flatnonzero(row == tokenizer.end_of_text)
        tokens = row[: over[0]] if len(over) else row
        sizes = whole[tokens]
        if (sizes < 0).any():  # a character of several tokens
            reader = codecs.getincrementaldecoder("utf-8")("replace")
            sizes = np.array([len(reader.decode(tokenizer.decode_bytes([token]))) for token in tokens.tolist()])
        found.append(Story(tokenizer.decode(tokens), sizes.cumsum(), len(over) > 0))
    return found


def written(x: Tensor, end_of_text: int, anchor: int) -> Tensor:
    """The places [n, L] of rows x behind the anchor, up to and with the first end-of-text."""
    over = (x == end_of_text).long()
    over[:, :anchor] = 0
    found = over.cumsum(-1) - over == 0
    found[:, :anchor] = False
    return found


def places(stories: Sequence[Story], spelled: Sequence[Spelled], length: int, anchor: int) -> Places:
    """What a model said of each text's own tokens, at the places of rows of `length`."""
    values, read = np.zeros((len(stories), length), np.float32), np.zeros((len(stories), length), np.bool_)
    for value, there, story, said in zip(values, read, stories, spelled, strict=True):
        size, tokens = len(story.where), said.tokens
        if size and len(tokens):
            at = np.searchsorted(story.where, said.ends[: len(tokens)]).clip(max=size - 1)
            np.subtract.at(value, at + anchor, tokens.numpy())
            last = size if len(tokens) == len(said.ends) else int(at[-1]) + 1
            first = int(np.searchsorted(story.where, said.begin, side="right"))
            there[anchor + first : anchor + last] = True
        if story.ended and said.end is not None:
            value[anchor + size], there[anchor + size] = -said.end, True
    return Places(torch.from_numpy(values), torch.from_numpy(read))
