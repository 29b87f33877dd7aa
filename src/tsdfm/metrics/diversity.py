"""How different texts are from each other: self-BLEU, differing positions, agreement; one value a text (or place).

The paper's «pairwise edit distance» counts positions that differ, that is a Hamming distance.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from functools import reduce
from operator import or_

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
    counts = [[Counter(tuple(text[i : i + n]) for i in range(len(text) - n + 1)) for n in range(1, order + 1)]
              for text in texts]  # fmt: skip
    found = []
    for i, text in enumerate(texts):
        others = counts[:i] + counts[i + 1 :]
        most = [reduce(or_, grams) for grams in zip(*others, strict=True)]  # of each n-gram, in any one other text
        matches = [(mine & theirs).total() for mine, theirs in zip(counts[i], most, strict=True)]
        totals = [max(0, len(text) - n) for n in range(order)]
        lengths = [len(other) for other in (*texts[:i], *texts[i + 1 :])]
        nearest = min(lengths, key=lambda n: (abs(n - len(text)), n))  # the shorter of two equally near ones
        found.append(_bleu(matches, totals, len(text), nearest))
    return found


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
    same = (_holders(rows) - 1).double() / (len(rows) - 1)
    return [float(x) for x in 1.0 - same.mean(1)]


def _holders(rows: Tensor) -> Tensor:
    """How many texts have the token that each one has at each place, [n, L]."""
    return torch.stack([(rows == row).sum(0) for row in rows])


def token_agreement(rows: Tensor) -> list[float]:
    """At each position of [n, L], the share of texts that have the most popular token there; L values."""
    if not len(rows):
        raise UserError("agreement needs at least one text")
    return [count / len(rows) for count in _holders(rows).amax(0).tolist()]


def token_accuracy(predicted: Tensor, reference: Tensor, where: Tensor) -> list[float]:
    """Share of the positions `where` [n, L] (those that were not given) at which a text has the reference's token.

    A text without such a position is left out.
    """
    right = ((predicted == reference) & where).sum(-1).double()
    asked = where.expand_as(predicted).sum(-1).double()
    return [float(r / a) for r, a in zip(right, asked, strict=True) if a > 0]
