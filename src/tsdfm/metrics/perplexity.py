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
from dataclasses import dataclass

from tsdfm.errors import UserError
from tsdfm.metrics import Score
from tsdfm.metrics.intervals import Estimate, mean_interval, median_interval, ratio_interval

LN_2 = math.log(2)
MEDIAN_DRAWS = 400


@dataclass(frozen=True, kw_only=True)
class JudgeScores:
    """What one judge says of a set of texts. Texts without a scored token are left out, and counted as `unscored`."""

    ppl: Estimate | None = None
    ppl_corpus: Estimate | None = None
    ppl_geometric: Estimate | None = None
    ppl_median: Estimate | None = None
    nll: Estimate | None = None
    next_token_accuracy: Estimate | None = None
    bits_per_char: Estimate | None = None
    ppl_own: Estimate | None = None
    judge_tokens: int | None = None
    characters: int | None = None
    unscored: int | None = None


def judge_scores(scores: Sequence[Score], own_tokens: Sequence[int] | None = None, seed: int = 0) -> JudgeScores:
    """A judge's scores of texts, summed up.

    `own_tokens` counts each text's tokens in the sample's own tokenizer (of the continuation alone, with a prefix).
    """
    own = [0] * len(scores) if own_tokens is None else list(own_tokens)
    if len(own) != len(scores):
        raise UserError(f"there are {len(own)} counts of tokens for {len(scores)} scores")
    kept = [(score, mine) for score, mine in zip(scores, own, strict=True) if score.tokens]
    if not kept:
        return JudgeScores(unscored=len(scores))
    nll, tokens = [s.nll for s, _ in kept], [s.tokens for s, _ in kept]
    means = [s.nll / s.tokens for s, _ in kept]
    characters = [s.characters for s, _ in kept]
    each = [exp(mean) for mean in means]
    shared = [exp(s.nll / mine) for s, mine in kept if mine]
    per_char = [x / LN_2 for x in ratio_interval(nll, characters, seed)] if any(characters) else None
    return JudgeScores(
        ppl=mean_interval(each, seed),
        ppl_corpus=Estimate(*(exp(x) for x in ratio_interval(nll, tokens, seed))),
        ppl_geometric=Estimate(*(exp(x) for x in mean_interval(means, seed))),
        ppl_median=median_interval(each, seed, MEDIAN_DRAWS),
        nll=mean_interval(nll, seed),
        next_token_accuracy=ratio_interval([s.hits for s, _ in kept], tokens, seed),
        bits_per_char=Estimate(*per_char) if per_char else None,
        ppl_own=mean_interval(shared, seed) if shared else None,
        judge_tokens=sum(tokens),
        characters=sum(characters),
        unscored=len(scores) - len(kept),
    )


def exp(x: float) -> float:
    """e^x, the largest number there is rather than an error where that is too large."""
    return math.exp(min(x, 709.0))
