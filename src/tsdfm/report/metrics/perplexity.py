"""Perplexity under a judge, in every definition in use, from the scores of texts.

With nll_i nats over n_i tokens in text i (SEDD, flow_matching and FS-DFM, hence the paper; MDLM, ReMDM and Duo; SDTT):

    ppl            mean_i exp(nll_i / n_i)                the paper's: one bad text weighs as much as it likes
    ppl_corpus     exp(Σ nll_i / Σ n_i)                   of all texts as one corpus
    ppl_geometric  exp(mean_i nll_i / n_i)                equals ppl_corpus where all texts are equally long
    ppl_median     median_i exp(nll_i / n_i)              ours: what a typical text has

By Jensen ppl ≥ ppl_geometric always. n_i counts the judge's tokens; `ppl_own` is the paper's definition per token of
the sample's own tokenizer, which lets judges with different tokenizers be compared, as bits per character does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tsdfm.errors import UserError
from tsdfm.judges.base import Score
from tsdfm.report.metrics.intervals import mean_interval, median_interval, ratio_interval

LN_2 = math.log(2)
MEDIAN_DRAWS = 400


def judge_fields(scores: Sequence[Score], own_tokens: Sequence[int] | None = None, seed: int = 0) -> dict[str, Any]:
    """The fields of a row that a judge gives, each with its interval. Texts without a scored token are left out.

    `own_tokens` counts each text's tokens in the sample's own tokenizer (of the continuation alone, with a prefix).
    """
    own = [0] * len(scores) if own_tokens is None else list(own_tokens)
    if len(own) != len(scores):
        raise UserError(f"there are {len(own)} counts of tokens for {len(scores)} scores")
    kept = [(score, mine) for score, mine in zip(scores, own, strict=True) if score.tokens]
    if not kept:
        return {"ppl": None, "ppl_interval": None, "unscored": len(scores)}
    nll, tokens = [s.nll for s, _ in kept], [s.tokens for s, _ in kept]
    means = [s.nll / s.tokens for s, _ in kept]
    hits, characters = [s.hits for s, _ in kept], [s.characters for s, _ in kept]
    each = [exp(mean) for mean in means]
    out = {
        **_named("ppl", mean_interval(each, seed)),
        **_named("ppl_corpus", [exp(x) for x in ratio_interval(nll, tokens, seed)]),
        **_named("ppl_geometric", [exp(x) for x in mean_interval(means, seed)]),
        **_named("ppl_median", median_interval(each, seed, MEDIAN_DRAWS)),
        **_named("nll", mean_interval(nll, seed)),
        **_named("next_token_accuracy", ratio_interval(hits, tokens, seed)),
    }
    if any(characters):
        out |= _named("bits_per_char", [x / LN_2 for x in ratio_interval(nll, characters, seed)])
    shared = [exp(s.nll / mine) for s, mine in kept if mine]
    if shared:
        out |= _named("ppl_own", mean_interval(shared, seed))
    return {**out, "judge_tokens": sum(tokens), "characters": sum(characters), "unscored": len(scores) - len(kept)}


def perplexities(scores: Sequence[Score]) -> list[float]:
    """exp(mean nll) of each text that has a scored token; their mean is the paper's perplexity."""
    return [exp(s.nll / s.tokens) for s in scores if s.tokens]


def bits_per_character(scores: Sequence[Score]) -> float:
    """Σ nll / (ln 2 · Σ characters)."""
    characters = sum(s.characters for s in scores)
    if not characters:
        raise UserError("bits per character need a text with at least one character")
    return sum(s.nll for s in scores) / (LN_2 * characters)


def next_token_accuracy(scores: Sequence[Score]) -> float:
    """How often the judge's likeliest token was the one that came, over all scored tokens."""
    tokens = sum(s.tokens for s in scores)
    return sum(s.hits for s in scores) / tokens if tokens else 0.0


def exp(x: float) -> float:
    """e^x, the largest number there is rather than an error where that is too large."""
    return math.exp(min(x, 709.0))


def _named(name: str, found: Sequence[float]) -> dict[str, Any]:
    value, low, high = found
    return {name: value, f"{name}_interval": [low, high]}
