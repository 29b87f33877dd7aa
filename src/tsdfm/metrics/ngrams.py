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

from tsdfm.metrics.intervals import Estimate, ends, mean_interval, resamples

ROOM = 1 << 23  # counts alive at once: 64 MiB
DRAWS = 200
REPEATED = 4  # n of seq-rep-n


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
    tokens, pairs, threes, fours = (NgramPool(rows, n) for n in range(1, REPEATED + 1))
    bits, (sizes, kinds, _) = tokens.of_each()[2].tolist(), fours.of_each()
    weights = weights_of(resamples(len(rows), seed, DRAWS))
    entropies, distincts = pairs.both(weights)
    pooled = partial(ends, centred=True, texts=len(rows))
    one, three = (pooled(pool.distincts(weights), pool.distinct()) for pool in (tokens, threes))
    return TextStats(
        entropy_bits=mean_interval(bits, seed),
        entropy_nats=mean_interval([x * math.log(2) for x in bits], seed),
        bigram_entropy_bits=pooled(entropies, pairs.entropy()),
        repetition=mean_interval(torch.where(sizes > 0, 1.0 - kinds / sizes, 0.0).tolist(), seed),
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
        self.texts, (kind, owner) = len(rows), grams(rows, n)[-1]
        pairs, times = torch.unique(kind * max(1, self.texts) + owner, return_counts=True)  # sorted by kind
        kind, self.owner, self.times = pairs // max(1, self.texts), pairs % max(1, self.texts), times.double()
        _, kind, holders = torch.unique_consecutive(kind, return_inverse=True, return_counts=True)
        single = holders[kind] == 1
        self._own_times, self._own_logs, self._own_kinds = self._by_text(single)
        self._sizes, self._logs, self._kinds = self._by_text(torch.ones_like(single))
        place = torch.unique_consecutive(kind[~single], return_inverse=True)[1]
        size = (int(place[-1]) + 1 if len(place) else 0, self.texts)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Sparse invariant checks")  # ours are right by construction
            self._shared = torch.sparse_coo_tensor(
                torch.stack([place, self.owner[~single]]), self.times[~single], size, check_invariants=False
            ).coalesce()

    def _by_text(self, where: Tensor) -> Iterator[Tensor]:
        """Of the n-grams `where`, over each text [texts]: Σ m, Σ m·log2 m, and how many kinds there are."""
        for values in (self.times, _xlog2x(self.times), torch.ones_like(self.times)):
            yield torch.bincount(self.owner[where], weights=values[where], minlength=self.texts).double()

    def both(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Entropies in bits and shares of different n-grams, [draws], for weights [draws, texts]; 0 for nothing.

        H = log2 N − Σ c·log2 c / N, with c the counts and N their sum.
        """
        entropies, distincts = list[Tensor](), list[Tensor]()
        for some in torch.split(weights, max(1, ROOM // max(1, self._shared.shape[0]))):
            # one row a text, in one piece: ten times as quick as reading down the columns
            counts = torch.sparse.mm(self._shared, some.T.contiguous())  # of the shared n-grams, [kinds, draws]
            logs = some @ self._own_logs + _xlog2x(some) @ self._own_times + _xlog2x(counts).sum(0)
            entropies.append(_entropy(some @ self._sizes, logs))
            kinds = (some > 0).double() @ self._own_kinds + (counts > 0).sum(0)
            distincts.append(kinds / (some @ self._sizes).clamp(min=1))
        return torch.cat(entropies), torch.cat(distincts)

    def entropies(self, weights: Tensor) -> Tensor:
        """Entropy in bits [draws] for weights [draws, texts]."""
        return self.both(weights)[0]

    def distincts(self, weights: Tensor) -> Tensor:
        """Share of different n-grams among all [draws]."""
        return self.both(weights)[1]

    def entropy(self) -> float:
        """In bits, of all texts once."""
        return float(self.entropies(torch.ones(1, self.texts, dtype=torch.float64)))

    def distinct(self) -> float:
        """Share of different n-grams among all, of all texts once."""
        return float(self.distincts(torch.ones(1, self.texts, dtype=torch.float64)))

    def of_each(self) -> tuple[Tensor, Tensor, Tensor]:
        """Of each text alone [texts]: how many n-grams, how many kinds of them, and their entropy in bits."""
        return self._sizes, self._kinds, _entropy(self._sizes, self._logs)


def weights_of(picks: Tensor) -> Tensor:
    """How often each of n texts is picked, [draws, n], by picks [draws, n]."""
    ones = torch.ones(picks.shape, dtype=torch.float64)
    return torch.zeros(picks.shape, dtype=torch.float64).scatter_add_(1, picks, ones)


def _entropy(total: Tensor, logs: Tensor) -> Tensor:
    """log2 N − Σ c·log2 c / N; 0 where N is."""
    return torch.where(total > 0, total.clamp(min=1).log2() - logs / total.clamp(min=1), 0.0).clamp(min=0.0)


def _xlog2x(x: Tensor) -> Tensor:
    """x·log2 x for whole numbers x ≥ 0; 0 for 0."""
    return x * x.clamp(min=1.0).log2()
