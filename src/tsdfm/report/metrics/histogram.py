"""What the tokens of texts say without a judge: entropy, distinct n-grams, repetition. Each text is [n] int64."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from tsdfm.report.metrics.intervals import Estimate, ends, resamples


def entropy_bits(rows: Sequence[Tensor]) -> list[float]:
    """Entropy in bits of each text's own token histogram: H = −Σ_v (n_v / n)·log2(n_v / n). 0 for an empty text."""
    return [_entropy(torch.unique(row, return_counts=True)[1].double()) for row in rows]


def entropy_nats(rows: Sequence[Tensor]) -> list[float]:
    """The same in nats, as part of the field reports it: bits · ln 2."""
    return [bits * math.log(2) for bits in entropy_bits(rows)]


def _entropy(counts: Tensor) -> float:
    """Of a histogram [V] of counts, which may have zeros."""
    total = counts.sum()
    if not total > 0:
        return 0.0
    share = counts[counts > 0] / total
    return float(-(share * share.log2()).sum())


def ngrams(row: Tensor, n: int) -> Tensor:
    """All n-grams of a text, [max(0, len − n + 1), n]."""
    return row.unfold(0, n, 1) if len(row) >= n else row.new_zeros(0, n)


class Pool:
    """The n-grams of all texts together, kept so that texts can be weighed again cheaply (for intervals)."""

    def __init__(self, rows: Sequence[Tensor], n: int) -> None:
        parts = [ngrams(row, n) for row in rows]
        self.texts = len(parts)
        joined = torch.cat(parts) if parts else torch.zeros(0, n, dtype=torch.int64)
        sizes = torch.tensor([len(part) for part in parts], dtype=torch.int64)
        self.owner = torch.repeat_interleave(torch.arange(len(parts)), sizes)
        unique, self.kind = torch.unique(joined, dim=0, return_inverse=True)
        self.kinds = len(unique)

    def counts(self, weight: Tensor | None = None) -> Tensor:
        """How often each n-gram occurs [kinds], with text i counted weight[i] times."""
        each = None if weight is None else weight[self.owner]
        return torch.bincount(self.kind, weights=each, minlength=self.kinds).double()

    def entropy(self, weight: Tensor | None = None) -> float:
        """In bits."""
        return _entropy(self.counts(weight))

    def distinct(self, weight: Tensor | None = None) -> float:
        """Share of different n-grams among all; 0 where there are none."""
        counts = self.counts(weight)
        total = float(counts.sum())
        return float((counts > 0).sum()) / total if total else 0.0

    def weights(self, seed: int, draws: int) -> list[Tensor]:
        """How often each text is in each bootstrap sample."""
        return [torch.bincount(p, minlength=self.texts).double() for p in resamples(self.texts, seed, draws)]


def bigram_entropy_bits(rows: Sequence[Tensor]) -> float:
    """Entropy in bits of the bigrams of all texts together. No bigram crosses from one text to the next."""
    return Pool(rows, 2).entropy()


def bigram_entropy_interval(rows: Sequence[Tensor], seed: int = 0, draws: int = 200) -> Estimate:
    """The same with a (centred) 95 % interval."""
    pool = Pool(rows, 2)
    found = [pool.entropy(weight) for weight in pool.weights(seed, draws)]
    return ends(torch.tensor(found, dtype=torch.float64), pool.entropy(), centred=True)


def distinct(rows: Sequence[Tensor], n: int) -> float:
    """distinct-n: different n-grams over all n-grams, of all texts together. Falls with the number of texts."""
    return Pool(rows, n).distinct()


def distinct_interval(rows: Sequence[Tensor], n: int, seed: int = 0, draws: int = 200) -> Estimate:
    """The same with a (centred) 95 % interval."""
    pool = Pool(rows, n)
    found = [pool.distinct(weight) for weight in pool.weights(seed, draws)]
    return ends(torch.tensor(found, dtype=torch.float64), pool.distinct(), centred=True)


def repetition(rows: Sequence[Tensor], n: int = 4) -> list[float]:
    """seq-rep-n of each text: 1 − (different n-grams / n-grams). 0 for a text without an n-gram."""
    found = []
    for row in rows:
        grams = ngrams(row, n)
        found.append(1.0 - len(torch.unique(grams, dim=0)) / len(grams) if len(grams) else 0.0)
    return found


def token_repetition(rows: Sequence[Tensor], window: int = 128) -> list[float]:
    """rep of each text: the share of its tokens that occur among the `window` tokens before them."""
    found = []
    for row in rows:
        seen: dict[int, int] = {}
        again = 0
        for place, token in enumerate(row.tolist()):
            again += place - seen.get(token, -window - 1) <= window
            seen[token] = place
        found.append(again / len(row) if len(row) else 0.0)
    return found
