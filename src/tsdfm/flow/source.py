"""The source: what a sequence is at t = 0, before any of it has arrived.

`Uniform` starts from random tokens, `Mask` from [MASK] everywhere. [MASK] has the id |V|: the network embeds |V| + 1
tokens but predicts |V| columns, so the probability of [MASK] is zero by construction and it can only ever disappear.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from tsdfm.errors import UserError
from tsdfm.flow.noise import Noise, uniform


@runtime_checkable
class Source(Protocol):
    """The law of x_0, the same and independent at every position."""

    @property
    def vocab(self) -> int:
        """|V|, the number of columns of the logits."""
        ...

    @property
    def mask(self) -> int | None:
        """The id of [MASK], or None where there is none."""
        ...

    @property
    def tokens(self) -> int:
        """How many different tokens a state may hold: the rows of the network's embedding."""
        ...

    def draw(self, shape: Sequence[int], noise: Noise, device: torch.device, but: int | None = None) -> Tensor:
        """x_0 of `shape` = [B, L], int64, given that none of its tokens is `but`."""
        ...

    def probability(self, x: Tensor) -> Tensor:
        """p_0(x) of each token of `x`, float64, same shape."""
        ...


def _check(vocab: int) -> None:
    if vocab < 1:
        raise UserError(f"a vocabulary needs at least one token, not {vocab}")


@dataclass(frozen=True)
class Uniform:
    """x_0 ~ uniform over the vocabulary."""

    vocab: int

    def __post_init__(self) -> None:
        _check(self.vocab)

    @property
    def mask(self) -> None:
        return None

    @property
    def tokens(self) -> int:
        return self.vocab

    def draw(self, shape: Sequence[int], noise: Noise, device: torch.device, but: int | None = None) -> Tensor:
        scaled = uniform(noise, shape, device) * self.vocab
        x = scaled.to(torch.int64).clamp_(max=self.vocab - 1)
        if but is None or self.vocab == 1:
            return x
        rest = self.vocab - 1
        other = ((scaled - x) * rest).to(torch.int64).clamp_(max=rest - 1)  # what is behind the point is uniform too
        return torch.where(x == but, other + (other >= but), x)

    def probability(self, x: Tensor) -> Tensor:
        return torch.full(x.shape, 1.0 / self.vocab, dtype=torch.float64, device=x.device)


@dataclass(frozen=True)
class Mask:
    """x_0 = [MASK] everywhere. Drawing it takes no random numbers."""

    vocab: int

    def __post_init__(self) -> None:
        _check(self.vocab)

    @property
    def mask(self) -> int:
        return self.vocab

    @property
    def tokens(self) -> int:
        return self.vocab + 1

    def draw(self, shape: Sequence[int], noise: Noise, device: torch.device, but: int | None = None) -> Tensor:
        return torch.full(tuple(shape), self.mask, dtype=torch.int64, device=device)

    def probability(self, x: Tensor) -> Tensor:
        return (x == self.mask).to(torch.float64)


def source_from(name: str, vocab: int) -> Source:
    """A source from its name, "uniform" or "mask"."""
    if name == "uniform":
        return Uniform(vocab)
    if name == "mask":
        return Mask(vocab)
    raise UserError(f'unknown source "{name}": use "uniform" or "mask"')
