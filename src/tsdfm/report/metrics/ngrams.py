"""What the tokens of texts say without a judge: entropy, distinct n-grams, repetition. Each text is [n] int64.

The n-grams of all texts are kept together so that texts can be weighed again cheaply (for intervals).

A bootstrap draw weighs text i by w_i, how often it was drawn. An n-gram that only one text has (most of them) then
occurs m·w_i times, so all of a text's own n-grams are summed once and for all; those that texts share are counted by a
product of a sparse matrix [shared n-grams, texts] with the weights [texts, draws].
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from tsdfm.report.metrics.intervals import Estimate, ends, mean_interval, resamples

ROOM = 1 << 23  # counts alive at once: 64 MiB
DRAWS = 200
REPEATED = 4  # n of seq-rep-n
EXACT = 1 << 20  # n-grams up to which any draw's counts stay far under 2^24, where float32 ends to be exact


@dataclass(frozen=True, kw_only=True)
class TextStats:
    """What the tokens of a set of texts say: means over texts, or of all texts together (bigrams, distinct-n)."""

    entropy_bits: Estimate | None = None
    entropy_nats: Estimate | None = None
    bigram_entropy_bits: Estimate | None = None
    repetition: Estimate | None = None
    distinct_1: Estimate | None = None
    distinct_2: Estimate | None = None
    distinct_3: Estimate | None = None


def text_stats(rows: Sequence[Tensor], seed: int = 0) -> TextStats:
    """The statistics of texts; `rows` are their tokens without padding.

    The entropy of a text is that of its own token histogram, H = −Σ_v (n_v / n)·log2(n_v / n); seq-rep-4 is one minus
    the share of different 4-grams. Bigram entropy and distinct-n are of all texts together, with centred intervals.
    """
    tokens, pairs, threes, fours = (NgramPool.of(len(rows), *found) for found in grams(rows, REPEATED))
    bits, sizes, kinds = tokens.of_each()[2].tolist(), *(values.tolist() for values in fours.of_each()[:2])
    entropies, distincts = pairs.both(pairs.weights(seed, DRAWS))
    pooled = partial(ends, centred=True, texts=len(rows))
    one, three = (pooled(p.distincts(p.weights(seed, DRAWS)), p.distinct()) for p in (tokens, threes))
    return TextStats(
        entropy_bits=mean_interval(bits, seed),
        entropy_nats=mean_interval([x * math.log(2) for x in bits], seed),
        bigram_entropy_bits=pooled(entropies, pairs.entropy()),
        repetition=mean_interval([1.0 - k / n if n else 0.0 for k, n in zip(kinds, sizes, strict=True)], seed),
        distinct_1=one,
        distinct_2=pooled(distincts, pairs.distinct()),
        distinct_3=three,
    )


def entropy_bits(rows: Sequence[Tensor]) -> list[float]:
    """Entropy in bits of each text's own token histogram; 0 for an empty text."""
    return [float(bits) for bits in NgramPool(rows, 1).of_each()[2]]


def grams(rows: Sequence[Tensor], most: int) -> list[tuple[Tensor, Tensor]]:
    """For n = 1 … `most`: each n-gram's kind (a number) and the text it is in, both [n-grams], text after text.

    The kind of an n-gram is that of its first n − 1 tokens with one more token: numbers stay small for any n.
    """
    sizes = torch.tensor([len(row) for row in rows], dtype=torch.int64)
    flat = torch.cat([row.long() for row in rows]) if len(rows) else torch.zeros(0, dtype=torch.int64)
    owner = torch.repeat_interleave(torch.arange(len(rows)), sizes)
    words, token = torch.unique(flat, return_inverse=True)
    out, kind = [(token, owner)], token
    for n in range(2, most + 1):
        kind = torch.unique(kind[:-1] * len(words) + token[n - 1 :], return_inverse=True)[1]
        inside = owner[: len(kind)] == owner[n - 1 :]  # no n-gram crosses from one text to the next
        out.append((kind[inside], owner[: len(kind)][inside]))
    return out


class NgramPool:
    """The n-grams of texts, ready to be counted for many weights of the texts at once."""

    def __init__(self, rows: Sequence[Tensor], n: int) -> None:
        self._fill(len(rows), *grams(rows, n)[-1])

    @classmethod
    def of(cls, texts: int, kind: Tensor, owner: Tensor) -> NgramPool:
        """From what `grams` gave for one n."""
        pool = cls.__new__(cls)
        pool._fill(texts, kind, owner)
        return pool

    def _fill(self, texts: int, kind: Tensor, owner: Tensor) -> None:
        self.texts = texts
        pairs, times = torch.unique(kind * max(1, texts) + owner, return_counts=True)  # sorted by kind
        kind, self.owner = pairs // max(1, texts), pairs % max(1, texts)
        self.times = times.double()
        _, kind, holders = torch.unique_consecutive(kind, return_inverse=True, return_counts=True)
        self.kinds = len(holders)
        single = holders[kind] == 1
        self._own_times, self._own_logs, self._own_kinds = (
            self._by_text(values, single) for values in (self.times, _xlog2x(self.times), torch.ones_like(self.times))
        )
        self._sizes = self._by_text(self.times, torch.ones_like(single))
        shared = ~single
        place = torch.unique_consecutive(kind[shared], return_inverse=True)[1]
        size = (int(place[-1]) + 1 if len(place) else 0, texts)
        kind_of = torch.float32 if len(owner) < EXACT else torch.float64
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Sparse invariant checks")  # ours are right by construction
            self._shared = torch.sparse_coo_tensor(
                torch.stack([place, self.owner[shared]]), self.times[shared].to(kind_of), size, check_invariants=False
            ).coalesce()

    def _by_text(self, values: Tensor, where: Tensor) -> Tensor:
        """The sum over each text [texts]."""
        return torch.bincount(self.owner[where], weights=values[where], minlength=self.texts).double()

    def _counts(self, weights: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """A part of the weights [d, texts], and with them the counts of the shared n-grams [kinds, d]."""
        part = max(1, ROOM // max(1, self._shared.shape[0]))
        for some in torch.split(weights, part):
            # one row a text, in one piece: ten times as quick as reading down the columns
            yield some, torch.sparse.mm(self._shared, some.T.to(self._shared.dtype).contiguous())

    def entropies(self, weights: Tensor) -> Tensor:
        """Entropy in bits [draws] for weights [draws, texts]; 0 where there is nothing."""
        return torch.cat([self._entropy(*part) for part in self._counts(weights)])

    def distincts(self, weights: Tensor) -> Tensor:
        """Share of different n-grams among all [draws]; 0 where there are none."""
        return torch.cat([self._distinct(*part) for part in self._counts(weights)])

    def both(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """`entropies` and `distincts`, counted once."""
        parts = [(self._entropy(*part), self._distinct(*part)) for part in self._counts(weights)]
        return torch.cat([one for one, _ in parts]), torch.cat([two for _, two in parts])

    def _entropy(self, some: Tensor, counts: Tensor) -> Tensor:
        """H = log2 N − Σ c·log2 c / N, with c the counts and N their sum."""
        total = some @ self._sizes
        logs = some @ self._own_logs + _xlog2x(some) @ self._own_times + _tabled(counts).sum(0)
        return torch.where(total > 0, total.clamp(min=1).log2() - logs / total.clamp(min=1), 0.0).clamp(min=0.0)

    def _distinct(self, some: Tensor, counts: Tensor) -> Tensor:
        kinds = (some > 0).double() @ self._own_kinds + (counts > 0).sum(0)
        return kinds / (some @ self._sizes).clamp(min=1)

    def entropy(self) -> float:
        """In bits, of all texts once."""
        return float(self.entropies(self._once()))

    def distinct(self) -> float:
        """Share of different n-grams among all, of all texts once."""
        return float(self.distincts(self._once()))

    def of_each(self) -> tuple[Tensor, Tensor, Tensor]:
        """Of each text alone [texts]: how many n-grams, how many kinds of them, and their entropy in bits."""
        every = torch.ones_like(self.owner, dtype=torch.bool)
        kinds = self._by_text(torch.ones_like(self.times), every)
        size, logs = self._sizes, self._by_text(_xlog2x(self.times), every)
        entropy = torch.where(size > 0, size.clamp(min=1).log2() - logs / size.clamp(min=1), 0.0).clamp(min=0.0)
        return size, kinds, entropy

    def weights(self, seed: int, draws: int) -> Tensor:
        """How often each text is in each bootstrap sample, [draws, texts]."""
        return weights_of(resamples(self.texts, seed, draws))

    def _once(self) -> Tensor:
        return torch.ones(1, self.texts, dtype=torch.float64)


def weights_of(picks: Tensor) -> Tensor:
    """How often each of n texts is picked, [draws, n], by picks [draws, n]."""
    ones = torch.ones(picks.shape, dtype=torch.float64)
    return torch.zeros(picks.shape, dtype=torch.float64).scatter_add_(1, picks, ones)


def _xlog2x(x: Tensor) -> Tensor:
    """x·log2 x for whole numbers x ≥ 0; 0 for 0."""
    return x * x.clamp(min=1.0).log2()


def _tabled(counts: Tensor) -> Tensor:
    """The same in float64, by looking it up: there are few different counts."""
    largest = int(counts.max()) if counts.numel() else 0
    return _xlog2x(torch.arange(largest + 1, dtype=torch.float64))[counts.int()]
