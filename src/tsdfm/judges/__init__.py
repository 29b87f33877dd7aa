"""Judges: models that say how likely a text is. Between the samples and the report.

base      what a judge is, and the conventions    windows   texts longer than a judge's context, batches
world     the story world's exact judge           causal    any next-token network as a judge
hub       transformers models                     gguf      GGUF files, wheels, SmolLM2-135M
inhouse   models trained by `tsdfm judge train`   cache     scores that survive an interruption
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tsdfm.judges.base import Judge, Score
from tsdfm.lazy import lazily

if TYPE_CHECKING:
    from tsdfm.judges.cache import score_file
    from tsdfm.judges.load import judge_from

__all__ = ["Judge", "Score", "judge_from", "score_file"]

__getattr__ = lazily(__name__, {"judge_from": "load", "score_file": "cache"})
