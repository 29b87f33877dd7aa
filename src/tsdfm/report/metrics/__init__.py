"""What is measured of a set of texts. Most metrics give one value a text, so that intervals can be put on their mean.

intervals    bootstrap of means, pooled means and any statistic
pool         the n-grams of all texts, counted again for many weights of the texts
histogram    entropy in bits and nats, pooled bigram entropy, distinct-n, repetition
perplexity   the definitions in use, bits per character, next-token accuracy, from a judge's scores
diversity    self-BLEU, edit distance, position difference, agreement, predicted-token accuracy
success      pass@k
mauve        MAUVE, from features of a judge
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from tsdfm.report.metrics.diversity import (
    bleu,
    edit_distance,
    levenshtein,
    pairs,
    position_difference,
    self_bleu,
    token_accuracy,
    token_agreement,
)
from tsdfm.report.metrics.histogram import (
    REPEATED,
    bigram_entropy_bits,
    bigram_entropy_interval,
    distinct,
    distinct_interval,
    distinct_of,
    entropies_of,
    entropy_bits,
    entropy_nats,
    pooled_intervals,
    repetition,
    repetition_of,
    token_repetition,
)
from tsdfm.report.metrics.intervals import interval, mean_interval, ratio_interval
from tsdfm.report.metrics.mauve import cluster_count, mauve, mauve_interval
from tsdfm.report.metrics.perplexity import bits_per_character, judge_fields, next_token_accuracy, perplexities
from tsdfm.report.metrics.pool import Pool, grams
from tsdfm.report.metrics.success import pass_at_k, passes_at_k

__all__ = [
    "bigram_entropy_bits",
    "bigram_entropy_interval",
    "bits_per_character",
    "bleu",
    "cluster_count",
    "distinct",
    "distinct_interval",
    "edit_distance",
    "entropy_bits",
    "entropy_nats",
    "interval",
    "judge_fields",
    "levenshtein",
    "mauve",
    "mauve_interval",
    "mean_interval",
    "next_token_accuracy",
    "pairs",
    "pass_at_k",
    "passes_at_k",
    "perplexities",
    "position_difference",
    "ratio_interval",
    "repetition",
    "self_bleu",
    "text_fields",
    "token_accuracy",
    "token_agreement",
    "token_repetition",
]


def text_fields(rows: Sequence[Tensor], seed: int = 0) -> dict[str, Any]:
    """The fields of a row that need no judge, each with its interval; `rows` are the texts' tokens without padding."""
    tokens, pairs, threes, fours = (Pool.of(len(rows), *found) for found in grams(rows, REPEATED))
    bits, (pooled, distinct_2) = entropies_of(tokens), pooled_intervals(pairs, seed)
    found = {
        "entropy_bits": mean_interval(bits, seed),
        "entropy_nats": mean_interval([x * math.log(2) for x in bits], seed),
        "bigram_entropy_bits": pooled,
        "repetition": mean_interval(repetition_of(fours), seed),
        "distinct_1": distinct_of(tokens, seed),
        "distinct_2": distinct_2,
        "distinct_3": distinct_of(threes, seed),
    }
    out: dict[str, Any] = {}
    for name, (value, low, high) in found.items():
        out |= {name: value, f"{name}_interval": [low, high]}
    return {**out, "entropy_interval": out["entropy_bits_interval"]}
