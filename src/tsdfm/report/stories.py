"""A set of texts before the story world's exact judge."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import Any

from tsdfm.compass.statistics import wilson
from tsdfm.corpus.story_judge import NOISE, judge
from tsdfm.corpus.world import World
from tsdfm.report.metrics import mean_interval


def judge_name(world: World) -> str:
    """The judge with its fingerprint: a hash of the world and of the noise it allows."""
    content = f"{world.fingerprint} {NOISE}"
    return f"story-world:{world.name}:{hashlib.sha256(content.encode()).hexdigest()[:8]}"


def judge_stories(texts: Sequence[str], world: World) -> dict[str, Any]:
    """Valid-story rate, perplexity and negative log-likelihood, with intervals, and which rules were broken.

    `ppl` is the mean over texts of exp(mean NLL of a word) under the ε-noisy world (finite for every text); `nll` is
    the mean NLL of a whole text under it; `nll_valid` is the exact one, over the valid stories alone.
    """
    verdicts = [judge(text, world) for text in texts]
    valid = [v for v in verdicts if v.valid]
    ppl, ppl_low, ppl_high = mean_interval([v.perplexity for v in verdicts])
    low, high = wilson(len(valid), len(verdicts))
    broken = Counter(violation.rule for v in verdicts for violation in v.violations)
    return {
        "judge": judge_name(world),
        "valid": len(valid) / len(verdicts),
        "valid_interval": [low, high],
        "ppl": ppl,
        "ppl_interval": [ppl_low, ppl_high],
        "nll": sum(-v.noisy_log_likelihood for v in verdicts) / len(verdicts),
        "nll_valid": sum(-v.log_likelihood for v in valid) / len(valid) if valid else None,
        "broken_rules": dict(broken.most_common()),
    }
