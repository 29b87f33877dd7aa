"""Unigram-frequency bins: which tokens are about as common as which."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tsdfm.errors import UserError


@dataclass(frozen=True)
class FrequencyBins:
    """Bin b holds the tokens whose count lies in [low[b], high[b]]; every bin has at least two tokens.

    `members` [V] lists the tokens bin by bin, `start` and `size` say where a bin lies in it, `bin_of` [V] and `place`
    [V] say in which bin, and where in it, a token is.
    """

    members: Tensor
    start: Tensor
    size: Tensor
    bin_of: Tensor
    place: Tensor
    low: tuple[int, ...]
    high: tuple[int, ...]

    def to(self, device: torch.device) -> FrequencyBins:
        """The same on another device."""
        names = ("members", "start", "size", "bin_of", "place")
        return replace(self, **{name: getattr(self, name).to(device) for name in names})

    def other(self, tokens: Tensor, u: Tensor) -> Tensor:
        """Another token of the same bin, all of them alike, by uniforms u of the tokens' shape."""
        bins = self.bin_of[tokens]
        return self.members[self.start[bins] + _skip(u, self.size[bins], self.place[tokens])]


def _skip(u: Tensor, size: Tensor | int, taken: Tensor) -> Tensor:
    """One of 0 … size − 1 without `taken`, all alike."""
    drawn = (u * (size - 1)).to(torch.int64)
    return drawn + (drawn >= taken).to(torch.int64)


def uniform_other(tokens: Tensor, vocab: int, u: Tensor) -> Tensor:
    """Another token of the whole vocabulary, all of them alike."""
    return _skip(u, vocab, tokens)


def frequency_bins(counts: NDArray[Any], bins: int) -> FrequencyBins:
    """Cut the tokens into `bins` bins of equal width in log(count), unseen tokens in one of their own.

    A bin with fewer than two tokens offers nothing to replace its token with, and is merged with the next more common
    one (the most common with the one below).
    """
    counts = np.asarray(counts, dtype=np.int64)
    if len(counts) < 2:
        raise UserError("frequency bins need a vocabulary of at least two tokens")
    top = max(float(np.log(max(counts.max(), 1))), 1e-9)
    raw = np.where(counts > 0, 1 + np.minimum(np.log(np.maximum(counts, 1)) / top * bins, bins - 1).astype(np.int64), 0)
    groups = _merge([np.flatnonzero(raw == b) for b in range(bins + 1)])
    sizes = [len(g) for g in groups]
    bin_of, place = np.empty_like(counts), np.empty_like(counts)
    for b, group in enumerate(groups):
        bin_of[group], place[group] = b, np.arange(len(group))
    return FrequencyBins(
        members=torch.from_numpy(np.concatenate(groups)),
        start=torch.tensor([0, *np.cumsum(sizes[:-1])], dtype=torch.int64),
        size=torch.tensor(sizes, dtype=torch.int64),
        bin_of=torch.from_numpy(bin_of),
        place=torch.from_numpy(place),
        low=tuple(int(counts[g].min()) for g in groups),
        high=tuple(int(counts[g].max()) for g in groups),
    )


def _merge(groups: list[NDArray[np.int64]]) -> list[NDArray[np.int64]]:
    """Groups of at least two, in the same order."""
    out: list[NDArray[np.int64]] = []
    held = np.empty(0, dtype=np.int64)
    for group in groups:
        held = np.concatenate([held, group])
        if len(held) >= 2:
            out.append(held)
            held = np.empty(0, dtype=np.int64)
    if len(held):
        out[-1] = np.concatenate([out[-1], held])
    return out
