"""How different texts are from each other: self-BLEU, differing positions, agreement; one value a text (or place).

The paper's «pairwise edit distance» counts positions that differ, that is a Hamming distance.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from tsdfm.errors import UserError

ORDER = 4
Words = Sequence[Hashable]


def self_bleu(texts: Sequence[Words], order: int = ORDER) -> list[float]:
    """BLEU of each text against all the others as its references, from 0 (nothing shared) to 1 (said by another too).

    Texts are lists of tokens (or words). Clipped n-gram precisions up to `order` and the brevity penalty are as in
    BLEU; an order without a match counts as 1/(2^k · n-grams), the k-th such one, which is what sacrebleu calls `exp`
    smoothing; orders longer than the text are left out.
    """
    if len(texts) < 2:
        raise UserError("self-BLEU needs at least two texts")
    counts = [[Counter(_grams(text, n)) for n in range(1, order + 1)] for text in texts]
    tops = [_largest_two([c[n] for c in counts]) for n in range(order)]
    lengths = Counter(len(text) for text in texts)
    found = []
    for i, text in enumerate(texts):
        matches, totals = [], []
        for n in range(order):
            mine = counts[i][n]
            matches.append(sum(min(count, _elsewhere(tops[n][gram], i)) for gram, count in mine.items()))
            totals.append(max(0, len(text) - n))
        found.append(_bleu(matches, totals, len(text), _closest(lengths, len(text))))
    return found


def _grams(text: Words, n: int) -> list[Words]:
    return [tuple(text[i : i + n]) for i in range(len(text) - n + 1)]


def _largest_two(counts: Sequence[Counter[Words]]) -> dict[Words, tuple[int, int, int]]:
    """For each n-gram: its largest count in a text, which text that is, and the largest count in any other."""
    top: dict[Words, tuple[int, int, int]] = {}
    for i, mine in enumerate(counts):
        for gram, count in mine.items():
            first, who, second = top.get(gram, (0, -1, 0))
            top[gram] = (count, i, first) if count > first else (first, who, max(second, count))
    return top


def _elsewhere(top: tuple[int, int, int], i: int) -> int:
    """The largest count in a text other than i."""
    return top[2] if top[1] == i else top[0]


def _closest(lengths: Counter[int], length: int) -> int:
    """The length of another text nearest to this one's (the shorter of two equally near ones)."""
    others = [n for n, count in lengths.items() if count > (n == length)]
    return min(others, key=lambda n: (abs(n - length), n))


def _bleu(matches: Sequence[int], totals: Sequence[int], length: int, reference: int) -> float:
    logs, halvings = [], 0
    for match, total in zip(matches, totals, strict=True):
        if not total:
            break
        if not match:
            halvings += 1
        logs.append(math.log(match / total if match else 1.0 / (2.0**halvings * total)))
    if not logs or not any(matches):  # nothing in common at all is 0, not a smoothed something
        return 0.0
    penalty = min(0.0, 1.0 - reference / length)
    return math.exp(penalty + sum(logs) / len(logs))


def position_difference(rows: Tensor) -> list[float]:
    """Share of positions at which each text [n, L] differs from each other one, averaged over the others.

    The mean over texts is the paper's pairwise edit distance.
    """
    if len(rows) < 2:
        raise UserError("a pairwise distance needs at least two texts")
    # texts that share v at a place: Σ_v c_v(c_v − 1) ordered pairs, c_v − 1 of them for each holder of v
    holders = torch.stack([_holders(column) for column in rows.T], dim=1)  # [n, L]
    same = (holders - 1).double() / (len(rows) - 1)
    return [float(x) for x in 1.0 - same.mean(1)]


def _holders(column: Tensor) -> Tensor:
    """How many texts have the token that each one has here, [n]."""
    _, kind, counts = torch.unique(column, return_inverse=True, return_counts=True)
    held: Tensor = counts[kind]
    return held


def token_agreement(rows: Tensor) -> list[float]:
    """At each position of [n, L], the share of texts that have the most popular token there; L values."""
    if not len(rows):
        raise UserError("agreement needs at least one text")
    return [float(torch.unique(column, return_counts=True)[1].max()) / len(rows) for column in rows.T]


def token_accuracy(predicted: Tensor, reference: Tensor, where: Tensor) -> list[float]:
    """Share of the positions `where` [n, L] (those that were not given) at which a text has the reference's token.

    A text without such a position is left out.
    """
    right = ((predicted == reference) & where).sum(-1).double()
    asked = where.expand_as(predicted).sum(-1).double()
    return [float(r / a) for r, a in zip(right, asked, strict=True) if a > 0]
